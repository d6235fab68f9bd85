"""Array readers: each kind of space by hand; what has another shape or value is refused with the env and the entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.env.errors import EnvContractError, EnvError, Place
from zoo.env.readers import ArrayReader, obs_reader

TWO = Box(np.full(2, -np.inf), np.full(2, np.inf))
BYTES = Box(np.zeros((1, 1, 3)), np.full((1, 1, 3), 255.0), 'uint8')


def reader(space: Space, n_env: int = 2) -> ArrayReader:
    return obs_reader(space, n_env, Place('e', step=7))


@pytest.mark.parametrize(
    ('space', 'raw', 'read'),
    [
        (TWO, np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]], np.float32)),
        (BYTES, np.full((2, 1, 1, 3), 9, np.uint8), np.full((2, 1, 1, 3), 9, np.uint8)),
        (Discrete(3, 5), np.array([5, 7]), np.array([0, 2])),
        (MultiDiscrete((3, 2), (1, 0), (2,)), [[3, 1], [1, 0]], np.array([[2, 1], [0, 0]])),
        (MultiBinary((2,)), [[0, 1], [1.0, 1]], np.array([[False, True], [True, True]])),
    ],
)
def test_observations_are_read_in_the_dtypes_of_zoo_and_indices_from_0(space: Space, raw: Any, read: Any) -> None:
    array_reader = reader(space)
    obs = array_reader.read(raw)
    array_reader.fit(obs, 'step')
    array_reader.check(obs)
    np.testing.assert_array_equal(obs, read)
    assert obs.dtype == read.dtype


def test_array_of_the_right_dtype_is_not_copied() -> None:
    raw = np.zeros((2, 2), np.float32)
    assert reader(TWO).read(raw) is raw


@pytest.mark.parametrize(
    ('space', 'raw', 'sentence'),
    [
        (TWO, [[0, 1], [np.nan, 0]], "env 'e', index 1, step 7: observation is [nan  0.], wanted finite numbers"),
        (Discrete(3, 5), [5, 8], "env 'e', index 1, step 7: observation is 8, outside of the space 5 .. 7"),
        (
            MultiDiscrete((3, 2), (0, 0), (2,)),
            [[0, 2], [0, 0]],
            "env 'e', index 0, step 7: observation has 2 at [1], outside of the space 0 .. 1",
        ),
        (MultiBinary((2,)), [[0, 1], [2, 1]], "env 'e', index 1, step 7: the observation has 2, wanted zeros and ones"),
        (BYTES, np.zeros((2, 1, 1, 3)), 'the observations are of float64, wanted uint8'),
        (
            Dict({'a': TWO, 'b': Discrete(2)}),
            {'a': [[0, 0], [0, 0]], 'b': [2, 0]},
            "index 0, step 7: observation 'b' is 2",
        ),
    ],
)
def test_value_outside_of_the_space_is_an_error_with_env_and_entry(space: Space, raw: Any, sentence: str) -> None:
    with pytest.raises(EnvError) as raised:
        reader(space).check(reader(space).read(raw))
    assert sentence in str(raised.value)


def test_shape_of_other_envs_is_an_error_that_names_the_call() -> None:
    with pytest.raises(EnvContractError, match=r'observations of shape \(3, 2\), wanted \(2, 2\)') as raised:
        reader(TWO).fit(np.zeros((3, 2), np.float32), 'reset')
    assert 'reset returned' in str(raised.value)


def test_entries_are_read_by_name_and_those_of_a_tuple_by_position() -> None:
    dict_reader = reader(Dict({'a': TWO, 'b': Dict({'c': Discrete(4, 1)})}), 1)
    obs = dict_reader.read({'b': {'c': [4]}, 'a': [[1, 2]]})
    assert obs['a'].tolist() == [[1, 2]] and obs['b']['c'].tolist() == [3]
    tuple_reader = reader(Dict({'0': TWO, '1': Discrete(2)}, is_tuple=True), 1)
    obs = tuple_reader.read(([[1, 2]], [1]))
    assert obs['0'].tolist() == [[1, 2]] and obs['1'].tolist() == [1]


def test_last_observations_come_as_one_array_or_one_object_for_each_env() -> None:
    objects = np.array([None, None, None], dtype=object)
    objects[0], objects[2] = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    array = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    for raw in (objects, array):
        assert reader(TWO, 3).final(raw, np.array([0, 2])).tolist() == [[1, 2], [3, 4]]


def test_last_observation_that_is_missing_is_an_error_with_the_env() -> None:
    objects = np.array([None, None], dtype=object)
    with pytest.raises(
        EnvContractError, match=r'index 1, step 7: the observation is None \(NoneType\), wanted numbers'
    ):
        reader(TWO).final(objects, np.array([1]))
    with pytest.raises(EnvContractError, match=r"index 1, step 7: the final observation has no entry 'a'"):
        reader(Dict({'a': TWO})).final(np.array([None, {'b': 1}], dtype=object), np.array([1]))


def test_action_mask_of_any_shape_is_one_row_for_each_env() -> None:
    space = Dict({'obs': TWO, 'action_mask': MultiBinary((4,))})
    mask_reader = obs_reader(space, 2, Place('e'), raw_mask_shape=(2, 2))
    obs = mask_reader.read({'obs': np.zeros((2, 2)), 'action_mask': np.array([[[1, 0], [0, 1]], [[1, 1], [1, 1]]])})
    assert obs['action_mask'].tolist() == [[True, False, False, True], [True] * 4]


def test_row_of_a_block_gets_the_observations_of_all_envs() -> None:
    row = {'a': np.zeros((1, 2), np.float32), 'n': np.zeros(1, np.int64)}
    dict_reader = reader(Dict({'a': TWO, 'n': Discrete(5)}), 1)
    dict_reader.write(row, dict_reader.read({'a': [[1, 2]], 'n': [4]}))
    assert row['a'].tolist() == [[1, 2]] and row['n'].tolist() == [4]
