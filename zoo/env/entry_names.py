"""Names of entries: Dict spaces whose keys are no strings, such as numbers or enums, are shown to zoo under str(key)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from zoo.core.spaces import Raw
from zoo.env.errors import UnsupportedEnvError


def name_of(key: object) -> str:
    """The name of an entry with this key."""
    if isinstance(key, str):
        return str.__str__(key)
    return str(key)


def renaming(space: object) -> Renaming | None:
    """The renaming of the entries of a space of an env; None if all its keys are strings."""
    parts = getattr(space, 'spaces', None)
    if isinstance(parts, Mapping):
        inner = {key: renaming(part) for key, part in parts.items()}
        has_others = any(not isinstance(key, str) for key in parts)
        if has_others or any(inner.values()):
            return Renaming(inner)
        return None
    if isinstance(parts, tuple | list):
        numbered = {i: renaming(part) for i, part in enumerate(parts)}
        if any(numbered.values()):
            return Renaming(numbered, is_tuple=True)
        return None
    return None


def check_names(parts: Mapping[Any, Any], role: str, name: str) -> None:
    """Raises: UnsupportedEnvError if two entries of a Dict would have one name. Args: role, name: as of `convert_space`."""
    keys: dict[str, Any] = {}
    for key in parts:
        other = keys.setdefault(name_of(key), key)
        if other is not key:
            raise UnsupportedEnvError(
                f'env {name!r}: the {role} space has the entries {other!r} and {key!r}, which are both {name_of(key)!r} as '
                'text, wanted names that differ; rename one.'
            )


class Renaming:
    """Renames the entries of nested observations, or back those of nested actions.

    Args: inner: for each key of the env, the renaming of its entry, or None.
    """

    def __init__(self, inner: Mapping[Any, Renaming | None], is_tuple: bool = False) -> None:
        self._inner = inner
        self._is_tuple = is_tuple

    def __bool__(self) -> bool:
        return True

    def named(self, value: Raw) -> Raw:
        """The value with the names of zoo; one that has not the form of the space is unchanged, and refused later."""
        if self._is_tuple:
            return self._of_tuple(value, with_names)
        if isinstance(value, np.ndarray) and value.dtype == object:  # final observations, None where no episode ended
            rows = np.empty_like(value)
            rows[:] = [self.named(row) for row in value]
            return rows
        if not isinstance(value, Mapping):
            return value
        return {name_of(key): with_names(self._inner.get(key), part) for key, part in value.items()}

    def keyed(self, value: Raw) -> Raw:
        """The value with the keys of the env."""
        if self._is_tuple:
            return self._of_tuple(value, with_keys)
        return {key: with_keys(inner, value[name_of(key)]) for key, inner in self._inner.items()}

    def _of_tuple(self, value: Raw, change: Callable[[Renaming | None, Raw], Raw]) -> Raw:
        if not isinstance(value, tuple) or len(value) != len(self._inner):
            return value
        return tuple(change(inner, part) for inner, part in zip(self._inner.values(), value, strict=True))

    def space(self, space: gymnasium.Space, role: str, name: str) -> gymnasium.Space:
        """The space with the names of zoo. Args: role, name: as of `check_names`. Raises: UnsupportedEnvError."""
        assert isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
        if isinstance(space, gymnasium.spaces.Tuple):
            return gymnasium.spaces.Tuple(self._part(i, part, role, name) for i, part in enumerate(space.spaces))
        check_names(space.spaces, role, name)
        named: OrderedDict[str, gymnasium.Space] = OrderedDict()  # gymnasium sorts the entries of a plain dict
        for key, part in space.spaces.items():
            named[name_of(key)] = self._part(key, part, role, name)
        return gymnasium.spaces.Dict(named)

    def _part(self, key: object, part: gymnasium.Space, role: str, name: str) -> gymnasium.Space:
        """The space of one entry with the names of zoo."""
        inner = self._inner[key]
        if inner is None:
            return part
        return inner.space(part, role, name)


def with_names(rename: Renaming | None, value: Raw) -> Raw:
    """`rename.named(value)`, or the value itself where nothing is renamed."""
    if rename is None:
        return value
    return rename.named(value)


def with_keys(rename: Renaming | None, value: Raw) -> Raw:
    """`rename.keyed(value)`, or the value itself where nothing is renamed."""
    if rename is None:
        return value
    return rename.keyed(value)


class NamedEnv(gymnasium.Wrapper):
    """An env whose observations and actions have strings as names, made from one with other keys."""

    def __init__(self, env: gymnasium.Env, name: str) -> None:
        super().__init__(env)
        self._obs = renaming(env.observation_space)
        self._action = renaming(env.action_space)
        if self._obs is not None:
            self.observation_space = self._obs.space(env.observation_space, 'observation', name)
        if self._action is not None:
            self.action_space = self._action.space(env.action_space, 'action', name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return with_names(self._obs, obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(with_keys(self._action, action))
        return with_names(self._obs, obs), *rest  # type: ignore[return-value]


class NamedVectorEnv(gymnasium.vector.VectorWrapper):
    """As `NamedEnv`, of a vector env."""

    def __init__(self, env: gymnasium.vector.VectorEnv, name: str) -> None:
        super().__init__(env)
        self._obs = renaming(env.single_observation_space)
        self._action = renaming(env.single_action_space)
        if self._obs is not None:
            self.single_observation_space = self._obs.space(env.single_observation_space, 'observation', name)
            self.observation_space = self._obs.space(env.observation_space, 'observation', name)
        if self._action is not None:
            self.single_action_space = self._action.space(env.single_action_space, 'action', name)
            self.action_space = self._action.space(env.action_space, 'action', name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return with_names(self._obs, obs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(with_keys(self._action, actions))
        if self._obs is not None and 'final_obs' in info:
            info = {**info, 'final_obs': self._obs.named(info['final_obs'])}
        return with_names(self._obs, obs), reward, terminated, truncated, info


def has_other_keys(env: object) -> bool:
    """Whether an env, or a vector env, has a Dict space with a key that is no string."""
    prefix = ''
    if isinstance(env, gymnasium.vector.VectorEnv):
        prefix = 'single_'
    spaces = (getattr(env, f'{prefix}{role}_space', None) for role in ('observation', 'action'))
    return any(renaming(space) is not None for space in spaces)
