"""Table of `zoo runs`: a line for each run, with its results and its state."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.core.streams import columns
from zoo.tools.results.read import DEFAULT_METRICS, Run, from_here, groups, time_of

Order = Literal['time', 'return', 'steps', 'name']
HEADS = ('run', 'config', 'policy', 'env', 'seed', 'env steps', 'last', 'best', 'steps/s', 'state')
# columns that are left out on a narrow terminal, in this order
LEAST = ('steps/s', 'policy', 'env', 'best', 'config', 'seed')


class RunRow(NamedTuple):
    """A row of the table. label: exp_name, and the settings in which configs with that name differ. last, best: mean
    returns of evaluations, or of training if there were none; None: no return yet. speed: env steps per second,
    evaluations included; time: of the last line of its log, in seconds since 1970."""

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
    """Returns the rows of runs, with labels that distinguish their configs."""
    labels = {run.path: label for label, members in groups(runs).items() for run in members}
    return [row_of(run, labels[run.path]) for run in runs]


def row_of(run: Run, label: str | None = None) -> RunRow:
    """Returns the row of one run. Args: label: None: exp_name."""
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
    """Sorts rows: the oldest first, the highest last return first, the most env steps first, or by name and seed."""
    keys: dict[str, Callable[[RunRow], Any]] = {
        'time': lambda row: row.time,
        'return': lambda row: (row.last is None, -(row.last or 0.0)),
        'steps': lambda row: -row.env_step,
        'name': lambda row: (row.exp_name, row.seed, row.path.name),
    }
    return sorted(rows, key=keys[order])


def as_text(row: RunRow, root: Path | None = None) -> tuple[str, ...]:
    """Returns a row as texts in the order of HEADS. Args: root: paths are shown relative to it; None: the current folder."""
    numbers = (
        f'{row.env_step:,}',
        number_text(row.last),
        number_text(row.best),
        '-' if row.speed is None else f'{row.speed:,.0f}',
    )
    state = f'{row.state}: {row.reason}' if row.reason else row.state
    return (str(from_here(row.path.absolute(), root)), row.label, row.policy, row.env, str(row.seed), *numbers, state)


def as_data(row: RunRow) -> dict[str, Any]:
    """Returns a row as data, for --json."""
    return row._asdict() | {
        'path': str(row.path),
        'time': datetime.fromtimestamp(row.time).isoformat(timespec='seconds'),
    }


def number_text(value: float | None) -> str:
    """Formats a number: 475.3, 12,345; '-' for None."""
    if value is None:
        return '-'
    return f'{value:.4g}' if abs(value) < 10_000 else f'{value:,.0f}'


def table(rows: Sequence[RunRow]) -> str:
    """Returns runs as lines with aligned columns; for a terminal, only the columns that fit."""
    texts = [HEADS, *map(as_text, rows)]
    return columns(fit(texts, shutil.get_terminal_size().columns) if sys.stdout.isatty() else texts)


def fit(texts: Sequence[tuple[str, ...]], width: int) -> Sequence[tuple[str, ...]]:
    """Returns rows, of which HEADS is the first, with only the columns that fit the width, and states without reasons."""
    texts = [(*text[:-1], text[-1].partition(':')[0]) for text in texts]
    for head in LEAST:
        if max(map(len, columns(texts).splitlines())) > width:
            at = texts[0].index(head)
            texts = [(*text[:at], *text[at + 1 :]) for text in texts]
    return texts
