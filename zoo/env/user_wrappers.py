"""Wrappers of the user's own, which the config names: applied to each single env, inside those of zoo."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium

from zoo.config.code import load_code, names_code, shown_name
from zoo.config.section import ConfigError
from zoo.core.errors import show_error
from zoo.env.errors import UnsupportedEnvError, raised_at

Wrapper = str | dict[str, Any] | Callable[..., Any]
"""'module:Class', {type: 'module:Class', its arguments}, or the class or function itself."""


class WrapperCall(NamedTuple):
    """A wrapper with its arguments. place: how messages name it."""

    place: str
    make: Callable[..., Any]
    kwargs: dict[str, Any]


def wrapper_problems(wrappers: Sequence[Wrapper], key: str = 'env.wrappers') -> Iterator[str]:
    """A sentence for every wrapper that is not found, is none, or does not take its arguments; makes none."""
    for i, item in enumerate(wrappers):
        try:
            _load(item, f'{key}[{i}]')
        except ConfigError as error:
            yield from error.problems


def apply_wrappers(env: gymnasium.Env, wrappers: Sequence[Wrapper], name: str) -> gymnasium.Env:
    """The env inside all wrappers, the first of them innermost.

    Raises: UnsupportedEnvError if one raises an error, or returns no env.
    """
    for i, item in enumerate(wrappers):
        place, make, kwargs = _load(item, f'env.wrappers[{i}]')
        try:
            wrapped = make(env, **kwargs)
        except Exception as error:
            raise UnsupportedEnvError(
                f'env {name!r}: {place} raised {show_error(error)} ({raised_at(error)}) around an env with observations '
                f'{env.observation_space} and actions {env.action_space}; change its arguments, or leave it out.'
            ) from error
        if not isinstance(wrapped, gymnasium.Env):
            raise UnsupportedEnvError(
                f'env {name!r}: {place} returned {type(wrapped).__name__}, wanted a gymnasium.Env; return the wrapped env.'
            )
        env = wrapped
    return env


def _load(item: Any, path: str) -> WrapperCall:
    """Raises: ConfigError."""
    spec = dict(item) if isinstance(item, dict) else {'type': item}
    if 'type' not in spec:
        raise ConfigError(
            f"{path} has no type; write {{'type': 'module:Class', and its arguments}}, e.g. "
            "{type: 'gymnasium.wrappers:FrameStackObservation', stack_size: 4}."
        )
    named = spec.pop('type')
    make = _code(named, path) if isinstance(named, str) else named
    place = f'{path} ({shown_name(named) if isinstance(named, str) else getattr(named, "__qualname__", repr(named))})'
    if not callable(make):
        raise ConfigError(f'{place} is {type(make).__name__}, which wraps nothing; name a class or function of an env.')
    if isinstance(make, type) and issubclass(make, gymnasium.vector.VectorEnv):
        single = getattr(gymnasium.wrappers, make.__name__, None)
        do = f"'gymnasium.wrappers:{make.__name__}'" if single else 'one of single envs'
        raise ConfigError(
            f'{place} wraps whole vectors of envs, and env.wrappers are around each single env; use {do}.'
        )
    kwargs = {key: _argument(value, f'{path}.{key}') for key, value in spec.items()}
    _check_arguments(make, kwargs, place)
    return WrapperCall(place, make, kwargs)


def _code(name: str, path: str) -> Any:
    if not names_code(name):
        if name.endswith('<lambda>'):
            _argument(name, path)  # raises
        if hasattr(gymnasium.wrappers, name):
            raise ConfigError(f"{path} is {name!r}; write 'gymnasium.wrappers:{name}'.")
        raise ConfigError(
            f"{path} is {name!r}, which names no class; write 'module:Class' or 'path/file.py:Class', e.g. "
            "'gymnasium.wrappers:FlattenObservation'."
        )
    return load_code(name, path)


def _argument(value: Any, path: str) -> Any:
    """A text with the form of a name of code is that code: functions that wrappers take, such as those for rewards."""
    if isinstance(value, str) and value.endswith('<lambda>'):
        raise ConfigError(
            f'{path} is {value!r}, a function without a name, which no saved config can hold; give it a name by def, at the '
            'top of a module.'
        )
    if isinstance(value, str) and names_code(value):
        return load_code(value, path)
    if isinstance(value, list):
        return [_argument(item, path) for item in value]
    return value


def _check_arguments(make: Callable[..., Any], kwargs: dict[str, Any], place: str) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # a callable in C
        return
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        own = list(signature.parameters.values())[1:]
        takes = ', '.join(str(p.replace(annotation=p.empty)) for p in own) or 'nothing else'
        raise ConfigError(f'{place} takes the env and {takes}: {error}; correct its arguments.') from error
