"""Settings of envs that change during a run: env.schedule, env.reset_options, `job.envs`; commands to envs inside wrappers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, NamedTuple

from zoo.config.schedule import is_signed_schedule, schedule_value, signed_section
from zoo.config.user_code import load_code, members
from zoo.core.errors import UserError, did_you_mean, pickled_error, place_of, show_error, shown, unpickled_error
from zoo.env.config import EnvConfig
from zoo.env.errors import EnvError, EnvSettingError
from zoo.env.interface import AnyVectorEnv, EnvCommand

Which = Literal['both', 'training', 'evaluation']
AT_END = 1 << 53  # env step of an evaluation without a run: schedules have their last values
MAX_LAYERS = 100


class EnvSettings:
    """The attributes and reset options that a config gives envs at each env step of a run. Args: cfg: of these envs.

    Attributes: values: the current values of env.schedule.
    """

    def __init__(self, cfg: EnvConfig) -> None:
        self._schedules = {name: signed_section(value) for name, value in cfg.schedule.items()}
        self._rule: Callable[[int], dict[str, Any]] | None = None
        if cfg.reset_options:
            self._rule = options_rule(cfg.reset_options)
        self._sent = b''  # the reset options that the envs have, pickled
        self._kinds: dict[str, type] = {}
        self.values: dict[str, float] = {}

    @property
    def changes(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self._schedules) or self._rule is not None

    def apply(self, envs: Sequence[AnyVectorEnv], env_step: int) -> None:
        """Sets in the envs the values for an env step that differ from those set before.

        Raises: EnvSettingError if the envs do not have such an attribute, or it is no number, or they take no reset options.
        """
        for name, schedule in self._schedules.items():
            with _naming(f'schedule.{name}'):
                self._set_scheduled(envs, name, schedule_value(schedule, env_step))
        if self._rule is not None:
            with _naming('reset_options'):
                self._set_options(envs, self._rule(env_step))

    def _set_scheduled(self, envs: Sequence[AnyVectorEnv], name: str, value: float) -> None:
        if name not in self._kinds:
            self._kinds[name] = _kind_of(envs[0], name)
        if self._kinds[name] is not float:
            value = self._kinds[name](round(value))
        if self.values.get(name) != value:
            for env in envs:
                env.command(EnvCommand('set', name, (value,)))
            self.values[name] = value

    def _set_options(self, envs: Sequence[AnyVectorEnv], options: dict[str, Any]) -> None:
        pickled = b''
        with suppress(Exception):  # not ==: options may be arrays, or changed in place after a call
            pickled = pickle.dumps(options)
        if not pickled or pickled != self._sent:
            for env in envs:
                env.set_reset_options(options)
            self._sent = pickled


class RunEnvs:
    """The envs of a run. Every list that a method returns begins with the training envs; the evaluation envs follow.

    Use it between rollouts, as callbacks do. A recreated env (env.on_error) gets the attributes again that were set here.
    """

    def __init__(self, training: Sequence[AnyVectorEnv], evaluation: Sequence[AnyVectorEnv]) -> None:
        self._training = list(training)
        self._evaluation = list(evaluation)

    def get_attr(self, name: str, of: Which = 'both') -> list[Any]:
        """The values of an attribute, one for each env. name: 'a.b' is the attribute b of its attribute a.

        Envs that step as one batch (env families, batched and tensor envs) are one object, which gives one value.
        Raises: UserError if there is no such attribute, in any wrapper.
        """
        return self._each(of, 'get', name)

    def set_attr(self, name: str, value: object, of: Which = 'both') -> None:
        """Sets an existing attribute in all envs. Raises: UserError."""
        self._each(of, 'set', name, (value,))

    def call(self, method: str, *args: Any, of: Which = 'both', **kwargs: Any) -> list[Any]:
        """Calls a method of each env; returns the results. Raises: UserError; exceptions of the method."""
        return self._each(of, 'call', method, args, kwargs)

    def _each(self, of: Which, *command: Any) -> list[Any]:
        envs_by_name = {
            'both': [*self._training, *self._evaluation],
            'training': self._training,
            'evaluation': self._evaluation,
        }
        if of not in envs_by_name:
            raise UserError(f'of is {shown(of)} but must be {", ".join(map(repr, envs_by_name))}')
        values: list[Any] = []
        for env in envs_by_name[of]:
            values += env.command(EnvCommand(*command))
        return values


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Context that turns a UserError of the envs into an EnvSettingError with the key of section env that caused it."""
    try:
        yield
    except UserError as error:
        sentence = str(error)
        path = f'env.{key}'
        if sentence.startswith(path):
            raise EnvSettingError(key, sentence.removeprefix(path)) from error
        raise EnvSettingError(key, f': {sentence}') from error


def options_rule(options: dict[str, Any] | str | Callable[..., Any]) -> Callable[[int], dict[str, Any]]:
    """env.reset_options as a function of the env step."""
    if isinstance(options, Mapping):
        return partial(_scheduled_options, options)
    function = options
    if isinstance(function, str):
        function = load_code(function, 'env.reset_options')
    return partial(_returned_options, function)


def _scheduled_options(options: Mapping[str, Any], env_step: int) -> dict[str, Any]:
    """The options with the values of their schedules at an env step."""
    values = dict(options)
    for key, value in options.items():
        if is_signed_schedule(value):
            values[key] = schedule_value(signed_section(value), env_step)
    return values


def _returned_options(function: Callable[[int], object], env_step: int) -> dict[str, Any]:
    """The options that a user's function gives. Raises: EnvError if it raises, UserError if it returns no dict."""
    try:
        options = function(env_step)
    except Exception as error:
        raise EnvError(
            f'env.reset_options, a function of the env step, raised {show_error(error)} at env step {env_step} '
            f'({place_of(error)}); correct it; --debug shows the traceback'
        ) from error
    if not isinstance(options, Mapping):
        raise UserError(
            f'env.reset_options, a function, returned {shown(options)} at env step {env_step} but must return a dict, the '
            'options of the next resets'
        )
    return dict(options)


def _kind_of(env: AnyVectorEnv, name: str) -> type:
    """The type of an attribute of the env: int, float or bool. Scheduled values are converted to it. Raises: UserError."""
    value = env.command(EnvCommand('get', name))[0]
    if isinstance(value, bool):
        return bool
    kind = 'f'
    if isinstance(value, int):
        kind = 'i'
    if hasattr(value, 'dtype'):
        kind = getattr(value.dtype, 'kind', kind)
    is_number = isinstance(value, int | float) or getattr(value, 'ndim', 1) == 0
    if not is_number or kind not in 'iuf':
        raise UserError(
            f'it is {shown(value)} ({type(value).__name__}) in env {env.name!r} but must be a number; give the env a number of '
            'that name, or use a callback with job.envs.set_attr'
        )
    if kind == 'f':
        return float
    return int


class CommandOutcome(NamedTuple):
    """The result of a command in another process. error: the pickled exception; message: where pickling fails."""

    value: object = None
    error: bytes | None = None
    message: str = ''


def apply(env: object, command: EnvCommand) -> Any:
    """Applies a command to the outermost wrapper that has the name, as gymnasium does; 'set' needs an existing attribute.

    Raises: UserError if the name is missing, cannot be set or is no method; exceptions of the env's own code pass through.
    """
    names = command.name.split('.')
    path: list[Any] = [_owner(env, names[0])]
    path += members(path[0], command.name)
    if len(path) <= len(names):
        missing = names[len(path) - 1]
        raise UserError(f'{_kind(path[-1])} has no attribute {missing!r} ({command.name}); check the spelling')
    owner, attribute = path[-2:]
    if command.kind == 'set':
        try:
            setattr(owner, names[-1], command.args[0])
        except AttributeError as error:
            raise UserError(
                f'{_kind(owner)} does not let {command.name!r} be set ({error}); set what it is made of'
            ) from error
        return None
    if command.kind == 'get':
        return attribute
    if not callable(attribute):
        raise UserError(f'{command.name!r} of {_kind(owner)} is a {type(attribute).__name__}, no method; use get_attr')
    return attribute(*command.args, **command.kwargs)


def keep_setting(commands: dict[str, EnvCommand], command: EnvCommand) -> None:
    """Keeps a 'set' for recreated envs, in place of earlier ones of that name and of attributes inside it."""
    for name in list(commands):
        if f'{name}.'.startswith(f'{command.name}.'):
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
        return CommandOutcome(error=pickled_error(error), message=show_error(error))
    try:
        pickle.dumps(value)
    except Exception as error:  # its class may raise any exception
        return CommandOutcome(
            message=f'{command.name!r} is a {type(value).__name__}, which cannot be sent between processes ({error}); '
            'read a part of it that is made of numbers, or use env.vectorization=sync'
        )
    return CommandOutcome(value)


def result(of_command: CommandOutcome) -> Any:
    """The value of an outcome. Raises: what the command raised."""
    error = unpickled_error(of_command.error)
    if error is not None:
        raise error
    if of_command.message:
        raise UserError(of_command.message)
    return of_command.value


def _layers(env: object) -> Iterator[object]:
    """Yields the env's wrappers, the outermost first, then the env."""
    for _ in range(MAX_LAYERS):
        yield env
        attributes = getattr(env, '__dict__', {})
        env = attributes.get('env', attributes.get('_env'))
        if env is None:
            return


def _owner(env: object, name: str) -> object:
    """The outermost layer that has the attribute itself; layers that only forward it do not count."""
    for layer in _layers(env):
        if name in getattr(layer, '__dict__', {}) or hasattr(type(layer), name):
            return layer
    if hasattr(env, name):
        return env
    known: set[str] = set()
    for layer in _layers(env):
        known.update(key for key in getattr(layer, '__dict__', {}) if not key.startswith('_'))
    hint = did_you_mean(name, known, f'it has {", ".join(sorted(known)[:12])}.')
    raise UserError(
        f'the env, {_kind(getattr(env, "unwrapped", env))}, has no attribute {name!r}, nor have its wrappers: {hint}'
    )


def _kind(thing: object) -> str:
    return f'a {type(thing).__name__}'
