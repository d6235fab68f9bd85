"""Counts the illegal moves of a policy in training and evaluation of games with masks: tictactoe, connect four, leduc poker.

    python benchmarks/agents_illegal.py [--steps 100_000]

One policy plays all seats of 16 copies, from its random start on. Moves are counted inside the env, against its own masks.
Prints the moves and the illegal ones of each game; exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zoo import serial_pipeline  # noqa: E402

count: Counter[str] = Counter()


def of_pettingzoo(env_id: str) -> Any:
    """An env of PettingZoo's registry whose moves are counted."""
    import pettingzoo

    env: Any = pettingzoo.make('aec', env_id)
    step = env.step

    def counted(action: Any) -> None:
        if action is not None:
            mask = env.observe(env.agent_selection)['action_mask']
            count['moves'] += 1
            count['illegal'] += int(not mask[action])
        step(action)

    env.step = counted
    return env


def tictactoe() -> Any:
    return of_pettingzoo('classic/tictactoe-v3')


def connect_four() -> Any:
    return of_pettingzoo('classic/connect_four-v3')


class Leduc:
    """leduc_poker of OpenSpiel, whose moves are counted."""

    def __init__(self) -> None:
        import pyspiel

        self._game = pyspiel.load_game('leduc_poker')

    def num_players(self) -> int:
        return self._game.num_players()

    def new_initial_state(self) -> CountedState:
        return CountedState(self._game.new_initial_state())

    def __getattr__(self, name: str) -> Any:
        if name == '_game':  # while it is copied
            raise AttributeError(name)
        return getattr(self._game, name)


class CountedState:
    """A state of OpenSpiel, whose moves are counted."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def apply_action(self, action: int) -> None:
        if not self._state.is_chance_node():
            count['moves'] += 1
            count['illegal'] += int(action not in self._state.legal_actions())
        self._state.apply_action(action)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


def play(make: Callable[[], Any], n_step: int, folder: str) -> None:
    """Trains for n_step env steps, and evaluates four times."""
    env = dict(id=make, collector_env_num=16, vectorization='sync', check=False)
    policy = dict(collect=dict(n_step=128), eval=dict(eval_freq=n_step // 4, n_episode=50))
    logger = dict(root=folder, console='off', tensorboard=False)
    serial_pipeline(dict(exp_name='illegal', max_env_step=n_step, env=env, policy=policy, logger=logger))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--steps', type=int, default=100_000, help='env steps of each game')
    options = parser.parse_args()
    n_illegal = 0
    for make in (tictactoe, connect_four, Leduc):
        count.clear()
        with tempfile.TemporaryDirectory() as folder:
            play(make, options.steps, folder)
        print(f'{make.__name__}: {count["moves"]:,} moves, {count["illegal"]} illegal', flush=True)
        n_illegal += count['illegal']
    sys.exit(int(n_illegal > 0))


if __name__ == '__main__':
    main()
