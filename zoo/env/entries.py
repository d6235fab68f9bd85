"""Leaves entries out of the observations of an env: env.drop_obs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from zoo.core.action_map import Action
from zoo.core.spaces import Dict, Space
from zoo.env.adapter import convert_space, gymnasium_space
from zoo.env.errors import UnsupportedEnvError

EntryName = str | Sequence[str]
"""The name of an entry of a Dict: 'a.b' or ['a', 'b'] is the entry b of the entry a."""


def kept_space(space: object, drop: Sequence[EntryName], name: str) -> Space:
    """The zoo space of an env's observations without the entries that env.drop_obs names; these may be of any kind.

    Args: space: of gymnasium or old gym; name: of the env, for messages.
    Raises: UnsupportedEnvError if an entry does not exist, its dotted name means several entries, or none is left.
    """
    paths = list(_paths(space))
    dropped: set[tuple[str, ...]] = set()
    for entry in drop:
        if isinstance(entry, str):
            named = [path for path in paths if '.'.join(path) == entry]
            shown: object = entry
        else:
            named = [path for path in paths if path == tuple(entry)]
            shown = list(entry)
        if not named:
            are = f'the entries of the observations are {", ".join(map(repr, map(".".join, paths)))}; use some of these'
            if not paths:
                are = f'the observations are {space}, which has no named entries; leave it out'
            raise UnsupportedEnvError(f'env {name!r}: env.drop_obs names {shown!r} but {are}.')
        if len(named) > 1:
            several = ' and '.join(str(list(path)) for path in named)
            raise UnsupportedEnvError(
                f'env {name!r}: env.drop_obs names {shown!r}, which means {several}; give the list of names.'
            )
        dropped.update(named)
    pruned = _pruned(space, (), dropped)
    if pruned is None:
        raise UnsupportedEnvError(f'env {name!r}: env.drop_obs leaves no entry of the observations; name fewer.')
    return convert_space(pruned, 'observation', name)


class _Parts:
    """A Dict space of which only some entries are left, as `convert_space` reads it."""

    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces = spaces


def _entries(space: object) -> Mapping[Any, Any]:
    parts = getattr(space, 'spaces', None)
    if isinstance(parts, Mapping):
        return parts
    return {}


def _paths(space: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all entries of a Dict space, nested ones too."""
    for key, part in _entries(space).items():
        yield (*path, str(key))
        yield from _paths(part, (*path, str(key)))


def _pruned(space: Any, path: tuple[str, ...], dropped: set[tuple[str, ...]]) -> Any:
    """The space without the dropped entries, and without a Dict that then is empty; None if nothing is left."""
    entries = _entries(space)
    if path in dropped:
        return None
    if not entries:
        return space
    pruned = {key: _pruned(part, (*path, str(key)), dropped) for key, part in entries.items()}
    left = {key: part for key, part in pruned.items() if part is not None}
    if left:
        return _Parts(left)
    return None


def only_kept(space: Space, obs: Any) -> Any:
    """The entries of an observation that a space of `kept_space` has; what does not fit the space stays as it is."""
    if not isinstance(space, Dict) or space.is_tuple or not isinstance(obs, Mapping):
        return obs
    return {key: only_kept(part, obs[key]) for key, part in space.spaces.items() if key in obs}


class DropEnv(gymnasium.Wrapper):
    """Leaves entries out of Dict observations. Args: space: what is left, see `kept_space`."""

    def __init__(self, env: gymnasium.Env, space: Space) -> None:
        super().__init__(env)
        self._space = space
        self.observation_space = gymnasium_space(space)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return only_kept(self._space, obs), info

    def step(self, action: Action) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return only_kept(self._space, obs), reward, terminated, truncated, info
