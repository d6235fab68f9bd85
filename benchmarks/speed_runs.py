"""Runs of benchmarks/speed.py: one process per driver; first finds the fastest setting of each, then runs all in turn."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speed_works import Driver, Setting, Work, arguments

from report import last_json_line, last_words, one_thread_env, without_folders

CALIBRATION = 0.25  # share of the env steps in the short run of each setting and number of threads

log = logging.getLogger('speed')


class DriverError(RuntimeError):
    """A driver ended without a record."""


class Choice(NamedTuple):
    """A driver with its setting and number of threads."""

    driver: Driver
    setting: Setting
    n_thread: int


class Plan(NamedTuple):
    """Amount of runs. scale: factor of the env steps; calibrate: find the fastest choices, instead of taking the first."""

    threads: tuple[int, ...]
    n_repeat: int
    scale: float
    calibrate: bool
    cache: Path  # folder of compiled code; empty at the beginning, so that calibration includes the cost of compiling


def busy_seconds() -> float | None:
    """Busy seconds since boot, summed over all cores of the machine; None if there is no /proc/stat."""
    stat = Path('/proc/stat')
    if not stat.exists():
        return None
    user, nice, system, _, _, irq, softirq = (int(x) for x in stat.read_text().split('\n', 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf('SC_CLK_TCK')


def run_driver(command: Sequence[str], cache: Path, *paths: Path) -> dict[str, Any]:
    """Runs one driver in its own process; returns its record, with the load by other processes meanwhile, in cores.

    paths: additional folders for PYTHONPATH.
    Raises: DriverError if the driver fails or prints no record.
    """
    usage, busy, start = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds(), time.time()
    env = {**one_thread_env(*paths), 'TORCHINDUCTOR_CACHE_DIR': str(cache)}
    done = subprocess.run([*command, '--started', str(start)], env=env, capture_output=True, text=True, check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        said = last_words(done.stderr)
        raise DriverError(f'exit code {done.returncode}: {said}\n{" ".join(command)}\n{done.stderr[-2000:]}')
    after, busy_after = resource.getrusage(resource.RUSAGE_CHILDREN), busy_seconds()
    if busy is not None and busy_after is not None:
        own = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
        record['other_load'] = round(max(0.0, (busy_after - busy - own) / (time.time() - start)), 3)
    if record['library'] == 'zoo' and done.stderr.strip():  # it may tell of a fallback
        record['stderr'] = without_folders(done.stderr)[-1000:]
    return record


def run_choice(work: Work, choice: Choice, scale: float, seed: int, cache: Path) -> dict[str, Any]:
    """Runs a work once; returns the record with its label and setting. Raises: DriverError."""
    driver = choice.driver
    args = arguments(work, driver, choice.setting, work.scaled_steps(scale), choice.n_thread, seed)
    record = {'label': driver.label, 'setting': list(choice.setting), **run_driver([*driver.command, *args], cache)}
    log.info(
        '%s, %s, %d threads %s: %.0f env steps/s (warm-up %.1f s), %.0f MB, return %s, other load %s',
        work.name,
        driver.label,
        choice.n_thread,
        ' '.join(choice.setting),
        record['env_step_per_s'],
        record['warmup_s'],
        record['peak_rss_mb'],
        record['final_return'],
        record.get('other_load'),
    )
    return record


def calibrate(
    work: Work, drivers: Sequence[Driver], plan: Plan, failed: dict[str, str]
) -> tuple[list[Choice], list[dict[str, Any]]]:
    """The fastest setting and number of threads of each driver, by one short run of each; and the records of these runs."""
    choices, runs = [], []
    for driver in drivers:
        options = [Choice(driver, setting, n) for setting in driver.settings for n in plan.threads]
        if not plan.calibrate:
            choices.append(options[0])
            continue
        speeds: dict[Choice, float] = {}
        for option in options:
            try:
                runs.append(run_choice(work, option, plan.scale * CALIBRATION, 0, plan.cache))
                speeds[option] = runs[-1]['env_step_per_s']
            except DriverError as error:
                log.error('%s, %s failed: %s', work.name, driver.label, str(error).splitlines()[0])
                failed[f'{driver.label} {" ".join(option.setting)} {option.n_thread} threads'] = str(error)
        if speeds:
            choices.append(max(speeds, key=lambda option: speeds[option]))
    return choices, runs


def take_turns(labels: Sequence[str], n_repeat: int) -> list[tuple[int, str]]:
    """(repeat, label) in the order of the runs: every second round is reversed, so that drifts of the machine cancel."""
    return [
        (repeat, label)
        for repeat in range(n_repeat)
        for label in (labels if repeat % 2 == 0 else list(reversed(labels)))
    ]


def measure(work: Work, choices: Sequence[Choice], plan: Plan, failed: dict[str, str]) -> list[dict[str, Any]]:
    """Runs all choices in turn, `plan.n_repeat` times; the repeat is the seed. A choice that fails is left out afterwards."""
    by_label: Mapping[str, Choice] = {choice.driver.label: choice for choice in choices}
    runs = []
    for repeat, label in take_turns(list(by_label), plan.n_repeat):
        if label in failed:
            continue
        try:
            runs.append(run_choice(work, by_label[label], plan.scale, repeat, plan.cache))
        except DriverError as error:
            log.error('%s, %s failed: %s', work.name, label, str(error).splitlines()[0])
            failed[label] = str(error)
    return runs
