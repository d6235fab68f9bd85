"""Normalised inputs: statistics of their own, per entry of an observation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Dict, Discrete
from zoo.model.normalized_input import NormalizedInput

PLACE = Box(np.full(2, -np.inf), np.full(2, np.inf))


def test_inputs_are_normalised_by_the_rows_that_count_and_clipped() -> None:
    network = NormalizedInput(PLACE, clip=1.5)
    rows = torch.tensor([[1.0, 0.0], [3.0, 4.0], [900.0, 900.0]])
    network.update_statistics(rows, torch.tensor([1.0, 1.0, 0.0]))  # means 2 and 2, deviations 1 and 2
    found = network.encoder_inputs(torch.tensor([[3.0, 4.0], [9.0, 3.0]]))
    assert found.flatten().tolist() == pytest.approx([1.0, 1.0, 1.5, 0.5])


def test_each_entry_of_a_dict_has_statistics_of_its_own() -> None:
    network = NormalizedInput(Dict({'kind': Discrete(2), 'place': PLACE}), clip=10.0)
    obs = {'kind': torch.tensor([0, 1]), 'place': torch.tensor([[1.0, 5.0], [3.0, 5.0]])}
    network.update_statistics(obs, torch.ones(2))
    found = network.encoder_inputs(obs)
    assert found['place'][:, 0].tolist() == pytest.approx([-1.0, 1.0])
    assert found['kind'].tolist() == [pytest.approx([1.0, -1.0]), pytest.approx([-1.0, 1.0])]  # of one-hot vectors
