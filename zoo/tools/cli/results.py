"""Finished runs: `zoo runs`, `zoo plot`, `zoo compare` and `zoo report`."""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from zoo.core.errors import UserError, need
from zoo.core.streams import write_line
from zoo.tools.cli.output import argument, columns, show

if TYPE_CHECKING:
    from zoo.tools.results.compare import Chance, Comparison, Side, Spread
    from zoo.tools.results.read import Run
    from zoo.tools.results.table import RunRow

ROOT = 'runs'
# columns that are left out on a narrow terminal, in this order
LEAST = ('steps/s', 'policy', 'env', 'best', 'config', 'seed')
logger = logging.getLogger('zoo')

_RUNS = (
    argument(
        'runs',
        nargs='+',
        metavar='RUN',
        help='run folders, folders that hold some, a name in runs/, e.g. cartpole_ppo, or last',
    ),
    argument(
        '--metric',
        metavar='NAME',
        help='a metric of the log, e.g. --metric learn/entropy (eval/return_mean, or collect/return_mean where no run was '
        'evaluated)',
    ),
)
_COMPARED = (
    *_RUNS,
    argument(
        '--stat', default='iqm', choices=('iqm', 'mean', 'median'), help='average over runs (iqm: interquartile mean)'
    ),
    argument(
        '--allow-different-envs', action='store_true', help='take runs of different envs, whose returns do not compare'
    ),
)
ARGUMENTS = {
    'runs': (
        argument(
            'folders',
            nargs='*',
            metavar='FOLDER',
            help=f'runs, or folders that hold some at any depth (default {ROOT})',
        ),
        argument(
            '--sort', default='time', metavar='ORDER', help='time (oldest first), return, steps or name (default time)'
        ),
    ),
    'plot': (
        *_COMPARED,
        argument('--output', '-o', metavar='FILE', help='the picture: .svg, .png or .pdf'),
        argument('--theme', choices=('light', 'dark'), default='light', help='the colours of the picture (light)'),
        argument(
            '--x', default='env_step', choices=('env_step', 'wall_s'), help='along the horizontal axis (env_step)'
        ),
    ),
    'compare': _COMPARED,
    'report': (
        argument('--output', '-o', default='report.html', metavar='FILE', help='the page (report.html)'),
        *_RUNS,
        argument('--x', choices=('env_step', 'wall_s'), default='env_step', help='along the curves (env_step)'),
        argument('--stat', choices=('iqm', 'mean', 'median'), default='iqm', help='the average of runs (iqm)'),
        argument('--title', metavar='TEXT', help='the heading of the page'),
        argument(
            '--video',
            metavar='FILE',
            help='an .mp4, .webm or .gif to show (the newest one in the videos of each config)',
        ),
    ),
}
NOTES = {
    'plot': """\
Runs that differ only in their seed are one line: at each step the interquartile mean of the runs (without the highest
and the lowest quarter), and a 95% bootstrap interval. A run that reached its stop_value keeps its
last return; after the end of any other one the line is dotted, and the legend says of how many runs it is.

  zoo plot runs/cartpole_ppo -o curve.svg
  zoo plot runs/cartpole_ppo runs/cartpole_ppg -o curve.png --x wall_s
  zoo plot runs/cartpole_ppo -o entropy.svg --metric learn/entropy""",
    'compare': """  zoo compare runs/cartpole_ppo runs/cartpole_ppg

Runs that differ only in their seed are a side, and each side is compared with the first one. Of two words the runs are
never put together, even if they are of one config. The chance to beat A is the share of pairs, one run of each side, in
which the other is higher: .5 is a tie. A difference is called one if chance alone gives such a one in 5% of cases at most,
and .5 is outside of the interval; 3 runs against 3 are too few for that, 4 against 4 are enough.""",
    'report': """\
Runs that differ only in their seed are averaged; several configs are compared. The page is one file, which needs no
network and has no script: send it as it is. It names no folder of this machine but what was typed to start the runs.

  zoo report runs/cartpole_ppo
  zoo report cartpole_ppo cartpole_ppg -o ppo_and_ppg.html --title 'PPO and PPG on CartPole'""",
}
"""Shown below the arguments by --help."""


def run_runs(args: argparse.Namespace) -> None:
    from zoo.tools.results.table import Order, as_data, rows_of, sorted_rows

    if args.sort not in get_args(Order):
        raise UserError(f'--sort is {args.sort!r} but must be one of {", ".join(get_args(Order))}')
    rows = sorted_rows(rows_of(_readable(args.folders)), args.sort)
    show(args, {'runs': [as_data(row) for row in rows]}, table(rows))


def table(rows: Sequence[RunRow]) -> str:
    """Returns runs as lines with aligned columns; for a terminal, only the columns that fit."""
    from zoo.tools.results.table import HEADS, as_text

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


def _readable(folders: Sequence[str]) -> list[Run]:
    """Reads the runs in folders; logs a warning for one that cannot be read. Raises: UserError if none can be read."""
    from zoo.tools.results.read import find_runs, read_run

    if not folders and not Path(ROOT).exists():
        raise UserError(
            f'there is no folder {ROOT} here; train something (zoo train CONFIG), or name a folder that holds runs'
        )
    runs, problems = [], []
    for path in find_runs(folders or [ROOT]):
        try:
            runs.append(read_run(path))
        except UserError as error:
            problems.append(error)
    if not runs:
        raise problems[0]
    for problem in problems:
        logger.warning('%s', problem)
    return runs


def run_plot(args: argparse.Namespace) -> None:
    """Draws the curves, or prints their numbers."""
    if args.output is None and not args.json:
        raise UserError(
            'zoo plot got no file to draw into; name one with -o, e.g. -o curve.svg, or add --json for numbers'
        )
    from zoo.tools.results.plot import check_output, figure, save
    from zoo.tools.results.read import check_same_env, groups, named_runs, resolve_metric

    if args.output is not None:
        check_output(Path(args.output), 'picture')
        need('matplotlib', 'plot', 'zoo plot')
    runs = named_runs(args.runs)
    check_same_env(runs, args.allow_different_envs)
    metric, found = resolve_metric(runs, args.metric), groups(runs)
    if args.output is not None:
        save(figure(found, metric, args.x, args.stat, theme=args.theme), Path(args.output))
    drawn = f'{args.output}: {metric} of {_count(len(runs), "run")} in {_count(len(found), "line")}'
    show(args, _curve_numbers(found, metric, args) if args.json else {}, drawn)


def _curve_numbers(found: Mapping[str, Sequence[Any]], metric: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the numbers of the picture, for --json."""
    from zoo.tools.results.statistics import band

    curves = {}
    for label, runs in found.items():
        drawn = band(runs, metric, args.x, args.stat)
        named = {args.x: drawn.steps, args.stat: drawn.center}
        named |= {name: getattr(drawn, name) for name in ('low', 'high', 'n_run')}
        curves[label] = {
            'runs': [str(run.path) for run in runs],
            **{name: [None if math.isnan(value) else value for value in row.tolist()] for name, row in named.items()},
        }
    return {'metric': metric, 'file': args.output, 'curves': curves}


def _count(n: int, word: str) -> str:
    return f'{n} {word}' if n == 1 else f'{n} {word}s'


def run_compare(args: argparse.Namespace) -> None:
    from zoo.tools.results.compare import compare
    from zoo.tools.results.read import check_same_env, resolve_metric, sides_of

    sides = sides_of(args.runs)
    runs = [run for side in sides.values() for run in side]
    check_same_env(runs, args.allow_different_envs)
    found = compare(sides, resolve_metric(runs, args.metric), args.stat)
    show(args, _as_data(found), _comparison_text(found))


def _comparison_text(found: Comparison) -> str:
    """Returns the comparison as text: a table, its meaning, and the differences of the configs."""
    from zoo.tools.results.statistics import WORDS

    has_interval = any(side.last is not None and side.last.low is not None for side in found.sides)
    head = (
        f'{found.metric} at the last point of each run, {WORDS[found.stat]} of runs{" [95% interval]" * has_interval}'
    )
    means = [line for i, side in enumerate(found.sides) if (line := _meaning(i, side, found)) is not None]
    notes = [*_left_out(found), *_without_values(found), *means]
    return '\n'.join([head, '', columns(_comparison_table(found)), '', *notes, '', _differences(found)])


def _left_out(found: Comparison) -> list[str]:
    """Returns one sentence about the runs that are not compared, with the reason; [] if all are compared."""
    from zoo.tools.results.read import N_NAMED

    runs = [f'{run.path} ({run.state} at env step {run.env_step:,})' for run in found.left_out]
    more = f' and {len(runs) - N_NAMED} more' if len(runs) > N_NAMED else ''
    said = f'left out, since they are at an earlier env step than the others: {", ".join(runs[:N_NAMED])}{more}'
    return [said] if runs else []


def _without_values(found: Comparison) -> list[str]:
    """Returns one sentence about the sides that have no run with the metric, with a remedy; [] if there are none."""
    from zoo.tools.results.compare import way_to_values

    letters = [_letter(i) for i, side in enumerate(found.sides) if side.last is None]
    said = f'no run of {" or ".join(letters)} has a value of {found.metric}, so that is not compared'
    return [f'{said}; {way_to_values(found.metric)}'] if letters else []


def _comparison_table(found: Comparison) -> list[tuple[str, ...]]:
    at = [] if found.common_step is None else [f'at {found.common_step:,.0f} steps']
    rows = [('', 'name', 'runs', 'env steps', 'env steps/s', 'last', *at, 'chance to beat A')]
    for i, side in enumerate(found.sides):
        low, high = min(side.env_step), max(side.env_step)
        words = [
            _letter(i),
            side.label,
            str(side.n_run) if len(side.env_step) == side.n_run else f'{len(side.env_step)} of {side.n_run}',
            f'{high:,}' if low > 0.98 * high else f'{low:,} to {high:,}',
            f'{side.speed:,.0f}' if math.isfinite(side.speed) else '-',
            _with_ends(side.last and side.last.center, side.last, '.5g'),
        ]
        if found.common_step is not None:
            words.append(_with_ends(side.common and side.common.center, side.common, '.5g'))
        chance = side.chance if found.common_step is None else side.common_chance
        rows.append((*words, _with_ends(chance and chance.value, chance, '.2f')))
    return rows


def _meaning(i: int, side: Side, found: Comparison) -> str | None:
    """Returns a sentence on the chance of a side, at equal env steps if the runs are not equally long; None without it."""
    chance = side.chance if found.common_step is None else side.common_chance
    if chance is None:
        return None
    at = '' if found.common_step is None else f'after {found.common_step:,.0f} env steps '
    said = f'{at}{_letter(i)} is higher than A in {chance.value:.0%} of the pairs of runs'
    percent = f'{chance.p:.0%}' if chance.p >= 0.1 else f'{chance.p:.1%}'
    luck = f'chance alone gives such a difference in {percent if chance.p >= 0.001 else "less than 0.1%"} of cases'
    if chance.low is None or chance.high is None:
        n, n_first = (len(one.last.values) if one.last else 0 for one in (side, found.sides[0]))
        return f'{said}: {n} and {n_first} runs are too few to tell them apart ({luck}; 5 or more of each are usual)'
    clear = 'it is higher' if chance.value > 0.5 else 'it is lower'
    verdict = clear if chance.is_clear else 'no clear difference'
    return f'{said} (95% interval {chance.low:.0%} to {chance.high:.0%}): {verdict} ({luck})'


def _differences(found: Comparison) -> str:
    from zoo.config.yaml_io import value_text

    if not found.differences:
        return 'the configs are the same, but for seeds, names and logging'
    head = ('differs in the config', *(_letter(i) for i in range(len(found.sides))))
    rows = (
        (key, *(value_text(values[x.label]) if x.label in values else '-' for x in found.sides))
        for key, values in found.differences.items()
    )
    return columns([head, *rows])


def _as_data(found: Comparison) -> dict[str, Any]:
    """Returns the comparison as data, for --json."""
    sides = [
        {
            **side._asdict(),
            **{
                name: (value := getattr(side, name)) and value._asdict()
                for name in ('last', 'common', 'chance', 'common_chance')
            },
            'speed': side.speed if math.isfinite(side.speed) else None,
        }
        for side in found.sides
    ]
    return {**found._asdict(), 'sides': sides, 'left_out': [run._asdict() for run in found.left_out]}


def _letter(i: int) -> str:
    return f'{chr(ord("A") + i % 26)}{i // 26 or ""}'


def _with_ends(number: float | None, ends: Spread | Chance | None, form: str) -> str:
    """A number and its interval, '0.75 [0.50, 1.00]'; '-' for none."""
    if number is None or ends is None:
        return '-'
    return f'{number:{form}}' + ('' if ends.low is None else f' [{ends.low:{form}}, {ends.high:{form}}]')


def run_report(args: argparse.Namespace) -> None:
    """Writes the page, and prints where it is."""
    from zoo.tools.results.plot import check_output
    from zoo.tools.results.read import named_runs
    from zoo.tools.results.report import report, write_report

    path = Path(args.output)
    check_output(path, 'report')
    need('matplotlib', 'plot', 'zoo report')
    runs = named_runs(args.runs)
    video = None if args.video is None else Path(args.video)
    page = report(runs, args.metric, x=args.x, stat=args.stat, title=args.title, video=video)
    write_report(path, page)
    write_line(f'{path}: {_count(len(runs), "run")}, {path.stat().st_size / 2**20:.1f} MB')
