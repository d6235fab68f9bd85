"""Wrappers around every env: those of the user, binned actions, masks, the previous action and reward, a window."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from zoo.config.section import ConfigError
from zoo.config.user_code import load_code, names_code, shown_name
from zoo.core.action_map import Action
from zoo.core.errors import show_error
from zoo.core.spaces import (
    ACTION_MASK,
    WINDOW_MASK,
    Box,
    Dict,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    mask_size,
)
from zoo.env.adapter import env_spaces, gymnasium_space, mask_method
from zoo.env.config import EnvConfig, MaskSource
from zoo.env.errors import BrokenContractError, UnsupportedEnvError, raised_at, show_value
from zoo.env.infos import entry_of
from zoo.env.levels import LevelEnv
from zoo.env.masks import WHAT, flat_mask, no_mask_error
from zoo.env.validation import RAW_ERRORS, as_flag, check_obs

OBS = 'obs'
PREV_ACTION = 'prev_action'
PREV_REWARD = 'prev_reward'
INFO = 'info/'
logger = logging.getLogger(__name__)
MASK_DO = f'put {ACTION_MASK!r} into the info of every reset and step, zeros and ones for all actions'
Wrapper = str | dict[str, Any] | Callable[..., Any]
"""'module:Class', {type: 'module:Class', its arguments}, or the class or function itself."""


class BinsEnv(gymnasium.ActionWrapper):
    """Takes MultiDiscrete actions in place of a Box: choice k of n is low + k / (n - 1) * (high - low).

    Source: Tang and Agrawal 2020, arXiv:1901.10500, which finds that PPO learns many continuous tasks better this way.
    """

    def __init__(self, env: gymnasium.Env, n: int, name: str) -> None:
        super().__init__(env)
        _, space = env_spaces(env, name)
        if not isinstance(space, Box) or not (np.isfinite(space.low) & np.isfinite(space.high)).all():
            raise UnsupportedEnvError(
                f'env.action_bins is {n} but the actions of env {name!r} are {env.action_space}; it splits numbers '
                'between finite bounds: leave it out.'
            )
        self._values = np.linspace(space.low, space.high, n)  # [n, *A]
        self._dtype = np.dtype(space.dtype)
        self.action_space = gymnasium.spaces.MultiDiscrete(np.full(space.shape or (1,), n))

    def action(self, action: ArrayLike) -> np.ndarray:
        choice = np.reshape(action, (1, *self._values.shape[1:]))
        values = np.take_along_axis(self._values, choice, 0)[0]
        if self._dtype.kind in 'iu':
            values = np.rint(values)
        return values.astype(self._dtype)


class WeightedRewardEnv(gymnasium.Wrapper):
    """Returns the weighted sum of the numbers of a vector reward."""

    def __init__(self, env: gymnasium.Env, weights: Sequence[float]) -> None:
        super().__init__(env)
        self._weights = np.array(weights, dtype=np.float64)

    def step(self, action: Action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminated, truncated, info = self.env.step(action)
        numbers = np.asarray(rewards)
        if numbers.shape != self._weights.shape or numbers.dtype.kind not in 'biuf':
            n = len(self._weights)
            wanted = f'{n} numbers, one for each of env.reward_weights'
            raise BrokenContractError(
                f'the reward is {show_value(rewards)}', wanted, 'set as many weights as it has numbers'
            )
        return obs, float(numbers @ self._weights), terminated, truncated, info


def wrapper_problems(wrappers: Sequence[Wrapper], key: str = 'env.wrappers') -> Iterator[str]:
    """Yields a sentence for every wrapper that is not found, wraps no env, or does not take its arguments; calls none."""
    for i, item in enumerate(wrappers):
        try:
            _load(item, f'{key}[{i}]')
        except ConfigError as error:
            yield from error.problems


WANTED = {True: 'a gymnasium.Env', False: 'an env of several agents'}


def is_of_gymnasium(env: object) -> bool:
    """Whether an env is one of gymnasium."""
    return isinstance(env, gymnasium.Env)


def apply_wrappers(
    env: Any, wrappers: Sequence[Wrapper], name: str, fits: Callable[[object], bool] = is_of_gymnasium
) -> Any:
    """Wraps an env in all wrappers, the first of them innermost.

    Args: fits: whether what a wrapper returned is an env of the kind that is wanted.
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
        if not fits(wrapped):
            raise UnsupportedEnvError(
                f'env {name!r}: {place} returned {type(wrapped).__name__}, wanted {WANTED[fits is is_of_gymnasium]}; return the wrapped env.'
            )
        env = wrapped
    return env


class _LoadedWrapper(NamedTuple):
    """A wrapper of the config. place: its name in messages; make: its class or function."""

    place: str
    make: Callable[..., Any]
    kwargs: dict[str, Any]


def _load(item: Wrapper, path: str) -> _LoadedWrapper:
    """The code of a wrapper, with its arguments checked. Raises: ConfigError."""
    spec: dict[str, Any] = {'type': item}
    if isinstance(item, dict):
        spec = dict(item)
    if 'type' not in spec:
        raise ConfigError(
            f"{path} has no type; write {{'type': 'module:Class', and its arguments}}, e.g. "
            "{type: 'gymnasium.wrappers:FrameStackObservation', stack_size: 4}."
        )
    named: str | Callable[..., Any] = spec.pop('type')
    if isinstance(named, str):
        make = _code(named, path)
        place = f'{path} ({shown_name(named)})'
    else:
        make = named
        place = f'{path} ({getattr(named, "__qualname__", repr(named))})'
    if not callable(make):
        raise ConfigError(f'{place} is {type(make).__name__}, which wraps nothing; name a class or function of an env.')
    if isinstance(make, type) and issubclass(make, gymnasium.vector.VectorEnv):
        do = 'one of single envs'
        if hasattr(gymnasium.wrappers, make.__name__):
            do = f"'gymnasium.wrappers:{make.__name__}'"
        raise ConfigError(
            f'{place} wraps whole vectors of envs, and env.wrappers are around each single env; use {do}.'
        )
    kwargs = {key: _argument(value, f'{path}.{key}') for key, value in spec.items()}
    _check_arguments(make, kwargs, place)
    return _LoadedWrapper(place, make, kwargs)


def _code(name: str, path: str) -> object:
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


def _argument(value: object, path: str) -> object:
    """An argument of a wrapper; a text of the form 'module:name' becomes what it names, such as a function of rewards."""
    if isinstance(value, str) and value.endswith('<lambda>'):
        raise ConfigError(
            f'{path} is {value!r}, a function without a name, which no saved config can hold; give it a name by def, at the '
            'top of a module.'
        )
    if isinstance(value, str) and names_code(value):
        return load_code(value, path)
    if isinstance(value, list):
        return [_argument(item, path) for item in value]
    if isinstance(value, Mapping) and 'array' in value:
        return _array(value, path)
    return value


def _array(form: Mapping[str, Any], path: str) -> np.ndarray:
    """The numpy array of {array: [1.0, 0.1]}, or {array: [...], dtype: float32}; YAML itself has lists alone."""
    unknown = [key for key in form if key not in ('array', 'dtype')]
    if unknown:
        raise ConfigError(
            f'{path} has the entry {unknown[0]!r}; an array is written {{array: [1.0, 0.1], dtype: float32}}.'
        )
    try:
        array = np.array(form['array'], dtype=form.get('dtype'))
    except (TypeError, ValueError) as error:
        raise ConfigError(f'{path} is no array of numbers ({error}); write e.g. {{array: [1.0, 0.1]}}.') from error
    if array.dtype.kind not in 'biuf':
        raise ConfigError(f'{path} is an array of {array.dtype}, wanted numbers; write e.g. {{array: [1.0, 0.1]}}.')
    return array


def _check_arguments(make: Callable[..., Any], kwargs: dict[str, Any], place: str) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # a callable in C
        return
    try:
        signature.bind(None, **kwargs)
    except TypeError as error:
        arguments = list(signature.parameters.values())[1:]
        takes = ', '.join(str(p.replace(annotation=p.empty)) for p in arguments) or 'nothing else'
        raise ConfigError(f'{place} takes the env and {takes}: {error}; correct its arguments.') from error


def wrap_env(env: gymnasium.Env, cfg: EnvConfig, source: MaskSource, name: str) -> gymnasium.Env:
    """The env with the wrappers of a config. source: where its action masks come from, never 'auto'."""
    if cfg.levels is not None:
        env = LevelEnv(env)
    if cfg.action_bins is not None:
        env = BinsEnv(env, cfg.action_bins, name)
    if source == 'info' or source == 'method':
        env = MaskEnv(env, source, name)
    if cfg.prev_action or cfg.prev_reward:
        env = PrevEnv(env, cfg.prev_action, cfg.prev_reward, name)
    if cfg.observe_info:
        env = ObserveInfoEnv(env, shapes_of_infos(cfg), name)
    if cfg.window is not None:
        keep: tuple[str, ...] = (ACTION_MASK,)
        if source == 'off':
            keep = ()
        env = WindowEnv(env, cfg.window, name, keep)
    return env


class _EntriesEnv(gymnasium.Wrapper):
    """Adds entries to a Dict observation; any other observation becomes the entry 'obs' of a new Dict first."""

    def __init__(self, env: gymnasium.Env, added: Mapping[str, gymnasium.Space], name: str) -> None:
        super().__init__(env)
        space = env.observation_space
        self._is_dict = isinstance(space, gymnasium.spaces.Dict)
        parts = {OBS: space}
        if isinstance(space, gymnasium.spaces.Dict):
            parts = dict(space.spaces)
        clash = [key for key in added if key in parts]
        if clash:
            raise UnsupportedEnvError(
                f'env {name!r}: the observations have an entry {clash[0]!r} already, which the config adds too; '
                'rename theirs, or leave it out of the config.'
            )
        self.observation_space = gymnasium.spaces.Dict({**parts, **added})

    def _with(self, obs: object, added: Mapping[str, Any]) -> dict[str, Any]:
        if not self._is_dict:
            return {OBS: obs, **added}
        if not isinstance(obs, Mapping):
            raise BrokenContractError(
                f'the observation is a {type(obs).__name__}', 'a dict as in observation_space', 'correct one of the two'
            )
        return {**obs, **added}


class MaskEnv(_EntriesEnv):
    """Adds the entry 'action_mask', from info['action_mask'] or the env's method action_masks().

    Where an episode ends, no action follows: there the mask in an info may be missing, and becomes all true.
    """

    def __init__(self, env: gymnasium.Env, source: Literal['info', 'method'], name: str) -> None:
        _, self._space = env_spaces(env, name)
        self._n = mask_size(self._space)
        if self._n == 0:
            raise no_mask_error(name, self._space)
        self.source: Literal['info', 'method'] = source
        self._method = None
        if source == 'method':
            self._method = mask_method(env)
        if source == 'method' and self._method is None:
            raise UnsupportedEnvError(
                f"env {name!r}: env.action_mask is 'method' but the env has no method action_masks; "
                'give it one that returns zeros and ones for all actions, or use auto.'
            )
        super().__init__(env, {ACTION_MASK: gymnasium.spaces.MultiBinary(self._n)}, name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._with(obs, {ACTION_MASK: self._mask(info, 'reset')}), info

    def step(self, action: Action) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        mask = self._mask(info, 'step', terminated, truncated)
        return self._with(obs, {ACTION_MASK: mask}), reward, terminated, truncated, info

    def _mask(
        self, info: Mapping[str, Any], call: str, terminated: object = False, truncated: object = False
    ) -> np.ndarray:
        if self._method is not None:
            return flat_mask(self._space, self._method()).astype(np.int8)
        if ACTION_MASK in info:
            return flat_mask(self._space, info[ACTION_MASK]).astype(np.int8)
        if as_flag('terminated', terminated) or as_flag('truncated', truncated):
            return np.ones(self._n, np.int8)
        raise BrokenContractError(f'the info of {call} has no {ACTION_MASK!r}', f'{WHAT} of {self._n} bits', MASK_DO)


class PrevEnv(_EntriesEnv):
    """Adds the entries 'prev_action' and 'prev_reward': the last action in the form that the env takes, and its reward.

    Where an episode begins, the action is the first of its space (for a Box the value closest to 0), and the reward is 0.
    """

    def __init__(self, env: gymnasium.Env, action: bool, reward: bool, name: str) -> None:
        _, self._space = env_spaces(env, name)
        self._action = action
        self._reward = reward
        added: dict[str, gymnasium.Space] = {}
        if action:
            added[PREV_ACTION] = gymnasium_space(self._space)
        if reward:
            added[PREV_REWARD] = gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)
        super().__init__(env, added, name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._with(obs, self._added(_nested(self._space, _zeros), 0.0)), info

    def step(self, action: Action) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = _nested(self._space, lambda leaf, x: np.array(x, dtype=_dtype(leaf)), action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with(obs, self._added(sent, reward)), reward, terminated, truncated, info

    def _added(self, action: Action, reward: object) -> dict[str, Any]:
        added: dict[str, Any] = {}
        if self._action:
            added[PREV_ACTION] = action
        if self._reward:
            added[PREV_REWARD] = np.asarray(reward, np.float32)
        return added


def shapes_of_infos(cfg: EnvConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each entry of env.observe_info."""
    if isinstance(cfg.observe_info, Mapping):
        return {entry: tuple(shape) for entry, shape in cfg.observe_info.items()}
    return {entry: () for entry in cfg.observe_info}


class ObserveInfoEnv(_EntriesEnv):
    """Adds entries of the info of the last step as 'info/<entry>'; zeros where an episode begins, or a step has no such entry.

    If a whole episode has none of an entry, a warning is logged, once in a process.
    """

    warned: ClassVar[set[tuple[str, str]]] = set()  # names of envs and entries

    def __init__(self, env: gymnasium.Env, shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
        self._shapes = shapes
        self._name = name
        self._seen: set[str] = set()
        box = gymnasium.spaces.Box
        added = {f'{INFO}{entry}': box(-np.inf, np.inf, shape, np.float32) for entry, shape in shapes.items()}
        super().__init__(env, added, name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._with(obs, self._added({})), info

    def step(self, action: Action) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        added = self._added(info)
        if len(self._seen) < len(self._shapes) and (
            as_flag('terminated', terminated) or as_flag('truncated', truncated)
        ):
            self._warn_of_missing()
        return self._with(obs, added), reward, terminated, truncated, info

    def _added(self, info: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {f'{INFO}{entry}': self._value(info, entry, shape) for entry, shape in self._shapes.items()}

    def _value(self, info: Mapping[str, Any], entry: str, shape: tuple[int, ...]) -> np.ndarray:
        value = entry_of(info, entry)
        if value is None:
            return np.zeros(shape, np.float32)
        self._seen.add(entry)
        try:
            array = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._other_value(entry, show_value(value), shape, 'leave it out of env.observe_info') from error
        if array.shape != shape:
            do = f'give env.observe_info its shape, {{{entry}: {list(array.shape)}}}, or leave it out'
            raise self._other_value(entry, f'of shape {array.shape}', shape, do)
        return array

    def _other_value(self, entry: str, words: str, shape: tuple[int, ...], do: str) -> BrokenContractError:
        wanted = 'a number'
        if shape:
            wanted = f'an array of numbers of shape {shape}'
        return BrokenContractError(f'the entry {entry!r} of its info is {words}', wanted, do)

    def _warn_of_missing(self) -> None:
        """Warns of entries that no step of an episode had."""
        for entry in self._shapes:
            if entry not in self._seen and (self._name, entry) not in self.warned:
                self.warned.add((self._name, entry))
                logger.warning(
                    'env %r: env.observe_info has %r, but no step of an episode had an entry of that name in its info: the '
                    'policy sees 0; correct the name, or ignore this if it is rare',
                    self._name,
                    entry,
                )


def _nested(space: Space, of_leaf: Callable[..., Any], *values: Any) -> Any:
    """Calls of_leaf(leaf, its part of each value) for all leaves of a space; the results have the form of the space.

    Raises: KeyError, TypeError or ValueError if a value does not have this form.
    """
    if not isinstance(space, Dict):
        return of_leaf(space, *values)
    if space.is_tuple:
        columns = zip(space.spaces.values(), *values, strict=True)
        return tuple(_nested(part, of_leaf, *of_part) for part, *of_part in columns)
    return {key: _nested(part, of_leaf, *(value[key] for value in values)) for key, part in space.spaces.items()}


def _zeros(space: Leaf) -> np.ndarray:
    """The value for no action: zeros, or the values of the space that are closest to them."""
    if isinstance(space, Box):
        return np.clip(0.0, space.low, space.high).astype(_dtype(space))
    start = np.asarray(getattr(space, 'start', 0))
    if isinstance(space, MultiDiscrete):
        start = start.reshape(space.shape)
    return np.broadcast_to(start, space.shape).astype(_dtype(space))


def _dtype(space: Leaf) -> DTypeLike:
    return np.dtype(space.dtype)


class WindowEnv(gymnasium.Wrapper):
    """Returns the last n observations, oldest first, every leaf [n, *O]; adds 'window_mask' [n], true for real observations.

    Before the start of an episode there are zeros, or the first value of a Discrete. Entries named in `keep` are unmodified.
    """

    def __init__(self, env: gymnasium.Env, n: int, name: str, keep: tuple[str, ...] = ()) -> None:
        super().__init__(env)
        space, _ = env_spaces(env, name)
        parts = {OBS: space}
        self._is_dict = False
        if isinstance(space, Dict) and not space.is_tuple:
            parts = dict(space.spaces)
            self._is_dict = True
        self._n = n
        self._keep = [key for key in parts if key in keep and self._is_dict]
        self._parts = {key: part for key, part in parts.items() if key not in self._keep}
        if WINDOW_MASK in parts:
            raise UnsupportedEnvError(
                f'env {name!r}: the observations have an entry {WINDOW_MASK!r} already, which env.window adds too; '
                'rename theirs.'
            )
        spaces = {key: gymnasium_space(_windowed(part, n)) for key, part in self._parts.items()}
        spaces |= {key: gymnasium_space(parts[key]) for key in self._keep}
        spaces[WINDOW_MASK] = gymnasium.spaces.MultiBinary(n)
        self.observation_space = gymnasium.spaces.Dict(spaces)
        self._before = {key: _nested(part, lambda leaf: _padding(leaf, n)) for key, part in self._parts.items()}
        self._seen: dict[str, Any] = self._before
        self._n_seen = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._seen = self._before
        self._n_seen = 0
        return self._shown(obs), info

    def step(self, action: Action) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs), reward, terminated, truncated, info

    def _shown(self, obs: object) -> dict[str, Any]:
        entries: Any = obs
        if not self._is_dict:
            entries = {OBS: obs}
        self._n_seen = min(self._n_seen + 1, self._n)
        try:
            self._seen = {
                key: _nested(part, _pushed, self._seen[key], entries[key]) for key, part in self._parts.items()
            }
        except RAW_ERRORS:
            check_obs(obs, self.env.observation_space)
            raise
        mask = np.zeros(self._n, np.int8)
        mask[self._n - self._n_seen :] = 1
        return {**self._seen, **{key: entries[key] for key in self._keep}, WINDOW_MASK: mask}


def _windowed(space: Space, n: int) -> Space:
    if isinstance(space, Dict):
        return Dict({key: _windowed(part, n) for key, part in space.spaces.items()}, space.is_tuple)
    return _WINDOWED[type(space)](space, n)


_WINDOWED: dict[type, Callable[[Any, int], Leaf]] = {
    Discrete: lambda space, n: MultiDiscrete((space.n,) * n, (space.start,) * n, (n,)),
    MultiDiscrete: lambda space, n: MultiDiscrete(space.nvec * n, space.start * n, (n, *space.shape)),
    MultiBinary: lambda space, n: MultiBinary((n, *space.shape)),
    Box: lambda space, n: Box(  # it must contain the zeros before an episode too
        np.stack([np.minimum(space.low, 0.0)] * n), np.stack([np.maximum(space.high, 0.0)] * n), space.dtype
    ),
}


def _padding(leaf: Leaf, n: int) -> np.ndarray:
    """The window of a leaf before an episode begins."""
    if isinstance(leaf, Box):
        return np.zeros((n, *leaf.shape), _dtype(leaf))
    first = _zeros(leaf)
    if isinstance(leaf, Discrete | MultiDiscrete):
        first = first.astype(
            np.int64
        )  # an env may return plain ints, which need not fit in the space's own number type
    return np.stack([first] * n)


def _pushed(leaf: Leaf, seen: np.ndarray, obs: ArrayLike) -> np.ndarray:
    """A new window whose last entry is this observation."""
    return np.concatenate((seen[1:], np.asarray(obs)[None]), dtype=seen.dtype, casting='same_kind')
