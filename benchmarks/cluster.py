"""Speed of zoo with runners and ranks, and of other libraries on the same work; writes cluster.md and .json in results/.

    python benchmarks/cluster.py [--only slow cheetah overlap overhead] [--variants ranks] [--repeats 5] [--scale 1] [--quick]

Each variant of a work trains in its own processes (benchmarks/peers). The variants take turns, every second round in reverse
order. The clock runs from the third iteration to the last update. RLlib needs gymnasium 1.2, hence its own virtual environment
$ZOO_BENCH_VENVS/rllib, made by `pip install torch 'ray[rllib]'`; $ZOO_BENCH_VENVS/sb3 has stable-baselines3. Libraries that are
not installed are left out.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speed_runs import DriverError, run_driver, take_turns
from speed_works import left_out, python_of

from report import (
    PEERS_DIR,
    VENVS,
    git_commit,
    machine,
    results_folder,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

SERIAL = 'zoo, one process'
log = logging.getLogger('cluster')


class Variant(NamedTuple):
    """One way to do a work: a driver and its arguments."""

    label: str
    script: str = 'run_zoo.py'
    venv: str = ''  # folder in --venvs; '': the Python that runs this file
    args: tuple[str, ...] = ()
    n_rank: int = 1

    def command(self, work: Work, scale: float, seed: int, venvs: Path) -> list[str]:
        """The command line that runs this variant on a work."""
        python = str(python_of(self.venv, venvs)) if self.venv else sys.executable
        launch = ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={self.n_rank}']
        return [
            python,
            *(launch if self.n_rank > 1 else []),
            str(PEERS_DIR / self.script),
            *work.arguments(scale),
            *(f'--seed={seed}', '--threads=1', '--episodes=0'),
            *self.args,
        ]

    def is_in(self, venvs: Path) -> bool:
        """Whether its library is installed."""
        return not self.venv or python_of(self.venv, venvs).exists()


class Work(NamedTuple):
    """The training job of one table. wanted: {label: (x, other)}: variant `label` is to have x times the speed of `other`."""

    name: str
    title: str
    env: str
    n_env: int
    rollout: int
    minibatch: int
    epochs: int
    total_steps: int
    variants: tuple[Variant, ...]
    wanted: Mapping[str, tuple[float, str]] = {}
    zoo: tuple[str, ...] = ()  # config overrides for all variants of zoo

    def arguments(self, scale: float) -> list[str]:
        """Command-line arguments that give every driver this work."""
        batch = self.n_env * self.rollout
        n_step = max(round(self.total_steps * scale / batch), 4) * batch
        numbers = {
            'num-envs': self.n_env,
            'rollout': self.rollout,
            'minibatch': self.minibatch,
            'epochs': self.epochs,
            'total-steps': n_step,
            'warmup': 2,
        }
        return [f'--env={self.env}', *(f'--{name}={x}' for name, x in numbers.items())]


def zoo(label: str, *overrides: str, n_rank: int = 1) -> Variant:
    """A variant that trains with zoo."""
    return Variant(label, args=tuple(f'--set={text}' for text in overrides), n_rank=n_rank)


def runners(n: int, *overrides: str, engine: str = 'process') -> Variant:
    """A variant that trains with zoo and n runners."""
    lag = next((f', lag {text[-1]}' for text in overrides if text.startswith('cluster.max_lag=')), '')
    what = f'{n} runner{"s" if n > 1 else ""}'
    return zoo(f'zoo, {what}, {engine}{lag}', f'cluster.runner_num={n}', f'cluster.engine={engine}', *overrides)


LAG = 'cluster.max_lag=1'
RANKS = tuple(zoo(f'zoo, {n} ranks', n_rank=n) for n in (2, 4))
RANKS_WANTED = {'zoo, 2 ranks': (1.5, SERIAL), 'zoo, 4 ranks': (0.8, 'zoo, 2 ranks')}
ASYNC = zoo('zoo, one process, envs in 8 processes', 'env.vectorization=async')
SB3 = Variant('stable-baselines3, DummyVecEnv', 'run_sb3.py', 'sb3')
SUBPROC = Variant('stable-baselines3, SubprocVecEnv', 'run_sb3.py', 'sb3', ('--workers=8',))
RLLIB = Variant('RLlib, 2 env runners', 'run_rllib.py', 'rllib', ('--workers=2',))
SYNC = ('env.vectorization=sync',)
WIDE = (*SYNC, 'policy.model.hidden_sizes=[512,512]')

WORKS = (
    Work(
        'slow',
        'An env of 2 ms (it sleeps): 8 envs x 32, 4 epochs of 4 minibatches',
        'SlowCartPole-v1',
        8,
        32,
        64,
        4,
        4_096,
        (
            zoo(SERIAL),
            *(runners(n) for n in (1, 2, 4, 8)),
            *(runners(n, engine='ray') for n in (2, 4)),
            ASYNC,
            SB3,
            SUBPROC,
            RLLIB,
        ),
        {
            'zoo, 1 runner, process': (0.9, SERIAL),
            'zoo, 2 runners, process': (1.8, SERIAL),
            'zoo, 4 runners, process': (3.3, SERIAL),
        },
        SYNC,
    ),
    Work(
        'cheetah',
        'HalfCheetah-v5: 8 envs x 256, 10 epochs of 32 minibatches',
        'HalfCheetah-v5',
        8,
        256,
        64,
        10,
        98_304,
        (
            zoo(SERIAL),
            *(runners(n, *lag) for n in (1, 2) for lag in ((), (LAG,))),
            *RANKS,
            ASYNC,
            SUBPROC,
            RLLIB,
        ),
        {
            'zoo, 2 runners, process, lag 1': (1.6, SERIAL),
            'zoo, 2 runners, process': (3.0, RLLIB.label),
            **RANKS_WANTED,
        },
        SYNC,
    ),
    Work(
        'overlap',
        'Learning as long as collecting: an env of 2 ms, 8 envs x 32, towers 512-512, 80 epochs',
        'SlowCartPole-v1',
        8,
        32,
        64,
        80,
        5_120,
        (zoo(SERIAL), runners(2), runners(2, LAG)),
        {'zoo, 2 runners, process, lag 1': (1.5, 'zoo, 2 runners, process')},
        WIDE,
    ),
    Work(
        'overhead',
        'Envs that cost nothing: CartPole-v1, 8 envs x 128, 4 epochs of 4 minibatches',
        'CartPole-v1',
        8,
        128,
        256,
        4,
        102_400,
        (zoo(SERIAL), runners(1), runners(2), runners(2, LAG), *RANKS, SUBPROC, RLLIB),
        {
            'zoo, 1 runner, process': (0.9, SERIAL),
            'zoo, 2 runners, process': (3.0, RLLIB.label),
            **RANKS_WANTED,
        },
        SYNC,
    ),
)
PARTS = {work.name: work.title for work in WORKS}  # choices of --only
COLUMNS = ('variant', 'env steps/s', 'times', 'collect, s', 'learn, s', 'wait, ms', 'put, ms', 'join, ms', 'wanted')


def measure(work: Work, n_repeat: int, scale: float, venvs: Path) -> list[dict[str, Any]]:
    """Runs all variants of a work in turn; returns their records."""
    found = []
    by_label = {variant.label: variant for variant in work.variants if variant.is_in(venvs)}
    with tempfile.TemporaryDirectory() as cache:
        for repeat, label in take_turns([*by_label], n_repeat):
            variant = by_label[label]
            command = variant.command(work, scale, repeat, venvs)
            if not variant.venv:
                command += [f'--set={text}' for text in work.zoo]
            try:
                record = run_driver(command, Path(cache), PEERS_DIR)  # this folder has the slow env
            except DriverError as error:
                log.error('%s, %s failed: %s', work.name, label, str(error).splitlines()[0])
                continue
            record |= {'work': work.name, 'label': label, 'repeat': repeat}
            log.info('%s, %s: %.0f env steps/s, others %s', work.name, label, record['env_step_per_s'], _load(record))
            found.append(record)
    return found


def _load(record: Mapping[str, Any]) -> Any:
    return record.get('other_load')


def rows(work: Work, records: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Rows of a work's table, one for each variant."""
    of = {v.label: [r for r in records if (r['work'], r['label']) == (work.name, v.label)] for v in work.variants}
    speed = {label: statistics.median(r['env_step_per_s'] for r in runs) for label, runs in of.items() if runs}
    found = []
    for label, runs in of.items():
        if not runs:
            found.append([label, 'not installed or failed', *[''] * (len(COLUMNS) - 2)])
            continue
        least, other = work.wanted.get(label, (None, ''))
        met = ''
        if least is not None and other in speed and SERIAL in speed:
            ratio = speed[label] / speed[other]
            to = '' if other == SERIAL else f' of "{other}"'
            met = f'{least:g} times{to}: {ratio:.2f}, {"met" if ratio >= least else "missed"}'
        times = f'{speed[label] / speed[SERIAL]:.2f}' if SERIAL in speed else ''
        found.append([label, f'{speed[label]:,.0f}', times, *_parts(runs), met])
    return found


def _parts(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Medians: seconds of collecting and learning, and milliseconds per rollout that runners cost the learner."""

    def median(group: str, name: str, unit: str) -> str:
        found = [run[group][name] for run in runs if name in run.get(group, {})]
        return format(statistics.median(found), unit) if found else ''

    if not any('part_s' in run for run in runs):
        return [''] * 5
    collect = [sum(run['part_s'].get(name, 0.0) for name in ('env', 'act')) for run in runs]
    return [
        f'{statistics.median(collect):.2f}',
        median('part_s', 'learn', '.2f'),
        *(median('cluster_ms', name, '.2f') for name in ('wait', 'put', 'join')),
    ]


def page(works: Sequence[Work], data: Mapping[str, Any]) -> str:
    """The Markdown report."""
    text = [
        '# Runners and ranks',
        '',
        f'{data["machine"]}; {versions_line(data["versions"])}; commit {data["commit"]}, {data["date"]}.',
        f'Command: `{data["command"]}`. Medians of {data["repeats"]} interleaved repeats; "times": of zoo in one process.',
        'collect and learn are seconds of the timed part; wait, put and join what a rollout of runners costs the learner:',
        'waiting for the slowest, publishing the weights, copying the rollouts.',
        '',
    ]
    for work in works:
        text += [f'## {work.title}', '', table(COLUMNS, rows(work, data['records']))]
    return '\n'.join(text)


def chosen(work: Work, words: Sequence[str] | None) -> Work:
    """The work with those variants whose label has one of the words, and the one that all are compared with; None: all."""
    if words is None:
        return work
    variants = [v for v in work.variants if v.label == SERIAL or any(word in v.label for word in words)]
    return work._replace(variants=tuple(variants))


def parse_args(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--only', '--works', nargs='+', choices=PARTS, default=list(PARTS), metavar='NAME', help=', '.join(PARTS)
    )
    parser.add_argument('--variants', nargs='+', metavar='WORD', help='only those with a word, and zoo in one process')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--scale', type=float, default=1.0, help='factor of the env steps of every run')
    parser.add_argument('--venvs', type=Path, default=VENVS, help='folder of the virtual environments')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of cluster.json and cluster.md')
    parser.add_argument(
        '--quick', action='store_true', help='a look: once, a tenth; into the temporary folder unless --results'
    )
    args = parser.parse_args(argv)
    args.results = results_folder(args.results, args.quick)
    if args.quick:
        args.repeats, args.scale = 1, min(args.scale, 0.1)
    return args


def main(argv: Sequence[str] | None = None, program: str = 'python benchmarks/cluster.py') -> int:
    """Measures and writes; 1 if nothing could be measured. program: the command's name in the results."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv, program)
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    works = [chosen(work, args.variants) for work in WORKS if work.name in args.only]
    missing = {v.label.split(',')[0]: None for work in works for v in work.variants if not v.is_in(args.venvs)}
    for line in left_out([*missing], args.venvs):
        log.warning('%s', line)
    data = {
        'machine': machine(),
        'versions': versions(),
        'commit': git_commit(),
        'date': today(),
        'command': ' '.join([program, *argv]),
        'repeats': args.repeats,
        'records': [record for work in works for record in measure(work, args.repeats, args.scale, args.venvs)],
    }
    write_json(args.results / 'cluster.json', data)
    (args.results / 'cluster.md').write_text(page(works, data), encoding='utf-8')
    log.info('written: %s', args.results / 'cluster.md')
    return 0 if data['records'] else 1


if __name__ == '__main__':
    sys.exit(main())
