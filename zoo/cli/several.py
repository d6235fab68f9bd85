"""What `zoo train` does and prints where it trains several runs: seeds, or values of keys."""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.cli.output import print_json
from zoo.cli.runs import table
from zoo.core.streams import write_line
from zoo.results.read import read_run
from zoo.results.table import as_data, row_of, rows_of
from zoo.sweep.grid import Member
from zoo.sweep.many import Outcome, train_many

logger = logging.getLogger('zoo')


def train_and_print(args: argparse.Namespace, config: Any, members: Sequence[Member], overrides: Sequence[str]) -> int:
    """Trains them, with a line in the log for each that ends, and a table of all. Returns: 1 if one failed, else 0."""
    jobs = 1 if args.jobs is None else args.jobs
    outcomes = train_many(
        config,
        members,
        overrides,
        jobs=jobs,
        run_dir=args.run_dir,
        trust=args.trust or args.imports,
        imports=args.imports,
        command=command_of(args, overrides),
        on_end=lambda outcome, n_ended: logger.info('%d of %d: %s', n_ended, len(members), _words(outcome)),
    )
    folders = [outcome.run_dir for outcome in outcomes if outcome.state == 'done' and outcome.run_dir is not None]
    rows = rows_of([read_run(folder) for folder in folders])
    failed = [outcome for outcome in outcomes if outcome.state != 'done']  # or ended by a signal of its own
    if args.json:
        print_json(
            {
                'runs': [as_data(row) for row in rows],
                'failed': [
                    {
                        'values': outcome.member.values,
                        'reason': outcome.reason,
                        'run_dir': outcome.run_dir and str(outcome.run_dir),
                    }
                    for outcome in failed
                ],
            }
        )
    else:
        if rows:
            write_line(table(rows))
        for outcome in failed:
            place = '' if outcome.run_dir is None else f'; run folder: {_shown(outcome.run_dir)}'
            write_line(f'{outcome.state}: {outcome.member.name}: {outcome.reason}{place}')
        if folders:
            write_line(f'draw them: zoo plot {_common(folders)} -o curve.svg')
    return 1 if failed else 0


def command_of(args: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """The words that train one run of a config with these overrides: what args has of several runs is left out.

    Args: args: of `zoo train`, after `chosen`.
    """
    words = ['zoo', 'train', *([args.config] if args.config is not None else ['--env', args.env])]
    words += ['--policy', args.policy] if args.policy is not None else []
    words += [word for name in args.imports for word in ('--import', name)]
    return [*words, *(['--trust'] if args.trust else []), *overrides]


def _words(outcome: Outcome) -> str:
    reason = f': {outcome.reason}' if outcome.reason else ''
    if outcome.run_dir is None:
        return f'{outcome.member.name} {outcome.state}{reason}'
    row = row_of(read_run(outcome.run_dir))
    returns = 'no return' if row.last is None else f'return: last {row.last:.4g}, best {row.best:.4g}'
    return f'{outcome.member.name} {outcome.state}, {row.env_step:,} env steps, {returns}{reason}'


def _common(folders: Sequence[Path]) -> str:
    """The folder that holds all runs where there is nothing else in it, else their folders."""
    parents = {folder.parent for folder in folders}
    shown = [_shown(folder) for folder in (*parents, *folders)]
    others = {path.parent for path in next(iter(parents)).glob('*/config.yaml')} if len(parents) == 1 else {None}
    return shlex.join(map(str, shown[:1] if others == set(folders) else shown[len(parents) :]))


def _shown(folder: Path) -> Path:
    """A folder as it is named from the current one."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
