"""The trials of a sweep as a table, and the best one as a config."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config.section import value_at
from zoo.config.yaml_io import storable, yaml_text
from zoo.core.files import whole_file
from zoo.run.config import explain_config
from zoo.run.config_check import without_derived_values
from zoo.tools.sweep.plan import Plan
from zoo.tools.sweep.study import Study, SweepResult, TrialRow


def result_of(plan: Plan, study: Study) -> SweepResult:
    """The sweep so far, with best.yaml written anew."""
    rows = _ranked(study.rows(), plan.score.minimises)
    best = rows[0] if rows and rows[0].state == 'complete' else None
    file = None if best is None else _write_best(plan, best)
    return SweepResult(plan, rows, best, file, study.n_left())


def table(result: SweepResult) -> list[tuple[str, ...]]:
    """The trials as texts, the best ones first, below a row of headings."""
    score, keys = result.plan.score, list(result.plan.spaces)
    shows_value = score.metric in ('last', 'auc')
    heads = ['trial', 'state', *_short(keys), *([score.metric] if shows_value else []), 'return']
    heads += [f'steps to {score.stop_value:g}'] if score.stop_value is not None else []
    lines = [(*heads, 'seconds', '')]
    for row in result.rows:
        words = [str(row.number), row.state, *(row.values.get(key, '-') for key in keys)]
        words += [f'{row.value:.5g}' if row.value is not None else '-'] if shows_value else []
        words += [_mean([run['best_return'] for run in row.runs], '.1f')]
        words += [_solved(row)] if score.stop_value is not None else []
        lines.append(
            (*words, _mean([sum(run['wall_s'] for run in row.runs)] if row.runs else [], '.1f'), row.reason[:100])
        )
    return lines


def as_data(result: SweepResult) -> dict[str, Any]:
    """The same for programs."""
    return {
        'best': None if result.best is None else result.best._asdict(),
        'best_file': result.best_file and str(result.best_file),
        'train': train_command(result),
        'metric': result.plan.score.metric,
        'n_left': result.n_left,
        'folder': str(result.plan.folder),
        'storage': str(result.plan.storage),
        'trials': [row._asdict() for row in result.rows],
    }


def train_command(result: SweepResult) -> str | None:
    """The command that trains the best config; None if no trial is complete."""
    return None if result.best_file is None else f'zoo train {_relative(result.best_file)}'


def best_config(plan: Plan, best: TrialRow) -> dict[str, Any]:
    """The config of a trial, without what is default or derived."""
    overrides = plan.overrides_of(best.values)
    data = without_derived_values(plan.resolve(best.values).to_dict())
    found: dict[str, Any] = {}
    for row in explain_config(plan.source, overrides):
        if row.origin in ('default', 'derived'):
            continue
        value = value_at(data, row.key)
        *parents, last = row.key.split('.')
        section = found
        for key in parents:
            section = section.setdefault(key, {})
        section[last] = storable(row.value if value is None else value)
    return found


def _write_best(plan: Plan, best: TrialRow) -> Path:
    path = plan.folder / 'best.yaml'
    path.parent.mkdir(parents=True, exist_ok=True)
    words = plan.score.words(best.value) if best.value is not None else ''
    head = f'# trial {best.number} of the sweep {plan.name}: {words}, mean of {plan.n_seed} seeds\n'
    with whole_file(path) as file:
        file.write((head + yaml_text(best_config(plan, best))).encode())
    return path


def _ranked(rows: list[TrialRow], minimises: bool) -> list[TrialRow]:
    """Complete trials by value, then the others, each kind by number."""
    kinds = ['complete', 'pruned', 'running', 'refused', 'failed', 'stopped', 'lost']
    sign = 1 if minimises else -1
    return sorted(rows, key=lambda row: (kinds.index(row.state), sign * (row.value or 0.0), row.number))


def _short(keys: list[str]) -> list[str]:
    """The last words of keys, or the whole key where two end alike."""
    n_use = Counter(key.rpartition('.')[2] for key in keys)
    return [key.rpartition('.')[2] if n_use[key.rpartition('.')[2]] == 1 else key for key in keys]


def _solved(row: TrialRow) -> str:
    steps = [run['solved_at'] for run in row.runs if run['solved_at'] is not None]
    if not steps:
        return '-'
    return f'{np.mean(steps):,.0f}' + (
        '' if len(steps) == len(row.runs) else f' ({len(steps)} of {len(row.runs)} seeds)'
    )


def _mean(values: list[float], form: str) -> str:
    return f'{np.mean(values):{form}}' if values else '-'


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
