"""A short fault test "night": PPG with envs in workers and a fault every minute, and the same run without faults."""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fault_runs import DEADLINE_S, FaultyRun
from fault_system import FullDisk, rss_mb

from report import table

PAUSE_S = 0.01  # pause in every env step: it limits both runs, so that they do not compete for the processor
N_ENV = 8
STEP_PER_S = 650  # env steps/s of the run without faults: below 8 / .01 = 800, since learning and evaluation take time
SHARE = 0.85  # share of --minutes after which a run without faults would end
ROLLOUT = 1_024  # env steps
WANTED, ENOUGH = 475.0, 90_000  # greedy return, required of runs with at least so many env steps
GROWTH = 0.05  # share by which memory may grow
SETTLED_S = 300.0  # age of a process from which on growth of its memory is measured
MODULE = 'fault_runs'
CONFIG = (
    f'env.id={MODULE}:slow_cartpole',
    f'env.kwargs={{pause: {PAUSE_S}}}',
    f'env.collector_env_num={N_ENV}',
    'env.vectorization=async',
    'env.step_timeout=30',
    'policy.eval.stop_value=null',
    'policy.eval.n_episode=4',
)

log = logging.getLogger('faults')


class Fault(NamedTuple):
    """A fault, and the exit code that the run must end with; None: the run must continue, and is then stopped."""

    name: str
    code: int | None
    number: int = 0  # of the signal that is sent


FAULTS = (
    *(
        Fault(f'SIG{name}', 128 + number, number)
        for name, number in (
            ('TERM', signal.SIGTERM),
            ('INT', signal.SIGINT),
            ('HUP', signal.SIGHUP),
            ('USR1', signal.SIGUSR1),
        )
    ),
    Fault('kill -9 of the run', -signal.SIGKILL, signal.SIGKILL),
    Fault('kill -9 of an env worker', 1),
    Fault('kill -9 of an env worker, env.on_error=restart', None),
    Fault('full disk, then SIGTERM', 1, signal.SIGTERM),
)


class Memory(threading.Thread):
    """Thread that reads the memory of a run's newest process once a second. lives: [(age in s, MB)] of each process."""

    def __init__(self, run: FaultyRun) -> None:
        super().__init__(daemon=True)
        self.lives: list[list[tuple[float, float]]] = []
        self._of, self._ended = run, threading.Event()
        self.start()

    def run(self) -> None:
        process, start = None, 0.0
        while not self._ended.wait(1.0):
            if self._of.process is not process:
                process, start = self._of.process, time.monotonic()
                self.lives.append([])
            if process is not None and (mb := rss_mb(process.pid)) is not None:
                self.lives[-1].append((round(time.monotonic() - start, 1), round(mb, 1)))

    def end(self) -> list[list[tuple[float, float]]]:
        self._ended.set()
        self.join()
        return self.lives


def growth(life: Sequence[tuple[float, float]], settled_s: float) -> float | None:
    """Growth of the peak memory after settled_s over the memory at settled_s, as a share; None for shorter lives."""
    later = [mb for second, mb in life if second >= settled_s]
    return max(later) / later[0] - 1 if later else None


def strike(run: FaultyRun, fault: Fault, disk: FullDisk, rng: random.Random) -> int | None:
    """Applies a fault to a run; returns the run's exit code."""
    run.note_checkpoints()
    if fault.name.startswith('full disk'):
        with disk.full(run.process.pid):
            time.sleep(rng.uniform(1, 3))
            run.process.send_signal(fault.number)
            return run.wait()
    if 'worker' in fault.name:
        os.kill(rng.choice(run.workers()[:N_ENV]), signal.SIGKILL)
        if fault.code is not None:
            return run.wait()
        if not run.wait_for_line() or 'made anew' not in run.said.read_text(errors='replace'):
            run.faults.append(f'{fault.name}: it did not go on: {run.tail()}')
        run.process.send_signal(signal.SIGTERM)
        return run.wait()
    run.process.send_signal(fault.number)
    return run.wait()


def hit(
    run: FaultyRun, fault: Fault, disk: FullDisk, rng: random.Random, is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Resumes a run, lets it train until `is_over`, applies the fault and checks what the process left behind."""
    start, n = time.monotonic(), len(run.faults)
    run.start(*(['env.on_error=restart'] if fault.code is None else ['env.on_error=raise']))
    if run.wait_until_running():
        run.check_resume()
    up_s = time.monotonic() - start
    while run.process.poll() is None and not is_over():
        time.sleep(0.1)
    if run.process.poll() is not None:
        code, wanted = run.wait(), 0
    else:
        code, wanted = strike(run, fault, disk, rng), 143 if fault.code is None else fault.code
    run.check_end()
    if code != wanted:
        run.faults.append(f'{fault.name}: exit code {code} where {wanted} is right: {run.tail()}')
    if code in (0, 129, 130, 138, 143) and not run.is_saved():
        run.faults.append(f'{fault.name}: exit code {code}, but the end is not saved: {run.tail()}')
    run.faults[n:] = [f'{fault.name}: {text.removeprefix(f"{fault.name}: ")}' for text in run.faults[n:]]
    name = fault.name if wanted else 'the run was complete' if code == 0 else 'ended by itself'
    log.info('%s: exit code %s, %d faults', name, code, len(run.faults) - n)
    return {'fault': name, 'code': code, 'wanted': wanted, 'up_s': round(up_s, 1), 'faults': run.faults[n:]}


def faulty(run: FaultyRun, args: argparse.Namespace, disk: FullDisk) -> list[dict[str, Any]]:
    """Applies faults until the time is over: each fault once per round, every round in a new random order."""
    rng, records, faults = random.Random(args.seed), [], []
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end and not (records and records[-1]['code'] == 0):
        faults = faults or rng.sample(FAULTS, len(FAULTS))
        strike_at = time.monotonic() + args.every
        records.append(hit(run, faults.pop(), disk, rng, lambda at=strike_at: time.monotonic() >= at))
    if not records or records[-1]['code'] != 0:
        run.note_checkpoints()
        run.start()
        finish(run, args)
    return records


def finish(run: FaultyRun, args: argparse.Namespace) -> None:
    """Waits for the end of a run that gets no more faults, and checks it."""
    code = run.wait(DEADLINE_S + 240 * args.minutes)
    run.check_resume()
    run.check_end(is_complete=True)
    if code != 0:
        run.faults.append(f'the run without faults ended with {code}: {run.tail()}')


def summary(run: FaultyRun, memory: Memory) -> dict[str, Any]:
    """The end of a run (env step, return) and the memory of its processes."""
    lives = memory.end()
    run.note_checkpoints()
    life = max(lives, key=len, default=[])
    settled = min(SETTLED_S, life[-1][0] / 2 if life else 0.0)
    peaks = [max(mb for _, mb in life) for life in lives if life]
    return {
        'env_step': run.floor,
        'return': run.evaluate(),
        'orphan_s': round(run.orphan_s, 2),
        'processes': len(lives),
        'peak_mb': (min(peaks, default=0.0), max(peaks, default=0.0)),
        'longest_s': life[-1][0] if life else 0.0,
        'settled_s': settled,
        'growth': growth(life, settled),
        'memory': life,
    }


def night(args: argparse.Namespace) -> dict[str, Any]:
    """PPG on CartPole with a fault every minute, and at the same time the same run without faults."""
    max_env_step = max(round(SHARE * 60 * args.minutes * STEP_PER_S / ROLLOUT), 4) * ROLLOUT
    words = [*CONFIG, f'max_env_step={max_env_step}', f'checkpoint.freq={8 * ROLLOUT}', f'seed={args.seed}']
    words.append(f'policy.eval.eval_freq={max(max_env_step // 20, ROLLOUT)}')
    with ExitStack() as undo:
        roots = [Path(undo.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        disk = FullDisk(roots[0] / 'runs')
        undo.callback(disk.close)
        hurt, straight = (FaultyRun(root, 'cartpole_ppg', words, [MODULE]) for root in roots)
        for run in (hurt, straight):
            undo.callback(run.stop)
        memories = Memory(hurt), Memory(straight)
        straight.start()
        records = faulty(hurt, args, disk)
        finish(straight, args)
        sums = {'hurt': summary(hurt, memories[0]), 'straight': summary(straight, memories[1])}
    faults = [*hurt.faults, *(f'without faults: {fault}' for fault in straight.faults)]
    for name, found in sums.items():
        if not max_env_step - ROLLOUT < found['env_step'] <= max_env_step:  # rows of a restart are no env steps
            faults.append(f'{name}: ended at env step {found["env_step"]} of {max_env_step}')
        if max_env_step >= ENOUGH and (found['return'] or 0) < WANTED:
            faults.append(f'{name}: greedy return {found["return"]} where {WANTED} is wanted')
    if (sums['straight']['growth'] or 0) >= GROWTH and sums['straight']['settled_s'] >= SETTLED_S:
        faults.append(f'memory grew by {sums["straight"]["growth"]:.1%}')
    return {'max_env_step': max_env_step, 'disk': disk.how, 'records': records, **sums, 'faults': faults}


def night_text(record: dict[str, Any]) -> str:
    """The section of the results as Markdown."""
    names = list(dict.fromkeys(entry['fault'] for entry in record['records']))
    rows = []
    for name in names:
        entries = [entry for entry in record['records'] if entry['fault'] == name]
        codes = ', '.join(str(code) for code in sorted({entry['code'] for entry in entries}, key=str))
        held = sum(not entry['faults'] for entry in entries)
        rows.append([name, len(entries), entries[0]['wanted'], codes, f'{held} of {len(entries)}'])
    ends = [
        [
            what,
            f'{found["env_step"]:,}',
            '-' if found['return'] is None else f'{found["return"]:.1f}',
            found['processes'],
            ' to '.join(f'{mb:.0f}' for mb in found['peak_mb']),
            f'{found["longest_s"]:.0f}',
            '-' if found['growth'] is None else f'{found["growth"]:+.1%} (after {found["settled_s"]:.0f} s)',
        ]
        for what, found in (('with faults', record['hurt']), ('without', record['straight']))
    ]
    columns = (
        'run',
        'env steps',
        'greedy return of 20 episodes',
        'processes',
        'peak memory of each, MB',
        'longest life, s',
        'memory grew in it by',
    )
    return (
        f'PPG on CartPole-v1, 8 envs in workers whose steps take {PAUSE_S * 1000:g} ms, resumed after every fault; '
        'the same run without faults beside it. Full disk: '
        f'{record["disk"]}.\n\n'
        + table(('fault', 'times', 'exit code wanted', 'got', 'all held'), rows)
        + '\n'
        + table(columns, ends)
    )
