"""The player 'one_move_ahead' of tic-tac-toe and connect four, for many positions at once on their device.

It wins where it can, else it takes away a win of the other player, else it draws a move that gives no win away, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.agents.self_play import AHEAD
from zoo.config.section import ConfigError
from zoo.core.data import Obs, State
from zoo.core.spaces import ACTION_MASK, Dict, Space
from zoo.env.tensor.games import LINES, N_COLUMN, N_ROW, lines_of_connect_four
from zoo.policy.modes import EvalMode

PLANES = 'observation'
"""The entry with the marks of the player who observes, and those of the other one: [R, rows, columns, 2]."""
SHAPES = {(3, 3, 2): 9, (N_ROW, N_COLUMN, 2): N_COLUMN}
"""The shapes of that entry, and the number of actions."""


@dataclass(frozen=True)
class Board:
    """A board of S places. line_of: [S, L] f32, the lines that each place is in; length: places of a line; falls: whether marks
    fall to the lowest free place of a column, which an action then names, not a place."""

    line_of: Tensor
    length: int
    falls: bool

    @classmethod
    def of_space(cls, space: Space) -> Board:
        """The board of observations. Raises: ConfigError if they are of another game."""
        shape = n_action = None
        if isinstance(space, Dict) and ACTION_MASK in space.spaces and PLANES in space.spaces:
            shape = space.spaces[PLANES].shape  # type: ignore[union-attr]  # of a Box
            n_action = space.spaces[ACTION_MASK].shape  # type: ignore[union-attr]
        if shape not in SHAPES or n_action != (SHAPES[shape],):
            raise ConfigError(
                f'{AHEAD!r} plays tic-tac-toe and connect four, whose observations are an action mask and the entry {PLANES!r} of '
                "3x3x2 numbers with 9 actions, or 6x7x2 with 7, but this env has others; use 'random', or a function as "
                "'my_bots.py:greedy'."
            )
        if shape == (3, 3, 2):
            return cls(_line_of(LINES, 9), 3, falls=False)
        return cls(_line_of(lines_of_connect_four(), N_ROW * N_COLUMN), 4, falls=True)

    def to(self, device: torch.device) -> Board:
        return Board(self.line_of.to(device), self.length, self.falls)

    def moves(self, obs: dict[str, Any]) -> Tensor:
        """The moves that the player draws from, [R, A] bool."""
        legal = obs[ACTION_MASK].bool()
        mine, theirs = obs[PLANES].flatten(1, 2).float().unbind(2)  # [R, S] each
        my_wins = self._wins(mine, theirs)
        their_wins = self._wins(theirs, mine)
        place = torch.arange(legal.shape[1], device=legal.device).expand_as(legal)
        if self.falls:
            place = self._lowest(mine + theirs)
        winning = my_wins.gather(1, place) & legal
        saving = their_wins.gather(1, place) & legal
        safe = legal
        if self.falls:  # a disc gives the other player the place above it
            above = place - N_COLUMN
            gives = their_wins.gather(1, above.clamp(min=0)) & (above >= 0)
            safe = legal & ~gives
        moves = torch.where(safe.any(1, keepdim=True), safe, legal)
        moves = torch.where(saving.any(1, keepdim=True), saving, moves)
        return torch.where(winning.any(1, keepdim=True), winning, moves)

    def _wins(self, own: Tensor, other: Tensor) -> Tensor:
        """The places that complete a line of a player, [R, S] bool."""
        lacks_one = (own @ self.line_of == self.length - 1) & (other @ self.line_of == 0)
        return (lacks_one.float() @ self.line_of.T > 0) & (own == 0)

    def _lowest(self, taken: Tensor) -> Tensor:
        """The lowest free place of each column, [R, A]; the top one of a full column."""
        height = taken.unflatten(1, (N_ROW, N_COLUMN)).sum(1).long()
        row = (N_ROW - 1 - height).clamp(min=0)
        return row * N_COLUMN + torch.arange(N_COLUMN, device=taken.device)


def ahead_mode(space: Space) -> EvalMode:
    """The player as an eval mode. Args: space: of its observations. Raises: ConfigError if they are of another game."""
    board = Board.of_space(space)

    def sample(obs: Any, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        moves = board.to(obs[PLANES].device).moves(obs)
        weight = moves.float()
        if generator is not None:
            weight = weight.to(generator.device)
        return {'action': torch.multinomial(weight, 1, generator=generator).squeeze(1)}

    def forward(obs: Obs, state: State = None) -> dict[str, Any]:
        return sample(obs, state, None)

    return EvalMode(forward, sample=sample)


def _line_of(lines: Any, n_place: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(lines), n_place).sum(1).float().T.contiguous()
