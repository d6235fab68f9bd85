"""Tables of simulators of several agents: the rows of all agents of B copies, written into rollouts as the simulator gives them.

`zoo.agents.tensor_table` does the same for tensor programs, `zoo.agents.table` for one copy of other envs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.agents.layout import (
    ACTS,
    AGENT,
    BEGINS,
    EPISODE,
    OBS,
    REWARD,
    ROWS,
    STATE,
    TERMINATED,
    Group,
    Layout,
)
from zoo.config.section import own_copy
from zoo.core.action_map import ActionMap, action_width
from zoo.core.data import Obs, Tree, leaf_items, map_tensors
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, Leaf, empty_obs
from zoo.env import EnvConfig
from zoo.env.errors import EnvError, Place, UnsupportedEnvError
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.interface import AnyVectorEnv, EnvCommand, StepBlock
from zoo.env.make import env_name
from zoo.env.settings import apply
from zoo.env.tensor.agent_simulator import AgentOutcome, AgentSimulator, Seen


class SimulatorTables(AnyVectorEnv):
    """B copies of a simulator of several agents; its observations are tables, see `Layout`.

    What the simulator gives is copied once, into the rows of a rollout. An agent that does not act now has its observation in
    its row, and a mask that allows all.
    """

    autoreset = 'same_step'

    def __init__(self, simulator: AgentSimulator, layout: Layout, cfg: EnvConfig, request: EnvRequest) -> None:
        self.name = request.name
        self.n_env = request.n_env
        self.simulator = simulator
        self.obs_space, self.action_space = layout.table_spaces()
        self._layout = layout
        self._first = request.first
        self._place = Place(request.name)
        self._reader = None
        if request.device.startswith('cuda'):
            self._reader = torch.device(request.device)
        self._groups = [_GroupRows(group) for group in {group.entry: group for group in layout.groups}.values()]
        self._slots = [slot for rows in self._groups for slot in rows.group.slots]  # the agents in the order of tables
        self._takers = _takers(self._groups, simulator.action_spaces, cfg.action_mode)
        score = torch.zeros(len(layout.agents))
        score[list(layout.score)] = 1.0
        if not layout.score_sums:
            score /= len(layout.score)
        self._score = score
        self._episode = torch.zeros(self.n_env)
        self._begun: Tensor | None = (
            None  # [B, A] bool, who has acted in the running episodes; None: before the first reset
        )

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Starts new episodes; returns their first tables. Raises: EnvContractError if a number of them is not finite."""
        sequence = seed
        if not isinstance(sequence, np.random.SeedSequence):
            sequence = np.random.SeedSequence(sequence)
        if self._first:
            sequence = np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, self._first))
        seen = self.simulator.reset(int(sequence.generate_state(1, np.uint64)[0]))
        self._place.step = 0
        self.check()
        self._episode.zero_()
        self._begun = torch.zeros_like(seen.acts)
        self._acts = seen.acts
        table = empty_obs(self.obs_space, (self.n_env,))
        self._write(table, seen, self._begun, None, None)
        return table

    def request_infos(self, keys: Sequence[str]) -> None:
        """Raises: UnsupportedEnvError if there are keys: the infos of simulators are not read."""
        if keys:
            raise UnsupportedEnvError(
                f'env {self.name!r} steps all its copies as one program, whose infos are not read, but the entries {list(keys)} of '
                'them are wanted (env.info_columns, logger.info_step_keys); leave these out.'
            )

    def command(self, command: EnvCommand) -> list[Any]:
        if command.kind != 'get' or self.simulator.source is None:
            raise UnsupportedEnvError(
                f'{command.kind} of {command.name!r}: env {self.name!r} steps all its copies as one program, which keeps the '
                'numbers that it was made with; use env.kwargs.'
            )
        return [apply(self.simulator.source, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        raise UnsupportedEnvError(
            f'env.reset_options is set but the resets of {self.name!r} take no options; use env.kwargs.'
        )

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        return StepBlock(n_step, empty_obs(self.obs_space, (n_env or self.n_env,)), reader=self._reader)

    def send(self, action: Tensor) -> None:
        self._action = action

    def receive(self, block: StepBlock, t: int) -> None:
        if self._begun is None:
            raise EnvError(f'env {self.name!r}: step was called before the first reset; call reset first.')
        self._place.step += 1
        out = self.simulator.step([take(self._action) for take in self._takers])
        begun = self._begun | self._acts
        ended = out.terminated | out.truncated
        row = block.rows[t]
        row.reward.copy_(out.reward @ self._score)
        row.terminated.copy_(out.terminated)
        row.truncated.copy_(out.truncated)
        index = ended.nonzero().squeeze(1)
        if len(index):
            block.finals.append((t, index.numpy(), self._final_tables(index, out, begun)))
            self._episode += ended
            begun = begun & ~ended.unsqueeze(1)
        self._write(row.obs, out.seen, begun, out.reward, None)
        self._begun = begun
        self._acts = out.seen.acts

    def check(self, block: StepBlock | None = None) -> None:
        """Raises: EnvContractError that names the first copy and step with a number that is not finite."""
        bad = self.simulator.find_bad()
        if bad is None:
            return
        raise Place(self.name, bad.step).error(
            bad.env,
            'the observation or the reward of an agent is not finite, or a mask allows nothing',
            'finite numbers',
            'report it to the authors of the env; if its actions are continuous, look at the policies too',
        )

    def close(self) -> None:
        self.simulator.close()

    def _final_tables(self, index: Tensor, out: AgentOutcome, begun: Tensor) -> Any:
        """The last tables of the copies that ended, as arrays. Args: index: [K], of these."""
        table = empty_obs(self.obs_space, (len(index),))
        of_copies = Seen([map_tensors(lambda x: x[index], obs) for obs in out.reached.obs], out.reached.acts[index])
        self._write(table, of_copies, begun[index], out.reward[index], out.terminated[index], self._episode[index])
        return map_tensors(Tensor.numpy, table)

    def _write(
        self,
        table: Mapping[str, Any],
        seen: Seen,
        begun: Tensor,
        reward: Tensor | None,
        terminated: Tensor | None,
        episode: Tensor | None = None,
    ) -> None:
        """Writes N tables.

        Args: begun: [N, A] bool, who has acted in these episodes; reward: [N, A] of the last step, None: there was none;
          terminated: [N] bool of last tables, None: these are others; episode: [N], the numbers of the episodes.
        """
        acts = seen.acts
        if terminated is not None:
            acts = acts & ~terminated.unsqueeze(1)
        for rows in self._groups:
            rows.write(table[rows.group.entry], seen.obs, acts)
        if self._layout.state == 'concat':
            self._write_concat(table[STATE], seen, acts | begun)
        columns = table[ROWS]
        columns.zero_()
        columns[..., ACTS] = acts.float()
        columns[..., BEGINS] = (acts & ~begun).float()
        if reward is not None:
            columns[..., REWARD] = reward
        if terminated is not None:
            columns[..., TERMINATED] = terminated.float().unsqueeze(1)
        if self._layout.counts_episodes:
            if episode is None:
                episode = self._episode
            columns[..., EPISODE] = episode.unsqueeze(1)

    def _write_concat(self, memory: Tensor, seen: Seen, shown: Tensor) -> None:
        """Writes the observations of all agents without masks side by side, zeros of an agent that is not `shown`, [N, A]."""
        start = 0
        for slot in self._slots:
            for path, x in leaf_items(seen.obs[slot]):
                if path == (ACTION_MASK,):
                    continue
                flat = x.flatten(1)
                stop = start + flat.shape[1]
                memory[:, start:stop] = torch.where(shown[:, slot : slot + 1], flat, 0.0)
                start = stop


class _GroupRows:
    """Writes the rows of the agents of a group. Attributes: group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._ids = torch.eye(len(group.slots))
        self._choices: list[Tensor] = []  # of each agent, where masks only hide padded choices
        full = group.action_space
        if group.mask_of == 'pad' and isinstance(full, Discrete):
            self._choices = [
                torch.arange(full.n) < space.n for space in group.raw_actions if isinstance(space, Discrete)
            ]

    def write(self, memory: Tree, obs: Sequence[Obs], acts: Tensor) -> None:
        """Args: memory: [N, S, ...], or a dict of these; obs: of all agents; acts: [N, A] bool."""
        for i, slot in enumerate(self.group.slots):
            _write_row(self._place_of_obs(memory), i, obs[slot])
        if self.group.has_id:
            self._write_ids(memory)
        if self.group.mask_of and isinstance(memory, dict):
            mask = memory[ACTION_MASK]
            for i, choices in enumerate(self._choices):
                mask[:, i] = choices
            mask |= ~acts[:, list(self.group.slots)].unsqueeze(2)

    def _place_of_obs(self, memory: Tree) -> Tree:
        """The part of the memory for what the env itself gives."""
        if isinstance(memory, dict) and not isinstance(self.group.raw_spaces[0], Dict):
            return memory[OBS]
        return memory

    def _write_ids(self, memory: Tree) -> None:
        if isinstance(memory, dict):
            memory[AGENT].copy_(self._ids)
        else:
            memory[:, :, -len(self._ids) :] = self._ids


def _write_row(memory: Tree, index: int, obs: Obs) -> None:
    """Copies the observations of an agent, [N, *O], into its row; behind a vector that is shorter are zeros."""
    if isinstance(obs, Mapping):
        for name, part in obs.items():
            if name in memory:  # masks that env.action_mask=off leaves out
                _write_row(memory[name], index, part)
        return
    row = memory[:, index]
    if row.shape == obs.shape:
        row.copy_(obs)
        return
    n = obs.shape[1]
    row[:, :n] = obs
    row[:, n:] = 0.0


class _Taker:
    """The actions of one agent, out of those of tables, in the form of the env."""

    def __init__(self, columns: slice, space: Leaf, mode: str) -> None:
        self._columns = columns
        self._space = space
        self._map = ActionMap(space, mode, 'cpu')  # type: ignore[arg-type]  # of the config
        self._is_index = not hasattr(space, 'low')

    def __call__(self, action: Tensor) -> Tensor:
        own = action[:, self._columns]
        if self._is_index:
            own = own.long()
        if not self._space.shape:
            own = own.squeeze(1)
        return self._map.map(own)


def _takers(groups: Sequence[_GroupRows], spaces: Sequence[Leaf], mode: str) -> list[_Taker]:
    """What takes the actions of each agent, in the order of all agents. Args: spaces: of their actions."""
    takers = {}
    start = 0
    for rows in groups:
        space = rows.group.action_space
        assert not isinstance(space, Dict), 'simulators have single spaces'
        width = action_width(space)
        for slot in rows.group.slots:
            takers[slot] = _Taker(slice(start, start + width), spaces[slot], mode)
            start += width
    return [takers[slot] for slot in range(len(spaces))]


@dataclass(frozen=True)
class SimulatorTablesFamily(EnvFamily):
    """What makes the tables of a simulator. Attributes: env_name: the name of the env in messages."""

    env_name: str = ''


def simulator_tables(cfg: EnvConfig, family: EnvFamily, layout: Layout) -> SimulatorTablesFamily:
    """The family that makes the tables of a simulator of several agents. Args: family: of the env."""
    fixed = replace(layout, mapping=None)  # processes get it, and a mapping may hold policies
    make: Any = partial(_make_tables, cfg, family, fixed)  # of a vector env of zoo itself
    return SimulatorTablesFamily(make, env_name=env_name(cfg))


def _make_tables(cfg: EnvConfig, family: EnvFamily, layout: Layout, request: EnvRequest) -> SimulatorTables:
    assert family.make_agents is not None, 'the family makes envs of several agents'
    simulator = family.make_agents(request._replace(max_episode_steps=cfg.max_episode_steps), **own_copy(cfg.kwargs))
    assert simulator is not None, 'the layout is of several agents'
    return SimulatorTables(simulator, layout, cfg, request)
