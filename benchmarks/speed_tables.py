"""Report of benchmarks/speed.py: makes speed.md from its records."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from speed_works import BASELINE, PEERS, WORKS, Work

from report import table, versions_line

BUSY_CORES = 0.12  # a run with more load by other processes is marked as busy, but never dropped
MEMORY_MB = 100  # memory that zoo may use in addition to that of stable-baselines3
FEW_SEEDS = 3  # with fewer seeds an interval means nothing
ZOO = ('zoo eager', 'zoo best')
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # by label

INTRO = """# Speed on matched work

The same env, envs x steps, epochs, minibatch, network and hyper-parameters for all; optimiser steps are counted.
Drivers run in turn, each in a process of its own, every second round backwards; medians. "env steps/s" excludes imports
and the first iterations (compilation, caches), for all alike; "from start to end" includes them. Evaluation is off.
Every library has the number of threads (and zoo the vectorisation) that a short run before found quickest. Differences
under 10% are ties. "zoo eager" has `policy.learn.executor=eager`, "zoo best" the settings that are named.
"""
RETURNS_INTRO = """## Returns at equal env steps

Greedy returns after the runs above (means of {episodes} episodes on seeds of their own), one for each seed of a run;
mean with its 95% bootstrap interval over seeds. No worse: the interval reaches that of stable-baselines3, or lies above
it.
"""
TARGET_COLUMNS = (
    'work',
    'fastest peer, env steps/s',
    'zoo eager, times that',
    'wanted',
    '',
    'zoo best, times that',
    'wanted',
    '',
    'peak memory of zoo minus that of stable-baselines3, MB (wanted: at most 100)',
)
SPEED_COLUMNS = (
    'library',
    'threads',
    'env steps/s: median (min to max)',
    'times the fastest peer',
    'env steps/s from start to end',
    'start-up + first iterations, s',
    'optimiser steps per 1,024 env steps',
    'peak memory, MB',
    'greedy return',
    'runs',
    'other load, cores (max)',
)
PART_COLUMNS = ('work', '', 'env', 'act', 'sample', 'learn', 'log', 'other', 'slowest iteration / median')
RETURN_COLUMNS = ('work', 'library', 'returns by seed', 'mean', '95% interval', 'no worse')


def by_label(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run['label'], []).append(run)
    return groups


def median_of(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def fastest_reference(work: Work, groups: Runs) -> tuple[str, float] | None:
    """Label and median env steps/s of the fastest peer that the ratio is taken against; None if none was measured."""
    speeds = {
        label: median_of(groups[label], 'env_step_per_s')
        for label in (PEERS[name].label for name in work.reference)
        if label in groups
    }
    return max(speeds.items(), key=lambda item: item[1]) if speeds else None


def verdict(got: float, wanted: float) -> str:
    """'met' if a ratio is reached, else the share of the wanted ratio by which it is missed."""
    return 'met' if got >= wanted else f'missed by {1 - got / wanted:.0%}'


def target_row(work: Work, groups: Runs) -> list[str]:
    reference = fastest_reference(work, groups)
    row = [work.title, f'{reference[0]}: {reference[1]:,.0f}' if reference else 'not measured']
    for label, wanted in zip(ZOO, work.wanted, strict=True):
        if reference is None or label not in groups:
            row += ['not measured', f'{wanted:g}', '']
        else:
            got = median_of(groups[label], 'env_step_per_s') / reference[1]
            row += [f'{got:.2f}', f'{wanted:g}', verdict(got, wanted)]
    return [*row, memory_cell(groups)]


def memory_cell(groups: Runs) -> str:
    """Peak memory of zoo minus that of stable-baselines3; each peak is the largest of all runs."""
    peak = {label: max(run['peak_rss_mb'] for run in runs) for label, runs in groups.items()}
    if BASELINE not in peak or not set(ZOO) & set(peak):
        return 'not measured'
    more = [peak[label] - peak[BASELINE] for label in ZOO if label in peak]
    return ' and '.join(f'{mb:+.0f}' for mb in more) + (': met' if max(more) <= MEMORY_MB else ': missed')


def speed_row(label: str, runs: Sequence[Mapping[str, Any]], reference: tuple[str, float] | None) -> list[str]:
    speeds = [run['env_step_per_s'] for run in runs]
    loads = [run['other_load'] for run in runs if 'other_load' in run]
    returns = [run['final_return'] for run in runs if run['final_return'] is not None]
    return [
        f'{label} {runs[0]["version"]}',
        str(runs[0]['threads']),
        f'{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})',
        f'{statistics.median(speeds) / reference[1]:.2f}' if reference else '',
        f'{median_of(runs, "env_step_per_s_all"):,.0f}',
        f'{median_of(runs, "startup_s"):.1f} + {median_of(runs, "warmup_s"):.1f}',
        f'{median_of(runs, "train_iter_per_1024"):g}',
        f'{max(run["peak_rss_mb"] for run in runs):.0f}',
        f'{statistics.mean(returns):.0f}' if returns else '',
        str(len(runs)),
        f'{max(loads):.2f}' + (' (busy)' if max(loads) > BUSY_CORES else '') if loads else 'unknown',
    ]


def work_section(work: Work, data: Mapping[str, Any]) -> str:
    groups = by_label(data['runs'])
    reference = fastest_reference(work, groups)
    rows = [
        speed_row(label, groups[label], reference)
        for label in sorted(groups, key=lambda label: -median_of(groups[label], 'env_step_per_s'))
    ]
    steps, before = work.scaled_steps(data['scale']), work.warmup * work.batch
    lines = [
        f'## {work.title}\n',
        f'{work.epochs} epochs, minibatches of {work.minibatch}, {steps:,} env steps, {before:,} of them before '
        'the clock starts.\n',
        table(SPEED_COLUMNS, rows),
    ]
    lines += [f'- {label}: `{" ".join(groups[label][0]["setting"])}`' for label in groups if label.startswith('zoo')]
    lines += [
        f'- compiling: the first iterations of the first run took {cold:.1f} s; the works before it may have '
        'left graphs in the cache, which is empty when the measurement begins'
        for cold in cold_s(data)
    ]
    said = {line for run in data['runs'] for line in run.get('stderr', '').splitlines() if 'compiled' in line}
    lines += [f'- zoo said: {line}' for line in sorted(said)]
    lines += [f'- {note}' for note in (work.note, *data['missing']) if note]
    lines += [f'- failed: {label}: {reason.splitlines()[0]}' for label, reason in data['failed'].items()]
    lines += [
        f'- {data["machine"]}; {versions_line(data["versions"])}; {data["date"]}, commit {data["commit"]}',
        f'- `{data["command"]}`: {data["took_s"] / 60:.0f} min for this work\n',
    ]
    return '\n'.join(lines)


def cold_s(data: Mapping[str, Any]) -> list[float]:
    """Seconds of the first iterations of 'zoo best' in its first run of this work; [] without calibration."""
    return [run['warmup_s'] for run in data['calibration'] if run['label'] == ZOO[1]][:1]


def part_rows(work: Work, groups: Runs) -> list[list[str]]:
    """Shares of the parts of zoo's time over all runs; the remaining time is 'other'."""
    rows = []
    for label in (label for label in ZOO if label in groups):
        runs = groups[label]
        total = sum(run['wall_s'] for run in runs)
        share = {
            part: sum(run['part_s'][part] for run in runs) / total for part in ('env', 'act', 'sample', 'learn', 'log')
        }
        slowest = max(run['slowest_iteration_s'] / run['iteration_s'] for run in runs)
        rows.append(
            [
                work.title,
                label,
                *(f'{value:.0%}' for value in share.values()),
                f'{max(1 - sum(share.values()), 0):.0%}',
                f'{slowest:.1f}',
            ]
        )
    return rows


def return_rows(work: Work, groups: Runs) -> list[list[str]]:
    """Returns by seed of zoo and of peers that report returns, and whether they are no worse than the baseline's."""
    from zoo.tools.results.statistics import interval

    returns = {
        label: [run['final_return'] for run in sorted(runs, key=lambda run: run['seed'])]
        for label, runs in groups.items()
        if runs[0]['final_return'] is not None
    }
    if BASELINE not in returns:
        return []
    ends = {label: interval(values, 'mean') for label, values in returns.items()}
    rows = []
    for label, values in returns.items():
        low, high = ends[label]
        no_worse = 'yes' if high >= ends[BASELINE][0] else 'no'
        judged = label != BASELINE and min(len(values), len(returns[BASELINE])) >= FEW_SEEDS
        rows.append(
            [
                work.title,
                label,
                ' '.join(f'{value:.0f}' for value in values),
                f'{np.mean(values):.0f}',
                f'{low:.0f} to {high:.0f}',
                no_worse if judged else '',
            ]
        )
    return rows


def report(data: Mapping[str, Any]) -> str:
    """The text of speed.md, made from the data of speed.json."""
    measured = [(work, data['works'][work.name]) for work in WORKS if work.name in data['works']]
    groups = [(work, by_label(found['runs'])) for work, found in measured]
    returns = [row for work, runs in groups for row in return_rows(work, runs)]
    episodes = sorted({work.episodes for work, _ in measured if work.episodes})
    text = [INTRO, table(TARGET_COLUMNS, [target_row(work, runs) for work, runs in groups])]
    if data.get('first_update_s'):
        first = data['first_update_s']
        text.append(
            f'`zoo train cartpole_ppo`, command to first update: {statistics.median(first):.1f} s (median of '
            f'{len(first)}, {min(first):.1f} to {max(first):.1f}).\n'
        )
    text += [work_section(work, found) for work, found in measured]
    text += [
        "## Where zoo's time goes\n",
        'Shares of the time that the clock ran.\n',
        table(PART_COLUMNS, [row for work, runs in groups for row in part_rows(work, runs)]),
    ]
    if returns:
        text += [RETURNS_INTRO.format(episodes=' or '.join(map(str, episodes))), table(RETURN_COLUMNS, returns)]
    return '\n'.join(text)
