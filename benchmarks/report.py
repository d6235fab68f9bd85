"""What the benchmarks share: the machine, robust averages, Markdown tables, one-process runs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / 'benchmarks' / 'results'
PACKAGES = ('torch', 'numpy', 'gymnasium', 'mujoco', 'box2d')


def machine() -> str:
    """The CPU, its number of cores and the memory, in one line."""
    info = Path('/proc/cpuinfo')
    names = (
        [line.split(':', 1)[1].strip() for line in info.read_text().splitlines() if line.startswith('model name')]
        if info.exists()
        else []
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
    return f'{names[0] if names else platform.machine()}, {cores} cores, {memory:.0f} GiB, {platform.system()}'


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Python and the packages that decide about speed and returns; those that are not installed are left out."""
    found = {'python': platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit() -> str:
    """The short commit of this checkout, '+' if files differ from it; 'unknown' outside git."""

    def git(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(('git', *args), cwd=REPO, capture_output=True, text=True, check=False)

    head = git('rev-parse', '--short', 'HEAD')
    # the results that a benchmark writes are no change of what it measured
    changed = git('status', '--porcelain', '--', ':!benchmarks/results').stdout.strip()
    return head.stdout.strip() + ('+' if changed else '') if head.returncode == 0 else 'unknown'


def one_thread_env() -> dict[str, str]:
    """The environment of a child process that computes in one thread and imports zoo from this checkout."""
    paths = [str(REPO), os.environ.get('PYTHONPATH', '')]
    return {
        **os.environ,
        'OMP_NUM_THREADS': '1',
        'MKL_NUM_THREADS': '1',
        'PYTHONPATH': os.pathsep.join(path for path in paths if path),
    }


def interquartile_mean(values: np.ndarray) -> float:
    """Mean of the middle half of all values, those on the quartiles counted in part.

    With n values sorted, n/4 (a fraction included) is cut from either end: of 5 the weights are 0, .75, 1, .75, 0.
    Source: Agarwal et al. 2021, arXiv:2108.13264, sec. 4.3. Departs: fractions instead of rounding down, for few seeds.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64).ravel())
    position = np.arange(ordered.size)
    low, high = ordered.size / 4, 3 * ordered.size / 4
    weight = np.clip(np.minimum(position + 1, high) - np.maximum(position, low), 0, None)
    return float(np.average(ordered, weights=weight))


def bootstrap_interval(
    runs: Sequence[np.ndarray],
    n_draw: int = 5_000,
    level: float = 0.95,
    seed: int = 0,
    center: Callable[[np.ndarray], float] = interquartile_mean,
) -> tuple[float, float]:
    """Stratified percentile bootstrap of the interquartile mean of runs, or of another center.

    Args:
      runs: one array of scores per stratum (an env); a draw takes as many from a stratum as it has, with replacement.
      level: share of the draws inside the interval.
    Returns: the lower and the upper end, in the unit of the scores.
    Source: Agarwal et al. 2021, arXiv:2108.13264, sec. 4.1.
    """
    rng = np.random.default_rng(seed)
    draws = [np.asarray(run, dtype=np.float64)[rng.integers(len(run), size=(n_draw, len(run)))] for run in runs]
    means = [center(row) for row in np.concatenate(draws, axis=1)]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [columns, ['---'] * len(columns), *rows]
    return '\n'.join('| ' + ' | '.join(str(cell) for cell in line) + ' |' for line in lines) + '\n'


def write_json(path: Path, data: Any) -> None:
    """Writes JSON through a temporary file, so that an interrupted run leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.part')
    part.write_text(json.dumps(data, indent=1) + '\n', encoding='utf-8')
    part.replace(path)


def last_json_line(text: str) -> dict[str, Any] | None:
    """The last line of a driver's output that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith('{')]
    return json.loads(lines[-1]) if lines else None


def holds(now: Any, recorded: Any) -> bool:
    """Whether every value of a recorded config still is what it was; keys that came since then do not matter."""
    if isinstance(recorded, dict):
        return isinstance(now, dict) and all(key in now and holds(now[key], recorded[key]) for key in recorded)
    return now == recorded


def settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config without what changes no return: where the log goes, and threads (a benchmark's run has one)."""
    policy = {key: value for key, value in resolved['policy'].items() if key != 'n_thread'}
    return {**{key: value for key, value in resolved.items() if key != 'logger'}, 'policy': policy}


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines that a run has logged so far; none if it has logged nothing yet."""
    path = run_dir / 'metrics.jsonl'
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()] if path.exists() else []


def metric_curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(env_step, value) of every line that has a value of that name."""
    return [(row['env_step'], row[name]) for row in rows if row.get(name) is not None]


def versions_line(found: Mapping[str, str]) -> str:
    return ', '.join(f'{name} {number}' for name, number in found.items())


def today() -> str:
    return time.strftime('%Y-%m-%d', time.gmtime())
