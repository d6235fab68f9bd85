"""Files to start from: `zoo init` writes one, `zoo convert` translates one of another library."""

from __future__ import annotations

import argparse
import os
from importlib.resources import files
from pathlib import Path

from zoo.core.errors import UserError
from zoo.core.streams import say, write_line
from zoo.tools.cli.output import argument, print_json

NEXT = {
    'env': 'check it: zoo check-env {file}:MyEnv\ntrain on it: zoo train {file}:MyEnv',
    'policy': 'train it: zoo train cartpole_ppo policy.type=my_ppo --import {file}',
    'config': 'see all keys: zoo config {file}\ntrain it: zoo train {file}',
}
"""What to do next with each kind of file."""


SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')
ARGUMENTS = {
    'init': (
        argument(
            'file', metavar='FILE', help='e.g. my_env.py, my_policy.py or my_config.yaml; made anew, never overwritten'
        ),
        argument('--kind', choices=list(NEXT), help='what to write; without it the name of the file says it'),
    ),
    'convert': (
        argument('file', metavar='FILE', help='a .py or .yaml file of the other library'),
        argument('--from', dest='source', choices=SOURCES, help='the library; without it the file is looked at'),
        argument('--name', metavar='NAME', help='which config of the file, e.g. the env id in a file of rl-zoo3'),
        argument('-o', '--output', metavar='FILE.yaml', help='write the config there instead of on stdout'),
    ),
}


def run_init(args: argparse.Namespace) -> int:
    """Writes the file and says what to do next."""
    path = Path(args.file)
    kind = args.kind or _kind_of(path)
    suffixes = ('.yaml', '.yml') if kind == 'config' else ('.py',)
    if path.suffix not in suffixes:
        raise UserError(
            f'{args.file} is to hold {_article(kind)} and must end in {suffixes[0]}; name it {path.stem}{suffixes[0]}'
        )
    text = files('zoo.tools.cli').joinpath('starts', f'{kind}.txt').read_text(encoding='utf-8')
    try:
        with open(path, 'x', encoding='utf-8') as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f'{args.file} exists; name another file, or remove it') from error
    except OSError as error:
        raise UserError(
            f'{args.file} cannot be written ({error.strerror}); name a file in a folder that exists'
        ) from error
    write_line(f'{args.file}: {_article(kind)} to start from\n{NEXT[kind].format(file=_shown(path))}')
    return 0


def _kind_of(path: Path) -> str:
    """The kind that the name of a file says. Raises: UserError if it says none."""
    if path.suffix in ('.yaml', '.yml'):
        return 'config'
    kinds = [kind for kind in ('env', 'policy') if kind in path.stem.lower()]
    if len(kinds) != 1:
        raise UserError(
            f'{path} may hold {" or ".join(kinds or ["an env", "a policy"])}; say which: --kind env, --kind policy; '
            'a config is a .yaml file'
        )
    return kinds[0]


def _article(kind: str) -> str:
    return f'{"an" if kind == "env" else "a"} {kind}'


def _shown(path: Path) -> str:
    """The path as it was typed, quoted for a shell where it must be."""
    text = os.fspath(path)
    return f"'{text}'" if ' ' in text else text


def run_convert(args: argparse.Namespace) -> int:
    """Writes the config as YAML to stdout or a file; what became what, and what was left out, goes to stderr."""
    from zoo.config.yaml_io import save_yaml, yaml_text
    from zoo.tools.importers import convert

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
