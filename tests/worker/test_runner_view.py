"""The view of a process that collects: the columns that its callbacks see, and the numbers that they log."""

from __future__ import annotations

import pytest
import torch

from zoo.core.data import Timestep
from zoo.core.errors import UserError
from zoo.env.interface import StepBlock
from zoo.worker.collector import RolloutExtras, rollout_columns
from zoo.worker.runner_view import RunnerView


def test_columns_have_the_observations_before_each_step_and_what_came_of_it() -> None:
    block = StepBlock(2, torch.zeros(3, 1))
    block.obs.copy_(torch.arange(9.0).reshape(3, 3, 1))
    block.steps.reward.fill_(0.5)
    extras = RolloutExtras({'action': torch.ones(2, 3)}, None, [], {'lean': torch.full((2, 3), 7.0)}, [])
    columns = rollout_columns(block, extras)
    assert isinstance(block.steps, Timestep)
    assert columns['obs'][:, 0, 0].tolist() == [0.0, 3.0]  # rows 0 and 1; row 2 is the observation after step 1
    assert columns['reward'].tolist() == [[0.5] * 3] * 2 and columns['info/lean'].tolist() == [[7.0] * 3] * 2
    assert {'obs', 'action', 'reward', 'terminated', 'truncated', 'info/lean'} == columns.keys()


def test_number_that_the_log_cannot_take_is_refused_where_it_is_logged() -> None:
    view = RunnerView(1, [])
    view.log('x', [1.0, 2.0])
    with pytest.raises(UserError, match="was called with reduce='mean'"):
        view.log('x', 1.0, reduce='max')
