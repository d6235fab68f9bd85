"""`zoo import`: a model of another library -> a run folder with its policy, which acts equally and trains on."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from zoo.core.errors import UserError
from zoo.core.streams import say
from zoo.tools.cli.output import argument, show

ARGUMENTS = {
    'import': (
        argument('model', metavar='MODEL', help='the file that the other library saved'),
        argument('overrides', nargs='*', metavar='KEY=VALUE', help='settings of the run, e.g. max_env_step=1e6'),
        argument('--output', '-o', metavar='RUN', help='the new run folder'),
        argument('--env', metavar='ID', help='the env that the model was trained on, which its file does not name'),
        argument('--normalizer', metavar='FILE', help='the file of VecNormalize.save that belongs to the model'),
        argument(
            '--from', dest='source', metavar='LIBRARY', help='the library; without it the content of the file says it'
        ),
    )
}
NOTES = {
    'import': """\
Nothing of the file is executed. What became of each entry is said on stderr.

  zoo import ppo_lunar.zip --env LunarLander-v3 -o runs/imported
  zoo eval runs/imported
  zoo train --resume runs/imported max_env_step=2e6"""
}


def run_import(args: argparse.Namespace) -> None:
    """Writes the run folder, and prints the commands that evaluate it and train on."""
    if args.output is None:
        raise UserError('zoo import got no -o RUN, the folder of the new run; name one, e.g. -o runs/imported')
    from zoo.tools.exchange.load import import_model

    found = import_model(args.model, args.output, args.env, args.normalizer, args.source, args.overrides)
    model = found.model
    if not args.quiet and not args.json:
        say(model.text())
    run = quote(str(Path(args.output)))
    text = (
        f'{args.output}: a run of {model.env_step:,} env steps with the policy of {args.model}\n'
        f'evaluate it: zoo eval {run}\ntrain on from it: zoo train --resume {run} max_env_step=...'
    )
    data = {
        'run_dir': str(args.output),
        'source': model.source,
        'env_step': model.env_step,
        'became': model.became,
        'left_out': model.left_out,
    }
    show(args, data, text)
