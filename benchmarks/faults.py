"""Fault tests of training runs; each command writes its section of benchmarks/results/faults.md, and faults.json.

    python benchmarks/faults.py kills [--n 50]           kill -9 at random moments, during saves too, and resumes
    python benchmarks/faults.py night [--minutes 30]     a fault every minute: signals, kills, a full disk; and resumes
    python benchmarks/faults.py checkpoints [--n 2000]   checkpoint files changed at random, with correct checksums
    python benchmarks/faults.py folders [--n 2000]       run folders changed at random: content, links, pipes

If a check fails, it is logged and the exit code is 1. --out FOLDER writes to another folder.
Linux only: processes are found in /proc.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fault_night import night, night_text
from fault_runs import FaultyRun
from fault_system import wait_for

from report import (
    REPO,
    RESULTS,
    git_commit,
    last_json_line,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

POLICIES = ('ppo', 'ppg', 'ppg_offpolicy')
VECTORIZATIONS = ('sync', 'async')
MOMENTS = ('start', 'training', 'save')
ROLLOUT = 1_024  # env steps; a checkpoint after each
SMALL = (
    'max_env_step=100000000',
    'env.collector_env_num=4',
    f'policy.collect.n_step={ROLLOUT // 4}',
    'policy.eval.stop_value=null',
    'policy.eval.n_episode=2',
    f'policy.eval.eval_freq={4 * ROLLOUT}',
    f'checkpoint.freq={ROLLOUT}',
    f'logger.freq={ROLLOUT}',
)
SECTIONS = ('kills', 'night', 'checkpoints', 'folders')

log = logging.getLogger('faults')


def hit(run: FaultyRun, rng: random.Random) -> str:
    """Starts or resumes a run and kills it; returns the moment aimed at: 'start', 'training' or 'save'."""
    moment = rng.choice(MOMENTS)
    run.start()
    if moment == 'start':
        time.sleep(rng.uniform(0, 6))
    elif run.wait_until_running():
        run.check_resume()
        if moment == 'training':
            time.sleep(rng.uniform(0, 2))
        else:
            time.sleep(rng.uniform(0, 0.5))
            wait_for(run.is_saving, 10)
    run.note_checkpoints()
    if run.process.poll() is not None:
        run.faults.append(f'it ended by itself with {run.process.returncode}: {run.tail()}')
    run.kill()
    return moment


def kill_run(policy: str, vectorization: str, n: int, seed: int, root: Path) -> dict[str, Any]:
    """Kills and resumes a run n times, then lets it end; returns its record."""
    rng, moments, found, n_in_save = random.Random(seed), Counter(), Counter(), 0
    run = FaultyRun(root, f'cartpole_{policy}', [*SMALL, f'env.vectorization={vectorization}'])
    for _ in range(n):
        moments[hit(run, rng)] += 1
        n_in_save += run.is_saving()
        found.update(run.check_end())
    run.start(f'max_env_step={run.floor + 8 * ROLLOUT}')
    code = run.wait()
    run.check_resume()
    found.update(run.check_end(is_complete=True))
    if code != 0 or not run.is_saved():
        run.faults.append(f'the last resume ended with {code}: {run.tail()}')
    run.note_checkpoints()
    log.info('%s %s: %d kills, %d faults', policy, vectorization, n, len(run.faults))
    return {
        'policy': policy,
        'vectorization': vectorization,
        'kills': n,
        'moments': dict(moments),
        'in_save': n_in_save,
        'lost': sum(fault.startswith('lost') for fault in run.faults),
        'found': dict(found),
        'orphan_s': round(run.orphan_s, 2),
        'env_step': run.floor,
        'faults': run.faults,
    }


def kills(args: argparse.Namespace) -> dict[str, Any]:
    """Kills and resumes runs of all policies, with envs in the process and in workers; all get about the same number."""
    cases = [(policy, vectorization) for policy in POLICIES for vectorization in VECTORIZATIONS]
    counts = [len(range(i, args.n, len(cases))) for i in range(len(cases))]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        roots = [Path(folder) / '_'.join(case) for case in cases]
        for root in roots:
            root.mkdir()
        jobs = [
            pool.submit(kill_run, *case, n, args.seed + i, root)
            for i, (case, n, root) in enumerate(zip(cases, counts, roots, strict=True))
            if n
        ]
        runs = [job.result() for job in jobs]
    return {'runs': runs, 'faults': [fault for run in runs for fault in run['faults']]}


def kills_text(record: dict[str, Any]) -> str:
    rows = [
        [
            run['policy'],
            run['vectorization'],
            run['kills'],
            ', '.join(str(run['moments'].get(moment, 0)) for moment in MOMENTS),
            run['in_save'],
            run['found']['corrupt checkpoints'],
            run['lost'],
            run['found']['log lines out of order'],
            run['found']['children left'],
            run['found']['*.tmp'],
            run['orphan_s'],
            f'{run["env_step"]:,}',
        ]
        for run in record['runs']
    ]
    sums = ['all', '', *(sum(row[i] for row in rows) if i != 3 else '' for i in range(2, 10))]
    columns = (
        'policy',
        'envs',
        'kills',
        'aimed at start, training, save',
        'hit a save',
        'corrupt checkpoints',
        'lost',
        'log lines out of order',
        'children left',
        '*.tmp at the end',
        'children gone after at most, s',
        'env steps',
    )
    return (
        'Runs of CartPole that save after every rollout, killed with `kill -9` and resumed each time until the last '
        'resume may end. Lost: a resume that starts before a checkpoint that was complete when the kill came. Out of '
        'order: lines of `metrics.jsonl` that are cut off, or whose env step is not above that of the line before of '
        'the same kind. "Hit a save": the killed process left a temporary file.\n\n'
        + table(columns, [*rows, [*sums, max(row[10] for row in rows), '']])
    )


def fuzzed(module: str, folder: Path, first: int, n: int) -> dict[str, Any]:
    """Runs a fuzz module of the tests in its own process; returns its result."""
    folder.mkdir()
    env = {**one_thread_env(), 'TMPDIR': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
    done = subprocess.run(
        [sys.executable, '-m', module, str(folder), str(first), str(n)],
        cwd=REPO,
        env=env,
        capture_output=True,
        text=True,
        timeout=60 + 10 * n,
        check=False,
    )
    found = last_json_line(done.stdout)
    if done.returncode or found is None:
        return {'faults': [f'the fuzz ended with {done.returncode}: {done.stderr[-2000:]}']}
    return found


def checkpoints(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the tests' fuzz of checkpoint files, with more files."""
    with tempfile.TemporaryDirectory() as folder:
        found = fuzzed('tests.run.checkpoint_fuzz', Path(folder) / 'fuzz', args.seed, args.n)
    if 'ends' not in found:
        return found
    made = sorted({'sprung', 'pwned'} & set(found['made']))
    big = [f'{found["peak_gb"]} GB at the peak'] if found['peak_gb'] > 2 else []
    return {**found, 'faults': [*found['faults'], *(f'{name} was made: code of a file has run' for name in made), *big]}


def checkpoints_text(record: dict[str, Any]) -> str:
    if 'ends' not in record:
        return ''
    ends = {'done': 0, 'refused': 0, 'failed': 0, 'broken': 0, **record['ends']}
    columns = ('files', 'commands', 'exit 0', 'exit 2', 'exit 1', 'other ends', 'peak memory, GB', 'slowest, s', 's')
    row = [record['files'], sum(ends.values()), *ends.values(), record['peak_gb'], record['slowest'][0]]
    kinds = ', '.join(f'{name} {n}' for name, n in sorted(record.get('kinds', {}).items()))
    return (
        'Checkpoint files changed at random, with a right checksum: bytes, metadata of wrong types, missing and extra '
        'keys, names of code, numbers, spaces, tensors swapped, reshaped or of another dtype. Each is given to '
        '`load_policy`, `zoo eval` and `zoo train --resume`. A command may end with a result (the change does no harm) '
        'or in one sentence; another end is a traceback, an end without a sentence, or none within 60 s. An audit '
        'hook sees processes, connections, imports and files outside of the folder.\n\n'
        + table(columns, [[*row, record['seconds']]])
        + (f'\nFiles of each kind: {kinds}.\n' if kinds else '')
    )


def folders(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the tests' fuzz of run folders, with more folders."""
    shares = [(args.seed + i * args.n // args.workers, args.n // args.workers) for i in range(args.workers)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        jobs = [
            pool.submit(fuzzed, 'tests.tools.results.folder_fuzz', Path(folder) / str(first), first, n)
            for first, n in shares
        ]
        found = [job.result() for job in jobs]
    faults = [fault for part in found for fault in part['faults']]
    if not all('ends' in part for part in found):
        return {'faults': faults}
    sums = {
        name: dict(sum((Counter(part[name]) for part in found), Counter())) for name in ('kinds', 'ends', 'seconds')
    }
    peak = max(part['peak_gb'] for part in found)
    big = [f'{peak} GB at the peak'] if peak > 1 else []
    numbers = {'folders': sum(part['folders'] for part in found), 'slowest': max(part['slowest'] for part in found)}
    return {**numbers, **sums, 'peak_gb': peak, 'faults': [*faults, *big]}


def folders_text(record: dict[str, Any]) -> str:
    if 'ends' not in record:
        return ''
    ends = {'done': 0, 'refused': 0, 'failed': 0, 'broken': 0, **record['ends']}
    columns = ('folders', 'commands', 'exit 0', 'exit 2', 'exit 1', 'other ends', 'peak memory, GB', 'slowest, s')
    row = [record['folders'], sum(ends.values()), *ends.values(), record['peak_gb'], record['slowest'][0]]
    kinds = ', '.join(f'{name} {n}' for name, n in sorted(record['kinds'].items()))
    return (
        'Run folders changed at random: values of wrong kinds, huge numbers, deep nesting and damaged bytes in config.yaml, '
        'metrics.jsonl, result.json and checkpoints; links, pipes, sockets, devices and folders in the place of files. Each '
        'is given to `zoo runs`, `plot`, `report`, `compare`, `eval` and `train --resume`. A command may end with a result or '
        'in one sentence; another end is a traceback, an end without a sentence, or none within 10 s of '
        'processor time, 60 s of the clock. An audit hook sees processes, connections, and files outside of the folder that '
        'are listed, read, written or removed.\n\n' + table(columns, [row]) + f'\nFolders of each kind: {kinds}.\n'
    )


TEXTS = {'kills': kills_text, 'night': night_text, 'checkpoints': checkpoints_text, 'folders': folders_text}
TITLES = {
    'kills': 'Kills',
    'night': 'A night in small',
    'checkpoints': 'Changed checkpoints',
    'folders': 'Changed run folders',
}


def write_results(folder: Path) -> None:
    """Writes faults.md again, from all records of faults.json."""
    records = json.loads((folder / 'faults.json').read_text(encoding='utf-8'))
    parts = ['# Faults\n\nWhat zoo survives, and what was found. [What is checked, and how](../../docs/faults.md).\n']
    for name in SECTIONS:
        if name not in records:
            continue
        record = records[name]
        faults = [f'  - {" ".join(fault.split())[:400]}' for fault in record['faults'][:20]]
        parts += [
            f'## {TITLES[name]}\n\n{TEXTS[name](record)}',
            '\n'.join(
                [
                    f'- did not hold: {len(record["faults"]) or "nothing"}',
                    *faults,
                    f'- machine: {record["machine"]}',
                    f'- versions: {versions_line(record["versions"])}',
                    f'- date: {record["date"]}, commit {record["commit"]}, {record["wall_s"] / 60:.0f} minutes',
                    f'- command: `{record["command"]}`; raw numbers: `faults.json`\n',
                ]
            ),
        ]
    (folder / 'faults.md').write_text('\n'.join(parts), encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    for run, n in ((kills, 50), (checkpoints, 2_000), (folders, 2_000)):
        command = commands.add_parser(run.__name__, help=str(run.__doc__).splitlines()[0])
        command.add_argument('--n', type=int, default=n)
        command.set_defaults(run=run)
    for name in ('kills', 'folders'):
        commands.choices[name].add_argument('--workers', type=int, default=2, help='runs at a time')
    command = commands.add_parser('night', help=str(night.__doc__).splitlines()[0])
    command.add_argument('--minutes', type=float, default=30.0)
    command.add_argument('--every', type=float, default=60.0, help='seconds from a start to the next fault')
    command.set_defaults(run=night)
    for command in commands.choices.values():
        command.add_argument('--seed', type=int, default=0)
        command.add_argument('--out', type=Path, default=RESULTS, help='folder of the results')
    args = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores SIGHUP, and the runs would inherit that
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    logging.getLogger('zoo').setLevel(logging.ERROR)
    start = time.monotonic()
    record = args.run(args)
    facts = {'machine': machine(), 'versions': versions(), 'date': today(), 'commit': git_commit()}
    given = [f'--{name} {value}' for name, value in vars(args).items() if name not in ('run', 'out')]
    command = ' '.join(['python benchmarks/faults.py', args.run.__name__, *given])
    facts |= {'command': command, 'wall_s': time.monotonic() - start}
    path = args.out / 'faults.json'
    records = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    write_json(path, {**records, args.run.__name__: {**record, **facts}})
    write_results(args.out)
    for fault in record['faults']:
        log.error('%s', fault)
    log.info('%d faults; written: %s', len(record['faults']), args.out / 'faults.md')
    return 1 if record['faults'] else 0


if __name__ == '__main__':
    sys.exit(main())
