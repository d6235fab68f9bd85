"""Markdown page of benchmarks/pixels.py: returns, curves, needs of a longer run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pixel_runs import RUNS, command_of

from report import table, versions_line

N_COLUMN = 10  # env steps at which a curve is shown
COLUMNS = (
    'run',
    'env steps',
    'optimiser steps',
    'wall time',
    'random actions',
    'last 100 training episodes',
    'last policy, as it collects',
    'last policy, greedy',
)
LONGER = ('run', 'published', 'after env steps', 'env steps/s here', 'time here', 'auxiliary memory')

Record = Mapping[str, Any]


def page(records: Mapping[str, Record], randoms: Mapping[str, Record], stale: Sequence[str] = ()) -> str:
    """pixels.md (records: by name of a run; randoms: by game; stale: names whose config has changed since)."""
    origins = [origin for found in records.values() for origin in found['origin']]
    facts = {
        key: list(dict.fromkeys(str(origin[key]) for origin in origins if key in origin))
        for key in ('machine', 'date', 'commit', 'note')
    }
    used = list(dict.fromkeys(versions_line(origin['versions']) for origin in origins))
    text = [
        '# What PPO and PPG learn from images\n',
        'One seed each, in one process with one thread, without a GPU. Returns are those of the raw game: no reward is '
        'clipped, whole games and not lives. The last 100 training episodes are those of the policy as it learned. The '
        'last policy then played whole episodes from seeds that training never saw (Procgen easy: all levels, in '
        'training and here), drawing its actions as it does to collect, and greedily. Random actions are uniform. +- '
        "is the mean's standard error over episodes.\n",
        table(COLUMNS, [result_row(name, found, randoms.get(found['game'])) for name, found in records.items()]),
        *(f'- `{name}`: {note}.' for name, found in records.items() for note in notes(name, found)),
        '\n## Curves\n',
        'Mean return of the last 100 training episodes, after so many env steps.\n',
        *(
            curve_table({name: found for name, found in records.items() if found['game'] == game})
            for game in dict.fromkeys(found['game'] for found in records.values())
        ),
        '## What a longer run would need\n',
        'The published returns (means over training episodes) and what their env steps would take in one thread of '
        'this machine: from the median time of a round of collecting and learning and, for PPG, of the auxiliary '
        'phases there were, without evaluations.\n',
        table(LONGER, [longer_row(name, found) for name, found in records.items()]),
        '## How\n',
        '- `python benchmarks/pixels.py` does all of it. Each run alone:',
        *(f'  - `{" ".join(command_of(name))}`' for name in records),
        *(f'- {key}: {"; ".join(values)}' for key, values in facts.items() if values),
        f'- versions: {"; ".join(used) or "not known"}',
        '- raw numbers, longer curves and every episode: `pixels_raw/`',
        *([f'- trained with an older config: {", ".join(stale)}'] if stale else []),
    ]
    return '\n'.join(text) + '\n'


def notes(name: str, found: Record) -> Iterator[str]:
    """Yields remarks about a run's row."""
    run, at = RUNS[name], found['evaluation']
    if not found['finished']:
        yield 'stopped part-way, or still going on'
    elif run.minutes is not None:
        yield f'stopped after {run.minutes:g} minutes, as meant'
    if at is not None and at['env_step'] != found['env_step']:
        yield f'the last policy is that of {at["env_step"]:,} env steps'
    if run.note:
        yield run.note


def result_row(name: str, found: Record, random: Record | None) -> list[str]:
    at = found['evaluation'] or {}
    return [
        name,
        f'{found["env_step"]:,}',
        f'{found["train_iter"]:,}',
        _duration(found['wall_s']),
        _mean(random and random['return']),
        f'{found["curve"][-1][1]:.2f}' if found['curve'] else '-',
        _mean(at.get('sampled')),
        _mean(at.get('greedy')),
    ]


def curve_table(records: Mapping[str, Record]) -> str:
    """The curves of one game's runs at N_COLUMN env steps, evenly spaced over the longest run."""
    end = max((found['curve'][-1][0] for found in records.values() if found['curve']), default=0)
    steps = [end * (i + 1) / N_COLUMN for i in range(N_COLUMN)]
    rows = [
        [name, *(_near(found['curve'], step, end / N_COLUMN / 2) for step in steps)] for name, found in records.items()
    ]
    return table(['run', *(f'{step / 1000:.0f}k' for step in steps)], rows)


def _near(curve: Sequence[Sequence[float]], step: float, within: float) -> str:
    """The return at the point of a curve that is closest to `step`; '-' if no point is `within` so many env steps."""
    close = min(curve, key=lambda point: abs(point[0] - step), default=(math.inf, 0.0))
    return f'{close[1]:.2f}' if abs(close[0] - step) <= within else '-'


def longer_row(name: str, found: Record) -> list[str]:
    run, policy = RUNS[name], found['resolved']['policy']
    memory = '-'
    aux_freq = policy['learn'].get('aux_freq')
    if aux_freq and found['obs_shape']:
        memory = f'{aux_freq * policy["collect"]["n_sample"] * math.prod(found["obs_shape"]) / 1e9:.1f} GB'
    s = seconds_for(run.published_env_step, found['cost'], aux_freq)
    speed = ('-', '-') if s is None else (f'{run.published_env_step / s:.0f}', _duration(s))
    return [name, run.published, f'{run.published_env_step:,}', *speed, memory]


def seconds_for(env_step: int, cost: Mapping[str, float | None], aux_freq: int | None) -> float | None:
    """Training time of env_step steps, from the cost of a round and of an auxiliary phase; None if unknown.

    It is unknown if the config has auxiliary phases (aux_freq) and none was reached.
    """
    if cost['s'] is None or cost['env_step'] is None or (aux_freq and cost['aux_s'] is None):
        return None
    aux = cost['aux_s'] / aux_freq if aux_freq and cost['aux_s'] is not None else 0.0
    return env_step / cost['env_step'] * (cost['s'] + aux)


def _mean(found: Mapping[str, Any] | None) -> str:
    return '-' if not found else f'{found["mean"]:.2f} +- {found["error"]:.2f} ({len(found["returns"])})'


def _duration(s: float) -> str:
    return f'{s / 60:.0f} min' if s < 7200 else f'{s / 3600:.1f} h' if s < 172_800 else f'{s / 86_400:.1f} days'
