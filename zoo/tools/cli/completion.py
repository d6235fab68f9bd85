"""`zoo completion`: shell completion of commands, options, configs and keys."""

from __future__ import annotations

import argparse
import importlib
import json
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zoo.core.files import keep_user_file, user_file
from zoo.core.streams import write_line
from zoo.tools.cli.choice import keys_of
from zoo.tools.cli.output import argument

KEPT = 'completions.json'
SHELLS = {
    'bash': 'add to ~/.bashrc: eval "$(zoo completion bash)"',
    'zsh': 'add to ~/.zshrc: eval "$(zoo completion zsh)"',
    'fish': 'run once: zoo completion fish > ~/.config/fish/completions/zoo.fish',
}

ARGUMENTS = {'completion': (argument('shell', choices=list(SHELLS), help='; '.join(SHELLS.values())),)}


def run_completion(args: argparse.Namespace) -> None:
    """Prints the code for the shell, which argcomplete generates."""
    import argcomplete

    write_line(argcomplete.shellcode(['zoo'], shell=args.shell).strip())


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints the completions that a shell requests by environment variables, and ends the process."""
    import argcomplete

    commands: Any = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    known: dict[str, Any] = {
        'config': _configs,
        'overrides': _overrides,
        'env': lambda **_: _kept('--env', partial(_called, 'zoo.env', 'known_ids')),
        'kind': lambda action, **_: (action.help or '').split(', '),
        **dict.fromkeys(('checkpoint', 'runs'), _runs),
    }
    for command in commands.choices.values():
        for action in command._actions:
            if action.dest in known and not action.choices:
                action.completer = known[action.dest]
    argcomplete.autocomplete(parser)


def _configs(prefix: str, **_: object) -> list[str]:
    """Bundled configs, and files."""
    from argcomplete.completers import FilesCompleter

    return [
        *_kept('CONFIG', partial(_called, 'zoo.config.source', 'bundled_configs')),
        *FilesCompleter(('py', 'yaml', 'yml'))(prefix),
    ]


def _runs(prefix: str, **_: object) -> list[str]:
    """Returns 'last', the names of the runs in runs/, and files and folders."""
    from argcomplete.completers import FilesCompleter

    return ['last', *(path.name for path in Path('runs').glob('*/')), *FilesCompleter()(prefix)]


def _overrides(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Returns the keys of the config, once the words before name a config, an env or a run."""
    if not any(getattr(parsed_args, name, None) for name in ('config', 'env', 'resume')):
        return []
    config = parsed_args.config if parsed_args.config and '=' not in parsed_args.config else None
    return [f'{key}=' for key in _kept(config or 'CartPole-v1', lambda: keys_of(config))]


def _called(module: str, name: str) -> list[str]:
    return list(getattr(importlib.import_module(module), name)())


def _kept(name: str, words: Callable[[], list[str]]) -> list[str]:
    """Returns words from the user's cache, until one of their source files changes: finding them imports torch or gymnasium."""
    zoo, file = Path(__file__).parents[2], Path(name).resolve()
    key = str(file) if file.is_file() else name
    configs, installed = zoo.parent / 'dizoo_configs', Path(sysconfig.get_path('purelib'))  # packages register envs
    sources = [*zoo.rglob('*.py'), configs, configs / f'{name}_config.py', installed, Path(key)]
    stamp = [str(zoo), max(path.stat().st_mtime_ns for path in sources if path.exists())]
    kept: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, LookupError):
        kept = dict(json.loads(user_file('cache', KEPT).read_bytes()))
        if kept[key]['stamp'] == stamp:
            return kept[key]['words']
    kept[key] = {'stamp': stamp, 'words': words()}
    keep_user_file('cache', KEPT, json.dumps(kept).encode())
    return kept[key]['words']
