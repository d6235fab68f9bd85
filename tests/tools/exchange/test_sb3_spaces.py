"""Spaces of gymnasium in pickles become those of zoo."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from zoo.env.adapter import convert_space
from zoo.tools.exchange.pickles import read_pickle
from zoo.tools.exchange.sb3 import space_of

SPACES: dict[str, Any] = {
    'box': gymnasium.spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([0.41887903, 2], np.float32)),
    'bytes': gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8),
    'discrete': gymnasium.spaces.Discrete(3, start=2),
    'multi_discrete': gymnasium.spaces.MultiDiscrete([3, 2]),
    'multi_binary': gymnasium.spaces.MultiBinary(4),
    'dict': gymnasium.spaces.Dict(b=gymnasium.spaces.Discrete(2), a=gymnasium.spaces.Box(-1, 1, (2,))),
}


@pytest.mark.parametrize('name', SPACES)
def test_space_in_a_pickle_is_that_of_an_env(name: str) -> None:
    space = SPACES[name]
    space.seed(1)
    assert space_of(read_pickle(pickle.dumps(space))) == convert_space(space, 'observation', 'x')


@pytest.mark.parametrize('space', [gymnasium.spaces.Text(3), gymnasium.spaces.Graph(SPACES['box'], None), 3])
def test_other_spaces_are_refused(space: object) -> None:
    with pytest.raises(ValueError, match='is of the kind'):
        space_of(read_pickle(pickle.dumps(space)))


def test_space_without_its_attributes_is_refused() -> None:
    with pytest.raises(ValueError, match='cannot be read'):
        space_of(read_pickle(b'cgymnasium.spaces.box\nBox\n)\x81}b.'))
