"""The player that looks one move ahead: positions worked by hand, and the player of benchmarks/selfplay_games.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from zoo.agents.board_player import Board, ahead_mode
from zoo.config.section import ConfigError
from zoo.core.spaces import ACTION_MASK, Box, Dict, MultiBinary
from zoo.env.tensor.games import ConnectFour, TicTacToe

BENCHMARKS = Path(__file__).resolve().parents[2] / 'benchmarks'
TIC_TAC_TOE = TicTacToe().obs_space
CONNECT_FOUR = ConnectFour().obs_space


def obs_of(board: str) -> dict[str, torch.Tensor]:
    """A position for the player on move, who has x. board: rows of x, o and points, the top row first."""
    cells = np.array([list(row) for row in board.split()])
    planes = torch.from_numpy(np.stack((cells == 'x', cells == 'o'), 2)).float().unsqueeze(0)
    free = torch.from_numpy(cells == '.')
    legal = free[0]  # columns with a place in the top row
    if cells.shape == (3, 3):
        legal = free.flatten()
    return {'observation': planes, ACTION_MASK: legal.unsqueeze(0)}


def moves(space: Dict, board: str) -> list[int]:
    """The moves that the player draws from."""
    return Board.of_space(space).moves(obs_of(board))[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ('board', 'expected'),
    [
        ('xx. oo. ...', [2]),  # it wins, though the other player would win at 5
        ('oo. x.. ..x', [2]),  # it takes the place of the other player
        ('x.o .x. o..', [8]),  # a diagonal
        ('oo. ox. ..x', [2, 6]),  # two places to take: it draws one
        ('xo. ... ...', [2, 3, 4, 5, 6, 7, 8]),  # each free square
    ],
)
def test_moves_of_tic_tac_toe(board, expected):
    assert moves(TIC_TAC_TOE, board) == expected


EMPTY = '....... '


@pytest.mark.parametrize(
    ('board', 'expected'),
    [
        (4 * EMPTY + 'ooo.... xxx....', [3]),  # x wins on the ground
        (4 * EMPTY + 'x...... x.ooo..', [1, 5]),  # both ends of three
        (2 * EMPTY + 'o...... o...... o.x.... x.x....', [0]),  # a column of three
        (3 * EMPTY + 'xx..... ooo.... xox....', [0, 1, 2, 4, 5, 6]),  # a disc in column 3 would lift o to its fourth
        (6 * EMPTY, [0, 1, 2, 3, 4, 5, 6]),
        ('x...... o...... x...... o...... x...... o......', [1, 2, 3, 4, 5, 6]),  # a full column
    ],
)
def test_moves_of_connect_four(board, expected):
    assert moves(CONNECT_FOUR, board) == expected


def positions(game: ConnectFour, n_game: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations of the player on move, and masks, in games of random play."""
    random = torch.Generator().manual_seed(0)
    state = game.reset(torch.zeros(n_game, 0))
    ended = torch.zeros(n_game, dtype=torch.bool)
    boards = []
    masks = []
    while not ended.all():
        obs = game.observe(state)
        player = int(state[1][0]) % 2
        boards.append(obs['observation'][~ended, player])
        masks.append(obs[ACTION_MASK][~ended, player])
        weight = obs[ACTION_MASK][:, player].float() + ended.unsqueeze(1).float()
        action = torch.multinomial(weight, 1, generator=random).expand(-1, 2)
        state, _, terminated = game.step(state, action, torch.zeros(n_game, 0))
        ended |= terminated
    return torch.cat(boards), torch.cat(masks)


def test_moves_are_those_of_the_player_of_the_benchmarks():
    sys.path.insert(0, str(BENCHMARKS))
    import selfplay_games

    boards, masks = positions(ConnectFour(), 40)
    assert len(boards) > 600
    drawn_from = Board.of_space(CONNECT_FOUR).moves({'observation': boards, ACTION_MASK: masks})
    expected = torch.zeros_like(drawn_from)
    for i, (board, mask) in enumerate(zip(boards.numpy(), masks.numpy(), strict=True)):
        expected[i, selfplay_games.moves_ahead({'observation': board, 'action_mask': mask})] = True
    assert torch.equal(drawn_from, expected)


def test_draws_have_the_same_probability_and_follow_the_generator():
    obs = {name: x.expand(6000, *x.shape[1:]) for name, x in obs_of('oo. ox. ..x').items()}
    mode = ahead_mode(TIC_TAC_TOE)
    assert mode.sample is not None
    first, second = (mode.sample(obs, None, torch.Generator().manual_seed(3))['action'] for _ in range(2))
    assert torch.equal(first, second)
    counts = torch.bincount(first, minlength=9)
    assert counts.nonzero().flatten().tolist() == [2, 6]
    assert abs(int(counts[2]) - 3000) < 5 * 1500**0.5  # five standard deviations of 6,000 throws of a coin


def test_other_games_are_refused():
    space = Dict({'observation': Box(np.zeros(4, np.float32), np.ones(4, np.float32)), ACTION_MASK: MultiBinary((2,))})
    with pytest.raises(ConfigError, match="'one_move_ahead' plays tic-tac-toe and connect four"):
        ahead_mode(space)


def test_board_with_another_number_of_moves_is_refused():
    """A board of 3x3 with a choice of rows and one of columns, 6 in all, is no tic-tac-toe."""
    space = Dict({**TIC_TAC_TOE.spaces, ACTION_MASK: MultiBinary((6,))})
    with pytest.raises(ConfigError, match="'one_move_ahead' plays tic-tac-toe and connect four"):
        ahead_mode(space)
