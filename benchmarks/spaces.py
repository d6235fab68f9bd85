"""Trains every policy on every observation and action space; writes benchmarks/results/spaces.md.

    python benchmarks/spaces.py [--obs dict ...] [--action tuple ...] [--policy ppo ...] [--workers 2]

Each combination trains 3 rollouts, evaluates, resumes from its checkpoint for a fourth, evaluates again, and acts on a
raw observation with the policy loaded from the file alone. A cell of the table counts the policies that pass; errors are
listed below the table.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from report import RESULTS, git_commit, machine, table, today, versions, versions_line, write_json
from zoo import load_policy, serial_pipeline
from zoo.env import make_env
from zoo.env.toy.targets import ACTION_SPACES, OBS_SPACES
from zoo.run.config import resolve_config

POLICIES = ('ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy')
N_ENV, N_STEP = 2, 8
ROLLOUT = N_ENV * N_STEP


def config_of(obs: str, action: str, policy: str, root: str) -> dict[str, Any]:
    """Config of three rollouts, which include every kind of update of the policy, and of an evaluation."""
    learn: dict[str, Any] = {'batch_size': 8}
    if policy.startswith('ppg'):
        learn |= {'aux_freq': 2, 'aux_batch_size': 16, 'aux_train_epoch': 1}
    config: dict[str, Any] = {
        'exp_name': 'spaces',
        'max_env_step': 3 * ROLLOUT,
        'env': {
            'id': 'any_space',
            'kwargs': {'obs': obs, 'action': action},
            'collector_env_num': N_ENV,
            'evaluator_env_num': 1,
            'vectorization': 'sync',
        },
        'policy': {
            'type': policy,
            'device': 'cpu',
            'n_thread': 1,
            'learn': learn,
            'collect': {'n_step': N_STEP},
            'eval': {'n_episode': 1},
        },
        'logger': {'root': root, 'console': 'off', 'tensorboard': False},
    }
    draw = {'n_sample': ROLLOUT, 'update_per_collect': 2}
    if policy == 'ppo_offpolicy':
        config['buffer'] = {'type': 'replay', 'size': 2 * ROLLOUT, **draw}
    elif policy == 'ppg_offpolicy':
        config['buffer'] = {'type': 'multi', 'size': 2 * ROLLOUT, 'policy': draw, 'value': draw}
    return config


def try_one(combination: tuple[str, str, str]) -> str:
    """Tests a combination (obs, action, policy): '' if it trains, resumes, evaluates and acts from its file, else the error."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as root:
        try:
            _train(config_of(*combination, root))
        except Exception as error:  # every failure is a cell of the table
            return f'{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}'
    return ''


def _train(config: dict[str, Any]) -> None:
    first = serial_pipeline(config)
    assert first.env_step == 3 * ROLLOUT and first.last_return is not None, 'three rollouts and an evaluation'
    second = serial_pipeline(resume=first.run_dir, max_env_step=4 * ROLLOUT)
    assert second.env_step == 4 * ROLLOUT and second.train_iter > first.train_iter, 'a fourth after a resume'
    env = make_env(resolve_config(config).env)
    obs, _ = env.reset(seed=0)
    action = load_policy(second.run_dir).act(obs)
    assert env.action_space.contains(action) or _is_close(env.action_space, action), f'the action {action!r}'
    env.step(action)


def _is_close(space: Any, action: Any) -> bool:
    """Whether an action is in the space if the types of its numbers are ignored, such as numpy's int64 for int."""
    batch = space.from_jsonable(space.to_jsonable([action]))
    return bool(space.contains(batch[0]))


def write(found: dict[tuple[str, str, str], str], seconds: float, command: str) -> None:
    """Writes the table and the raw results."""
    policies = sorted({policy for *_, policy in found}, key=POLICIES.index)
    actions = [name for name in ACTION_SPACES if any(name == a for _, a, _ in found)]
    rows = []
    for obs in [name for name in OBS_SPACES if any(name == o for o, _, _ in found)]:
        cells = [sum(not found[obs, action, policy] for policy in policies) for action in actions]
        rows.append([obs, *(f'{n} of {len(policies)}' if n < len(policies) else str(n) for n in cells)])
    failed = [f'- {" x ".join(combination)}: {why}' for combination, why in found.items() if why]
    lines = [
        '# Every observation space with every action space',
        '',
        f'Each cell: how many of {", ".join(policies)} train 3 rollouts, evaluate, resume for a fourth, evaluate and act '
        'on a raw observation from the checkpoint alone. The spaces are in zoo/env/toy/targets.py; the name of the '
        'observations is at the left, that of the actions above.',
        '',
        table(['', *actions], rows),
        '',
        f'{len(found) - len(failed)} of {len(found)} combinations pass.',
        '',
        *failed,
        *([''] if failed else []),
        f'- machine: {machine()}',
        f'- date: {today()}',
        f'- commit: {git_commit()}',
        f'- versions: {versions_line(versions())}',
        f'- command: `{command}`, {seconds:.0f} s',
    ]
    (RESULTS / 'spaces.md').write_text('\n'.join(lines) + '\n')
    raw = [{'obs': o, 'action': a, 'policy': p, 'problem': why} for (o, a, p), why in found.items()]
    write_json(RESULTS / 'spaces.json', raw)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--obs', nargs='+', choices=list(OBS_SPACES), default=list(OBS_SPACES))
    parser.add_argument('--action', nargs='+', choices=list(ACTION_SPACES), default=list(ACTION_SPACES))
    parser.add_argument('--policy', nargs='+', choices=POLICIES, default=list(POLICIES))
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--no-table', action='store_true', help='print what failed, write nothing')
    args = parser.parse_args(arguments)
    combinations = list(itertools.product(args.obs, args.action, args.policy))
    start = time.perf_counter()
    with ProcessPoolExecutor(args.workers) as pool:
        found = dict(zip(combinations, pool.map(try_one, combinations, chunksize=4), strict=True))
    failed = {combination: why for combination, why in found.items() if why}
    for combination, why in failed.items():
        print(' x '.join(combination), why)
    print(f'{len(found) - len(failed)} of {len(found)} combinations pass')
    if not args.no_table:
        command = ' '.join(['python', 'benchmarks/spaces.py', *(arguments or sys.argv[1:])])
        write(found, time.perf_counter() - start, command)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
