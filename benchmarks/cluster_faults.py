"""Kills runners (kill -9) at random moments of one CartPole run; writes a section of benchmarks/results/cluster_faults.md.

    python benchmarks/cluster_faults.py [--engine process|ray] [--n 20] [--seed 0]

If a check fails, it is logged and the exit code is 1. --out FOLDER writes to another folder.
Linux only: processes are found in /proc.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from fault_system import environment, marked

from report import (
    RESULTS,
    git_commit,
    last_json_line,
    machine,
    metric_rows,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

PAUSE_S = 0.001  # pause in every env step: it slows rollouts down so far that kills happen during them
ROLLOUT = 1_024  # env steps
N_ROLLOUT = 98
N_RUNNER = 2
WANTED = 475.0
AGAIN = 0.25  # share of kills that are followed by a second one before the next rollout is complete
BACK_S, GONE_S, RUN_S = 30.0, 10.0, 900.0  # time limits: a runner is back, all processes are gone, the run has ended
MODULE = 'fault_runs'
ENGINES = ('process', 'ray')
NAMES = {
    'process': b'zoo-runner',
    'ray': b'ray::RunnerProcess',
}  # found in the command lines of runners; Ray's other processes are its services
CONFIG = (
    f'env.id={MODULE}:slow_cartpole',
    f'env.kwargs={{pause: {PAUSE_S}}}',
    'env.vectorization=sync',  # no rows that only reset an env: every rollout has the same number of env steps
    f'max_env_step={N_ROLLOUT * ROLLOUT}',
    'policy.eval.stop_value=null',
    'policy.eval.eval_freq=100000000',
    'logger.freq=1',
    f'cluster.runner_num={N_RUNNER}',
    'cluster.restart_limit=1000',
)

log = logging.getLogger('cluster_faults')


class Run:
    """A training run in a subprocess. Attributes: row_at, killed_at: times at which log lines were seen and runners killed."""

    def __init__(self, root: Path, engine: str) -> None:
        self._root, self._name, self.mark = root, NAMES[engine], uuid.uuid4().hex
        self.row_at: list[float] = []
        self.killed_at: list[float] = []
        words = [*CONFIG, f'logger.root={root}', f'cluster.engine={engine}', '--import', MODULE, '--json']
        with open(root / 'stderr', 'wb') as stderr, open(root / 'stdout', 'wb') as stdout:
            self.process = subprocess.Popen(
                [sys.executable, '-m', 'zoo', 'train', 'cartpole_ppo', *words],
                cwd=root,
                env={key: value for key, value in environment(self.mark).items() if key != 'RAY_ADDRESS'},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def run_dir(self) -> Path | None:
        return next((path.parent for path in self._root.glob('*/*/metrics.jsonl')), None)

    @property
    def stderr(self) -> str:
        return (self._root / 'stderr').read_text(errors='replace')

    @property
    def result(self) -> dict[str, Any]:
        return last_json_line((self._root / 'stdout').read_text()) or {}

    def runners(self) -> list[int]:
        """Process ids of the runners."""
        found = []
        for pid in marked(self.mark):
            with suppress(OSError):
                words = Path(f'/proc/{pid}/cmdline').read_bytes()
                if self._name in words and pid != self.process.pid:
                    found.append(pid)
        return found

    def watch(self, seconds: float) -> bool:
        """Records new log lines for that many seconds; returns False if the run ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                return False
            folder = self.run_dir
            n = 0 if folder is None else (folder / 'metrics.jsonl').read_bytes().count(b'\n')
            self.row_at += [time.monotonic()] * (n - len(self.row_at))
            time.sleep(0.01)
        return True

    def kill_one(self, rng: random.Random) -> None:
        """Kills one runner with kill -9, perhaps while it starts; waits for one if there is none.

        Ray starts processes in advance and names one only when it becomes a runner, so there may be no runner yet.
        """
        while not (pids := sorted(self.runners())):
            if not self.watch(0.01):
                return
        with suppress(ProcessLookupError):
            os.kill(rng.choice(pids), signal.SIGKILL)
            self.killed_at.append(time.monotonic())

    def back_s(self) -> list[float]:
        """For each kill, the seconds until a rollout requested after it is complete: the second log line after the kill."""
        return [
            later[1] - killed
            for killed in self.killed_at
            if len(later := [at for at in self.row_at if at > killed]) > 1
        ]


def kill_runners(engine: str, n: int, seed: int, root: Path) -> dict[str, Any]:
    """Trains one run, kills its runners n times and returns its record; 'faults' lists the checks that failed."""
    rng, shared = random.Random(seed), sorted(os.listdir('/dev/shm'))
    run = Run(root, engine)
    while run.process.poll() is None and not run.row_at:
        run.watch(0.1)
    while len(run.killed_at) < n and run.watch(rng.uniform(0.0, 2.0)):
        run.kill_one(rng)
        if rng.random() < AGAIN and len(run.killed_at) < n and run.watch(rng.uniform(0.0, 2.0)):
            run.kill_one(rng)
        n_row = len(run.row_at)
        while len(run.row_at) == n_row and run.watch(0.05):  # without this wait, no rollout would ever be complete
            pass
    n_at_end = len(run.row_at)
    while run.watch(1.0):
        if time.monotonic() > run.killed_at[-1] + RUN_S:
            run.process.kill()
    gone_s = _until_gone(run)
    rows = [row for row in metric_rows(run.run_dir) if 'cluster/restart' in row] if run.run_dir else []
    steps = [row['env_step'] for row in rows]
    back = run.back_s()
    found = {
        'engine': engine,
        'kills': len(run.killed_at),
        'killed_before_rollout': n_at_end,
        'restarts': int(rows[-1]['cluster/restart']) if rows else 0,
        'back_median_s': sorted(back)[len(back) // 2] if back else None,
        'back_max_s': max(back, default=None),
        'rollouts': len(rows),
        'env_step': run.result.get('env_step'),
        'return': run.result.get('last_return'),
        'gone_s': gone_s,
        'exit_code': run.process.returncode,
    }
    left = sorted(set(os.listdir('/dev/shm')) - set(shared))
    faults = {
        f'exit code {found["exit_code"]}: {run.stderr[-1500:]}': found['exit_code'] == 0,
        f'{found["kills"]} kills, wanted {n}': found['kills'] == n,
        f'{found["kills"]} kills but {found["restarts"]} restarts': found['restarts'] == found['kills'],
        f'a runner was back after {found["back_max_s"]} s': bool(back) and max(back) <= BACK_S,
        f'env steps of the log: {steps}': steps == [ROLLOUT * (i + 1) for i in range(N_ROLLOUT)],
        f'env_step {found["env_step"]}, wanted {N_ROLLOUT * ROLLOUT}': found['env_step'] == N_ROLLOUT * ROLLOUT,
        f'return {found["return"]}, wanted {WANTED}': (found['return'] or 0.0) >= WANTED,
        f'processes left: {marked(run.mark)}': gone_s is not None,
        f'left in /dev/shm: {left}': not left,
    }
    for pid in marked(run.mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {**found, 'faults': [words for words, holds in faults.items() if not holds]}


def _until_gone(run: Run) -> float | None:
    """Seconds until no process of the run was left; None if some were left after GONE_S."""
    start = time.monotonic()
    while marked(run.mark):
        if time.monotonic() - start > GONE_S:
            return None
        time.sleep(0.02)
    return time.monotonic() - start


COLUMNS = {
    'engine': 'engine',
    'kills': 'kills',
    'restarts': 'restarts',
    'back_median_s': 'back after, median s',
    'back_max_s': 'back after at most, s',
    'rollouts': 'rollouts',
    'env_step': 'env steps',
    'return': 'return at the end',
    'gone_s': 'no process left after, s',
}


def write_results(folder: Path) -> None:
    """Writes cluster_faults.md again, from all records of cluster_faults.json."""
    records = json.loads((folder / 'cluster_faults.json').read_text(encoding='utf-8'))
    shown = [
        [f'{x:.2f}' if isinstance(x := record[key], float) else x for key in COLUMNS] for record in records.values()
    ]
    parts = [
        f'# Runners that are killed\n\nOne run of CartPole (PPO, {N_ROLLOUT} rollouts of {ROLLOUT:,} env steps, '
        f'{N_RUNNER} runners, {1000 * PAUSE_S:g} ms a step) whose runners are killed with `kill -9` at random moments, starting '
        'ones too. Back: a rollout that was asked after the kill is complete, which takes half a second without a kill. Held: '
        f'the run ends by itself with every rollout counted once, the log rises strictly, the return is {WANTED:g} or more, no '
        f'process is left after {GONE_S:g} s, and nothing in /dev/shm.\n\n' + table(tuple(COLUMNS.values()), shown)
    ]
    for name, record in records.items():
        faults = [f'  - {" ".join(fault.split())[:400]}' for fault in record['faults']]
        parts.append(
            '\n'.join(
                [
                    f'## Engine {name}\n',
                    f'- did not hold: {len(record["faults"]) or "nothing"}',
                    *faults,
                    f'- machine: {record["machine"]}',
                    f'- versions: {versions_line(record["versions"])}',
                    f'- date: {record["date"]}, commit {record["commit"]}, {record["wall_s"] / 60:.1f} minutes',
                    f'- command: `{record["command"]}`; raw numbers: `cluster_faults.json`\n',
                ]
            )
        )
    (folder / 'cluster_faults.md').write_text('\n'.join(parts), encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--engine', choices=ENGINES, default='process')
    parser.add_argument('--n', type=int, default=20, help='kills')
    parser.add_argument('--seed', type=int, default=0, help='of the moments')
    parser.add_argument('--out', type=Path, default=RESULTS, help='folder of the results')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        record = kill_runners(args.engine, args.n, args.seed, Path(folder))
    command = f'python benchmarks/cluster_faults.py --engine {args.engine} --n {args.n} --seed {args.seed}'
    facts = {'machine': machine(), 'versions': versions(), 'date': today(), 'commit': git_commit()}
    facts |= {'command': command, 'wall_s': time.monotonic() - start}
    path = args.out / 'cluster_faults.json'
    records = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    write_json(path, {**records, args.engine: {**record, **facts}})
    write_results(args.out)
    for fault in record['faults']:
        log.error('%s', fault)
    log.info('%d faults; written: %s', len(record['faults']), args.out / 'cluster_faults.md')
    return 1 if record['faults'] else 0


if __name__ == '__main__':
    sys.exit(main())
