"""Trees of states with integer keys, with lists of tensors, and with text keys that look like either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zoo.run.checkpoint.file import from_tree, is_numbered, split, to_tree


@pytest.mark.parametrize(
    'state',
    [
        {'a': {0: 1, 7: {'b': 2}, -3: None}},
        {'#0': 1, '##0': 2, '#': 3, '#[0]': 4, 0: 5},
        {'a': [1, {'b': [2, {3: 4}]}]},
        {'a': {'#[0]': 1, 'b': 2}},
        {'x/y': 1, '': 2, '~': 3, '~1/~0': 4, '#~': 5, '/': {'': 6}},
        {'a': [], 'b': {}},
        {10**17: 1, 10**18: 2, -(10**19): 3, 2**64: 4, 2**128: 5, 10**40 - 1: 6},
    ],
)
def test_tree_has_text_keys_alone_and_comes_back(state: dict[Any, Any]) -> None:
    tree = to_tree(state)
    split(tree)  # raises if a key is not text
    assert from_tree(tree) == state


def test_list_of_tensors_comes_back_in_order() -> None:
    state = {'a': [torch.full((2,), float(i)) for i in range(12)], 'b': [{'c': torch.ones(1)}, 2]}
    tensors, _ = split(to_tree(state))
    assert len(tensors) == 13
    back = from_tree(to_tree(state))
    assert [int(x[0]) for x in back['a']] == list(range(12)) and back['b'][1] == 2


def test_integer_that_would_come_back_as_text_is_refused() -> None:
    for key in (10**40, -(10**40)):
        with pytest.raises(TypeError, match='an integer of more than 40 digits as a key; use a text'):
            to_tree({'a': {key: 1}})


def test_tuple_comes_back_as_a_list() -> None:
    assert from_tree(to_tree({'betas': (0.9, 0.999)})) == {'betas': [0.9, 0.999]}


@pytest.mark.parametrize(('value', 'found'), [({0: 1}, True), ({}, False), ({'0': 1}, False), ({0: 1, 'a': 2}, False)])
def test_numbered_is_a_dict_with_integers_alone(value: dict[Any, Any], found: bool) -> None:
    assert is_numbered(value) is found


def test_numbers_of_numpy_are_those_of_python() -> None:
    state = {'a': np.int64(3), 'b': [np.float32(0.5), np.bool_(True)], 'c': {'d': np.str_('x')}}
    tensors, values = split(to_tree(state))
    assert not tensors and values == {'a': 3, 'b': [0.5, True], 'c': {'d': 'x'}}
    assert [type(x) for x in (values['a'], *values['b'], values['c']['d'])] == [int, float, bool, str]
