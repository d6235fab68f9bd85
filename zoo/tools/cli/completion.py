"""`zoo completion`: what a shell needs to complete commands, options, configs and keys."""

from __future__ import annotations

import argparse
from typing import Any

from zoo.core.streams import write_line
from zoo.tools.cli.choice import keys_of
from zoo.tools.cli.output import argument

SHELLS = {
    'bash': 'add to ~/.bashrc: eval "$(zoo completion bash)"',
    'zsh': 'add to ~/.zshrc: eval "$(zoo completion zsh)"',
    'fish': 'run once: zoo completion fish > ~/.config/fish/completions/zoo.fish',
}

ARGUMENTS = {'completion': (argument('shell', choices=list(SHELLS), help='; '.join(SHELLS.values())),)}


def run_completion(args: argparse.Namespace) -> None:
    """Prints the code for the shell; argcomplete writes it."""
    import argcomplete

    write_line(argcomplete.shellcode(['zoo'], shell=args.shell).strip())


def complete(parser: argparse.ArgumentParser) -> None:
    """Gives the completions that a shell asks for by variables of the environment, and ends the process."""
    import argcomplete

    commands: Any = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    known: dict[str, Any] = {
        'config': _configs,
        'overrides': lambda parsed_args, **_: [f'{key}=' for key in keys_of(parsed_args.config)],
        'env': _envs,
        'kind': lambda action, **_: (action.help or '').split(', '),
    }
    for name in ('train', 'sweep', 'config', 'list', 'bench'):
        for action in commands.choices[name]._actions:
            if action.dest in known:
                action.completer = known[action.dest]
    argcomplete.autocomplete(parser)


def _configs(prefix: str, **_: object) -> list[str]:
    """Bundled configs, and files."""
    from argcomplete.completers import FilesCompleter

    from zoo.config.source import bundled_configs

    return [*bundled_configs(), *FilesCompleter(('py', 'yaml', 'yml'))(prefix)]


def _envs(prefix: str, **_: object) -> list[str]:
    from zoo.env import known_ids

    return known_ids()
