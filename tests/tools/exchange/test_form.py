"""Tensors of other libraries at their places here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from zoo.tools.exchange.form import ModelFileError, NewPlace, channels_last, placed

PATH = Path('m.zip')


def test_columns_of_maps_change_from_channels_first_to_last() -> None:
    # columns c0h0w0 c0h0w1 c1h0w0 c1h0w1 become c0h0w0 c1h0w0 c0h0w1 c1h0w1
    weight = torch.tensor([[0.0, 1.0, 10.0, 11.0]])
    assert channels_last(2)(weight).tolist() == [[0, 10, 1, 11]]


def test_every_entry_needs_a_place_and_every_place_an_entry() -> None:
    places = {'a': NewPlace('x'), 'b': NewPlace('y', torch.neg)}
    tensors = {'a': torch.ones(1, dtype=torch.float64), 'b': torch.ones(2)}
    found = placed(tensors, places, PATH)
    assert found['x'].dtype == torch.float32 and found['y'].tolist() == [-1, -1]
    with pytest.raises(ModelFileError, match="has the entry 'c', which has no place"):
        placed({**tensors, 'c': torch.ones(1)}, places, PATH)
    with pytest.raises(ModelFileError, match="lacks the entry 'b'"):
        placed({'a': torch.ones(1)}, places, PATH)
