"""`zoo report`: runs as one HTML page that can be sent to others; it needs no network, no script and no other file."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup

from zoo.config.section import differing_keys, short_keys, value_at
from zoo.core import VERSION
from zoo.core.errors import UserError
from zoo.run.result import is_time
from zoo.tools.results.compare import compare, verdicts
from zoo.tools.results.importance import LEAST, Better, importance_of
from zoo.tools.results.plot import N_WHOLE_RANGE, short, write_output
from zoo.tools.results.read import Run, curve_metric, groups, resolve_metric
from zoo.tools.results.report_figures import (
    N_COLOR,
    Figure,
    Groups,
    Video,
    main_figure,
    more_figures,
    newest_video,
    palette,
    read_video,
    step_of,
    variable_of,
)
from zoo.tools.results.settings import (
    changed_settings,
    commands,
    defaults_of,
    env_name,
    needs_of,
    portable_config,
    started_by,
)
from zoo.tools.results.statistics import LEVEL, WORDS, Axis, Stat, center, curve_points, interval
from zoo.tools.results.sweep_file import sweep_of

logger = logging.getLogger(__name__)

N_TOP = 3  # groups in colour if there are too many for all
RETURNS = {
    'eval/return_mean': 'mean return of the greedy policy in an evaluation',
    'collect/return_mean': 'mean return of recent training episodes',
}
STATES = {
    'running': ('is still running', 'are still running'),
    'stopped': ('was stopped before its end', 'were stopped before their end'),
    'failed': ('failed', 'failed'),
    'killed': ('was killed', 'were killed'),
}
"""Phrases for one run, and for several runs, in a state other than 'done'."""


def report(
    runs: Sequence[Run],
    metric: str | None = None,
    *,
    x: Axis = 'env_step',
    stat: Stat = 'iqm',
    title: str | None = None,
    video: Path | None = None,
) -> str:
    """Returns the HTML page about some runs.

    Runs that differ only in their seed are one group; each env has a figure with the curves of its groups. Many groups on one
    env are shown with the best return first, and with the importance of their settings. The trials of a sweep are shown in its
    order. Of more groups than there are colours only the first ones are in colour.
    Args:
      metric: its curves and last values are shown; None: the return of evaluations, or else of training.
      title: heading of the page; video: shown instead of the newest videos in the folders of the runs.
    Raises: UserError if matplotlib is not installed, no run has the metric, or the video cannot be shown.
    """
    is_named = metric is not None
    if is_named or any(name in run.columns for run in runs for name in RETURNS):
        metric = resolve_metric(runs, metric)
    by_label = groups(runs)
    view = None
    if len(by_label) > 1:
        view = sweep_of(runs)
    if view is None:
        grouped = _short_labels(by_label)
    else:
        grouped = _trial_labels(by_label)
    numbers = numbers_of(grouped, metric, stat)
    are_tried = len(grouped) >= LEAST and len(_envs(grouped)) == 1
    is_best_first = view is not None or (are_tried and metric in RETURNS)
    if view is not None:
        order = list(view.trials)
        numbers.sort(key=lambda group: order.index(group.runs[0].run.label))
    elif is_best_first:
        numbers.sort(key=lambda group: math.inf if group.last is None else -group.last)
    grouped = {group.label: grouped[group.label] for group in numbers}
    n_top = None
    if is_best_first and len(grouped) > N_COLOR:
        n_top = N_TOP
    if view is None:
        trials = []
    else:
        trials = [view.trials[group.runs[0].run.label] for group in numbers]
    runs = [run for group in grouped.values() for run in group]
    if metric is None or is_named:
        drawn_metric = metric
    else:
        drawn_metric = curve_metric(runs)
    if video is not None:
        videos = [(video.name, read_video(video))]
    else:
        videos = _found_videos(grouped)
    needs = needs_of(runs)
    configs = [group[0].config for group in grouped.values()]
    settings = changed_settings(configs)
    differing = differing_keys(configs)
    leaves = {setting: [key for key in differing if f'{key}.'.startswith(f'{setting.key}.')] for setting in settings}
    between = [setting for setting in settings if leaves[setting]]
    names = list(dict.fromkeys(run.label for run in runs))
    importance = None
    if are_tried:
        plain = [portable_config(config, needs.names) for config in configs]
        last = [group.last for group in numbers]
        if metric in RETURNS:
            words = 'return at the end'
        else:
            words = f'{metric} at the end'
        better: Better
        if metric in RETURNS:
            better = 'high'
        else:
            better = None
        if view is not None and sum(trial.value is not None for trial in trials) >= LEAST:
            last = [trial.value for trial in trials]
            words = view.sweep.result_name
            if view.sweep.minimises:
                better = 'low'
            else:
                better = 'high'
        importance = importance_of(plain, last, sum(leaves.values(), []), words, better)
    least = EARLY * max((run.env_step for run in runs), default=0)

    def is_early(run: Run) -> bool:  # ended long before others, e.g. pruned by a sweep, but not at its stop_value
        return run.env_step < least and not run.is_solved

    is_drawn = any(value_at(config, 'policy.eval.deterministic') is False for config in configs)
    if len(names) < 4:
        what = _and(names)
    else:
        what = f'{len(grouped)} configs'
    if view is not None:
        what = f'{view.sweep.name}: a sweep of {len(grouped)} trials'
        between = [setting for setting in between if setting.key not in view.sweep.keys]
    about = f'{what} on {_and(_envs(grouped))}'
    return _template().render(
        title=about if title is None else title,
        palette=Markup(palette()),
        date=f'{date.today():%d %B %Y}'.lstrip('0'),
        policies=list(dict.fromkeys(run.policy_type for run in runs)),
        envs=_envs(grouped),
        runs=runs,
        metric=metric,
        returns=RETURNS | ({'eval/return_mean': 'mean return in an evaluation'} if is_drawn else {}),
        states=list(_state_sentences(runs, with_reasons=False)),
        groups=numbers,
        colors=[variable_of(i, n_top) for i in range(len(numbers))],
        timed_groups=list(grouped.items()) if n_top is None else [('', runs)],
        n_top=n_top,
        sweep=None if view is None else view.sweep,
        trials=trials,
        tried=[] if view is None else list(zip(short_keys(view.sweep.keys), view.sweep.keys, strict=True)),
        swept=[] if view is None else [setting for setting in settings if setting.key in view.sweep.keys],
        verdicts=_verdicts(grouped, metric, stat),
        importance=importance,
        n_early=sum(any(map(is_early, group)) for group in grouped.values()),
        curves=[] if drawn_metric is None else list(_curves(grouped, drawn_metric, x, stat, n_top)),
        curve_of_training=drawn_metric != metric,
        videos=videos,
        reasons=[] if view is not None else list(_state_sentences(runs, with_reasons=True)),
        unknown=list(dict.fromkeys(config['policy']['type'] for config in configs if not defaults_of(config))),
        between=between,
        alike=[setting for setting in settings if not leaves[setting]],
        facts=_facts(runs),
        started=list(dict.fromkeys(line for run in runs if (line := started_by(run)))),
        needs=needs,
        configs=commands(grouped, needs),
        stat_words=WORDS[stat],
    )


def write_report(path: Path, page: str) -> None:
    """Writes a page, whole or not at all. Raises: UserError if it cannot be written."""
    write_output(path, page.encode(errors='replace'))  # a folder's name may not be valid text


def _template() -> jinja2.Template:
    """Returns the template of the page. It escapes all text, fails if a variable is missing, and has filters for numbers."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= dict(duration=duration, number=number, seeds=seeds, spread=spread, steps=steps)
    environment.filters |= dict(all=_and, median=np.median, time_shares=time_shares)
    environment.tests['timed'] = has_all_times
    environment.globals |= dict(duration=duration, steps=steps, whole='{:,.0f}'.format)
    environment.globals |= dict(parts=PARTS, level=f'{LEVEL:.0%}', version=VERSION, n_whole_range=N_WHOLE_RANGE)
    return environment.from_string(files('zoo.tools.results').joinpath('report.html').read_text(encoding='utf-8'))


def _verdicts(grouped: Groups, metric: str | None, stat: Stat) -> list[str]:
    """Returns the sentences of `zoo compare` on a few groups of one env; none if they cannot be compared."""
    if metric not in RETURNS or not 2 <= len(grouped) <= N_COLOR or len(_envs(grouped)) != 1:
        return []
    if all(curve_points(run, metric)[0].size == 0 for runs in grouped.values() for run in runs):
        return []
    found = compare(grouped, metric, stat)
    return [f'{said}.' for said in verdicts(found, list(grouped))]


def _curves(
    grouped: Groups, metric: str, x: Axis, stat: Stat, n_top: int | None
) -> Iterator[tuple[str, Figure, list[tuple[str, Markup]]]]:
    """Yields each env with the curves of the metric, and small curves of other metrics."""
    labels = list(grouped)
    for i, env in enumerate(_envs(grouped)):
        of_env = {label: runs for label, runs in grouped.items() if env_name(runs[0].config) == env}
        colors = [labels.index(label) for label in of_env]  # the same in all figures and tables
        rules = of_env, colors, metric, x, stat, f'env-{i}', n_top
        yield env, main_figure(*rules), more_figures(*rules)


def _state_sentences(runs: Sequence[Run], with_reasons: bool) -> Iterator[str]:
    """Yields sentences about runs that are not done; with_reasons: about runs that recorded the reason of their end."""
    found: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
    for run in runs:
        if with_reasons:
            reason = run.reason
        else:
            reason = ''
        if reason if with_reasons else run.state != 'done':
            found[STATES.get(run.state, ('ended early', 'ended early')), reason] += 1
    for (what, reason), n in found.items():
        if n < len(runs):
            who = f'{n} of {len(runs)} runs'
        else:
            who = f'All {n} runs'
        yield f'{who if len(runs) > 1 else "The run"} {what[n > 1]}{": " if reason else ""}{reason}.'


def _facts(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns the versions, machines and commits that the runs recorded."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        versions, machine, commit = (run.result.get(name) for name in ('versions', 'machine', 'commit'))
        if isinstance(versions, dict) and versions:
            found['versions'][', '.join(f'{name} {value}' for name, value in versions.items())] = None
        if isinstance(machine, dict) and machine:
            words = (f'{value} cores' if name == 'cores' else f'{value}' for name, value in machine.items())
            found['machine'][', '.join(words)] = None
        if commit:
            found['git commit'][str(commit)] = None
    return {name: list(words) for name, words in found.items()}


def _short_labels(grouped: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    """Removes the name of the experiment from labels if it is the same in all: 'learning_rate=0.001'."""
    names = {run.label for runs in grouped.values() for run in runs}
    if len(grouped) == 1 or len(names) > 1:
        return dict(grouped)
    return {label.removeprefix(f'{next(iter(names))} '): runs for label, runs in grouped.items()}


def _trial_labels(grouped: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    """Changes the labels of a sweep's trials from trial_003 to 'trial 3'."""
    return {f'trial {int(runs[0].label.removeprefix("trial_"))}': runs for runs in grouped.values()}


def _envs(grouped: Groups) -> list[str]:
    return list(dict.fromkeys(env_name(runs[0].config) for runs in grouped.values()))


def _and(names: Sequence[str]) -> str:
    *first, last = names
    if first:
        return f'{", ".join(first)} and {last}'
    return last


def _found_videos(grouped: Groups) -> list[tuple[str, Video]]:
    """Returns the newest video of a run for each config, with a caption. Leaves out and logs a video that a page cannot hold."""
    found = []
    for label, runs in grouped.items():
        for run, path in [(run, path) for run in runs if (path := newest_video(run)) is not None][:1]:
            at = step_of(path)
            words = f'{label}, seed {run.seed}{"" if at is None else f", after {at:,} env steps"}'
            try:
                found.append((words, read_video(path)))
            except UserError as error:
                logger.warning('%s; the report is without it', error)
    return found


NBSP = '\u00a0'
PARTS = {
    'env': 'stepping the envs',
    'act': 'choosing actions',
    'sample': 'making samples',
    'learn': 'learning',
    'evaluate': 'evaluating',
    'log': 'logging and saving',
}
"""Descriptions of the parts of a run, by the name in `time/share_<part>`."""
MIN_TIMED_SHARE = 0.95
"""Known share of a run's time that counts as all of it: a process may continue after its last checkpoint."""
EARLY = 0.8
"""Share of the env steps of the longest run below which another one ended early."""


class RunNumbers(NamedTuple):
    """A run with the last and the highest value of its metric, None without points."""

    run: Run
    last: float | None
    highest: float | None


class GroupNumbers(NamedTuple):
    """Runs of one config: the average of their last values and its 95% interval, all None without values."""

    label: str
    runs: list[RunNumbers]
    last: float | None
    low: float | None
    high: float | None
    highest: float | None

    @property
    def n_with(self) -> int:
        """Number of runs that have the metric."""
        return sum(numbers.last is not None for numbers in self.runs)


def numbers_of(groups: Mapping[str, Sequence[Run]], metric: str | None, stat: Stat) -> list[GroupNumbers]:
    """Returns the numbers of all groups. Args: metric: None if no run logged a return."""
    found = []
    for label, runs in groups.items():
        curves = [(run, curve_points(run, metric)[1] if metric else np.empty(0)) for run in runs]
        rows = [RunNumbers(run, *((float(y[-1]), float(y.max())) if len(y) else (None, None))) for run, y in curves]
        last = [row.last for row in rows if row.last is not None]
        highest = [row.highest for row in rows if row.highest is not None]
        values: list[float | None] = [None] * 4
        if last:
            values = [float(x) for x in (center(last, stat), *interval(last, stat), center(highest, stat))]
        found.append(GroupNumbers(label, rows, *values))
    return found


def time_shares(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the share of time that each part of a run took, the mean over runs, by the names of PARTS; {} if unknown.

    For a run that has ended, the shares are over all its known processes from start to end, see `has_all_times`. For a run
    that is running or was killed, the shares of the last process are from the last line of the log.
    """
    found = [shares for run in runs if (shares := _shares(run)) is not None]
    total = 0.0
    if found:
        total = sum(means := np.mean(found, axis=0))
    if total > 0:
        return {name: float(share / total) for name, share in zip(PARTS, means, strict=True)}
    return {}


def has_all_times(run: Run) -> bool:
    """Whether `time_shares` covers the whole run: no earlier process was killed or wrote to another folder."""
    timed_s = run.result.get('timed_s')
    if is_time(timed_s):
        if _goes_on(run):
            return not run.result.get('n_killed')
        return timed_s >= MIN_TIMED_SHARE * run.wall_s
    return False


def number(value: float | None, missing: str = '–') -> str:
    """Formats a number: 0.9664, 475.3, 12,345."""
    if value is None or not math.isfinite(value):
        return missing
    if abs(value) >= 1000:
        return f'{value:,.0f}'
    return f'{value:.4g}'


def steps(value: float) -> str:
    """Formats env steps in few characters: 950, 40.7k, 1.5M."""
    value = float(f'{value:.3g}')  # first, so that 999,999 is 1M
    if value >= 1e3:
        return short(value, 3)
    return f'{value:.0f}'


def duration(seconds: float) -> str:
    """Formats a duration without line breaks: '0.8 s', '12 s', '3 min 20 s', '2 h 5 min'."""
    if not math.isfinite(seconds):
        return '–'
    if seconds < 59.5:
        if seconds >= 9.95:
            return f'{seconds:.0f}{NBSP}s'
        return f'{seconds:.1f}{NBSP}s'
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes + (rest >= 30 if minutes >= 60 else 0), 60)
    parts = ((hours, 'h'), (minutes, 'min'), (0 if hours else rest, 's'))
    return NBSP.join(f'{n}{NBSP}{unit}' for n, unit in parts if n)


def seeds(runs: Sequence[Run]) -> str:
    """Lists the seeds of runs: 'seed 3', 'seeds 0 to 4', 'seeds 1, 5 and 9', or from 9 seeds on, '12 seeds'."""
    values = sorted({run.seed for run in runs})
    if len(values) == 1:
        return f'seed {values[0]}'
    if len(values) > 2 and all(b == a + 1 for a, b in pairwise(values)):
        return f'seeds {values[0]} to {values[-1]}'
    if len(values) < 9:
        return f'seeds {", ".join(map(str, values[:-1]))} and {values[-1]}'
    return f'{len(values)} seeds'


def spread(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Formats one value, or the lowest and the highest: '1.0 s', '0.6 s to 1.1 s'."""
    return ' to '.join(dict.fromkeys(map(write, (min(values), max(values)))))


def _shares(run: Run) -> np.ndarray | None:
    """Returns the time share of each of PARTS in a run; None if unknown."""
    found = run.result.get('seconds')  # of the processes that have ended
    if isinstance(found, dict):
        given = [found.get(name) for name in PARTS]
    else:
        given = [None]
    is_known = all(map(is_time, given)) and (not _goes_on(run) or is_time(run.result.get('timed_s')))
    seconds = np.array(given if is_known else [0] * len(PARTS), dtype=np.float64)
    if not is_known or _goes_on(run):
        logged = (run.columns.get(f'time/share_{name}', np.empty(0)) for name in PARTS)
        known = [values[np.isfinite(values)] for values in logged]
        if all(map(len, known)):
            if is_known:
                rest = max(run.wall_s - run.result['timed_s'], 0.0)
            else:
                rest = 1.0
            seconds += rest * np.array([values[-1] for values in known])
    if seconds.sum() > 0:
        return seconds / seconds.sum()
    return None


def _goes_on(run: Run) -> bool:
    """Whether its last process is running or was killed."""
    return run.result.get('state') == 'running'
