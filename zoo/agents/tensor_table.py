"""Tables of tensor envs of several agents: the rows of all agents of B copies, as one tensor program.

`zoo.agents.table.TableEnv` does the same for one copy of other envs.
"""

from __future__ import annotations

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
    N_COLUMN,
    OBS,
    REWARD,
    ROWS,
    STATE,
    TERMINATED,
    Group,
    Layout,
)
from zoo.core.action_map import ActionMap, action_width
from zoo.core.data import Obs, Timestep, map_tensors
from zoo.core.spaces import ACTION_MASK, Box, Dict, empty_obs
from zoo.env import EnvConfig
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.interface import AnyVectorEnv, StepBlock
from zoo.env.make import env_name
from zoo.env.tensor.agents import AgentTensorEnv
from zoo.env.tensor.program import State, TensorEnv, rebuild, state_leaves
from zoo.env.tensor.vector import TensorVectorEnv, tensor_env_of


class TensorTable(TensorEnv):
    """Copies of an env of several agents as a tensor env of one agent, whose observations are tables, see `Layout`.

    An agent that does not act now has its observation in its row, and a mask that allows all. Actions are the numbers of all
    groups side by side, as `zoo.agents.rows.ActionJoin` gives them. The state has behind that of the env the rewards of the last
    step, [N, A], which agents have acted before, and which are at their end, [N, A] bool.
    """

    def __init__(self, env: AgentTensorEnv, layout: Layout, action_mode: str) -> None:
        self._env = env
        self._layout = layout
        self.n_noise = env.n_noise
        self.n_step_noise = env.n_step_noise
        self.max_episode_steps = env.max_episode_steps
        self.obs_space, _ = layout.table_spaces()
        self._groups = list({group.entry: group for group in layout.groups}.values())
        n = len(layout.agents)
        self._width = action_width(env.action_space)
        bound = np.full(n * self._width, np.inf, np.float32)
        self.action_space = Box(-bound, bound)
        slots = [slot for group in self._groups for slot in group.slots]
        self._slots = torch.tensor(slots)  # the agents in the order of tables
        self._order = self._slots.argsort()  # the place of each agent's action
        self._map = ActionMap(env.action_space, action_mode, 'cpu')  # type: ignore[arg-type]  # of the config
        self._like = env.reset(torch.zeros(1, env.n_noise))
        scored = torch.zeros(n)
        scored[list(layout.score)] = 1.0
        if not layout.score_sums:
            scored /= len(layout.score)
        self._score = scored

    def reset(self, noise: Tensor) -> State:
        state = self._env.reset(noise)
        shape = (len(noise), len(self._layout.agents))
        none = torch.zeros(shape, dtype=torch.bool)
        return (*state_leaves(state), torch.zeros(shape), none, none)

    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        *leaves, _, begun, _ = state
        inner = rebuild(self._like, leaves)
        n_copy, n_agent = begun.shape
        flat = action.view(n_copy, n_agent, self._width)[:, self._order].flatten(0, 1)
        if isinstance(self._env.action_space, Box):
            sent = (
                self._map.map(flat)
                .unflatten(0, (n_copy, n_agent))
                .reshape(n_copy, n_agent, *self._env.action_space.shape)
            )
        else:
            sent = self._map.map(flat.squeeze(1).long()).unflatten(0, (n_copy, n_agent))
        begun = begun | self._env.acts(inner)
        inner, reward, terminated = self._env.step(inner, sent, noise)
        ended = terminated.unsqueeze(1).expand(n_copy, n_agent)
        return (*state_leaves(inner), reward, begun, ended), reward @ self._score, terminated

    def observe(self, state: State) -> Obs:
        *leaves, reward, begun, ended = state
        inner = rebuild(self._like, leaves)
        obs = self._env.observe(inner)
        acts = self._env.acts(inner) & ~ended
        table: dict[str, Any] = {group.entry: _rows_of(group, obs, acts) for group in self._groups}
        if self._layout.state == 'env':
            table[STATE] = self._env.world(inner)
        elif self._layout.state == 'concat':
            table[STATE] = _side_by_side(obs, acts | begun | ended, self._slots)
        columns = torch.zeros((*reward.shape, N_COLUMN))
        columns[..., ACTS] = acts.float()
        columns[..., BEGINS] = (acts & ~begun).float()
        columns[..., REWARD] = reward
        columns[..., TERMINATED] = ended.float()
        table[ROWS] = columns
        return table


def _rows_of(group: Group, obs: Obs, acts: Tensor) -> Obs:
    """The rows of a group in N tables, [N, S, ...]. Args: obs: of all agents, [N, A, *O]; acts: [N, A] bool."""
    slots = list(group.slots)
    rows = map_tensors(lambda x: x[:, slots], obs)
    one_hot = None
    if group.has_id:
        one_hot = torch.eye(len(slots)).expand(len(acts), -1, -1)
    if not isinstance(group.own_space, Dict):
        if one_hot is None:
            return rows
        return torch.cat((rows, one_hot), 2)
    if not isinstance(rows, dict):
        rows = {OBS: rows}
    if one_hot is not None:
        rows = {**rows, AGENT: one_hot}
    if group.mask_of:
        rows = {**rows, ACTION_MASK: rows[ACTION_MASK] | ~acts[:, slots].unsqueeze(2)}
    return {name: rows[name] for name in group.own_space.spaces}


def _side_by_side(obs: Obs, shown: Tensor, order: Tensor) -> Tensor:
    """The observations of all agents without masks, [N, K], in an order; zeros where `shown`, [N, A], is false."""
    if isinstance(obs, dict):
        parts = [x.flatten(2) for name, x in obs.items() if name != ACTION_MASK]
        flat = torch.cat(parts, 2)
    else:
        flat = obs.flatten(2)
    return torch.where(shown.unsqueeze(2), flat, 0.0)[:, order].flatten(1)


class TensorTables(TensorVectorEnv):
    """B copies of a tensor env of several agents; its observations are tables.

    They step on the CPU, also where policies are on a GPU: rows are sorted by what agents did, which Python reads.
    """

    is_tensor_program = False

    def __init__(self, table: TensorTable, layout: Layout, cfg: EnvConfig, request: EnvRequest) -> None:
        super().__init__(table, cfg, request.name, request.n_env, 'cpu', request.first)
        _, self.action_space = layout.table_spaces()  # type: ignore[assignment]  # those of tables are Dicts
        self._counts_episodes = layout.counts_episodes
        self._episode = torch.zeros(request.n_env)
        self._reader = None
        if request.device.startswith('cuda'):
            self._reader = torch.device(request.device)

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        self._episode.zero_()
        return super().reset(seed)

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        return StepBlock(n_step, empty_obs(self.obs_space, (n_env or self.n_env,)), reader=self._reader)

    def step(self, action: Tensor) -> Timestep:
        return AnyVectorEnv.step(self, action)

    def receive(self, block: StepBlock, t: int) -> None:
        done = super().step(self._action)
        row = block.rows[t]
        map_tensors(Tensor.copy_, row.obs, done.obs)
        row.reward.copy_(done.reward)
        row.terminated.copy_(done.terminated)
        row.truncated.copy_(done.truncated)
        ended = done.terminated | done.truncated
        index = ended.nonzero().squeeze(1)
        if len(index):
            final = map_tensors(lambda x: x[index].numpy(), done.next_obs)
            if self._counts_episodes:
                final[ROWS][..., EPISODE] = self._episode[index].unsqueeze(1).numpy()
            block.finals.append((t, index.numpy(), final))
        if self._counts_episodes:
            self._episode += ended
            row.obs[ROWS][..., EPISODE] = self._episode.unsqueeze(1)


@dataclass(frozen=True)
class TensorTablesFamily(EnvFamily):
    """What makes the tables of a tensor env. Attributes: env_name: the name of the env in messages."""

    env_name: str = ''


def tensor_tables(cfg: EnvConfig, layout: Layout) -> TensorTablesFamily:
    """The family that makes the tables of the tensor env of a section env."""
    fixed = replace(layout, mapping=None)  # processes get it, and a mapping may hold policies
    make: Any = partial(_make_tables, cfg, fixed)  # of a vector env of zoo itself
    return TensorTablesFamily(make, env_name=env_name(cfg))


def _make_tables(cfg: EnvConfig, layout: Layout, request: EnvRequest) -> TensorTables:
    env = tensor_env_of(request._replace(game=cfg.game or '', device='cpu'), cfg.kwargs)
    assert isinstance(env, AgentTensorEnv), 'the layout is of several agents'
    table = TensorTable(env, layout, cfg.action_mode)
    if cfg.max_episode_steps is not None:
        table.max_episode_steps = cfg.max_episode_steps
    plain = cfg.model_copy(update={'max_episode_steps': None, 'action_mask': 'off'})
    return TensorTables(table, layout, plain, request)
