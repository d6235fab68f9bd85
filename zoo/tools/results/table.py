"""Table of `zoo runs`: a line for each run, with its results and its state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from zoo.core.streams import columns, standard
from zoo.tools.results.read import Run, from_here, groups, time_of

Order = Literal['time', 'return', 'steps', 'name']
HEADS = ('run', 'config', 'policy', 'env', 'seed', 'env steps', 'last', 'best', 'steps/s', 'state')
# columns that are left out on a narrow terminal, in this order
LEAST = ('steps/s', 'policy', 'env', 'best', 'config', 'seed')


Row = tuple[Run, str]
"""A run and its label: exp_name, and the settings in which configs with that name differ."""


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Returns runs with labels that distinguish their configs."""
    labels = {run.path: label for label, members in groups(runs).items() for run in members}
    return [(run, labels[run.path]) for run in runs]


def sorted_rows(rows: Sequence[Row], order: Order = 'time') -> list[Row]:
    """Sorts rows: the oldest first, the highest last return first, the most env steps first, or by name and seed."""
    keys: dict[str, Callable[[Run], Any]] = {
        'time': lambda run: time_of(run.path),
        'return': lambda run: (run.last_and_best[0] is None, -(run.last_and_best[0] or 0.0)),
        'steps': lambda run: -run.env_step,
        'name': lambda run: (run.exp_name, run.seed, run.path.name),
    }
    return sorted(rows, key=lambda row: keys[order](row[0]))


def as_text(row: Row, root: Path | None = None) -> tuple[str, ...]:
    """Returns a row as texts in the order of HEADS; returns of training are marked. Args: root: paths are shown relative to it; None: the current folder."""
    run, label = row
    origin = ''
    if run.is_never_evaluated:
        origin = ' train'
    return (
        str(from_here(run.path.absolute(), root)),
        label,
        run.policy_type,
        run.env_id,
        str(run.seed),
        f'{run.env_step:,}',
        *(f'{number_text(value)}{"" if value is None else origin}' for value in run.last_and_best),
        '-' if run.speed is None else f'{run.speed:,.0f}',
        f'{run.state}: {run.reason}' if run.reason else run.state,
    )


def as_data(row: Row) -> dict[str, Any]:
    """Returns a row as data, for --json; `time` is that of the last line of the log."""
    run, label = row
    return {
        'path': str(run.path),
        'exp_name': run.exp_name,
        'label': label,
        'policy': run.policy_type,
        'env': run.env_id,
        'seed': run.seed,
        'env_step': run.env_step,
        **dict(zip(('last', 'best'), run.last_and_best, strict=True)),
        'return_of': 'training' if run.is_never_evaluated else 'evaluations',
        'speed': run.speed,
        'state': run.state,
        'reason': run.reason,
        'time': datetime.fromtimestamp(time_of(run.path)).isoformat(timespec='seconds'),
    }


def number_text(value: float | None) -> str:
    """Formats a number: 475.3, 12,345; '-' for None."""
    if value is None:
        return '-'
    if abs(value) < 10_000:
        return f'{value:.4g}'
    return f'{value:,.0f}'


def table(rows: Sequence[Row]) -> str:
    """Returns runs as lines with aligned columns; for a terminal, only the columns that fit."""
    texts = [HEADS, *map(as_text, rows)]
    return columns(fit(texts, shutil.get_terminal_size().columns) if standard('stdout').isatty() else texts)


def fit(texts: Sequence[tuple[str, ...]], width: int) -> Sequence[tuple[str, ...]]:
    """Returns rows, of which HEADS is the first, with only the columns that fit the width, and states without reasons."""
    texts = [(*text[:-1], text[-1].partition(':')[0]) for text in texts]
    for head in LEAST:
        if max(map(len, columns(texts).splitlines())) > width:
            at = texts[0].index(head)
            texts = [(*text[:at], *text[at + 1 :]) for text in texts]
    return texts
