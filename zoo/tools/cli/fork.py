"""`zoo fork`: a run, or one of its checkpoints, and other settings -> the folder of a new run that begins with its state."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from zoo.core.errors import UserError
from zoo.tools.cli.choice import with_whole_keys
from zoo.tools.cli.output import argument, show

ARGUMENTS = {
    'fork': (
        argument('checkpoint', metavar='RUN', help='a run folder, a checkpoint file, a name in runs/, or last'),
        argument('overrides', nargs='*', default=[], metavar='KEY=VALUE', help='settings of the new run, e.g. seed=1'),
        argument('--output', '-o', metavar='DIR', help='the folder of the new run'),
    )
}
NOTES = {
    'fork': """\
The new run begins with the parameters, moments of the optimiser, statistics and counters of RUN, and its log with that of
RUN. Without KEY=VALUE it continues as RUN would. It is not trained yet.

  zoo fork runs/cartpole_ppo/RUN -o runs/half_rate policy.learn.learning_rate=5e-4 seed=1
  zoo train --resume runs/half_rate max_env_step=200000"""
}


def run_fork(args: argparse.Namespace) -> None:
    """Writes the new folder, and prints the command that trains it."""
    if args.output is None:
        raise UserError('zoo fork got no folder for the new run; name one with -o, e.g. -o runs/my_fork')
    from zoo.run.checkpoint.consent import consent_words
    from zoo.run.fork import fork
    from zoo.tools.results.read import one_run

    overrides = list(with_whole_keys(args.overrides, None))
    path = fork(one_run(args.checkpoint), Path(args.output), overrides, trust=args.trust or args.imports)
    folder = path.parent.parent
    command = f'zoo train --resume {quote(str(folder))}{consent_words()}'
    data = {'run_dir': str(folder), 'checkpoint': str(path), 'train': command}
    show(args, data, f'run folder: {folder}\ntrain it: {command}')
