"""Reads, sets and calls attributes and methods of an env inside any number of wrappers, for `job.envs` and env.schedule."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from zoo.core.errors import UserError, pickled_error, show_error, unpickled_error
from zoo.core.registry import did_you_mean

MAX_LAYERS = 100


class EnvCommand(NamedTuple):
    """A command to one env. name: of an attribute or method; 'a.b.c' is the attribute c of its attribute a.b."""

    kind: Literal['get', 'set', 'call']
    name: str
    args: tuple[Any, ...] = ()  # of a call; for 'set' only the value
    kwargs: Mapping[str, Any] = {}


class CommandOutcome(NamedTuple):
    """The result of a command in another process. error: the pickled exception; words: the message where pickling fails."""

    value: object = None
    error: bytes | None = None
    words: str = ''


def apply(env: object, command: EnvCommand) -> Any:
    """Applies a command to the outermost wrapper that has the name, as gymnasium does; 'set' needs an existing attribute.

    Raises: UserError if the name is missing, cannot be set or is no method; exceptions of the env's own code pass through.
    """
    first, *others = command.name.split('.')
    owner = _owner(env, first)
    for name in others:
        owner, first = _value(owner, first, command.name), name
    found = _value(owner, first, command.name)
    if command.kind == 'set':
        try:
            setattr(owner, first, command.args[0])
        except AttributeError as error:
            raise UserError(
                f'{_kind(owner)} does not let {command.name!r} be set ({error}); set what it is made of'
            ) from error
        return None
    if command.kind == 'get':
        return found
    if not callable(found):
        raise UserError(f'{command.name!r} of {_kind(owner)} is a {type(found).__name__}, no method; use get_attr')
    return found(*command.args, **command.kwargs)


def keep_setting(commands: dict[str, EnvCommand], command: EnvCommand) -> None:
    """Keeps a 'set' for recreated envs, in place of earlier ones of that name and of attributes inside it."""
    for name in [each for each in commands if f'{each}.'.startswith(f'{command.name}.')]:
        del commands[name]
    commands[command.name] = command


def sendable(command: EnvCommand) -> EnvCommand:
    """Returns the command unchanged. Raises: UserError if it cannot be sent to another process."""
    try:
        pickle.dumps(command)
    except Exception as error:  # the class of a value may raise any exception
        raise UserError(
            f'{command.kind} of {command.name!r} has a value that cannot be sent to the processes of the envs ({error}); give '
            'plain numbers, text, lists or arrays, or use env.vectorization=sync'
        ) from error
    return command


def outcome(env: object, command: EnvCommand) -> CommandOutcome:
    """Calls `apply` and returns its result, or its exception, in a form that can be sent to another process."""
    try:
        value = apply(env, command)
    except Exception as error:
        return CommandOutcome(error=pickled_error(error), words=show_error(error))
    try:
        pickle.dumps(value)
    except Exception as error:  # its class may raise any exception
        return CommandOutcome(
            words=f'{command.name!r} is a {type(value).__name__}, which cannot be sent between processes ({error}); '
            'read a part of it that is made of numbers, or use env.vectorization=sync'
        )
    return CommandOutcome(value)


def result(found: CommandOutcome) -> Any:
    """The value of an outcome. Raises: what the command raised."""
    if (error := unpickled_error(found.error)) is not None:
        raise error
    if found.words:
        raise UserError(found.words)
    return found.value


def _layers(env: object) -> Iterator[object]:
    """Yields the env's wrappers, the outermost first, then the env."""
    for _ in range(MAX_LAYERS):
        yield env
        own = getattr(env, '__dict__', {})
        env = own.get('env', own.get('_env'))
        if env is None:
            return


def _owner(env: object, name: str) -> object:
    """The outermost layer that has the attribute itself; layers that only forward it do not count."""
    for layer in _layers(env):
        if name in getattr(layer, '__dict__', {}) or hasattr(type(layer), name):
            return layer
    if hasattr(env, name):
        return env
    own = {key for layer in _layers(env) for key in getattr(layer, '__dict__', {}) if not key.startswith('_')}
    hint = did_you_mean(name, own, f'it has {", ".join(sorted(own)[:12])}.')
    raise UserError(
        f'the env, {_kind(getattr(env, "unwrapped", env))}, has no attribute {name!r}, nor have its wrappers: {hint}'
    )


def _value(owner: object, name: str, whole: str) -> Any:
    if not hasattr(owner, name):
        raise UserError(f'{_kind(owner)} has no attribute {name!r} ({whole}); check the spelling')
    return getattr(owner, name)


def _kind(thing: object) -> str:
    return f'a {type(thing).__name__}'
