"""`zoo train`: a config, an env or a run to continue -> a trained policy."""

from __future__ import annotations

import argparse
import os
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
            f'run folder: {result.run_dir}\nevaluate it: zoo eval {result.run_dir}{consent_words()}'
        )
    return 0


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
