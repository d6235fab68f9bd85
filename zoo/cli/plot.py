"""`zoo plot`: runs -> a picture of their curves."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.cli.output import print_json
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'draw curves of runs: the average over seeds with an interval, a line for each config'
OPTIONS = ('json',)
NOTES = """Runs that differ only in their seed are one line: at each step the interquartile mean of the runs (without the highest
and the lowest quarter), and a 95% bootstrap interval. A run is never continued beyond its end: from there on the line is
dotted, and the legend says of how many runs it is.

  zoo plot runs/cartpole_ppo -o curve.svg
  zoo plot runs/cartpole_ppo runs/cartpole_ppg -o curve.png --x wall_s
  zoo plot runs/cartpole_ppo -o entropy.svg --metric learn/entropy"""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, NOTES
    add_choice(parser)
    parser.add_argument('--output', '-o', metavar='FILE', help='the picture: .svg, .png or .pdf')
    parser.add_argument(
        '--x', default='env_step', choices=('env_step', 'wall_s'), help='along the horizontal axis (env_step)'
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which runs, and what of them."""
    parser.add_argument(
        'runs',
        nargs='+',
        metavar='RUN',
        help='run folders, folders that hold some, or a name in runs/, e.g. cartpole_ppo',
    )
    add_metric(parser)
    parser.add_argument(
        '--stat', default='iqm', choices=('iqm', 'mean', 'median'), help='average over runs (iqm: interquartile mean)'
    )
    parser.add_argument(
        '--allow-different-envs', action='store_true', help='take runs of different envs, whose returns do not compare'
    )


def add_metric(parser: argparse.ArgumentParser) -> None:
    """The argument that says which number of runs is shown."""
    parser.add_argument(
        '--metric',
        metavar='NAME',
        help='a metric of the log, e.g. --metric learn/entropy (eval/return_mean, or collect/return_mean where no run was '
        'evaluated)',
    )


def run(args: argparse.Namespace) -> int:
    """Draws the curves, or prints their numbers."""
    if args.output is None and not args.json:
        raise UserError(
            'zoo plot got no file to draw into; name one with -o, e.g. -o curve.svg, or add --json for numbers'
        )
    from zoo.core.extras import need
    from zoo.results.choice import check_same_env, named_runs
    from zoo.results.plot import check_path, figure, save
    from zoo.results.read import groups, resolve_metric

    if args.output is not None:
        check_path(Path(args.output))
        need('matplotlib', 'plot', 'zoo plot')
    runs = named_runs(args.runs)
    check_same_env(runs, args.allow_different_envs)
    metric, found = resolve_metric(runs, args.metric), groups(runs)
    if args.output is not None:
        save(figure(found, metric, args.x, args.stat), Path(args.output))
    if args.json:
        print_json(_numbers(found, metric, args))
    else:
        write_line(f'{args.output}: {metric} of {_count(len(runs), "run")} in {_count(len(found), "line")}')
    return 0


def _numbers(found: Mapping[str, Sequence[Any]], metric: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the picture shows, for programs."""
    from zoo.results.curves import band

    curves = {}
    for label, runs in found.items():
        drawn = band(runs, metric, args.x, args.stat)
        named = {
            args.x: drawn.steps,
            args.stat: drawn.center,
            'low': drawn.low,
            'high': drawn.high,
            'n_run': drawn.n_run,
        }
        curves[label] = {
            'runs': [str(run.path) for run in runs],
            **{name: [None if math.isnan(value) else value for value in row.tolist()] for name, row in named.items()},
        }
    return {'metric': metric, 'file': args.output, 'curves': curves}


def _count(n: int, word: str) -> str:
    return f'{n} {word}' if n == 1 else f'{n} {word}s'
