"""What the drivers share: one command line, one JSON line. Import it before torch, which reads the thread count."""
from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from typing import Any

N_EPISODE = 20  # greedy episodes after the clock has stopped: the check that the speed was not bought with returns


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='One timed PPO run; prints one JSON line.')
    parser.add_argument('--env', default='CartPole-v1')
    parser.add_argument('--num-envs', type=int, default=8)
    parser.add_argument('--rollout', type=int, default=128, help='steps per env per iteration')
    parser.add_argument('--minibatch', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--lr', type=float, default=2.5e-4)
    parser.add_argument('--entropy', type=float, default=0.01)
    parser.add_argument('--total-steps', type=int, default=100_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--vectorization', default='sync', help='zoo only: sync | batched')
    parser.add_argument('--started', type=float, default=time.time(), help='time.time() when the process was started')
    args = parser.parse_args()
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ[name] = str(args.threads)
    return args


def peak_rss_mb() -> float:
    """Peak resident set of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def emit(args: argparse.Namespace, **record: Any) -> None:
    """Prints the record; env_step, wall_s, train_iter must be in it."""
    import torch

    record.update(
        env_step_per_s=round(record['env_step'] / record['wall_s'], 1),
        train_iter_per_1024=round(record['train_iter'] * 1024 / record['env_step'], 3),
        threads=torch.get_num_threads(), torch=torch.__version__, seed=args.seed,
    )
    sys.stdout.write('\n' + json.dumps(record) + '\n')
