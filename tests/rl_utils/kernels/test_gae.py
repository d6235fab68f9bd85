"""Kernel of the advantages against the float64 reference, by hand, strided, and with NaN."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.kernels.cases import (
    gae_case,
)
from tests.rl_utils.kernels.compare import (
    DEVICE,
    ON_KERNELS,
    moved,
)
from zoo.rl_utils import (
    gae,
    gae_data,
    gae_return,
)
from zoo.rl_utils.gae import gae_estimate

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = ON_KERNELS
GAE_SHAPES = [(1,), (7,), (600,), (128, 9), (1100, 4), (3, 300), (5, 3, 2), (130, 2, 3)]
FLAGS = [('none', torch.bool), ('done', torch.bool), ('both', torch.float32), ('both', torch.int64)]


@pytest.mark.slow
@pytest.mark.parametrize(
    'shape, flags, kind',
    [*((shape, 'both', torch.bool) for shape in GAE_SHAPES), *(((9, 2, 3), *each) for each in FLAGS)],
    ids=str,
)
def test_gae_kernel_equals_float64_reference(shape, flags, kind):
    data = gae_case(shape, flags, kind)
    got, wanted = gae_return(moved(data), 0.97, 0.9), gae_return(moved(data, torch.float64), 0.97, 0.9)
    for x, y in zip(got, wanted, strict=True):  # sums of about ten terms of size 1
        torch.testing.assert_close(x.double(), y.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(gae(moved(data), 0.97, 0.9), got.adv)


def test_gae_kernel_where_all_is_done_is_reward_minus_value():
    data = moved(gae_case((9, 4)))
    end = torch.ones(9, 4, dtype=torch.bool, device=DEVICE)
    for traj_flag in (None, end):
        adv = gae(data._replace(done=end, traj_flag=traj_flag), 1.0, 1.0)
        torch.testing.assert_close(adv, data.reward - data.value)


def test_gae_kernel_mean_of_large_advantages_keeps_the_spread():
    # rewards 10,000 +- 1 with every row an end: adv = reward, so mean 10,000 and std 1 exactly
    reward = torch.tensor([9999.0, 10001.0], device=DEVICE).repeat(300).view(300, 2)
    zero, end = torch.zeros_like(reward), torch.ones_like(reward)
    result = gae_return(gae_data(zero, zero, reward, end, end))
    assert float(result.mean) == 10_000 and float(result.std) == pytest.approx(1, abs=1e-6)


def test_gae_kernel_as_estimator_by_hand():
    # delta = 1 + .5 * 2 - 1 = 1 and 1 + .5 * 4 - 2 = 1; adv = 1 + .25 * 1 and 1; of lambda 1: 1 + .5 * 1 and 1
    value, next_value, reward = torch.tensor([[[1.0], [2.0]], [[2.0], [4.0]], [[1.0], [1.0]]], device=DEVICE)
    data = gae_data(value, next_value, reward, None, None)
    found = [gae_estimate(data, 0.5, 0.5), gae_estimate(data, 0.5, 0.5, value_lambda=1.0)]
    assert [(adv.flatten().tolist(), return_.flatten().tolist()) for adv, return_ in found] == [
        ([1.25, 1.0], [2.25, 3.0]),
        ([1.25, 1.0], [2.5, 3.0]),
    ]


def test_gae_kernel_of_strided_inputs_equals_that_of_copies():
    data = gae_case((12, 6))
    strided = gae_data(*(x.to(DEVICE).t().contiguous().t() for x in data))
    assert not strided.value.is_contiguous()
    assert torch.equal(gae(strided), gae(moved(data)))


@pytest.mark.parametrize('field', ['value', 'next_value', 'reward', 'done', 'traj_flag'])
def test_gae_kernel_of_nan_gives_nan(field):
    data = moved(gae_case((9, 2), kind=torch.float32))
    getattr(data, field)[4, 1] = torch.nan
    adv = gae(data)
    assert adv[3, 1].isnan() and adv[:, 0].isfinite().all()
