"""`zoo report`: runs -> one HTML page to send to somebody."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.cli.plot import add_metric
from zoo.core.streams import write_line

SUMMARY = 'write a page about runs: curves, numbers, settings, machine, in one HTML file'
OPTIONS = ()
NOTES = """Runs that differ only in their seed are averaged; several configs are compared. The page is one file, which needs no
network and has no script: send it as it is. It names no folder of this machine but what was typed to start the runs.

  zoo report runs/cartpole_ppo
  zoo report cartpole_ppo cartpole_ppg -o ppo_and_ppg.html --title 'PPO and PPG on CartPole'"""


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, NOTES
    parser.add_argument(
        'runs',
        nargs='+',
        metavar='RUN',
        help='run folders, folders that hold some, or a name in runs/, e.g. cartpole_ppo',
    )
    parser.add_argument('--output', '-o', default='report.html', metavar='FILE', help='the page (report.html)')
    add_metric(parser)
    parser.add_argument('--x', choices=('env_step', 'wall_s'), default='env_step', help='along the curves (env_step)')
    parser.add_argument('--stat', choices=('iqm', 'mean', 'median'), default='iqm', help='the average of runs (iqm)')
    parser.add_argument('--title', metavar='TEXT', help='the heading of the page')
    parser.add_argument(
        '--video', metavar='FILE', help='an .mp4, .webm or .gif to show (the newest one in the videos of each config)'
    )


def run(args: argparse.Namespace) -> int:
    """Writes the page, and prints where it is."""
    from zoo.core.extras import need
    from zoo.results.choice import named_runs
    from zoo.results.report import check_page_path, report, write_report

    path = Path(args.output)
    check_page_path(path)
    need('matplotlib', 'plot', 'zoo report')
    runs = named_runs(args.runs)
    video = None if args.video is None else Path(args.video)
    page = report(runs, args.metric, x=args.x, stat=args.stat, title=args.title, video=video)
    write_report(path, page)
    write_line(f'{path}: {len(runs)} {"run" if len(runs) == 1 else "runs"}, {len(page.encode()) / 2**20:.1f} MB')
    return 0
