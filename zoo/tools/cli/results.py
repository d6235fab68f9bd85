"""Finished runs: `zoo runs`, `zoo plot`, `zoo compare` and `zoo report`."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import get_args

from zoo.core.errors import UserError, need
from zoo.core.streams import write_line
from zoo.tools.cli.output import argument, show

ROOT = 'runs'
logger = logging.getLogger('zoo')

_METRIC = (
    'a metric of the log, e.g. --metric learn/entropy (eval/return_mean, or collect/return_mean where no run was '
    'evaluated; curves are also of that if runs have less than 4 evaluations)'
)
_RUN_NAMES = argument(
    'runs',
    nargs='+',
    metavar='RUN',
    help='run folders, folders that hold some, a name in runs/, e.g. cartpole_ppo, or last',
)
_RUNS = (_RUN_NAMES, argument('--metric', action='append', metavar='NAME', help=_METRIC))
_SEVERAL = argument(
    '--metric',
    action='append',
    metavar='NAME',
    help=f'{_METRIC}; several times: a line for each',
)
_AVERAGED = (
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
            help=f'runs, or folders that hold some at any depth, a name in runs/, or last (default {ROOT})',
        ),
        argument(
            '--sort', default='time', metavar='ORDER', help='time (oldest first), return, steps or name (default time)'
        ),
    ),
    'plot': (
        _RUN_NAMES,
        _SEVERAL,
        *_AVERAGED,
        argument('--output', '-o', metavar='FILE', help='the picture: .svg, .png or .pdf'),
        argument('--theme', choices=('light', 'dark'), default='light', help='the colours of the picture (light)'),
        argument(
            '--x', default='env_step', choices=('env_step', 'wall_s'), help='along the horizontal axis (env_step)'
        ),
    ),
    'compare': (*_RUNS, *_AVERAGED),
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
last return; after the end of any other one the line is dotted, and the legend says of how many runs it is. Over wall time
(--x wall_s) a run that is done keeps its last return.

  zoo plot runs/cartpole_ppo -o curve.svg
  zoo plot runs/cartpole_ppo runs/cartpole_ppg -o curve.png --x wall_s
  zoo plot runs/cartpole_ppo -o entropy.svg --metric learn/entropy
  zoo plot runs/cartpole_ppo_population -o lineage.svg      who descends from whom in a population
  zoo plot RUN -o policies.svg --metric eval/hunter/return_mean --metric eval/hare/return_mean""",
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
    from zoo.tools.results.read import readable_runs
    from zoo.tools.results.table import Order, as_data, rows_of, sorted_rows, table

    if args.sort not in get_args(Order):
        raise UserError(f'--sort is {args.sort!r} but must be one of {", ".join(get_args(Order))}')
    if not args.folders and not Path(ROOT).exists():
        raise UserError(
            f'there is no folder {ROOT} here; train something (zoo train CONFIG), or name a folder that holds runs'
        )
    rows = sorted_rows(rows_of(readable_runs(args.folders or [ROOT])), args.sort)
    show(args, {'runs': [as_data(row) for row in rows]}, table(rows))


def run_plot(args: argparse.Namespace) -> None:
    """Draws the curves, or prints their numbers."""
    if args.output is None and not args.json:
        raise UserError(
            'zoo plot got no file to draw into; name one with -o, e.g. -o curve.svg, or add --json for numbers'
        )
    from zoo.tools.results.lineage import is_population
    from zoo.tools.results.plot import check_output, curve_numbers, figure, save
    from zoo.tools.results.read import (
        check_same_env,
        curve_metrics,
        groups,
        named_runs,
        resolve_metric,
        warn_of_other_returns,
    )

    if args.output is not None:
        check_output(Path(args.output), 'picture')
        need('matplotlib', 'plot', 'zoo plot')
        if not args.metric and len(args.runs) == 1 and is_population(Path(args.runs[0])):
            _draw_lineage(args)
            return
    runs = named_runs(args.runs)
    check_same_env(runs, args.allow_different_envs)
    if args.output is None and not args.metric:
        metrics = [resolve_metric(runs)]
    else:
        metrics = curve_metrics(runs, args.metric)
    for metric in metrics:
        warn_of_other_returns(runs, metric)
    found = groups(runs)
    if args.output is not None:
        save(figure(found, metrics, args.x, args.stat, theme=args.theme), Path(args.output))
    n_line = len(found) * len(metrics)
    drawn = f'{args.output}: {", ".join(metrics)} of {_count(len(runs), "run")} in {_count(n_line, "line")}'
    curves = {}
    if args.json:
        curves = curve_numbers(found, metrics, args.x, args.stat)
    data = {'metric': metrics[0], 'metrics': metrics, 'file': args.output, 'curves': curves}
    show(args, data, drawn)


def _draw_lineage(args: argparse.Namespace) -> None:
    """Draws who descends from whom in a population."""
    from zoo.tools.results.lineage_figure import lineage_figure
    from zoo.tools.results.plot import save

    save(lineage_figure(Path(args.runs[0]), args.theme), Path(args.output))
    show(args, {'file': args.output, 'population': args.runs[0]}, f'{args.output}: lineage of {args.runs[0]}')


def _one_metric(args: argparse.Namespace) -> str | None:
    """The metric that is named, None if there is none. Raises: UserError for several."""
    names = args.metric or [None]
    if len(names) > 1:
        raise UserError(
            f'--metric is given {len(names)} times ({", ".join(names)}) but zoo {args.command} takes one; call it for each of them '
            '(zoo plot draws several)'
        )
    return names[0]


def _count(n: int, word: str) -> str:
    if n == 1:
        return f'{n} {word}'
    return f'{n} {word}s'


def run_compare(args: argparse.Namespace) -> None:
    from zoo.tools.results.compare import as_data, compare, comparison_text
    from zoo.tools.results.read import check_same_env, resolve_metric, sides_of, warn_of_other_returns

    metric = _one_metric(args)
    sides = sides_of(args.runs)
    runs = [run for side in sides.values() for run in side]
    check_same_env(runs, args.allow_different_envs)
    metric = resolve_metric(runs, metric)
    warn_of_other_returns(runs, metric)
    found = compare(sides, metric, args.stat)
    show(args, as_data(found), comparison_text(found))


def run_report(args: argparse.Namespace) -> None:
    """Writes the page, and prints where it is."""
    from zoo.tools.results.plot import check_output
    from zoo.tools.results.read import named_runs
    from zoo.tools.results.report import report, write_report

    metric = _one_metric(args)
    path = Path(args.output)
    check_output(path, 'report')
    need('matplotlib', 'plot', 'zoo report')
    runs = named_runs(args.runs)
    if args.video is None:
        video = None
    else:
        video = Path(args.video)
    page = report(runs, metric, x=args.x, stat=args.stat, title=args.title, video=video)
    write_report(path, page)
    write_line(f'{path}: {_count(len(runs), "run")}, {path.stat().st_size / 2**20:.1f} MB')
