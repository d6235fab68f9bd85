"""A simulator of two players who take turns on a line of four squares, whose every number is known in advance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary
from zoo.env.errors import SeveralAgentsError
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.tensor.agent_simulator import AgentOutcome, AgentSimulator, Seen
from zoo.env.tensor.simulator import BadValues

N_SQUARE = 4


class Squares(AgentSimulator):
    """Each takes a free square in turn; who takes the square 0 wins 1, and the other loses 1. `second` has four numbers more.

    The first player of game i of copy b begins where (b + i + seed) is even, else the second one.
    """

    agents = ('first', 'second')
    action_spaces = (Discrete(N_SQUARE), Discrete(N_SQUARE))

    def __init__(self, n_env: int, limit: int | None = None) -> None:
        self.n_env = n_env
        self.source = self
        self.breaks_at = 0
        self._limit = limit or 100
        mask = MultiBinary((N_SQUARE,))
        self.obs_spaces = tuple(
            Dict({'board': Box(np.zeros(n, np.float32), np.ones(n, np.float32)), ACTION_MASK: mask}) for n in (4, 4)
        )

    def reset(self, seed: int) -> Seen:
        self._game = torch.arange(self.n_env) + seed
        self._board = torch.zeros((self.n_env, N_SQUARE))
        self._mover = self._game % 2
        self.n_step = 0
        return self._seen()

    def step(self, actions: Sequence[Tensor]) -> AgentOutcome:
        self.n_step += 1
        rows = torch.arange(self.n_env)
        square = torch.stack(list(actions), 1)[rows, self._mover]
        assert (self._board[rows, square] == 0).all()
        self._board = self._board.clone()
        self._board[rows, square] = 1.0 + self._mover
        sign = 1.0 - 2.0 * self._mover
        gain = torch.where(square == 0, sign, 0.0)
        terminated = square == 0
        truncated = ~terminated & ((self._board > 0).sum(1) >= self._limit)
        self._mover = 1 - self._mover
        reached = self._seen()
        ended = terminated | truncated
        self._game = self._game + ended
        self._board = self._board * ~ended.unsqueeze(1)
        self._mover = torch.where(ended, self._game % 2, self._mover)
        return AgentOutcome(self._seen(), reached, torch.stack((gain, -gain), 1), terminated, truncated)

    def find_bad(self) -> BadValues | None:
        if self.breaks_at and self.n_step >= self.breaks_at:
            return BadValues(1, self.breaks_at)
        return None

    def _seen(self) -> Seen:
        free = self._board == 0
        boards = [self._board / 2, (3 - self._board) % 3 / 2]
        acts = torch.nn.functional.one_hot(self._mover, 2).bool()
        return Seen([{'board': board, ACTION_MASK: free} for board in boards], acts)


def _make(request: EnvRequest) -> Squares:
    raise SeveralAgentsError(f'{request.name} has two players')


def _make_agents(request: EnvRequest) -> Squares:
    return Squares(request.n_env, request.max_episode_steps)


if 'test_squares' not in ENV_REGISTRY:
    ENV_REGISTRY.register('test_squares')(EnvFamily(_make, make_agents=_make_agents))
