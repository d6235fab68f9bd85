"""Command line of the drivers of populations. To be imported before torch, which reads the thread count."""

from __future__ import annotations

import argparse
import os


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='One timed population of PPO on CartPole; prints one JSON line.')
    parser.add_argument('--pop', type=int, default=8)
    parser.add_argument('--every', type=int, default=10_240, help='env steps of each member in a generation')
    parser.add_argument('--generations', type=int, default=4)
    parser.add_argument('--num-envs', type=int, default=8)
    parser.add_argument('--rollout', type=int, default=128, help='steps per env per iteration')
    parser.add_argument('--minibatch', type=int, default=256)
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--lr', type=float, default=2.5e-4)
    parser.add_argument('--episodes', type=int, default=10, help='of each evaluation')
    parser.add_argument('--jobs', type=int, default=1, help='zoo only: processes')
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ[name] = '1'
    return args
