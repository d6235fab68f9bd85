"""`zoo convert`: a config of another library -> one of zoo's."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.cli.output import print_json
from zoo.core.errors import UserError
from zoo.core.streams import say, write_line

SUMMARY = 'translate a config of DI-engine, stable-baselines3, CleanRL or RLlib'
OPTIONS = ('json',)
SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument('file', metavar='FILE', help='a .py or .yaml file of the other library')
    parser.add_argument('--from', dest='source', choices=SOURCES, help='the library; without it the file is looked at')
    parser.add_argument('--name', metavar='NAME', help='which config of the file, e.g. the env id in a file of rl-zoo3')
    parser.add_argument('-o', '--output', metavar='FILE.yaml', help='write the config there instead of on stdout')


def run(args: argparse.Namespace) -> int:
    """Writes the config as YAML to stdout or a file; what became what, and what was left out, goes to stderr."""
    from zoo.config.foreign import convert
    from zoo.config.yaml_text import save_yaml, yaml_text

    output = Path(args.output) if args.output else None
    if output is not None and output.suffix not in ('.yaml', '.yml'):
        raise UserError(f'--output is {args.output} but configs are written as YAML; name a .yaml file')
    if output is not None and output.exists():
        raise UserError(f'{args.output} exists; name another file, or remove it')
    conversion = convert(args.file, args.source, **({'name': args.name} if args.name else {}))
    if args.json:
        print_json({'config': conversion.config, 'became': conversion.became, 'left_out': conversion.left_out})
        return 0
    if not args.quiet:
        say(conversion.text())
    if output is None:
        write_line(yaml_text(conversion.config).rstrip())
    else:
        try:
            save_yaml(conversion.config, output)
        except OSError as error:
            raise UserError(f'{args.output} cannot be written ({error.strerror}); name another file') from error
        write_line(f'train it: zoo train {args.output}')
    return 0
