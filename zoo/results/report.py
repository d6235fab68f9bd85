"""`zoo report`: runs as one HTML page to send to somebody, which needs no network, no script and no other file."""

from __future__ import annotations

import importlib.resources
import logging
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from zoo.core.errors import UserError
from zoo.core.files import whole_file
from zoo.core.version import VERSION
from zoo.results.curves import Axis
from zoo.results.read import Run, groups, resolve_metric
from zoo.results.report_config import env_name
from zoo.results.report_figures import main_figure, more_figures, palette
from zoo.results.report_html import Html, code, html, join, paragraph, section, table
from zoo.results.report_numbers import GroupNumbers, duration, number, numbers_of, seeds, spread, steps
from zoo.results.report_sections import (
    commands,
    machine_facts,
    runs_table,
    settings_tables,
    speed_part,
    state_sentences,
    swatch,
    video_part,
)
from zoo.results.report_video import Video, newest_video, read_video, step_of
from zoo.results.statistics import LEVEL, WORDS, Stat

logger = logging.getLogger(__name__)

RETURNS = {
    'eval/return_mean': 'mean return of the greedy policy in an evaluation',
    'collect/return_mean': 'mean return of recent training episodes',
}


def report(
    runs: Sequence[Run],
    metric: str | None = None,
    *,
    x: Axis = 'env_step',
    stat: Stat = 'iqm',
    title: str | None = None,
    video: Path | None = None,
) -> str:
    """The page about some runs.

    Runs that differ only in their seed are one group; each env has a figure with the curves of its groups.
    Args:
      metric: whose curves and last values are shown; None: the return of evaluations, or else of training.
      title: heading of the page; video: a film to show, instead of the newest ones in the folders of the runs.
    Raises: UserError if matplotlib is not installed, no run has the metric, or the video cannot be shown.
    """
    grouped = _short_labels(groups(runs))
    videos = _given_video(video) if video is not None else _found_videos(grouped)
    metric = metric_of(runs, metric)
    numbers = numbers_of(grouped, metric, stat)
    body = [
        _header(grouped, numbers, metric, stat, title),
        section('Curves', _curves(grouped, metric, x, stat), 'curves'),
        section('Watch it', video_part(videos), 'video'),
        section('Runs', runs_table(numbers, _short_name(metric)), 'runs'),
        section('Settings', settings_tables(grouped), 'settings'),
        section('Speed', speed_part(numbers), 'speed'),
        section('Versions and machine', machine_facts(runs), 'machine'),
        section('Repeat it', commands(grouped), 'repeat'),
        _footer(metric, stat),
    ]
    template = importlib.resources.files('zoo.results').joinpath('report.html').read_text(encoding='utf-8')
    return html(template, title=_title(grouped, title), palette=Html(palette()), body=join(body))


def metric_of(runs: Sequence[Run], metric: str | None) -> str | None:
    """The metric whose curves are shown; None where none was named and no run has logged a return yet."""
    if metric is None and not any(name in run.columns for run in runs for name in RETURNS):
        return None
    return resolve_metric(runs, metric)


def write_report(path: Path, page: str) -> None:
    """Writes a page, whole or not at all. Raises: UserError if it cannot be written."""
    try:
        with whole_file(path) as file:
            file.write(page.encode(errors='replace'))  # a folder's name may be no text
    except OSError as error:
        raise UserError(f'{path} cannot be written ({error.strerror}); name another file with -o') from error


def check_page_path(path: Path) -> None:
    """Raises: UserError for a file that a page cannot be written to, before anything is read."""
    if path.suffix.lower() not in ('.html', '.htm'):
        raise UserError(f'the report is to be {path}, but its name must end in .html; e.g. -o report.html')
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = 'that is a folder' if path.is_dir() else f'there is no folder {path.parent}; make it first'
        raise UserError(f'the report is to be {path}, but {what}; name a file with -o, e.g. -o report.html')


def _header(
    grouped: Mapping[str, Sequence[Run]],
    numbers: Sequence[GroupNumbers],
    metric: str | None,
    stat: Stat,
    title: str | None,
) -> Html:
    """What was trained, how good it is, how long it took."""
    over = paragraph(f'zoo report, {date.today():%d %B %Y}'.replace(' 0', ' '), 'over')
    summary = _tiles(numbers[0], metric) if len(numbers) == 1 else _group_table(numbers, metric)
    return html(
        '<header>$over<h1>$title</h1>$lead$summary</header>',
        over=over,
        title=_title(grouped, title),
        lead=_lead(grouped, numbers, metric, stat),
        summary=summary,
    )


def _title(grouped: Mapping[str, Sequence[Run]], title: str | None) -> str:
    names, envs = dict.fromkeys(run.exp_name for runs in grouped.values() for run in runs), _envs(grouped)
    if title is not None:
        return title
    if len(names) == 1:
        return f'{next(iter(names))} on {_and(envs)}'
    return f'{_and(names) if len(names) < 4 else f"{len(grouped)} configs"} on {_and(envs)}'


def _lead(
    grouped: Mapping[str, Sequence[Run]], numbers: Sequence[GroupNumbers], metric: str | None, stat: Stat
) -> Html:
    """The summary in two or three sentences."""
    runs = [run for each in grouped.values() for run in each]
    policies = join((code(name) for name in dict.fromkeys(run.policy_type for run in runs)), ', ')
    what = f'in {len(runs)} runs with {seeds(runs)}' if len(runs) > 1 else f'in one run with {seeds(runs)}'
    each = ' each' if len(runs) > 1 else ''
    walls = [row.wall_s for group in numbers for row in group.runs if row.wall_s > 0]
    took = f', in {spread(walls, duration)}{each}' if walls else ''
    first = html(
        '$policies was trained on $envs $what, for $steps env steps$each$took.',
        policies=policies,
        envs=_and(_envs(grouped)),
        what=what,
        steps=spread([run.env_step for run in runs], lambda x: f'{x:,.0f}'),
        each=each if not took else '',
        took=took,
    )
    return join(
        [
            paragraph(html('$first $good', first=first, good=_how_good(numbers, metric, stat)), 'lead'),
            paragraph(' '.join(state_sentences(runs, with_reasons=False)), 'warn'),
        ]
    )


def _how_good(numbers: Sequence[GroupNumbers], metric: str | None, stat: Stat) -> str:
    """A sentence with the last value of the metric, of the highest group where there are several."""
    known = [group for group in numbers if group.last is not None]
    if metric is None or not known:
        return 'No return is known yet: no episode has ended, or none was evaluated.'
    group = max(known, key=lambda group: group.last or 0.0)
    words = RETURNS.get(metric, metric)
    value = f'{number(group.last)}{_interval_words(group, stat)}'
    if len(numbers) == 1:
        return f'The {words} is {value} at the end.'
    if len({group.runs[0].run.env_id for group in numbers}) > 1:
        return ''  # returns of different envs do not compare
    return f'The highest {words} at the end is that of {group.label}: {value}.'


def _interval_words(group: GroupNumbers, stat: Stat) -> str:
    if group.n_with < 2:
        return ''
    ends = f'{LEVEL:.0%} interval {number(group.low)} to {number(group.high)}'
    return f' ({WORDS[stat]} of {group.n_with} runs, {ends})'


def _tiles(group: GroupNumbers, metric: str | None) -> Html:
    """The main numbers of one config, large."""
    runs = group.runs
    several = len(runs) > 1
    ends = f'{LEVEL:.0%} interval {number(group.low)} to {number(group.high)}' if group.n_with > 1 else ''
    speeds = [row.speed for row in runs if row.wall_s > 0]
    median = sorted(row.wall_s for row in runs)[len(runs) // 2]
    tiles = [
        (f'{_short_name(metric)} at the end', number(group.last), ends),
        ('Highest', number(group.highest), 'of any evaluation' if metric == 'eval/return_mean' else ''),
        ('Env steps', steps(max(row.run.env_step for row in runs)), 'of the longest run' if several else ''),
        ('Time', duration(median), 'of a run, median' if several else ''),
        ('Speed', steps(sorted(speeds)[len(speeds) // 2]) if speeds else '–', 'env steps per second'),
    ]
    cells = (
        html('<div><dt>$name</dt><dd>$value<small>$note</small></dd></div>', name=name, value=value, note=note)
        for name, value, note in tiles
    )
    return html('<dl class="tiles">$cells</dl>', cells=join(cells))


def _group_table(numbers: Sequence[GroupNumbers], metric: str | None) -> Html:
    """The main numbers of several configs."""
    head = ('Config', f'{_short_name(metric)} at the end', 'Highest', 'Env steps', 'Time')
    rows = [
        (
            html(
                '$color$label<span class="range">$runs</span>',
                color=swatch(i),
                label=group.label,
                runs=f'{len(group.runs)} {"run" if len(group.runs) == 1 else "runs"}, {seeds([r.run for r in group.runs])}',
            ),
            html(
                '$value<span class="range">$ends</span>',
                value=number(group.last),
                ends=f'{number(group.low)} to {number(group.high)}' if group.n_with > 1 else None,
            ),
            number(group.highest),
            spread([row.run.env_step for row in group.runs], steps),
            spread([row.wall_s for row in group.runs], duration),
        )
        for i, group in enumerate(numbers)
    ]
    return table(head, rows, 'numbers groups')


def _curves(grouped: Mapping[str, Sequence[Run]], metric: str | None, x: Axis, stat: Stat) -> Html:
    """A figure with the curves of each env, and small ones of other metrics."""
    if metric is None:
        return paragraph('No run has logged a return yet.')
    parts, labels = [], list(grouped)
    for i, env in enumerate(envs := _envs(grouped)):
        of_env = {label: runs for label, runs in grouped.items() if env_name(runs[0].config) == env}
        colors = [labels.index(label) for label in of_env]  # the same in all figures and tables
        parts += [html('<h3>$env</h3>', env=env)] if len(envs) > 1 else []
        parts += [main_figure(of_env, colors, metric, x, stat, f'env-{i}')]
        if more := more_figures(of_env, colors, metric, x, stat, f'env-{i}'):
            parts += [
                html('<details open><summary>How it went</summary><div class="more">$more</div></details>', more=more)
            ]
    return join(parts)


def _short_labels(grouped: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    """Labels without the name of the experiment where all have the same: 'learning_rate=0.001'."""
    names = {run.exp_name for runs in grouped.values() for run in runs}
    if len(grouped) == 1 or len(names) > 1:
        return dict(grouped)
    return {label.removeprefix(f'{next(iter(names))} '): runs for label, runs in grouped.items()}


def _short_name(metric: str | None) -> str:
    return 'Return' if metric is None or metric in RETURNS else metric


def _envs(grouped: Mapping[str, Sequence[Run]]) -> list[str]:
    return list(dict.fromkeys(env_name(runs[0].config) for runs in grouped.values()))


def _and(names: Sequence[str] | Mapping[str, object]) -> str:
    *first, last = names
    return f'{", ".join(first)} and {last}' if first else last


def _found_videos(grouped: Mapping[str, Sequence[Run]]) -> list[tuple[str, Video]]:
    """For each config the newest film of a run, with words; one that a page cannot hold is left out, and the log says so."""
    found = []
    for label, runs in grouped.items():
        run, path = next(((run, path) for run in runs if (path := newest_video(run)) is not None), (None, None))
        if run is None or path is None:
            continue
        at = step_of(path)
        try:
            found.append(
                (f'{label}, seed {run.seed}{"" if at is None else f", after {at:,} env steps"}', read_video(path))
            )
        except UserError as error:
            logger.warning('%s; the report is without it', error)
    return found


def _given_video(path: Path) -> list[tuple[str, Video]]:
    return [(path.name, read_video(path))]


def _footer(metric: str | None, stat: Stat) -> Html:
    how = (
        f'Line and last values: {WORDS[stat]} over runs of the last logged value. Interval: {LEVEL:.0%} bootstrap over runs, '
        'a rough one with fewer than ten. Time is wall time, and steps per second are those of a whole run.'
    )
    what = f'{how} The return is undiscounted, of raw rewards.' if metric in RETURNS else how
    return html('<footer><p>$what</p><p>Made with zoo $version.</p></footer>', what=what, version=VERSION)
