"""Which code a checkpoint may name: what its config would import needs the user's consent in the same command.

Registered names and plugins need none. A name with a module in it ('module:function', 'package:id') does, since it
would import that module and call what the file names, with arguments of the file.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium

from zoo.config.section import join_path
from zoo.config.source import split_override, storable
from zoo.core.errors import UserError
from zoo.core.registry import ENV_REGISTRY
from zoo.run.checkpoint_file import CheckpointError, shown
from zoo.run.saved_run import SavedRun

Trust = bool | Sequence[str]
"""True: a checkpoint may load all that it names; a list: code of these modules."""

NAME = re.compile(r'[^\W\d][\w.]*:[^\W\d][\w.-]*')
MODULE = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*')

OLD_GYM = 'GymV21Environment-v0', 'GymV26Environment-v0'
"""Ids of gymnasium's that load whatever their keyword arguments name."""

_given: set[str] = set()


def give_names(config: dict[str, Any]) -> None:
    """Remembers the names of code in a config of the user's own: a checkpoint may name them too, in this process."""
    _given.update(name for _, name in _names(storable(config)))


def consent_words() -> str:
    """What a command on a checkpoint of this process needs to load the code that the user's configs named."""
    modules = sorted({name.partition(':')[0] for name in _given})
    return ''.join(f' --import {shlex.quote(module)}' for module in modules)


def check_names(run: SavedRun, sections: Sequence[str], trust: Trust = (), overrides: Sequence[str] = ()) -> None:
    """Checks that the user consents to all code that sections of a checkpoint's config name; imports only such code.

    A name needs no consent if an override replaces it, or if a config of the user's own had it in this process.
    Raises: CheckpointError for the first name without consent; it says what to type.
    """
    if isinstance(trust, str):
        raise UserError(f'trust is {trust!r} but must be True or a list of modules; write trust=[{trust!r}]')
    if trust is True:
        return
    if trust and not (isinstance(trust, list | tuple) and all(isinstance(name, str) for name in trust)):
        raise UserError(f'trust is {shown(repr(trust))} but must be True or a list of modules')
    replaced, modules = overridden(overrides), tuple(trust or ())
    for path, name in _names({section: run.config[section] for section in sections}):
        if path in replaced or name in _given:
            continue
        module = name.partition(':')[0]
        if module not in modules:
            raise CheckpointError(run.path, _needs_consent(path, name, module))
        if path in ('env.id', 'callbacks') and (home := _home_elsewhere(name)):
            raise CheckpointError(
                run.path,
                f'names {shown(name)!r} ({path}), which is code of module {home!r} and not of {module!r}; '
                'if you trust the file, use --trust (in Python trust=True)',
            )


def overridden(overrides: Sequence[str]) -> set[str]:
    """The paths that overrides set."""
    return {split_override(text)[0] for text in overrides}


def leaf_values(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Path and value of all that is neither dict nor list; the items of a list have its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaf_values(item, join_path(path, key))
    elif isinstance(value, list):
        for item in value:
            yield from leaf_values(item, path)
    else:
        yield path, value


def _needs_consent(path: str, name: str, module: str) -> str:
    """What the file names, and what to type."""
    one, python = f'--import {shlex.quote(module)}', f'trust=[{module!r}]'
    allow = f'{one} or --trust (in Python {python} or True)' if MODULE.fullmatch(module) else '--trust'
    return (
        f'names code of module {shown(module)!r} ({path} is {shown(name)!r}), which is loaded only with your consent: '
        f'if you know that module and trust the file, add {allow}'
    )


def _names(config: Any) -> Iterator[tuple[str, str]]:
    """Path and text of every name with a module in a config; any colon in an env's id makes it one."""
    for path, value in leaf_values(config):
        if isinstance(value, str):
            is_code = ':' in value and value not in ENV_REGISTRY or value in OLD_GYM
            if is_code if path == 'env.id' else NAME.fullmatch(value):
                yield path, value


def _home_elsewhere(name: str) -> str:
    """The module of another package that a name leads to, as 'my_envs:os.system' does; '' if to none."""
    module, _, attribute = name.partition(':')
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        return ''  # making the env says so
    if attribute in gymnasium.registry:
        return ''
    for part in attribute.split('.'):
        found = getattr(found, part, None)
        home = found.__name__ if inspect.ismodule(found) else getattr(found, '__module__', None) or 'builtins'
        is_code = inspect.ismodule(found) or inspect.isclass(found) or inspect.isroutine(found)
        if is_code and home.partition('.')[0] != module.partition('.')[0]:
            return home
    return ''
