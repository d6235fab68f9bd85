"""Observations of entities: gymnasium's Sequence spaces as arrays of a fixed size with a mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Space, Tuple, flatdim, flatten

from zoo.env.errors import BrokenContractError, UnsupportedEnvError

ITEMS = 'items'
MASK = 'mask'


class PaddedSets(gymnasium.ObservationWrapper):
    """Turns each Sequence of an observation space into a Dict {items: [n_max, F], mask: [n_max]}, for the encoder 'entities'.

    An entity is flattened to F numbers, as gymnasium does: choices one-hot. Places that hold no entity are 0, also in the mask.
    Args: n_max: the most entities of a sequence; truncate: a longer one is cut off, in place of an error.
    """

    def __init__(self, env: gymnasium.Env, n_max: int, truncate: bool = False) -> None:
        super().__init__(env)
        if n_max < 1:
            raise UnsupportedEnvError(f'PaddedSets: n_max is {n_max} but must be 1 or more.')
        self._n_max = n_max
        self._truncate = truncate
        self.observation_space = self._padded_space(env.observation_space)

    def observation(self, observation: Any) -> Any:
        return self._padded(self.env.observation_space, observation)

    def _padded_space(self, space: Space) -> Space:
        if isinstance(space, Dict):
            return Dict({name: self._padded_space(part) for name, part in space.items()})
        if isinstance(space, Tuple):
            return Tuple(tuple(self._padded_space(part) for part in space))
        if not isinstance(space, Sequence):
            return space
        feature = space.feature_space
        if not isinstance(feature, Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple):
            raise UnsupportedEnvError(
                f'PaddedSets: entities are {feature}, whose numbers are not of a fixed count; give each as a Box, or a Dict of them.'
            )
        shape = (self._n_max, int(flatdim(feature)))
        return Dict({ITEMS: Box(-np.inf, np.inf, shape, np.float32), MASK: MultiBinary(self._n_max)})

    def _padded(self, space: Space, value: Any) -> Any:
        if isinstance(space, Dict):
            return {name: self._padded(part, value[name]) for name, part in space.items()}
        if isinstance(space, Tuple):
            return tuple(self._padded(part, x) for part, x in zip(space, value, strict=True))
        if not isinstance(space, Sequence):
            return value
        entities = _entities(space, value)
        if len(entities) > self._n_max and not self._truncate:
            raise BrokenContractError(
                f'an observation has a sequence of {len(entities)} entities',
                f'at most {self._n_max}, the n_max of PaddedSets',
                'raise n_max, or set truncate: true',
            )
        entities = entities[: self._n_max]
        items = np.zeros((self._n_max, int(flatdim(space.feature_space))), dtype=np.float32)
        mask = np.zeros(self._n_max, dtype=np.int8)
        for i, entity in enumerate(entities):
            items[i] = np.asarray(flatten(space.feature_space, entity))
        mask[: len(entities)] = 1
        return {ITEMS: items, MASK: mask}


def _entities(space: Sequence, value: Any) -> list[Any]:
    """The entities of a value of a Sequence space: a tuple of them, or with stack=True arrays with one more dimension."""
    if not space.stack:
        return list(value)
    return _unstacked(space.feature_space, value)


def _unstacked(feature: Space, value: Any) -> list[Any]:
    if isinstance(feature, Dict):
        assert isinstance(value, Mapping)
        parts = {name: _unstacked(part, value[name]) for name, part in feature.items()}
        n = len(next(iter(parts.values())))
        return [{name: part[i] for name, part in parts.items()} for i in range(n)]
    if isinstance(feature, Tuple):
        columns = [_unstacked(part, x) for part, x in zip(feature, value, strict=True)]
        return list(zip(*columns, strict=True))
    return list(value)
