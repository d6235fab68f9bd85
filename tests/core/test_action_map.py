"""The actions that envs get, by hand: clipped or rescaled Boxes, indices with a start, shapes, nested spaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.core.action_map import ActionMap, action_width, first_row
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

STEERING = Box(np.array([-1, 0], dtype=np.float32), np.array([1, 10], dtype=np.float32))


def test_action_width_is_one_for_an_index_and_else_the_number_of_entries() -> None:
    assert action_width(Discrete(5)) == 1
    assert action_width(MultiDiscrete((2, 3, 4), (0, 0, 0), (3,))) == 3
    assert action_width(STEERING) == 2


def test_clip_limits_each_dimension_by_its_own_bounds() -> None:
    action = ActionMap(STEERING, 'clip')(torch.tensor([[-2.0, -2.0], [0.5, 12.0]]))
    assert isinstance(action, np.ndarray) and action.dtype == np.float32
    np.testing.assert_array_equal(action, [[-1, 0], [0.5, 10]])


def test_rescale_takes_minus_one_to_one_onto_the_bounds_and_clips_the_rest() -> None:
    # second dimension: 0 + (x + 1) / 2 * 10: -1 -> 0, 0 -> 5, 0.5 -> 7.5, 2 -> 15, clipped to 10
    action = ActionMap(STEERING, 'rescale')(torch.tensor([[0.0, -1.0], [1.0, 0.0], [-3.0, 0.5], [0.0, 2.0]]))
    np.testing.assert_array_equal(action, [[0, 0], [1, 5], [-1, 7.5], [0, 10]])


def test_discrete_index_counts_from_the_start_of_its_space() -> None:
    action = ActionMap(Discrete(3, start=5))(torch.tensor([0, 2]))
    np.testing.assert_array_equal(action, [5, 7])


def test_multi_discrete_of_two_dimensions_has_the_shape_of_its_space() -> None:
    action = ActionMap(MultiDiscrete((2, 3, 4, 5), (0, 0, 0, 0), (2, 2)))(torch.tensor([[1, 2, 3, 4]]))
    np.testing.assert_array_equal(action, [[[1, 2], [3, 4]]])


def test_integer_box_is_rounded_to_the_nearest_number_within_bounds() -> None:
    space = Box(np.array([0]), np.array([3]), 'int64')
    action = ActionMap(space, 'clip')(torch.tensor([[1.4], [1.6], [9.0]]))
    assert isinstance(action, np.ndarray) and action.dtype == np.int64
    np.testing.assert_array_equal(action, [[1], [2], [3]])


def test_dict_gives_each_leaf_its_columns_and_first_row_is_the_action_of_one_env() -> None:
    space = Dict({'gear': Discrete(4), 'lamps': MultiBinary((2,)), 'steering': STEERING})
    actions = ActionMap(space)(torch.tensor([[3.0, 1.0, 0.0, 0.25, 20.0], [1.0, 0.0, 1.0, -5.0, 3.0]]))
    assert isinstance(actions, dict)
    np.testing.assert_array_equal(actions['gear'], [3, 1])
    np.testing.assert_array_equal(actions['lamps'], [[1, 0], [0, 1]])
    np.testing.assert_array_equal(actions['steering'], [[0.25, 10], [-1, 3]])
    first = first_row(actions)
    assert isinstance(first, dict)
    assert first['gear'] == 3
    np.testing.assert_array_equal(first['steering'], [0.25, 10])


@pytest.mark.parametrize('mode', ['clip', 'rescale'])
def test_actions_that_need_a_gradient_are_taken_without_it(mode: str) -> None:
    action = ActionMap(STEERING, mode)(torch.zeros(1, 2, requires_grad=True))  # type: ignore[arg-type]
    assert isinstance(action, np.ndarray)
