"""TableEnv: an env of several agents as one gymnasium env, whose observation is a table with a row for each agent.

So everything that steps and watches single envs, in this process or in others, does so with envs of several agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from zoo.agents.game import AgentGame, End, Turn
from zoo.agents.games import make_game
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
    TRUNCATED,
    Group,
    Layout,
)
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, MultiDiscrete, Raw, Space
from zoo.env.adapter import gymnasium_space
from zoo.env.config import EndsConfig, EnvConfig
from zoo.env.errors import BrokenContractError
from zoo.env.infos import numbers_of
from zoo.env.make import env_name, find_env
from zoo.env.rules import Ends

Buffer = Any
"""The memory of the rows of a group: an array [S, ...], or a dict of such."""


class TableEnv(gymnasium.Env):
    """One env of several agents. Its observation has for each policy the rows of its agents, and the columns of all agents.

    The row of an agent shows what it acts on, or at its end its last observation; of an agent that does not act now, zeros
    and a mask that allows all. The reward of a step is the part of an episode's return that `Layout.score` names.
    Args: max_episode_steps: steps after which the episode of all agents is cut off, None: never; ends: as env.ends.
    """

    def __init__(
        self, game: AgentGame, layout: Layout, max_episode_steps: int | None = None, ends: EndsConfig | None = None
    ) -> None:
        self.game = game
        self.env = game.env  # where attributes of the env are looked for
        self.layout = layout
        self.metadata = game.metadata
        self.render_mode = game.render_mode
        self._limit = max_episode_steps
        self._ends: Ends | None = None
        if ends is not None and ends != EndsConfig():
            self._ends = Ends(ends, layout.name, 'disabled')
        obs_space, action_space = layout.table_spaces()
        self.observation_space = gymnasium_space(obs_space)
        self.action_space = gymnasium_space(action_space)
        self._columns = np.zeros((len(layout.agents), N_COLUMN), np.float32)
        self._table: dict[str, Any] = {ROWS: self._columns}
        self._rows = _Rows()
        for group in {group.entry: group for group in layout.groups}.values():
            memory = _GroupMemory(group)
            self._table[group.entry] = memory.buffer
            for i, slot in enumerate(group.slots):
                self._rows[layout.agents[slot]] = _Row(memory, group, i)
        if layout.state_space is not None:
            self._table[STATE] = np.zeros(layout.state_space.shape, np.dtype(layout.state_space.dtype))
        self._episode = -1
        self._scored = frozenset(layout.agents[slot] for slot in layout.score)
        self._share = 1.0
        if not layout.score_sums:
            self._share = 1.0 / len(layout.score)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._n_step = 0
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        turn = self.game.reset(seed=seed, options=options)
        self._episode += 1
        if seed is not None:
            self._episode = 0  # the same seed gives the same episodes, their numbers included
        self._clear_columns()
        for row in self._rows.values():
            row.clear()
        self._acting: Mapping[str, Any] = {}
        self._show(turn)
        return self._table, {}

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions_of = {policy: iter_actions(x) for policy, x in action.items()}
        chosen = {}
        for agent in self._acting:
            row = self._rows[agent]
            chosen[agent] = row.take(actions_of[row.entry], row.index)
        turn = self.game.step(chosen)
        self._n_step += 1
        if self._ends is not None:
            turn = self._with_meanings(turn, self._ends)
        if self._limit is not None and self._n_step >= self._limit and turn.acts:
            turn = self._cut_off(turn)
        self._clear_columns()
        for agent in self._ended:
            self._rows[agent].clear()  # its last observation was seen
        for agent in self._acting:
            if agent not in turn.acts and agent not in turn.ended:
                self._rows[agent].clear()
        self._ended = set()
        reward = self._earn(turn.rewards)
        for agent, end in turn.ended.items():
            self._end(agent, end)
        self._show(turn)
        is_over = not turn.acts
        is_terminal = is_over and any(end.terminated for end in turn.ended.values())
        return self._table, reward, is_terminal, is_over and not is_terminal, _merged(turn.infos)

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _clear_columns(self) -> None:
        self._columns[:] = 0.0
        if self.layout.counts_episodes:  # nothing else depends on the number of the episode
            self._columns[:, EPISODE] = self._episode

    def _earn(self, rewards: Mapping[str, float]) -> float:
        """Writes the rewards of a step; returns the part of the score."""
        total = 0.0
        for agent, reward in rewards.items():
            self._columns[self._rows[agent].slot, REWARD] = reward
            if agent in self._scored:
                total += reward
            elif not math.isfinite(reward):
                raise BrokenContractError(
                    f'the reward of agent {agent!r} is {reward}', 'a finite number', 'correct the env'
                )
        return total * self._share

    def _with_meanings(self, turn: Turn, ends: Ends) -> Turn:
        """A turn in which the ends of agents mean what env.ends says, each by the agent's own info."""
        ended = {}
        for agent, end in turn.ended.items():
            info = numbers_of(dict(turn.infos.get(agent) or {}))
            is_terminal = ends.is_terminal(end.terminated, info)
            if end.obs is None and not is_terminal:
                raise BrokenContractError(
                    f'agent {agent!r} ended without a last observation',
                    'one, since env.ends says that this end is not terminal',
                    'return it',
                )
            ended[agent] = End(end.obs, is_terminal)
        return turn._replace(ended=ended)

    def _cut_off(self, turn: Turn) -> Turn:
        """A turn with which the episode of all agents that live is cut off, also of those that wait for their turns."""
        obs_of = dict(turn.acts)
        for agent in self._begun - turn.ended.keys() - turn.acts.keys():
            obs_of[agent] = self.game.observe(agent)
        cut = {agent: End(obs, False) for agent, obs in obs_of.items()}
        return turn._replace(acts={}, masks={}, ended={**turn.ended, **cut})

    def _end(self, agent: str, end: End) -> None:
        row = self._rows[agent]
        self._columns[row.slot, TERMINATED if end.terminated else TRUNCATED] = 1.0
        if end.terminated and not is_finite(end.obs):
            row.clear()  # of a dead agent envs may say nothing, or nan; no value is computed from it
        else:
            row.write(end.obs, None)
            row.allow_all()
        self._ended.add(agent)
        self._begun.discard(agent)  # if it comes back, an episode of its own begins

    def _show(self, turn: Turn) -> None:
        """Writes what agents act on next, and the state."""
        columns = self._columns
        for agent, obs in turn.acts.items():
            row = self._rows[agent]
            row.write(obs, turn.masks.get(agent))
            columns[row.slot, ACTS] = 1.0
            if agent not in self._begun:
                self._begun.add(agent)
                columns[row.slot, BEGINS] = 1.0
        self._acting = turn.acts
        if self.layout.state == 'env':
            self._write_state()
        elif self.layout.state == 'concat':
            self._write_concat(turn)

    def _write_state(self) -> None:
        """Writes the env's own state; where it has none at the end of an episode, the one before stays."""
        memory = self._table[STATE]
        try:
            state = np.asarray(self.game.state())
        except Exception:
            if self._acting:
                raise
            return
        if state.shape == memory.shape:
            memory[...] = state
        elif self._acting:
            raise BrokenContractError(f'state() has shape {state.shape}', str(memory.shape), 'give it one shape')

    def _write_concat(self, turn: Turn) -> None:
        """Writes the observations of all agents one after the other; zeros of an agent before its first turn, and after its end."""
        memory = self._table[STATE]
        memory[...] = 0.0
        start = 0
        for agent, row in self._rows.items():
            stop = start + row.n_number
            if agent in turn.acts:
                memory[start:stop] = flat_numbers(turn.acts[agent])
            elif agent in turn.ended:
                if is_finite(turn.ended[agent].obs):
                    memory[start:stop] = flat_numbers(turn.ended[agent].obs)
            elif agent in self._begun and turn.acts:  # it waits for its turn
                memory[start:stop] = flat_numbers(self.game.observe(agent))
            start = stop


def _merged(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The infos of all agents as one: the numbers that any agent has, the last one's if several have it."""
    merged: dict[str, Any] = {}
    for info in infos.values():
        if info:
            merged |= info
    merged.pop(ACTION_MASK, None)
    return merged


def flat_numbers(obs: Any) -> np.ndarray:
    """All numbers of an observation but its mask, as one vector."""
    if type(obs) is np.ndarray:  # the usual case first: that of a Mapping takes longer
        return obs.ravel()
    if isinstance(obs, Mapping):
        return np.concatenate([flat_numbers(part) for name, part in obs.items() if name != ACTION_MASK])
    if isinstance(obs, tuple):
        return np.concatenate([flat_numbers(part) for part in obs])
    return np.ravel(obs)


def is_finite(obs: Any) -> bool:
    """Whether an observation is there and has no nan or infinite number."""
    if obs is None:
        return False
    if isinstance(obs, Mapping):
        return all(map(is_finite, obs.values()))
    if isinstance(obs, tuple):
        return all(map(is_finite, obs))
    return bool(np.isfinite(obs).all())


def iter_actions(actions: Any) -> Any:
    """The actions of the rows of a group, so that each can be taken by its index: a list, or a dict of lists."""
    if isinstance(actions, dict):
        return {name: iter_actions(part) for name, part in actions.items()}
    return list(actions)


class _GroupMemory:
    """The rows of a group in a table. Attributes: buffer: their memory; mask: the part of it for the mask, or None."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._space = group.own_space
        self._n = len(group.slots)
        self.buffer: Buffer = _zeros(self._space, self._n)
        self._obs = self._memory_of_obs()
        self._is_plain = isinstance(self._obs, np.ndarray) and all(
            getattr(space, 'shape', None) == self._obs.shape[1:] for space in group.raw_spaces
        )
        self._first = _zeros(self._space, 1)  # the row of an agent that does not act
        self.mask: np.ndarray | None = None
        if group.mask_of:
            self.mask = self.buffer[ACTION_MASK]
            self._first[ACTION_MASK][:] = True
        if group.has_id:
            self._write_ids()
        self._fixed_mask = self._padding_masks()

    def _memory_of_obs(self) -> Buffer:
        """The part of the buffer for the env's own observations, without an id, padding included."""
        group = self._group
        if isinstance(self.buffer, dict):
            if isinstance(group.raw_spaces[0], Dict):
                return self.buffer
            return self.buffer[OBS]
        if group.has_id:
            return self.buffer[:, : -self._n]
        return self.buffer

    def _write_ids(self) -> None:
        one_hot = np.eye(self._n, dtype=np.float32)
        if isinstance(self.buffer, dict):
            self.buffer[AGENT][:] = one_hot
        else:
            self.buffer[:, -self._n :] = one_hot

    def plain_row(self, index: int) -> np.ndarray | None:
        """The memory of a row whose observation is all that is written; None if there is a mask or padding, or it is a tree."""
        if self.mask is None and self._is_plain:
            return self._obs[index, ...]  # a view, also where a row is one number
        return None

    def _padding_masks(self) -> list[np.ndarray] | None:
        """The choices that each agent has, where they differ."""
        actions = self._group.raw_actions
        full = self._group.action_space
        if not isinstance(full, Discrete) or all(isinstance(x, Discrete) and x.n == full.n for x in actions):
            return None
        return [np.arange(full.n) < x.n for x in actions if isinstance(x, Discrete)]

    def write(self, index: int, obs: Any, mask: Any) -> None:
        """Writes an observation of the env to a row. Args: mask: None where it is an entry of the observation, or all is allowed."""
        self._write(index, obs)
        if self.mask is None:
            return
        if self._group.mask_of == 'turn':
            n = len(mask) if mask is not None else 0
            self.mask[index] = mask is None
            if n:
                self.mask[index, :n] = mask
                self.mask[index, n:] = False
        elif self._fixed_mask is not None:
            self.mask[index] = self._fixed_mask[index]

    def _write(self, index: int, obs: Any) -> None:
        raw = self._group.raw_spaces[index]
        if isinstance(raw, Dict):
            _write_tree(self._obs, index, obs, raw)
        elif self._is_plain:
            self._obs[index] = obs
        else:
            self._obs[index, : len(obs)] = obs  # the rest is padding

    def clear(self, index: int) -> None:
        """Makes a row that of an agent that does not act; the id stays."""
        _clear(self.buffer, self._first, index)
        if self._group.has_id and not isinstance(self.buffer, dict):
            self.buffer[index, -self._n + index] = 1.0
        elif self._group.has_id:
            self.buffer[AGENT][index, index] = 1.0


class _Row:
    """The row of one agent.

    Attributes: index: in its group; slot: among all agents; n_number: numbers that it observes; entry: of its group in tables;
      take: gives the agent's action, in the form of the env, of the actions of its group and its index.
    """

    def __init__(self, memory: _GroupMemory, group: Group, index: int) -> None:
        self.memory = memory
        self.entry = group.entry
        self.index = index
        self.slot = group.slots[index]
        self.n_number = n_number_of(group.raw_spaces[index])
        self.take = _taker(group.raw_actions[index])
        self._plain = memory.plain_row(index)

    def write(self, obs: Any, mask: Any) -> None:
        if self._plain is None:
            self.memory.write(self.index, obs, mask)
        else:
            self._plain[...] = obs

    def allow_all(self) -> None:
        """Makes the mask all true, where no action follows."""
        if self.memory.mask is not None:
            self.memory.mask[self.index] = True

    def clear(self) -> None:
        self.memory.clear(self.index)


class _Rows(dict[str, _Row]):
    """The rows of all agents. Raises: BrokenContractError for an agent that there may not be."""

    def __missing__(self, agent: str) -> _Row:
        raise BrokenContractError(
            f'the env names the agent {agent!r}', f'one of possible_agents, {", ".join(self)}', 'name it there'
        )


def n_number_of(space: Space) -> int:
    """The numbers of an observation, without its mask."""
    if isinstance(space, Dict):
        return sum(n_number_of(part) for name, part in space.spaces.items() if name != ACTION_MASK)
    return int(np.prod(space.shape))


def _zeros(space: Space, n: int) -> Buffer:
    """Memory for n values of a space, each the first value of it; zeros of a Box."""
    if isinstance(space, Dict):
        return {name: _zeros(part, n) for name, part in space.spaces.items()}
    memory = np.zeros((n, *space.shape), np.dtype(space.dtype))
    if isinstance(space, Discrete | MultiDiscrete):
        memory += np.reshape(space.start, space.shape).astype(memory.dtype)
    return memory


def _clear(buffer: Buffer, first: Buffer, index: int) -> None:
    if isinstance(buffer, dict):
        for name, part in buffer.items():
            _clear(part, first[name], index)
    else:
        buffer[index] = first[0]


def _write_tree(buffer: Buffer, index: int, obs: Raw, space: Space) -> None:
    """Writes a nested observation to a row."""
    if not isinstance(space, Dict):
        buffer[index] = np.reshape(obs, buffer.shape[1:])
        return
    for i, (name, part) in enumerate(space.spaces.items()):
        _write_tree(buffer[name], index, obs[i if space.is_tuple else name], part)


def _taker(space: Space) -> Callable[[Any, int], Any]:
    """A function of the actions of a group and an index: the action in the form of the env, of a space."""
    if not isinstance(space, Dict):
        return lambda actions, index: actions[index]
    parts = {name: _taker(part) for name, part in space.spaces.items()}
    if space.is_tuple:
        return lambda actions, index: tuple(take(actions[name], index) for name, take in parts.items())
    return lambda actions, index: {name: take(actions[name], index) for name, take in parts.items()}


class TableMaker:
    """Makes the tables of an env of several agents, one per call; of the section env it takes id, game, kwargs and limits.

    Attributes: env_name: the name of the env in messages; maker: what makes the env itself.
    """

    def __init__(self, cfg: EnvConfig, layout: Layout) -> None:
        self._cfg = cfg
        self._layout = replace(layout, mapping=None)  # processes get it, and a mapping may hold policies
        self.env_name = env_name(cfg)

    @property
    def maker(self) -> Any:
        return find_env(self._cfg.id, self._cfg.game)

    def __call__(self, **kwargs: Any) -> TableEnv:
        """Makes an env. Args: kwargs: for the env, in addition to env.kwargs, e.g. render_mode."""
        cfg = self._cfg
        if kwargs:
            cfg = cfg.model_copy(update={'kwargs': {**cfg.kwargs, **kwargs}})
        return TableEnv(make_game(cfg), self._layout, cfg.max_episode_steps, cfg.ends)
