"""Games of two players of pgx as simulators of several agents: all copies are one compiled program.

Agents are the players in the order of their first moves, as in PettingZoo; pgx itself draws which of its players begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Tree
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.env.errors import UnsupportedEnvError
from zoo.env.families.family import EnvRequest
from zoo.env.tensor.agent_simulator import AgentOutcome, AgentSimulator, Seen
from zoo.env.tensor.jax_packages import made_of_pgx, pgx_obs_space
from zoo.env.tensor.jax_program import JaxSimulator, JaxStep, JaxTask, JaxValue
from zoo.env.tensor.program import State
from zoo.env.tensor.simulator import BadValues

AGENTS = ('player_0', 'player_1')
OBSERVATION = 'observation'  # the name of PettingZoo, so that a policy plays the same game of either library
ACTS = 'acts'
REWARD = 'reward'
OfPackage = Any  # an object of a package that zoo does not import


class PgxGameTask(JaxTask):
    """A game of two players. Its observation has for each player, by seat, what it sees and its mask; who acts; and the rewards.

    The state is that of pgx, with the player that began. The mask of who waits allows all.
    """

    def __init__(self, env: OfPackage) -> None:
        self._env = env
        self.source = env
        n = int(env.num_actions)
        self.action_space = MultiDiscrete((n, n), (0, 0), (2,))
        self.seat_space = Dict({ACTION_MASK: MultiBinary((n,)), OBSERVATION: pgx_obs_space(env)})
        bound = np.full(2, np.inf, np.float32)
        seats: dict[str, Space] = dict.fromkeys(AGENTS, self.seat_space)
        self.obs_space = Dict({**seats, ACTS: MultiBinary((2,)), REWARD: Box(-bound, bound)})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self._env.init(key)
        first = state.current_player
        return (state, first), self._seen(state, first)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        inner, first = state
        inner = self._env.step(inner, action[_seat(inner.current_player, first)], key)
        seen = self._seen(inner, first)
        return JaxStep((inner, first), seen, seen[REWARD][0], inner.terminated, inner.truncated)

    def _seen(self, state: State, first: jax.Array) -> dict[str, Any]:
        seat = _seat(state.current_player, first)
        acts = (jnp.arange(2) == seat) & ~state.terminated
        seen: dict[str, Any] = {}
        for i, agent in enumerate(AGENTS):
            with warnings.catch_warnings():
                warnings.simplefilter(
                    'ignore', DeprecationWarning
                )  # of the player, without which only the mover's is given
                obs = self._env.observe(state, _seat(i, first))
            seen[agent] = {ACTION_MASK: state.legal_action_mask | (seat != i), OBSERVATION: obs}
        rewards = jnp.stack([state.rewards[_seat(i, first)] for i in range(2)])
        return {**seen, ACTS: acts, REWARD: rewards}


def _seat(player: JaxValue, first: JaxValue) -> JaxValue:
    """The seat of a player, and the player of a seat: who began has the seat 0."""
    return (player - first) % 2


class PgxGame(AgentSimulator):
    """B copies of a game of two players."""

    agents = AGENTS

    def __init__(self, env: OfPackage, request: EnvRequest) -> None:
        task = PgxGameTask(env)
        self.n_env = request.n_env
        self.source = env
        n = int(env.num_actions)
        self.obs_spaces = (task.seat_space, task.seat_space)
        self.action_spaces = (Discrete(n), Discrete(n))
        self._simulator = JaxSimulator(task, request.n_env, request.max_episode_steps)

    def reset(self, seed: int) -> Seen:
        return _split(self._simulator.reset(seed))

    def step(self, actions: Sequence[Tensor]) -> AgentOutcome:
        out = self._simulator.step(torch.stack(list(actions), 1))
        reached: Any = out.next_obs
        return AgentOutcome(
            _split(out.obs), _split(reached), reached[REWARD], out.terminated, out.truncated & ~out.terminated
        )

    def find_bad(self) -> BadValues | None:
        return self._simulator.find_bad()


def _split(obs: Tree) -> Seen:
    return Seen([obs[agent] for agent in AGENTS], obs[ACTS])


def make_pgx_game(pgx: ModuleType, env_id: str, request: EnvRequest, /, **kwargs: object) -> PgxGame | None:
    """The game that a request asks for, None if it is one of one player. Raises: UnsupportedEnvError for three players or more."""
    env = made_of_pgx(pgx, env_id, request, kwargs)
    if env.num_players == 1:
        return None
    if env.num_players > 2:
        raise UnsupportedEnvError(
            f'env {request.name!r} is a game of {env.num_players} players, and of pgx those of one or two are read; OpenSpiel '
            '(pyspiel:...) and PettingZoo have many such games.'
        )
    return PgxGame(env, request)
