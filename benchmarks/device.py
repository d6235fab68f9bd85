"""Training speed on a GPU, and the calls in which the host waits for it; writes device_<kind>.md and .json in results/.

    python benchmarks/device.py [--device cuda] [--envs 1024 8192 65536] [--repeats 5] [--seconds 5]

CartPole-v1 as a tensor program (env.id=torch), PPO, rollouts of 32 steps, 4 epochs of 4 minibatches, two towers of two
tanh layers of 64, eager and compiled. The settings take turns, one process each; the clock starts after 2 iterations.
Then torch's profiler traces runs of several policies: every call within an update in which the host waits for the device
is listed.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch
from speed_runs import DriverError, run_driver
from speed_works import COMPILED, EAGER, PEERS_DIR, flags

from report import RESULTS, git_commit, machine, one_thread_env, table, today, versions, versions_line, write_json

ROLLOUT, EPOCHS, N_MINIBATCH, WARMUP = 32, 4, 4, 2
WANTED_ENVS, WANTED = 8192, 10_000_000  # env steps/s of training, on an H200
BLOCKING = ('cudaMemcpy', 'cudaMemcpy2D', 'cudaMalloc', 'cudaFree', 'cudaHostAlloc', 'cudaFreeHost')
TRACED = 3  # iterations that `zoo train --profile` traces

log = logging.getLogger('device')


class Case(NamedTuple):
    """One setting ('eager' or 'compiled') with one number of envs."""

    what: str
    num_envs: int
    mode: str


def cases(envs: Sequence[int]) -> list[Case]:
    """All cases that are timed."""
    return [Case(what, n, mode) for n in envs for what, mode in (('eager', EAGER), ('compiled', COMPILED))]


def command(case: Case, device: str, seconds: float) -> list[str]:
    """Command line of run_zoo.py for a case; --seconds ends the run, since its env steps are too many to be reached."""
    options = {
        'env': 'torch/CartPole-v1',
        'num-envs': case.num_envs,
        'rollout': ROLLOUT,
        'epochs': EPOCHS,
        'warmup': WARMUP,
        'minibatch': case.num_envs * ROLLOUT // N_MINIBATCH,
        'episodes': 0,
        'total-steps': 10**12,
        'seconds': seconds,
        'threads': 1,
    }
    return [sys.executable, str(PEERS_DIR / 'run_zoo.py'), *flags(options, (case.mode, f'policy.device={device}'))]


def measure(args: argparse.Namespace, cache: Path) -> Iterator[dict[str, Any]]:
    """Yields a record of every run; for a failed run, the reason."""
    for _ in range(args.repeats):
        for case in cases(args.envs):
            try:
                record = run_driver(command(case, args.device, args.seconds), cache)
                log.info('%s, %d: %.0f env steps/s', case.what, case.num_envs, record['env_step_per_s'])
            except DriverError as error:
                record = {'failed': str(error)}
                log.error('%s, %d failed: %s', case.what, case.num_envs, error)
            yield {**case._asdict(), **record}


def traced_runs(num_envs: int) -> dict[str, list[str]]:
    """By name, the arguments of `zoo train` for each run that is traced; the first one has num_envs tensor envs."""
    n_sample = num_envs * ROLLOUT
    tensor = {
        'env.id': 'torch',
        'env.game': 'CartPole-v1',
        'env.collector_env_num': num_envs,
        'policy.collect.n_step': ROLLOUT,
        'policy.learn.batch_size': n_sample // N_MINIBATCH,
        'policy.learn.epoch_per_collect': EPOCHS,
        'max_env_step': 8 * n_sample,
    }
    few, draws = 'policy.learn.epoch_per_collect=2', 'buffer.update_per_collect=4'  # so that a trace is short
    rnd = 'policy.learn.intrinsic={"type":"rnd","weight":0.5}'
    return {
        f'{num_envs:,} tensor envs, compiled': ['cartpole_ppo', COMPILED, *(f'{k}={v}' for k, v in tensor.items())],
        'ppo': ['cartpole_ppo', few],
        'ppo, captured': ['cartpole_ppo', few, 'policy.learn.executor=graph'],
        'ppo, rnd': ['cartpole_ppo', few, rnd],
        'lstm': ['cartpole_no_velocity_ppo', few, 'policy.collect.n_step=32'],
        'ppg, auxiliary memory on the CPU': ['cartpole_ppg', 'policy.learn.aux_freq=1', 'policy.learn.aux_memory=cpu'],
        'ppo on samples replayed from the CPU': ['cartpole_ppo_offpolicy', 'buffer.device=cpu', draws],
        'dqn, prioritized replay': ['cartpole_dqn', 'buffer.alpha=0.6', draws],
        'trpo': ['cartpole_trpo', few],
    }


def trace_run(args: Sequence[str], device: str, cache: Path) -> dict[str, Any]:
    """The trace that `zoo train --profile` writes for a run."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f'policy.device={device}', f'logger.root={folder}', 'policy.eval.stop_value=null']
        subprocess.run(
            [sys.executable, '-m', 'zoo', 'train', args[0], '--profile', '1', *args[1:], *own],
            env={**one_thread_env(), 'TORCHINDUCTOR_CACHE_DIR': str(cache)},
            check=True,
            capture_output=True,
        )
        return json.loads(next(Path(folder).rglob('trace.json')).read_text())


def waits(trace: Mapping[str, Any]) -> list[list[tuple[str, float]]]:
    """For every update in a trace: the calls in which the host waits, and their position in the update (0 to 1)."""
    events = [event for event in trace['traceEvents'] if event.get('ph') == 'X']
    updates = [event for event in events if event['name'] == 'zoo/learn' and event.get('cat') == 'user_annotation']
    calls = [
        event
        for event in events
        if event.get('cat') in ('cuda_runtime', 'cuda_driver')
        and ('Synchronize' in event['name'] or event['name'] in BLOCKING)
    ]
    return [
        [
            (call['name'], (call['ts'] - update['ts']) / update['dur'])
            for call in calls
            if 0 <= call['ts'] - update['ts'] <= update['dur']
        ]
        for update in updates
    ]


def waits_line(found: Sequence[tuple[str, float]]) -> str:
    """How often each call waits in an update, and where."""
    if not found:
        return 'none'
    calls = ', '.join(f'{n} {name}' for name, n in Counter(name for name, _ in found).items())
    return f'{calls}, at {found[0][1]:.2f}' + (f' to {found[-1][1]:.2f}' if len(found) > 1 else '')


def rows(records: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yields a table row for every case."""
    for what, n in dict.fromkeys((record['what'], record['num_envs']) for record in records):
        runs = [record for record in records if (record['what'], record['num_envs']) == (what, n)]
        speeds = [record['env_step_per_s'] for record in runs if 'env_step_per_s' in record]
        speed = statistics.median(speeds) if speeds else None
        wanted = ''
        if n == WANTED_ENVS and what == 'compiled':
            wanted = f'{WANTED:,}'
        spread = '' if speed is None else f'{min(speeds):,.0f} to {max(speeds):,.0f}'
        slow = [record['warmup_s'] for record in runs if 'warmup_s' in record]
        yield [
            what,
            f'{n:,}',
            'failed' if speed is None else f'{speed:,.0f}',
            spread,
            wanted,
            f'{max(slow):.1f}' if slow else '',
        ]


def report(data: Mapping[str, Any]) -> str:
    """The Markdown page, made from the data of the JSON file."""
    text = [
        f'# Training on {data["device_name"]}\n',
        f'CartPole-v1 as a tensor program (env.id=torch), PPO, rollouts of {ROLLOUT} steps, {EPOCHS} epochs of '
        f'{N_MINIBATCH} minibatches, two towers 64-64. Env steps/s of training (collection and update), medians of '
        f'{data["repeats"]} runs of {data["seconds"]:g} s that take turns, after the first {WARMUP} iterations. '
        'Wanted is what an H200 should reach.\n',
        table(
            ['what', 'envs', 'env steps/s', 'from, to', 'wanted', 'first iterations, s (at most)'],
            list(rows(data['records'])),
        ),
        '## Where the host waits inside of an update\n',
        'Every update that was traced; the calls that wait, and how far into the update the first and the last one are '
        '(0 to 1). The steps on a draw of samples end with a wait that reads their statistics; trpo also reads what its '
        'steps depend on, prioritized replay the new priorities. All runs at once.\n',
        table(
            ['run', 'update', 'waits'],
            [
                [name, str(i), waits_line(found)]
                for name, updates in data['waits'].items()
                for i, found in enumerate(updates)
            ],
        )
        if data['waits']
        else 'Not traced.\n',
        f'- machine: {data["machine"]}',
        f'- versions: {versions_line(data["versions"])}',
        f'- date: {data["date"]}, commit {data["commit"]}',
        f'- command: `{data["command"]}`',
    ]
    text += [f'- note: {data["note"]}'] if 'note' in data else []
    text += [
        f'- failed: {r["what"]}, {r["num_envs"]}: {r["failed"].splitlines()[-1]}'
        for r in data['records']
        if 'failed' in r
    ]
    return '\n'.join(text) + '\n'


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--envs', type=int, nargs='+', default=[1024, 8192, 65536], help='tensor envs')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=5.0, help='that the clock of a run runs, about')
    parser.add_argument('--cache', type=Path, help='folder of compiled code that stays; else each call compiles anew')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of the two files')
    args = parser.parse_args(argv)
    if args.device.startswith('cuda') and not torch.cuda.is_available():
        parser.error('--device is cuda but torch sees no CUDA device; use --device cpu')
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    kind = args.device.partition(':')[0]
    runs = traced_runs(WANTED_ENVS if WANTED_ENVS in args.envs else args.envs[0])
    data: dict[str, Any] = {
        'device_name': torch.cuda.get_device_name(args.device) if kind == 'cuda' else 'a CPU',
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join(['python benchmarks/device.py', *(sys.argv[1:] if argv is None else argv)]),
        'repeats': args.repeats,
        'seconds': args.seconds,
        'records': [],
        'waits': {},
    }
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) if args.cache is None else args.cache
        for record in measure(args, cache):
            data['records'].append(record)
            write(args.results, kind, data)  # after each run: an interrupted call leaves what it measured
        with ThreadPoolExecutor(len(runs)) as pool:  # what waits does not depend on the others
            traces = {pool.submit(trace_run, run, args.device, cache): name for name, run in runs.items()}
            for trace in as_completed(traces):
                name = traces[trace]
                try:
                    data['waits'][name] = waits(trace.result())
                except subprocess.CalledProcessError as error:
                    log.error('no trace of %s: %s', name, error.stderr.decode()[-2000:])
                    continue
                if len(data['waits'][name]) != TRACED:
                    log.error('the trace of %s has %d updates, wanted %d', name, len(data['waits'][name]), TRACED)
                write(args.results, kind, data)


def write(folder: Path, kind: str, data: Mapping[str, Any]) -> None:
    """Writes the JSON and the Markdown file."""
    write_json(folder / f'device_{kind}.json', data)
    (folder / f'device_{kind}.md').write_text(report(data), encoding='utf-8')


if __name__ == '__main__':
    main()
