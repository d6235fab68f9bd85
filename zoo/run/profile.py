"""Profiles a run: its own clocks over some iterations, then a trace by torch's profiler."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from zoo.core.timer import Clocks
from zoo.run.job import SerialJob

WARM_UP = 2
N_TRACED = 3
N_OPERATOR = 10
NAME_LEN = 60

logger = logging.getLogger(__name__)


def profiled(job: SerialJob, n_iter: int) -> Generator[None]:
    """Runs one `job.iteration` for each `next`, without end, and profiles the first ones.

    After 2 iterations to warm up, n_iter iterations are timed by the run's own clocks. Then torch's profiler traces 3
    more; it slows them down, so they are not timed. Results are logged, and written to profile.txt and trace.json in
    the run folder. A run that ends earlier (`close`) reports what it has. A profile does not change what is learned.
    Of several ranks the first one is profiled.
    """
    n_left = (job.cfg.max_env_step - job.env_step) // job.step_per_iteration
    n_needed = WARM_UP + n_iter + N_TRACED
    if job.leads and n_left < n_needed:
        logger.warning(
            'a profile takes %d iterations (%d to warm up, %d timed, %d traced) but max_env_step leaves %d; '
            'raise it to %d or more',
            n_needed,
            WARM_UP,
            n_iter,
            N_TRACED,
            n_left,
            job.env_step + n_needed * job.step_per_iteration,
        )
    for i in range(WARM_UP):
        job.iteration()
        if i == WARM_UP - 1 and not job.clocks().calls['evaluate']:  # so that its cost is known
            job.play_evaluation()
        yield
    if job.leads:
        yield from _measured(job, n_iter)
    while True:
        job.iteration()
        yield


def _measured(job: SerialJob, n_iter: int) -> Generator[None]:
    """Runs the iterations that are timed, then those that are traced."""
    report = _Report(job.run_dir / 'profile.txt')
    readings = [job.clocks()]
    try:
        for _ in range(n_iter):
            job.iteration()
            readings.append(job.clocks())
            yield
    finally:
        if len(readings) > 1:
            report.add(_times(job, readings))
    n_traced = 0
    is_cuda = job.policy.device.type == 'cuda'
    activities = [ProfilerActivity.CPU]
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    try:
        job.timer.label = record_function
        with torch.profiler.profile(activities=activities) as trace:
            for _ in range(N_TRACED):
                job.iteration()
                n_traced += 1
                yield
    finally:
        job.timer.label = nullcontext
        if n_traced:
            trace.export_chrome_trace(str(job.run_dir / 'trace.json'))
            report.add(_operators(trace.key_averages(), n_traced, is_cuda))
            report.add(f'trace of {n_traced} iterations: {job.run_dir / "trace.json"} (for https://ui.perfetto.dev)')


class _Report:
    """Writes text to the log and to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ''

    def add(self, text: str) -> None:
        logger.info('%s', text)
        self._text += text + '\n'
        try:
            self._path.write_text(self._text, encoding='utf-8')
        except OSError as error:
            logger.warning('%s cannot be written (%s); training continues', self._path, error.strerror or error)


def _times(job: SerialJob, readings: list[Clocks]) -> str:
    """A table of the parts of an iteration, and a line on evaluations, which are not in every iteration."""
    n_iter = len(readings) - 1
    total = readings[-1].since(readings[0])
    iteration_s = total.wall_s - total.seconds['evaluate']
    seconds = {name: value for name, value in total.seconds.items() if name != 'evaluate'}
    seconds['other'] = max(iteration_s - sum(seconds.values()), 0.0)
    rows = [('of an iteration', 'seconds', 'share', 'calls', 'env steps/s alone')]
    for name, value in seconds.items():
        calls = ''
        if name in total.calls:
            calls = f'{total.calls[name] / n_iter:,.0f}'
        rows.append((name, f'{value / n_iter:.6f}', f'{value / iteration_s:.1%}', calls, _rate(total.env_step, value)))
    rows.append(('all', f'{iteration_s / n_iter:.6f}', '100.0%', '1', _rate(total.env_step, iteration_s)))
    text = [
        f'profile of {n_iter} iterations, env steps {readings[0].env_step:,} to {readings[-1].env_step:,}',
        *_table(rows),
        _evaluation(job, readings[-1], iteration_s / total.env_step),
    ]
    if job.parts.envs[0].steps_async:
        text.append('env: the time spent waiting; these envs step asynchronously while the policy acts')
    if job.policy.device.type == 'cuda':
        text.append('work queued on the GPU is counted where the host next waits for it; the trace shows both')
    return '\n'.join(text)


def _evaluation(job: SerialJob, so_far: Clocks, step_s: float) -> str:
    """The cost of an evaluation, and its share of a run that has one every eval_freq env steps."""
    freq = job.cfg.policy.eval.eval_freq
    call_s = so_far.seconds['evaluate'] / so_far.calls['evaluate']
    share = call_s / (call_s + freq * step_s)
    return f'evaluate: {call_s:.5f} s a call; one every {freq:,} env steps takes {share:.1%} of such a run'


def _operators(averages: Any, n_iter: int, is_cuda: bool) -> str:
    """A table of the costliest operators by self time, without the operators that they call."""
    device = 'CPU'
    key = 'self_cpu_time_total'
    if is_cuda:
        device = 'GPU'
        key = 'self_device_time_total'
    costs = sorted(((getattr(a, key), a.count, a.key) for a in averages if not a.key.startswith('zoo/')), reverse=True)
    total = max(sum(cost for cost, _, _ in costs), 1e-9)
    rows = [
        ('operators of an iteration', 'seconds', 'share', 'calls'),
        *(
            (name[:NAME_LEN], f'{cost / n_iter / 1e6:.5f}', f'{cost / total:.1%}', f'{count / n_iter:,.0f}')
            for cost, count, name in costs[:N_OPERATOR]
        ),
    ]
    return '\n'.join([f'costliest operators by self time on the {device}, while traced', *_table(rows)])


def _rate(env_step: int, seconds: float) -> str:
    if seconds > 0:
        return f'{env_step / seconds:,.0f}'
    return ''


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table: the first column is aligned to the left, the others to the right."""
    first_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = []
    for first, *others in rows:
        cells = [first.ljust(first_width)]
        cells += [cell.rjust(width) for cell, width in zip(others, widths, strict=True)]
        lines.append('  ' + '  '.join(cells).rstrip())
    return lines
