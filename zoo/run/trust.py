"""Which code a checkpoint may name: what its config would import needs the user's consent in the same command.

Registered names and plugins need none. A name with a module or a file in it ('module:function', 'package:id',
'path/file.py:function') does, since it would import that module and call what the checkpoint names, with arguments of the
checkpoint. Of gymnasium's wrappers only those that read and write nothing but what passes through them need none.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium

from zoo.config.code import is_in_file, split_name
from zoo.config.section import ConfigError, join_path
from zoo.config.source import import_module_or_file, split_override, storable
from zoo.core.errors import UserError
from zoo.core.registry import ENV_REGISTRY
from zoo.run.checkpoint_file import CheckpointError, shown
from zoo.run.saved_run import SavedRun

Trust = bool | Sequence[str]
"""True: a checkpoint may load all that it names; a list: code of these modules."""

NAME = re.compile(r'[^\W\d][\w.]*:[^\W\d][\w.-]*')
MODULE = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*')

WRAPPER_PATH = re.compile(r'(?:env|policy\.eval\.env|policy\.eval\.sets\.[^.]+)\.wrappers(\..+)?')
"""Where a config names wrappers of envs, and their arguments."""
WRAPPERS = re.compile(
    r'gymnasium\.wrappers(\.\w+)?:(AtariPreprocessing|ClipAction|ClipReward|DiscretizeAction|DtypeObservation|'
    r'FilterObservation|FlattenObservation|FrameStackObservation|GrayscaleObservation|MaxAndSkipObservation|'
    r'NormalizeObservation|NormalizeReward|RecordEpisodeStatistics|RescaleAction|RescaleObservation|StickyAction|'
    r'TimeAwareObservation|TimeLimit|TransformAction|TransformObservation|TransformReward)'
)
"""Names that need no consent in env.wrappers; functions in their arguments do."""

CODE_KEYS = 'callbacks', 'stop', 'stop.type', 'logger.sinks', 'logger.sinks.type'
"""Keys of code that is imported by its name."""

OLD_GYM = 'GymV21Environment-v0', 'GymV26Environment-v0'
"""Ids of gymnasium's that load whatever their keyword arguments name."""

_given: set[str] = set()


def give_names(config: dict[str, Any]) -> None:
    """Remembers the names of code in a config of the user's own: a checkpoint may name them too, in this process."""
    _given.update(name for _, name in _names(storable(config)))


def consent_words() -> str:
    """What a command on a checkpoint of this process needs to load the code that the user's configs named."""
    modules = sorted({split_name(name)[0] for name in _given if not WRAPPERS.fullmatch(name)})
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
        if path in replaced or 'env.wrappers' in replaced and path.startswith('env.wrappers.') or name in _given:
            continue
        module = split_name(name)[0]
        if module not in modules and not (is_in_file(name) and _is_of_file(modules, module)):
            raise CheckpointError(run.path, _needs_consent(path, name, module))
        if (is_env_id(path) or WRAPPER_PATH.fullmatch(path) or path in CODE_KEYS) and (home := _home_elsewhere(name)):
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


def is_env_id(path: str) -> bool:
    """Whether the path in a config is that of an env's id: of the training envs, or of an evaluation's."""
    return path in ('env.id', 'policy.eval.env.id') or path.startswith('policy.eval.sets.') and path.endswith('.id')


def _needs_consent(path: str, name: str, module: str) -> str:
    """What the file names, and what to type."""
    one, python = f'--import {shlex.quote(module)}', f'trust=[{module!r}]'
    kind, it = ('the file', 'checkpoint') if is_in_file(name) else ('module', 'file')
    allow = f'{one} or --trust (in Python {python} or True)' if it != 'file' or MODULE.fullmatch(module) else '--trust'
    return (
        f'names code of {kind} {shown(module)!r} ({path} is {shown(name)!r}), which is loaded only with your consent: '
        f'if you know that {kind.removeprefix("the ")} and trust the {it}, add {allow}'
    )


def _names(config: Any) -> Iterator[tuple[str, str]]:
    """Path and text of every name with a module or file in a config; any colon in what names an env makes it one."""
    for path, value in leaf_values(config):
        if not isinstance(value, str):
            continue
        if is_env_id(path):
            is_code = ':' in value and value not in ENV_REGISTRY or value in OLD_GYM
        elif (found := WRAPPER_PATH.fullmatch(path)) and found[1] in (None, '.type'):
            is_code = ':' in value and not WRAPPERS.fullmatch(value)
        else:
            is_code = NAME.fullmatch(value) is not None or is_in_file(value)
        if is_code:
            yield path, value


def _is_of_file(modules: Sequence[str], file: str) -> bool:
    """Whether one of the modules with consent is this file: by its path, or imported from it in this process."""
    origins = [getattr(sys.modules.get(name), '__file__', None) or name for name in modules]
    return any(name.endswith('.py') and os.path.realpath(name) == os.path.realpath(file) for name in origins)


def _home_elsewhere(name: str) -> str:
    """The module of another package that a name leads to, as 'my_envs:os.system' does; '' if to none."""
    module, attribute = split_name(name)
    try:
        found: Any = import_module_or_file(module) if is_in_file(name) else importlib.import_module(module)
    except (ModuleNotFoundError, ConfigError):
        return ''  # making the env says so
    module = found.__name__
    if attribute in gymnasium.registry:
        return ''
    for part in attribute.split('.'):
        found = getattr(found, part, None)
        home = found.__name__ if inspect.ismodule(found) else getattr(found, '__module__', None) or 'builtins'
        is_code = inspect.ismodule(found) or inspect.isclass(found) or inspect.isroutine(found)
        if is_code and home.partition('.')[0] != module.partition('.')[0]:
            return home
    return ''
