"""Env steps per second of simple_spread: the tensor env of zoo against mpe2's own, with random actions, on one thread.

    python benchmarks/selfplay_speed.py [--copies 256] [--seconds 5]

An env step is one of a copy, in which all three agents act. mpe2's parallel env is stepped as it is, without any wrapper of zoo.
'tables' is what a run steps: rows of agents, episodes, last observations. Prints the rates and the ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zoo.agents.config import AgentsConfig  # noqa: E402
from zoo.agents.stage import look_at_agents, table_section  # noqa: E402
from zoo.env import make_vector_env  # noqa: E402
from zoo.env.config import env_config  # noqa: E402
from zoo.env.tensor.spread import SimpleSpread  # noqa: E402

N_AGENT = 3


def rate(step: Callable[[], int], seconds: float) -> float:
    """Env steps per second. Args: step: takes some, returns how many."""
    for _ in range(3):
        step()
    n = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        n += step()
    return n / (time.perf_counter() - start)


def of_mpe2() -> Callable[[], int]:
    from mpe2 import simple_spread_v3

    env = simple_spread_v3.parallel_env()
    rng = np.random.default_rng(0)
    env.reset(seed=0)

    def step() -> int:
        if not env.agents:
            env.reset()
        env.step(dict(zip(env.agents, rng.integers(5, size=N_AGENT).tolist(), strict=True)))
        return 1

    return step


def of_program(n_copy: int) -> Callable[[], int]:
    """The env alone: 25 steps of all copies, each with its observation."""
    env = SimpleSpread(N_AGENT)

    def episode() -> int:
        state = env.reset(torch.rand(n_copy, env.n_noise))
        for _ in range(25):
            env.observe(state)
            state, _, _ = env.step(state, torch.randint(5, (n_copy, N_AGENT)), torch.zeros(n_copy, 0))
        return 25 * n_copy

    return episode


def of_tables(n_copy: int) -> Callable[[], int]:
    cfg = env_config({'id': 'torch', 'game': 'simple_spread'})
    env = make_vector_env(table_section(cfg, look_at_agents(cfg, AgentsConfig())), n_copy)
    env.reset(0)

    def step() -> int:
        env.step(torch.randint(5, (n_copy, N_AGENT)).float())
        return n_copy

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--copies', type=int, default=256)
    parser.add_argument('--seconds', type=float, default=5.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    mpe2 = rate(of_mpe2(), args.seconds)
    print(f'mpe2, one copy: {mpe2:,.0f} env steps/s')
    for name, step in (('tensor env', of_program(args.copies)), ('tables', of_tables(args.copies))):
        found = rate(step, args.seconds)
        print(f'{name}, {args.copies} copies: {found:,.0f} env steps/s, {found / mpe2:.0f} times mpe2')


if __name__ == '__main__':
    main()
