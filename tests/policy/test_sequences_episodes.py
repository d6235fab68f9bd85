"""The reset of recurrent states in rows where an episode begins."""

from __future__ import annotations

import torch

from tests.crossings import Crossings
from zoo.policy.sequences import replace_rows


def test_replaced_rows_are_those_marked():
    old, new = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[7.0], [8.0], [9.0]])
    got = replace_rows(torch.tensor([False, True, False]), {'h': new}, {'h': old})
    assert got['h'].tolist() == [[1.0], [8.0], [3.0]] and old.tolist() == [[1.0], [2.0], [3.0]]


def test_rows_of_a_state_on_a_device_are_replaced_without_waiting():
    state = {'h': torch.zeros(3, 2, device='meta'), 'c': torch.zeros(3, device='meta')}
    with Crossings() as crossings:
        replace_rows(torch.tensor([True, False, True]), state, state)
    assert crossings.waited == [] and crossings.n_sent == 2
