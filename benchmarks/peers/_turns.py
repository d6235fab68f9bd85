"""Turns of drivers that train envs of several agents: another process starts each iteration, so that drivers alternate.

A driver reads a line before each iteration and prints its seconds after it. A row is one agent of one copy of the env.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TOLERANCE = 0.07  # RLlib adds a row to each episode of a rollout: 3 optimiser steps to 48 where episodes have 25 steps


def parse_args() -> argparse.Namespace:
    """Reads the command line, and sets the number of threads; to be called before torch is imported."""
    parser = argparse.ArgumentParser(description='PPO in an env of several agents, one iteration per line of stdin.')
    parser.add_argument('--env', default='tag_env:Tag', help='module:function of a parallel env')
    parser.add_argument('--copies', type=int, default=16)
    parser.add_argument('--agents', type=int, default=4, help='that the env has')
    parser.add_argument('--rollout', type=int, default=128, help='steps of each copy per iteration')
    parser.add_argument('--minibatch', type=int, default=256, help='in rows')
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--set', action='append', default=[], metavar='KEY=VALUE', help='zoo only: config overrides')
    args = parser.parse_args()
    args.rows = args.copies * args.agents
    args.updates = args.epochs * (args.rows * args.rollout // args.minibatch)  # optimiser steps of an iteration
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ[name] = '1'
    return args


def make_env(args: argparse.Namespace) -> Any:
    """The parallel env."""
    from importlib import import_module

    module, _, function = args.env.partition(':')
    return getattr(import_module(module), function)()


class UpdateCount:
    """Counts the optimiser steps of this process. Attributes: n: so far."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.n = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.n += 1


def in_turns(
    args: argparse.Namespace,
    iteration: Callable[[], Any],
    counts: Callable[[], tuple[int, int]],
    learn_s: Callable[[], float] = lambda: math.nan,
) -> None:
    """Runs one iteration for each line of stdin, until it ends; prints the seconds of each: by the clock, of this process's CPU
    time, and of the update alone.

    Args: counts: the transitions of agents and the optimiser steps so far; learn_s: the seconds of updates so far.
    Raises: RuntimeError if an iteration was not the matched work.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    n_transition = args.rows * args.rollout
    while sys.stdin.readline():
        before = counts()
        start = time.perf_counter(), time.process_time(), learn_s()
        iteration()
        end = time.perf_counter(), time.process_time(), learn_s()
        transitions, updates = (b - a for a, b in zip(before, counts(), strict=True))
        if transitions != n_transition or abs(updates - args.updates) > TOLERANCE * args.updates:
            raise RuntimeError(
                f'an iteration had {transitions} transitions and {updates} optimiser steps but the matched work has '
                f'{n_transition} and {args.updates}'
            )
        print(*(b - a for a, b in zip(start, end, strict=True)), file=out, flush=True)
