"""Kernel of PPG's joint loss, forward and backward, against the float64 reference; by hand, and with NaN."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.kernels.cases import (
    DISTS,
    each_case,
    joint_case,
)
from tests.rl_utils.kernels.compare import (
    DEVICE,
    ON_KERNELS,
    assert_close,
    joint_results,
    moved,
)
from zoo.rl_utils import (
    ppg_data,
    ppg_joint_error,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = ON_KERNELS


@pytest.mark.slow
@each_case
def test_joint_kernel_equals_float64_reference(dist, lead, options):
    # where only `new` forbids an option the divergence is infinite, but its gradient is finite
    data, clip = joint_case(dist, *lead, **options), lead[0] != 7
    got, wanted = (joint_results(moved(data, dtype), use_value_clip=clip, dist=dist) for dtype in (None, torch.float64))
    assert (got[1] == torch.inf) == (options.get('masked') == 'new') and got[2].isfinite().all()
    assert_close(got, wanted, data.logit_new.dtype, n_sum=2)


def test_joint_kernel_counts_nothing_where_the_old_probability_is_zero():
    # p_old = (3/4, 1/4, 0), p_new = 1/3 each: KL = .75 ln 2.25 + .25 ln .75 = .60820 - .07192; gradient p_new - p_old
    old = torch.tensor([[3.0, 1.0, 0.0]], device=DEVICE).log()
    new, zero = torch.zeros(1, 3, device=DEVICE, requires_grad=True), torch.zeros(1, device=DEVICE)
    loss = ppg_joint_error(ppg_data(new, old, None, zero, zero, zero)).behavioral_cloning_loss
    assert loss.item() == pytest.approx(0.5362771, abs=1e-6)
    loss.backward()
    torch.testing.assert_close(new.grad.cpu(), torch.tensor([[1 / 3 - 3 / 4, 1 / 3 - 1 / 4, 1 / 3]]))


@pytest.mark.parametrize('dist', DISTS[::2], ids=lambda dist: dist.name)
@pytest.mark.parametrize('field', ['logit_new', 'logit_old', 'return_', 'weight'])
def test_joint_kernel_of_nan_gives_nan(field, dist):
    data = moved(joint_case(dist, 9, weight=True))
    with torch.no_grad():
        x = getattr(data, field)
        x[(4, -1)[: x.dim()]] = torch.nan  # one option of a row
    loss = ppg_joint_error(data, dist=dist)
    assert loss.auxiliary_loss.isnan() == (field in ('return_', 'weight'))
    assert loss.behavioral_cloning_loss.isnan() == (field != 'return_')
