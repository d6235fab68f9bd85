"""`zoo train`: a config, an env or a run to continue -> a trained policy."""

from __future__ import annotations

import argparse
import os
from shlex import quote
from typing import Any

from zoo.cli.choice import add_options, chosen
from zoo.cli.output import print_json
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'train a policy from a config or on an env, or continue a run'
OPTIONS = ('trust', 'json')
PROFILED = 10  # default of --profile, in iterations


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_options(parser)
    parser.add_argument('--resume', metavar='RUN', help='a run folder or checkpoint file to continue')
    parser.add_argument(
        '--run',
        '--run-dir',
        dest='run_dir',
        metavar='DIR',
        help='the folder of the run; if it has a checkpoint the run continues from its newest one, so that the same command '
        'can be started again and again; torchrun takes --run for its own --run-path: write --run-dir there',
    )
    parser.add_argument(
        '--seeds',
        type=int,
        metavar='N',
        help='N runs, with the seeds from that of the config on; several values of a key make several runs too: seed=0..4 '
        'policy.learn.learning_rate=1e-3,3e-4',
    )
    parser.add_argument('--jobs', type=int, metavar='N', help='of several runs, those that train at a time (default 1)')
    parser.add_argument(
        '--profile',
        type=int,
        metavar='N',
        help=f'time the parts of N iterations (default {PROFILED}) after 2 to warm up, and trace the next 3; '
        'the run then continues',
    )


def run(args: argparse.Namespace) -> int:
    """Trains, and prints what came of it and how to evaluate it."""
    config = chosen(args)
    if config is None and args.resume is None and args.run_dir is None:
        raise UserError(
            'zoo train got no config, no --env and no --resume; name a config (zoo list configs shows the bundled ones), '
            'or an env: zoo train --env CartPole-v1'
        )
    if args.quiet and not any(text.startswith('logger.console=') for text in args.overrides):
        args.overrides = [*args.overrides, 'logger.console=off']
    if (several := _several(args, config)) is not None:
        return several
    from zoo.pipeline import serial_pipeline
    from zoo.run.env_watch import EnvWatch
    from zoo.run.trust import consent_words

    EnvWatch.owns_process = args.owns_process
    result = serial_pipeline(
        config,
        resume=args.resume,
        overrides=args.overrides,
        profile=args.profile,
        trust=args.trust or args.imports,
        run_dir=args.run_dir,
    )
    if os.environ.get('WORLD_SIZE', '1') != '1' and os.environ.get('RANK') != '0':
        return 0  # rank 0 says it
    if args.json:
        print_json(_summary(result))
    else:
        best, last = (f'{x:.4g}' if x is not None else '-' for x in (result.best_return, result.last_return))
        write_line(
            f'{result.env_step} env steps in {result.wall_s:.1f} s; return: last {last}, best {best}\n'
            f'{_early(result)}'
            f'run folder: {result.run_dir}\nevaluate it: zoo eval {quote(str(result.run_dir))}{consent_words()}'
        )
    return 0


def _several(args: argparse.Namespace, config: Any) -> int | None:
    """Trains the runs of --seeds and of keys with several values, and prints them; None if there is only one run."""
    if args.seeds is None and args.jobs is None and not any(_may_be_several(text) for text in args.overrides):
        return None
    from zoo.sweep.grid import grid_of

    members, fixed = grid_of(args.overrides)
    if args.seeds is not None:
        from zoo.run.config import resolve_config

        first = resolve_config(config, [*fixed, *members[0].overrides]).seed if config is not None else 0
        members, fixed = grid_of(args.overrides, args.seeds, first)
    if args.seeds is None and len(members) == 1:
        if args.jobs is not None:
            raise UserError(f'--jobs {args.jobs} is for several runs, and this is one; add e.g. --seeds 5')
        return None
    for option, value in (('--resume', args.resume), ('--profile', args.profile)):
        if value is not None:
            raise UserError(
                f'{option} is for one run, and these are {len(members)}; leave it out, or give one seed and value'
            )
    if config is None:
        raise UserError('several runs need a config or --env; name one (zoo list configs shows the bundled ones)')
    from zoo.cli.several import train_and_print

    return train_and_print(args, config, members, fixed)


def _may_be_several(text: str) -> bool:
    """Whether an override may have several values: cheap, and never false where it has."""
    return ',' in text or '..' in text or text.startswith('seed=')


def _early(result: Any) -> str:
    return f'it ended early: {result.stop_reason}\n' if result.stop_reason else ''


def _summary(result: Any) -> dict[str, Any]:
    return {
        'run_dir': str(result.run_dir),
        'env_step': result.env_step,
        'train_iter': result.train_iter,
        'best_return': result.best_return,
        'last_return': result.last_return,
        'wall_s': round(result.wall_s, 3),
        'env_step_per_s': round(result.env_step_per_s, 1),
        'stop_reason': result.stop_reason,
    }
