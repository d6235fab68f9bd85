"""`zoo pretrain`: a config and demonstrations -> a policy that imitates them, to begin a run with."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import join, quote

from zoo.core.errors import UserError
from zoo.core.streams import write_line
from zoo.tools.cli.choice import CHOICE, chosen
from zoo.tools.cli.output import argument, print_json

ARGUMENTS = {
    'pretrain': (
        *CHOICE,
        argument(
            '--demos',
            metavar='FILE',
            help='demonstrations: a file .npz (zoo eval RUN -o demos.npz), or an id of Minari',
        ),
        argument('--epochs', type=int, default=100, metavar='N', help='passes over them, at most (default 100)'),
        argument('--batch-size', type=int, default=64, metavar='N', help='steps per gradient step (default 64)'),
        argument('--learning-rate', type=float, default=1e-3, metavar='X', help="Adam's step size (default 1e-3)"),
        argument(
            '--keep-std',
            action='store_true',
            help='keep the imitated deviation of continuous actions; a run then explores little',
        ),
        argument('--run-dir', metavar='DIR', help='folder of the result; without it one as for a run'),
    ),
}


def run_pretrain(args: argparse.Namespace) -> int:
    """Pretrains, and prints how to go on from there."""
    config = chosen(args)
    if config is None:
        raise UserError(
            'zoo pretrain got no config and no --env; name a config (zoo list configs shows the bundled ones)'
        )
    if args.demos is None:
        raise UserError('zoo pretrain got no --demos; name a file .npz, e.g. one that zoo eval RUN -o demos.npz wrote')
    from zoo.tools.imitation.pretrain import pretrain

    found = pretrain(
        config,
        args.demos,
        overrides=args.overrides,
        epoch=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        keep_std=args.keep_std,
        run_dir=args.run_dir,
    )
    if args.json:
        numbers = {name: value for name, value in found._asdict().items() if name != 'policy'}
        print_json({**numbers, 'run_dir': str(found.run_dir)})
        return 0
    from zoo.run.checkpoint.consent import consent_words

    agrees = '' if found.agreement is None else f'; it takes {found.agreement:.1%} of the held-out actions'
    write_line(
        f'{found.epoch} epochs, held-out loss {found.loss:.4f} nats{agrees}\nrun folder: {found.run_dir}\n'
        f'evaluate it: zoo eval {quote(str(found.run_dir))}{consent_words()}\ntrain on from it: {_next(args, found.run_dir)}'
    )
    return 0


def _next(args: argparse.Namespace, run_dir: Path) -> str:
    """The command that trains on, of the same policy on the same env."""
    what = [args.config] if args.env is None else ['--env', args.env]
    policy = [] if args.policy is None else ['--policy', args.policy]
    return join(['zoo', 'train', *what, *policy, *args.overrides, f'init_from={run_dir}'])
