"""`zoo check-env`: what is wrong with an env, where, and what to do."""

from __future__ import annotations

import argparse

from zoo.cli.output import print_json, watch_calls_of
from zoo.core.streams import write_line

SUMMARY = "check an env's contract for some steps, time it, and say how to run it"
OPTIONS = ('json',)


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument('id', metavar='ENV', help="gymnasium id, registered name, 'module:function' or FILE.py:NAME")
    parser.add_argument(
        'overrides', nargs='*', default=[], metavar='KEY=VALUE', help='keys of the section env, e.g. env.window=4'
    )
    parser.add_argument('--steps', type=int, default=1000, help='steps to take (default 1000)')
    parser.add_argument(
        '--kwargs',
        action='append',
        default=[],
        metavar='NAME=VALUE',
        help='short for env.kwargs.NAME=VALUE; may be repeated',
    )


def run(args: argparse.Namespace) -> int:
    """Prints all that was found; exit code 1 if there is a problem, 0 if there are warnings at most."""
    from zoo.env.inspect import inspect_env
    from zoo.worker.evaluation_env import evaluation_env

    words = [*args.overrides, *(f'env.kwargs.{word}' for word in args.kwargs)]
    cfg = evaluation_env({'env': {'id': args.id}}, words)
    with watch_calls_of(args, cfg.step_timeout):
        report = inspect_env(cfg, n_step=args.steps)
    if args.json:
        print_json(report.to_json())
    else:
        write_line(report.text())
    return 1 if report.problems else 0
