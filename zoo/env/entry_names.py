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
    return str.__str__(key) if isinstance(key, str) else str(key)


def renaming(space: object) -> Renaming | None:
    """The renaming of the entries of a space of an env; None if all its keys are strings."""
    parts = getattr(space, 'spaces', None)
    if isinstance(parts, Mapping):
        inner = {key: renaming(part) for key, part in parts.items()}
        has_others = any(not isinstance(key, str) for key in parts)
        return Renaming(inner) if has_others or any(inner.values()) else None
    if isinstance(parts, tuple | list):
        numbered = {i: renaming(part) for i, part in enumerate(parts)}
        return Renaming(numbered, is_tuple=True) if any(numbered.values()) else None
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
        self._inner, self._is_tuple = inner, is_tuple

    def __bool__(self) -> bool:
        return True

    def named(self, value: Raw) -> Raw:
        """The value with the names of zoo; one that has not the form of the space is unchanged, and refused later."""
        if self._is_tuple:
            return self._of_tuple(value, lambda each, part: each.named(part))
        if isinstance(value, np.ndarray) and value.dtype == object:  # final observations, None where no episode ended
            rows = np.empty_like(value)
            rows[:] = [self.named(row) for row in value]
            return rows
        if not isinstance(value, Mapping):
            return value
        entries = {}
        for key, part in value.items():
            each = self._inner.get(key)
            entries[name_of(key)] = part if each is None else each.named(part)
        return entries

    def keyed(self, value: Raw) -> Raw:
        """The value with the keys of the env."""
        if self._is_tuple:
            return self._of_tuple(value, lambda each, part: each.keyed(part))
        entries = {}
        for key, each in self._inner.items():
            part = value[name_of(key)]
            entries[key] = part if each is None else each.keyed(part)
        return entries

    def _of_tuple(self, value: Raw, change: Callable[[Renaming, Raw], Raw]) -> Raw:
        if not isinstance(value, tuple) or len(value) != len(self._inner):
            return value
        pairs = zip(self._inner.values(), value, strict=True)
        return tuple(part if each is None else change(each, part) for each, part in pairs)

    def space(self, space: gymnasium.Space, role: str, name: str) -> gymnasium.Space:
        """The space with the names of zoo. Args: role, name: as of `check_names`. Raises: UnsupportedEnvError."""
        assert isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
        parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else dict(enumerate(space.spaces))
        if not self._is_tuple:
            check_names(parts, role, name)
        named: OrderedDict[Any, gymnasium.Space] = OrderedDict()  # gymnasium sorts the entries of a plain dict
        for key, part in parts.items():
            each = self._inner[key]
            named[key if self._is_tuple else name_of(key)] = part if each is None else each.space(part, role, name)
        return gymnasium.spaces.Tuple(named.values()) if self._is_tuple else gymnasium.spaces.Dict(named)


class NamedEnv(gymnasium.Wrapper):
    """An env whose observations and actions have strings as names, made from one with other keys."""

    def __init__(self, env: gymnasium.Env, name: str) -> None:
        super().__init__(env)
        self._obs, self._action = renaming(env.observation_space), renaming(env.action_space)
        if self._obs is not None:
            self.observation_space = self._obs.space(env.observation_space, 'observation', name)
        if self._action is not None:
            self.action_space = self._action.space(env.action_space, 'action', name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return obs if self._obs is None else self._obs.named(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = action if self._action is None else self._action.keyed(action)
        obs, *rest = self.env.step(sent)
        return (obs if self._obs is None else self._obs.named(obs), *rest)  # type: ignore[return-value]


class NamedVectorEnv(gymnasium.vector.VectorWrapper):
    """As `NamedEnv`, of a vector env."""

    def __init__(self, env: gymnasium.vector.VectorEnv, name: str) -> None:
        super().__init__(env)
        self._obs, self._action = renaming(env.single_observation_space), renaming(env.single_action_space)
        if self._obs is not None:
            self.single_observation_space = self._obs.space(env.single_observation_space, 'observation', name)
            self.observation_space = self._obs.space(env.observation_space, 'observation', name)
        if self._action is not None:
            self.single_action_space = self._action.space(env.single_action_space, 'action', name)
            self.action_space = self._action.space(env.action_space, 'action', name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return obs if self._obs is None else self._obs.named(obs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        sent = actions if self._action is None else self._action.keyed(actions)
        obs, reward, terminated, truncated, info = self.env.step(sent)
        if self._obs is None:
            return obs, reward, terminated, truncated, info
        if 'final_obs' in info:
            info = {**info, 'final_obs': self._obs.named(info['final_obs'])}
        return self._obs.named(obs), reward, terminated, truncated, info


def has_other_keys(env: object) -> bool:
    """Whether an env, or a vector env, has a Dict space with a key that is no string."""
    prefix = 'single_' if isinstance(env, gymnasium.vector.VectorEnv) else ''
    spaces = (getattr(env, f'{prefix}{role}_space', None) for role in ('observation', 'action'))
    return any(renaming(space) is not None for space in spaces)
