"""Kernel of the value loss, forward and backward, against the float64 reference; ties and NaN."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.kernels.cases import (
    value_case,
)
from tests.rl_utils.kernels.compare import (
    ON_KERNELS,
    assert_close,
    finish,
    moved,
    set_mode,
)
from zoo.rl_utils import (
    ppo_value_data,
    ppo_value_error,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = ON_KERNELS


@pytest.mark.parametrize(
    'shape, clip, weight',
    [
        ((1,), True, False),
        ((511,), False, True),
        ((3, 5, 7), True, True),
        ((5000,), True, True),
        ((5000,), False, False),
    ],
)
def test_value_kernel_equals_float64_reference(shape, clip, weight):
    data = value_case(*shape, weight=weight)

    def results(data):
        loss = ppo_value_error(data, use_value_clip=clip)
        (1.3 * loss).backward()
        return finish([loss], data, data.return_.numel())

    assert_close(results(moved(data)), results(moved(data, torch.float64)), n_sum=1)


def test_value_kernel_at_ties_equals_float32_reference(monkeypatch):
    # the change is exactly the clip range; in row 2 R is midway between V and V_clip, so (R - V)^2 = (R - V_clip)^2
    data = ppo_value_data(
        torch.tensor([0.5, -0.5, 2.0, 0.0], requires_grad=True), torch.zeros(4), torch.tensor([1.0, 1.0, 1.25, 0.0])
    )

    def results():
        copy = moved(data)
        loss = ppo_value_error(copy, clip_ratio=0.5)
        loss.backward()
        return finish([loss], copy, 4)

    got = results()
    # row 2: V = 2, V_clip = .5, R = 1.25: a tie, so half of V - R = .75
    torch.testing.assert_close(got[1], torch.tensor([-0.5, -1.5, 0.375, 0.0], dtype=torch.float64))
    set_mode(monkeypatch, '0')
    assert_close(got, results(), n_sum=1)


@pytest.mark.parametrize('field', ['value_new', 'value_old', 'return_'])
def test_value_kernel_of_nan_gives_nan(field):
    data = moved(value_case(9))
    with torch.no_grad():
        getattr(data, field)[4] = torch.nan
    loss = ppo_value_error(data)
    loss.backward()
    assert loss.isnan() and data.value_new.grad[4].isnan() and data.value_new.grad[:4].isfinite().all()
