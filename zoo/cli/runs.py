"""`zoo runs`: the runs below a folder, a line for each."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from zoo.cli.output import columns, print_json
from zoo.core.errors import UserError
from zoo.core.streams import write_line

if TYPE_CHECKING:
    from zoo.results.read import Run
    from zoo.results.table import Row

SUMMARY = 'list runs with their seeds, returns, speed and state'
OPTIONS = ('json',)
ROOT = 'runs'

logger = logging.getLogger('zoo')


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        'folders', nargs='*', metavar='FOLDER', help=f'runs, or folders that hold some at any depth (default {ROOT})'
    )
    parser.add_argument(
        '--sort', default='time', metavar='ORDER', help='time (oldest first), return, steps or name (default time)'
    )


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    from zoo.results.table import Order, as_data, rows_of, sorted_rows

    if args.sort not in get_args(Order):
        raise UserError(f'--sort is {args.sort!r} but must be one of {", ".join(get_args(Order))}')
    rows = sorted_rows(rows_of(_readable(args.folders)), args.sort)
    if args.json:
        print_json({'runs': [as_data(row) for row in rows]})
    else:
        write_line(table(rows))
    return 0


def table(rows: Sequence[Row]) -> str:
    """Runs as lines with aligned columns; only a terminal is shown less than all of a long label."""
    from zoo.results.table import HEADS, LABEL, as_texts

    return columns([HEADS, *as_texts(rows, LABEL if sys.stdout.isatty() else None)])


def _readable(folders: Sequence[str]) -> list[Run]:
    """The runs of folders; one that cannot be read is a warning. Raises: UserError if there is none."""
    from zoo.results.read import find_runs, read_run

    if not folders and not Path(ROOT).exists():
        raise UserError(
            f'there is no folder {ROOT} here; train something (zoo train CONFIG), or name a folder that holds runs'
        )
    runs: list[Run] = []
    problems: list[UserError] = []
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
