"""Gain of double-buffered sampling, where two groups of envs take turns; writes groups_<kind>.md and .json in results/.

    python benchmarks/groups.py [--device cpu] [--rollouts 20] [--threads 1] [--only NAME ...]

Measures the seconds of collecting a rollout with the envs in one group and in two (env.collector_group_num). Both run in one
process, in turn. The policies are untrained: two tanh layers of 64 (the default), the Nature CNN for images. They act by the
same executor as in training, uncompiled; the table names it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

from report import RESULTS, git_commit, machine, table, today, versions, versions_line, write_json
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.env import make_env_groups
from zoo.run.config import resolve_config
from zoo.worker.collector import Collector

log = logging.getLogger('groups')


class Work(NamedTuple):
    """Envs, and the number of steps of their rollouts."""

    name: str
    env: dict[str, Any]
    n_step: int


WORKS = (
    Work('CartPole-v1, 8 processes', dict(id='CartPole-v1', collector_env_num=8, vectorization='async'), 64),
    Work('HalfCheetah-v5, 2 processes', dict(id='HalfCheetah-v5', collector_env_num=2, vectorization='async'), 128),
    Work('HalfCheetah-v5, 8 processes', dict(id='HalfCheetah-v5', collector_env_num=8, vectorization='async'), 64),
    Work('CartPole-v1, 64 one after the other', dict(id='CartPole-v1', collector_env_num=64, vectorization='sync'), 32),
    Work(
        'Pong (envpool), 8 in one thread',
        dict(id='envpool', game='Pong-v5', collector_env_num=8, kwargs=dict(num_threads=1)),
        32,
    ),
)


def make_collector(work: Work, n_group: int, device: str, undo: ExitStack) -> tuple[Collector, str]:
    """A collector with a new policy and n_group groups of envs, and the name of the executor that acts."""
    cfg = resolve_config(
        {
            'env': {**work.env, 'collector_group_num': n_group},
            'policy': {
                'device': device,
                'learn': {'compile': 'off', 'batch_size': 64},
                'collect': {'n_step': work.n_step},
            },
        }
    )
    envs = [undo.enter_context(closing(env)) for env in make_env_groups(cfg.env, device)]
    policy = POLICY_REGISTRY.get('ppo')(cfg.policy, envs[0].obs_space, envs[0].action_space, enable_field=['collect'])
    collector = Collector(envs, policy.collect_mode)
    collector.reset(stream(0, 'benchmark'))
    return collector, policy.executor_name


def seconds(work: Work, device: str, n_rollout: int) -> tuple[dict[int, list[float]], str]:
    """Seconds of every rollout after the first two, by number of groups; and the name of the executor that acts."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as undo:
        collectors = {n_group: make_collector(work, n_group, device, undo) for n_group in found}
        for i in range(n_rollout + 2):
            for n_group, (collector, _) in collectors.items():
                start = time.perf_counter()
                collector.collect()
                if i > 1:
                    found[n_group].append(time.perf_counter() - start)
    return found, collectors[1][1]


def report(data: Mapping[str, Any]) -> str:
    """The Markdown page, made from the data of the JSON file."""
    lines = []
    for name, runs in data['seconds'].items():
        one, two = (statistics.median(runs[n]) for n in ('1', '2'))
        executor = data.get('executors', {}).get(name, 'not recorded')
        lines.append([name, f'{one * 1e3:.1f}', f'{two * 1e3:.1f}', f'{one / two:.2f}', executor])
    text = [
        '# One group of envs, and two that take turns\n',
        f'Collecting one rollout, medians of {data["rollouts"]}; the policy acts on {data["device"]} '
        f'(threads: {data["threads"]}); both in one process, in turn.\n',
        table(['envs', 'one group, ms', 'two groups, ms', 'one / two', 'executor'], lines),
        f'- machine: {data["machine"]}',
        f'- versions: {versions_line(data["versions"])}',
        f'- date: {data["date"]}, commit {data["commit"]}',
        f'- command: `{data["command"]}`',
    ]
    return '\n'.join(text) + '\n'


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--rollouts', type=int, default=20)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='works whose name contains one of these')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of the two files')
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    found, executors = {}, {}
    torch.set_num_threads(args.threads)
    for work in WORKS:
        if not args.only or any(part in work.name for part in args.only):
            by_group, executors[work.name] = seconds(work, args.device, args.rollouts)
            found[work.name] = {str(n): values for n, values in by_group.items()}
            log.info('%s: %s', work.name, {n: round(statistics.median(x), 4) for n, x in by_group.items()})
    kind = args.device.partition(':')[0]
    data = {
        'device': torch.cuda.get_device_name(args.device) if kind == 'cuda' else 'a CPU',
        'machine': machine(),
        'versions': versions((*versions(), 'envpool')),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join(['python benchmarks/groups.py', *(sys.argv[1:] if argv is None else argv)]),
        'rollouts': args.rollouts,
        'threads': args.threads,
        'executors': executors,
        'seconds': found,
    }
    write_json(args.results / f'groups_{kind}.json', data)
    (args.results / f'groups_{kind}.md').write_text(report(data), encoding='utf-8')


if __name__ == '__main__':
    main()
