"""`zoo completion`: shell completion of commands, options, configs and keys.

A shell asks for completions before anybody has pressed Enter: nothing that the user names is imported or run, and files are read
as data, up to a limit.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from zoo.core.errors import UserError
from zoo.core.files import keep_user_file, read_small, user_file
from zoo.core.streams import write_line
from zoo.tools.cli.choice import keys_of
from zoo.tools.cli.output import argument

KEPT = 'completions.json'
SUFFIXES = '.yaml', '.yml'
# most keys of a file that are offered; most files whose keys are kept
MAX_KEYS = 1_000
MAX_KEPT = 50
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
        'env': lambda **_: _kept('--env', partial(_called, 'zoo.env.ids', 'offered_ids')),
        'kind': lambda action, **_: (action.help or '').split(', '),
        **dict.fromkeys(('checkpoint', 'resume', 'runs', 'players'), _runs),
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

    names = [path.name for path in Path('runs').glob('*/')]
    return ['last', *(name for name in names if _is_text(name)), *FilesCompleter()(prefix)]


def _is_text(name: str) -> bool:
    """Whether the name of a file can be written to a shell: bytes that are no UTF-8 cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _overrides(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Returns the keys of the config, once the words before name a config, an env or a run."""
    if not any(getattr(parsed_args, name, None) for name in ('config', 'env', 'resume')):
        return []
    word = ''
    if parsed_args.config and '=' not in parsed_args.config:
        word = parsed_args.config
    is_config = word.endswith(SUFFIXES) or re.fullmatch(r'[\w-]+', word) is not None
    return [f'{key}=' for key in _kept(word if is_config else 'CartPole-v1', partial(_keys, word))]


def _keys(word: str) -> list[str]:
    """Returns the keys of a bundled config or of a YAML file. For any other word, also a file in Python, those of the defaults.

    A YAML file may name code. Only its policy's type is used, if it is one of zoo's own; its other keys are added as texts.
    """
    from zoo.config.section import leaf_items, value_at
    from zoo.config.source import bundled_configs
    from zoo.config.yaml_io import config_of_yaml
    from zoo.core.registry import POLICY_REGISTRY

    if word in bundled_configs():
        return keys_of(word)
    config: dict[str, Any] = {'env': {'id': 'CartPole-v1'}}
    own: list[str] = []
    if word.endswith(SUFFIXES):
        with suppress(OSError, UserError, RecursionError):
            given = config_of_yaml(Path(word))
            own = [key for key, _ in itertools.islice(leaf_items(given), MAX_KEYS) if key.isprintable()]
            policy = value_at(given, 'policy.type')
            if isinstance(policy, str) and policy in POLICY_REGISTRY:
                config['policy'] = {'type': policy}
    return list(dict.fromkeys([*keys_of(config), *own]))


def _called(module: str, name: str) -> list[str]:
    return list(getattr(importlib.import_module(module), name)())


def _kept(name: str, words: Callable[[], list[str]]) -> list[str]:
    """Returns words from the user's cache, until one of their source files changes: finding them imports torch or gymnasium."""
    zoo = Path(__file__).parents[2]
    file = Path(name).resolve()
    if file.is_file():
        key = str(file)
    else:
        key = name
    # packages register envs
    configs = zoo.parent / 'dizoo_configs'
    installed = Path(sysconfig.get_path('purelib'))
    sources = [*zoo.rglob('*.py'), configs, configs / f'{Path(name).name}_config.py', installed, Path(key)]
    stamp = [str(zoo), max(path.stat().st_mtime_ns for path in sources if path.exists())]
    kept: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        kept = dict(json.loads(read_small(user_file('cache', KEPT))))
        known = kept[key]['words']
        if kept[key]['stamp'] == stamp and isinstance(known, list) and all(isinstance(x, str) for x in known):
            return known
    found = words()
    kept = {name: kept[name] for name in [*kept][-MAX_KEPT:] if name != key}
    keep_user_file('cache', KEPT, json.dumps({**kept, key: {'stamp': stamp, 'words': found}}).encode())
    return found
