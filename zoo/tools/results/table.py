"""The table of `zoo runs`: a line for each run, with what it reached and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.tools.results.read import DEFAULT_METRICS, Run, from_here, groups, time_of

Order = Literal['time', 'return', 'steps', 'name']
HEADS = ('run', 'config', 'policy', 'env', 'seed', 'env steps', 'last', 'best', 'steps/s', 'state')


class RunRow(NamedTuple):
    """What the table says of a run. label: exp_name, and what tells its config from others of that name. last, best: mean
    returns of evaluations, of training where there were none; None: no return yet. speed: env steps per second, evaluations
    included; time: of its last line, seconds since 1970."""

    path: Path
    exp_name: str
    label: str
    policy: str
    env: str
    seed: int
    env_step: int
    last: float | None
    best: float | None
    speed: float | None
    state: str
    reason: str
    time: float


def rows_of(runs: Sequence[Run]) -> list[RunRow]:
    """The rows of runs, with labels that tell their configs apart."""
    labels = {run.path: label for label, members in groups(runs).items() for run in members}
    return [row_of(run, labels[run.path]) for run in runs]


def row_of(run: Run, label: str | None = None) -> RunRow:
    """The row of one run. Args: label: exp_name without one."""
    metric = next((name for name in DEFAULT_METRICS if name in run.columns), None)
    values = run.curve(metric)[1].tolist() if metric is not None else []
    last, best = (values[-1], max(values)) if values else (None, None)
    return RunRow(
        run.path,
        run.exp_name,
        label or run.exp_name,
        run.policy_type,
        run.env_id,
        run.seed,
        run.env_step,
        last,
        best,
        run.speed,
        run.state,
        str(run.result.get('error') or run.result.get('stop_reason') or ''),
        time_of(run.path),
    )


def sorted_rows(rows: Sequence[RunRow], order: Order = 'time') -> list[RunRow]:
    """Rows in an order: the oldest first, the highest last return first, the longest first, or by name and seed."""
    keys: dict[str, Callable[[RunRow], Any]] = {
        'time': lambda row: row.time,
        'return': lambda row: (row.last is None, -(row.last or 0.0)),
        'steps': lambda row: -row.env_step,
        'name': lambda row: (row.exp_name, row.seed, row.path.name),
    }
    return sorted(rows, key=keys[order])


def as_text(row: RunRow, root: Path | None = None) -> tuple[str, ...]:
    """A row as the words of HEADS. Args: root: folder to which paths are shown relative; the current one without it."""
    numbers = (
        f'{row.env_step:,}',
        number_text(row.last),
        number_text(row.best),
        '-' if row.speed is None else f'{row.speed:,.0f}',
    )
    state = f'{row.state}: {row.reason}' if row.reason else row.state
    return (str(from_here(row.path.absolute(), root)), row.label, row.policy, row.env, str(row.seed), *numbers, state)


def as_data(row: RunRow) -> dict[str, Any]:
    """A row for programs."""
    return row._asdict() | {
        'path': str(row.path),
        'time': datetime.fromtimestamp(row.time).isoformat(timespec='seconds'),
    }


def number_text(value: float | None) -> str:
    """A number to read: 475.3, 12,345; '-' for none."""
    if value is None:
        return '-'
    return f'{value:.4g}' if abs(value) < 10_000 else f'{value:,.0f}'
