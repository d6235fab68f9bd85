"""Policies of self-play against opponents that are worked out: minimax, one move ahead, random play. Needs the extra agents.

    python benchmarks/selfplay_games.py RUN [RUN ...] [--game tictactoe] [--games 200] [--greedy] [-o FILE.jsonl]

RUN is a run folder or a checkpoint. Plays on the game of PettingZoo itself, with each opponent and in both seats, and prints wins,
draws and losses. Minimax knows every position of tic-tac-toe, and draws one of its best moves. 'ahead' wins where it can, else it
takes away a win of the other player, else it draws a move that gives no win away. 'four_ahead' searches four moves deep. Policies
draw their actions, unless --greedy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zoo import load_policy  # noqa: E402

Player = Callable[[dict[str, Any], np.random.Generator], int]
"""A player: (observation, random numbers) -> move."""
GAMES = {'tictactoe': 'classic/tictactoe-v3', 'connect_four': 'classic/connect_four-v3'}
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
"""The lines of tic-tac-toe, by squares."""
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
"""The directions of lines of connect four, in (rows, columns)."""


@cache
def value_of(mine: frozenset[int], theirs: frozenset[int]) -> int:
    """The result of tic-tac-toe under best play for the player on move: 1, 0 or -1.

    value = max over moves of -value(theirs, mine + move);   -1 if the other player has a line, 0 on a full board
    """
    if any(theirs.issuperset(line) for line in LINES):
        return -1
    free = frozenset(range(9)) - mine - theirs
    if not free:
        return 0
    return max(-value_of(theirs, mine | {square}) for square in free)


def minimax(obs: dict[str, Any], rng: np.random.Generator) -> int:
    """One of the best moves of tic-tac-toe."""
    planes = np.asarray(obs['observation']).reshape(9, 2)
    mine, theirs = (frozenset(planes[:, i].nonzero()[0].tolist()) for i in range(2))
    values = {move: -value_of(theirs, mine | {move}) for move in np.flatnonzero(obs['action_mask']).tolist()}
    best = max(values.values())
    return int(rng.choice([move for move, value in values.items() if value == best]))


def dropped(board: np.ndarray, column: int, player: int) -> tuple[np.ndarray, int]:
    """The board of connect four after a move, and the row where the disc lies. board: [6, 7], the lowest row last."""
    row = int(np.flatnonzero(board[:, column] == 0)[-1])
    after = board.copy()
    after[row, column] = player
    return after, row


def is_won(board: np.ndarray, row: int, column: int) -> bool:
    """Whether the disc at a place is one of four in a line."""
    player = board[row, column]
    for down, right in DIRECTIONS:
        n = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < 6 and 0 <= c < 7 and board[r, c] == player:
                n += 1
                r, c = r + sign * down, c + sign * right
        if n >= 4:
            return True
    return False


def wins(board: np.ndarray, player: int) -> list[int]:
    """The columns where a player would win at once."""
    found = []
    for column in np.flatnonzero(board[0] == 0).tolist():
        after, row = dropped(board, column, player)
        if is_won(after, row, column):
            found.append(column)
    return found


def moves_ahead(obs: dict[str, Any]) -> list[int]:
    """Connect four one move ahead: wins; else where the other player would win; else moves that give no win away, if there are any."""
    planes = np.asarray(obs['observation']).astype(np.int8)
    board = planes[..., 0] - planes[..., 1]  # 1 for the player on move, -1 for the other
    moves = np.flatnonzero(obs['action_mask']).tolist()
    for player in (1, -1):
        winning = wins(board, player)
        if winning:
            return winning
    safe = [move for move in moves if not wins(dropped(board, move, 1)[0], -1)]
    return safe or moves


def ahead(obs: dict[str, Any], rng: np.random.Generator) -> int:
    """One of the moves of a player of connect four that looks one move ahead."""
    return int(rng.choice(moves_ahead(obs)))


WIDTH = 8
"""Bits of a column of a bit board of connect four: six places, and two that stay free so that lines do not run over the edge."""


def has_four(discs: int) -> bool:
    """Whether a bit board has four in a line: up a column, along a row, or along a diagonal."""
    for step in (1, WIDTH, WIDTH + 1, WIDTH - 1):
        pairs = discs & (discs >> step)
        if pairs & (pairs >> (2 * step)):
            return True
    return False


def search_value(mine: int, theirs: int, heights: tuple[int, ...], depth: int, low: int = -1, high: int = 1) -> int:
    """The result that the player on move forces within some moves: 1, -1, or 0 for neither. Alpha-beta search."""
    best = -1
    moves = [column for column in (3, 2, 4, 1, 5, 0, 6) if heights[column] < 6]
    if depth == 0 or not moves:
        return 0
    for column in moves:
        value = move_value(mine, theirs, heights, column, depth, low, high)
        best = max(best, value)
        low = max(low, value)
        if low >= high:
            break
    return best


def move_value(mine: int, theirs: int, heights: tuple[int, ...], column: int, depth: int, low: int, high: int) -> int:
    """The result that a move forces within some moves, of which it is the first."""
    after = mine | (1 << (column * WIDTH + heights[column]))
    if has_four(after):
        return 1
    raised = (*heights[:column], heights[column] + 1, *heights[column + 1 :])
    return -search_value(theirs, after, raised, depth - 1, -high, -low)


def four_ahead(obs: dict[str, Any], rng: np.random.Generator) -> int:
    """Connect four: one of the moves that are best within four moves of both players together."""
    planes = np.asarray(obs['observation']).astype(bool)[::-1]  # the lowest row first
    mine, theirs = (
        sum(1 << int(column * WIDTH + row) for row, column in np.argwhere(planes[..., i])) for i in range(2)
    )
    heights = tuple(planes.any(2).sum(0).tolist())
    moves = np.flatnonzero(obs['action_mask']).tolist()
    values = [move_value(mine, theirs, heights, move, 4, -1, 1) for move in moves]
    return int(rng.choice([move for move, value in zip(moves, values, strict=True) if value == max(values)]))


def random_play(obs: dict[str, Any], rng: np.random.Generator) -> int:
    """Each allowed move with the same probability."""
    return int(rng.choice(np.flatnonzero(obs['action_mask'])))


OPPONENTS: dict[str, dict[str, Player]] = {
    'tictactoe': {'minimax': minimax, 'random': random_play},
    'connect_four': {'ahead': ahead, 'four_ahead': four_ahead, 'random': random_play},
}


def player_of(path: str, deterministic: bool) -> Player:
    """A saved policy as a player; it sees which seat it has."""
    policy = load_policy(path, trust=True)

    def act(obs: dict[str, Any], rng: np.random.Generator) -> int:
        return int(policy.act(obs, deterministic=deterministic))

    return act


def play(env: Any, players: list[Player], seed: int) -> list[float]:
    """The rewards of both seats in one game."""
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    total = [0.0, 0.0]
    while env.agents:
        obs, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        seat = env.possible_agents.index(env.agent_selection)
        one_hot = np.eye(2, dtype=np.float32)[seat]
        env.step(players[seat]({**obs, 'agent': one_hot}, rng))
        for i, agent in enumerate(env.possible_agents):
            total[i] += env.rewards.get(agent, 0.0)
    return total


def match(env_id: str, player: Player, opponent: Player, seat: int, n_game: int) -> dict[str, int]:
    """Wins, draws and losses of a player in a seat."""
    import pettingzoo

    env = pettingzoo.make('aec', env_id)
    players = [player, opponent]
    if seat == 1:
        players.reverse()
    count: Counter[str] = Counter()
    for game in range(n_game):
        torch.manual_seed(game)
        result = play(env, players, game)
        count[{1: 'win', 0: 'draw', -1: 'loss'}[int(np.sign(result[seat] - result[1 - seat]))]] += 1
    return {key: count[key] for key in ('win', 'draw', 'loss')}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runs', nargs='+')
    parser.add_argument('--game', choices=GAMES, default='tictactoe')
    parser.add_argument('--games', type=int, default=200, help='of each opponent and seat')
    parser.add_argument('--greedy', action='store_true', help='the likeliest moves')
    parser.add_argument('-o', help='file to which lines are added')
    args = parser.parse_args(argv)
    for run in args.runs:
        player = player_of(run, args.greedy)
        for name, opponent in OPPONENTS[args.game].items():
            for seat in range(2):
                counts = match(GAMES[args.game], player, opponent, seat, args.games)
                row = {'run': Path(run).name, 'greedy': args.greedy, 'opponent': name, 'seat': seat + 1, **counts}
                print(json.dumps(row), flush=True)
                if args.o:
                    with Path(args.o).open('a') as file:
                        file.write(json.dumps(row) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
