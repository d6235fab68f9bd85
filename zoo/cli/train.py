"""`zoo train`: a config, an env or a run to continue -> a trained policy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zoo.cli.output import print_json
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'train a policy from a config or on an env, or continue a run'
OPTIONS = ('trust', 'json')
PROFILED = 10  # default of --profile, in iterations


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        'config',
        nargs='?',
        metavar='CONFIG',
        help='name of a bundled config (zoo list configs), a .py or .yaml file, or an env as FILE.py:NAME',
    )
    parser.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='e.g. policy.learn.learning_rate=1e-3 seed=1')
    parser.add_argument(
        '--env',
        metavar='ENV',
        help='env to train on without a config: a gymnasium id, a registered name, or FILE.py:NAME',
    )
    parser.add_argument('--policy', metavar='NAME', help='policy for --env (zoo list policies); ppo without it')
    parser.add_argument('--seed', metavar='N', help='short for seed=N')
    parser.add_argument('--steps', metavar='N', help='short for max_env_step=N')
    parser.add_argument('--resume', metavar='RUN', help='a run folder or checkpoint file to continue')
    parser.add_argument(
        '--profile',
        type=int,
        metavar='N',
        help=f'time the parts of N iterations (default {PROFILED}) after 2 to warm up, and trace the next 3; '
        'the run then continues',
    )


def run(args: argparse.Namespace) -> int:
    """Trains, and prints what came of it and how to evaluate it."""
    _sort_words(args)
    if args.config is None and args.env is None and args.resume is None:
        raise UserError(
            'zoo train got no config, no --env and no --resume; name a config (zoo list configs shows the bundled ones), '
            'or an env: zoo train --env CartPole-v1'
        )
    if args.env is None and args.config is not None:
        _refuse_env_id(args.config)
    from zoo.pipeline import serial_pipeline
    from zoo.run.env_watch import EnvWatch
    from zoo.run.trust import consent_words

    EnvWatch.owns_process = args.owns_process
    result = serial_pipeline(
        args.config if args.env is None else _config_for(args),
        resume=args.resume,
        overrides=args.overrides,
        profile=args.profile,
        trust=args.trust or args.imports,
    )
    if args.json:
        print_json(_summary(result))
    elif not args.quiet:
        best, last = (f'{x:.4g}' if x is not None else '-' for x in (result.best_return, result.last_return))
        write_line(
            f'{result.env_step} env steps in {result.wall_s:.1f} s; return: last {last}, best {best}\n'
            f'{_early(result)}'
            f'run folder: {result.run_dir}\nevaluate it: zoo eval {result.run_dir}{consent_words()}'
        )
    return 0


def _sort_words(args: argparse.Namespace) -> None:
    """Puts each word where it belongs: an override in the place of the config, an env, the short forms of keys."""
    if args.config is not None and '=' in args.config:  # no config was given, only overrides
        args.config, args.overrides = None, [args.config, *args.overrides]
    if args.config is not None and args.env is None and ':' in args.config and not Path(args.config).is_file():
        args.config, args.env = None, args.config
    named = dict(text.partition('=')[::2] for text in args.overrides)
    if args.config is None and args.env is None and args.resume is None and 'env.id' in named:
        args.env = named['env.id']
    if args.env is None and args.policy is not None:
        raise UserError(f'--policy {args.policy} belongs to --env; with a config write policy.type={args.policy}')
    if args.config is not None and args.env is not None:
        _take_policy(args)
    for value, key in ((args.seed, 'seed'), (args.steps, 'max_env_step')):
        if value is not None:
            args.overrides = [*args.overrides, f'{key}={value}']
    if args.quiet and not any(text.startswith('logger.console=') for text in args.overrides):
        args.overrides = [*args.overrides, 'logger.console=off']


def _take_policy(args: argparse.Namespace) -> None:
    """`zoo train ppo --env ID`: the first word is a policy. Raises: UserError if it is none."""
    from zoo.core.registry import POLICY_REGISTRY

    if args.config not in POLICY_REGISTRY or args.policy is not None:
        raise UserError(
            f'zoo train got the config {args.config} and --env {args.env}; give one of them, or change the env of the config: '
            f'zoo train {args.config} env.id={args.env}'
        )
    args.config, args.policy = None, args.config


def _refuse_env_id(word: str) -> None:
    """Raises: UserError if the word is the id of an env, and no config."""
    from zoo.config.source import bundled_configs

    if word in bundled_configs() or Path(word).suffix in ('.py', '.yaml', '.yml'):
        return
    from zoo.env import known_ids

    if word in known_ids():
        raise UserError(f'{word} is an env, not a config; train on it: zoo train --env {word}')


def _config_for(args: argparse.Namespace) -> dict[str, Any]:
    from zoo.run.any_env import config_for_env

    return config_for_env(args.env, args.policy, args.overrides)


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
