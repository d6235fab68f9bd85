"""Kernel of the policy loss, forward and backward, against the float64 reference; ties, large ratios, weights, NaN."""

from __future__ import annotations

import pytest
import torch

from tests.rl_utils.kernels.cases import (
    DISTS,
    each_case,
    policy_case,
)
from tests.rl_utils.kernels.compare import (
    ON_KERNELS,
    assert_close,
    finish,
    moved,
    policy_results,
    set_mode,
)
from zoo.rl_utils import (
    Categorical,
    Gaussian,
    MultiCategorical,
    kernels,
    ppo_policy_data,
    ppo_policy_error,
    surrogates,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = ON_KERNELS


@pytest.mark.slow
@each_case
def test_policy_kernel_equals_float64_reference(dist, lead, options):
    data, dual_clip = policy_case(dist, *lead, **options), None if lead[0] == 7 else 1.5
    got, wanted = (
        policy_results(moved(data, dtype), dual_clip=dual_clip, dist=dist) for dtype in (None, torch.float64)
    )
    assert_close(got, wanted, data.logit_new.dtype)


@pytest.mark.parametrize(
    'dist, dual_clip, weight', [(DISTS[0], None, False), (DISTS[1], 1.5, True), (DISTS[2], None, True)]
)
def test_policy_kernel_of_spo_equals_float64_reference(dist, dual_clip, weight):
    """Calls the kernel directly; the losses get it from `find`."""
    data = policy_case(dist, 7, weight=weight)

    def results(data, kernel):
        if kernel:
            args = data[:5]
            found = kernels.find('ppo_policy_error', *args, dist=dist, numbers=(0.1, dual_clip), part=surrogates.spo)
            policy_loss, entropy_loss, *info = found(dist, *args, 0.1, dual_clip, surrogates.spo)
        else:
            loss, info = ppo_policy_error(data, 0.1, dual_clip, surrogate=surrogates.spo, dist=dist)
            policy_loss, entropy_loss = loss.policy_loss, loss.entropy_loss
        (0.7 * policy_loss - 0.3 * entropy_loss).backward()
        return finish([policy_loss, entropy_loss, *info], data, data.adv.numel())

    assert_close(results(moved(data), True), results(moved(data, torch.float64), False))


def test_policy_kernel_at_ties_equals_float32_reference(monkeypatch):
    # equal logits: every ratio is 1 and min(r * adv, clip(r) * adv) a tie; 1 + 1e-9 is 1 in float32, so that the dual
    # bound is a tie too
    logit = torch.randn(6, 3)
    action, adv = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([1.0, -1.0, 0.0, 2.0, -2.0, 0.0])
    data = ppo_policy_data(logit.clone().requires_grad_(), logit, action, adv)
    for dual_clip in (None, 1 + 1e-9):
        got = policy_results(moved(data), dual_clip=dual_clip)
        set_mode(monkeypatch, '0')
        assert_close(got, policy_results(moved(data), dual_clip=dual_clip))
        set_mode(monkeypatch, 'interpret')


@pytest.mark.parametrize('gaussian', [False, True])
@pytest.mark.parametrize('dual_clip', [None, 3.0])
def test_policy_kernel_caps_the_ratio_as_the_reference(gaussian, dual_clip, monkeypatch):
    # log ratios: four of 100 and one of 80; 9 * e^88 is beyond float32
    log_ratio, adv = torch.tensor([100.0, 100.0, 100.0, 100.0, 80.0]), torch.tensor([1.0, -1.0, -9.0, -1e-30, -1e-30])
    if gaussian:  # log ratio of N(a - 1, 1) to N(0, 1) at a: (a^2 - 1) / 2
        action = (2 * log_ratio + 1).sqrt().unsqueeze(-1)
        new, old = torch.cat((action - 1, torch.ones(5, 1)), -1), torch.tensor([[0.0, 1.0]]).repeat(5, 1)
    else:  # log ratio of logits (-x, x) to (x, -x) at choice 1: 2 x
        action, old = torch.ones(5, dtype=torch.int64), torch.stack((log_ratio, -log_ratio), -1) / 2
        new = -old
    data = ppo_policy_data(new.requires_grad_(), old, action, adv)
    results = []
    for mode in ('interpret', '0'):
        set_mode(monkeypatch, mode)
        copy = moved(data)
        loss, info = ppo_policy_error(copy, dual_clip=dual_clip, dist=Gaussian(1) if gaussian else Categorical(2))
        loss.policy_loss.backward()
        results.append((loss.policy_loss.detach(), *info, copy.logit_new.grad))
    got, wanted = results
    assert got[0].isinf() == (dual_clip is None) and not got[-1][:4].any()
    for x, y in zip(got, wanted, strict=True):  # relative error of e^80: that of the exponent, 80 * 6e-8
        torch.testing.assert_close(x, y, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize('dist', DISTS[::2], ids=lambda dist: dist.name)
def test_policy_kernel_of_rows_without_weight_takes_nothing_from_them(dist):
    data = policy_case(dist, 9, weight=True)
    data.weight[4] = 0.0
    wanted = policy_results(moved(data), dist=dist)
    with torch.no_grad():
        data.logit_new[4, :2] = torch.tensor([200.0, -200.0])
        data.logit_old[4, :2] = torch.tensor([-200.0, 200.0])  # a ratio of e^400, beyond float32
        data.adv[4], data.action[4] = 5.0, 0
    assert_close(policy_results(moved(data), dist=dist), wanted)


@pytest.mark.parametrize('dist', DISTS[::2], ids=lambda dist: dist.name)
@pytest.mark.parametrize('field', ['logit_new', 'logit_old', 'adv', 'weight'])
def test_policy_kernel_of_nan_gives_nan(field, dist):
    data = moved(policy_case(dist, 9, weight=True))
    data.weight.fill_(1.0)
    with torch.no_grad():
        x = getattr(data, field)
        x[(4, -1)[: x.dim()]] = torch.nan  # one option of a row
    loss, info = ppo_policy_error(data, dist=dist)
    assert loss.policy_loss.isnan()
    assert field in ('adv', 'weight') or info.clipfrac.isnan() and info.approx_kl.isnan()
    loss.policy_loss.backward()
    assert data.logit_new.grad[4].isnan().any() and data.logit_new.grad[:4].isfinite().all()


@pytest.mark.parametrize(
    'dist, action',
    [
        *((Categorical(3), action) for action in (-1, 3, 7)),
        # 3 is not an option of the first choice, although the row has a fourth logit
        *((MultiCategorical((3, 4)), action) for action in ([-1, 0], [3, 0], [0, -1], [0, 4])),
    ],
)
def test_policy_kernel_of_an_action_outside_its_choice_gives_nan(dist, action):
    data = moved(policy_case(dist, 9))
    data.action[4] = torch.tensor(action)
    assert ppo_policy_error(data, dist=dist)[0].policy_loss.isnan()
