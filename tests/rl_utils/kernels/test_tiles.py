"""Tiles of choices in kernels: masked choices by hand, their gradients, and groups of one choice."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import with_gpu_too
from tests.rl_utils.kernels.cases import (
    joint_case,
    policy_case,
)
from tests.rl_utils.kernels.compare import (
    DEVICE,
    equal,
    joint_results,
    moved,
    policy_results,
)
from zoo.rl_utils import (
    Categorical,
    MultiCategorical,
    ppo_policy_data,
    ppo_policy_error,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = [
    with_gpu_too,
    pytest.mark.usefixtures('kernels_everywhere', 'poisoned_memory'),
    # the interpreter uses numpy, which warns of NaN and of the overflow of 9 * e^88
    pytest.mark.filterwarnings('ignore:(invalid value|overflow) encountered'),
]


def test_kernels_of_masked_choices_give_the_numbers_worked_by_hand():
    # two choices of 2 and 3 options, one of the 3 forbidden, the rest equal: entropy ln 2 + ln 2; ratio 1, so the loss
    # is -mean(adv) and d / d logit = -adv (1[taken] - 1/2) of the allowed options
    logit = torch.tensor([[0.0, 0.0, 1.0, -torch.inf, 1.0]], device=DEVICE)
    action, adv = torch.tensor([[1, 2]], device=DEVICE), torch.tensor([3.0], device=DEVICE)
    new = logit.clone().requires_grad_()
    loss, info = ppo_policy_error(ppo_policy_data(new, logit, action, adv), dist=MultiCategorical((2, 3)))
    assert loss.entropy_loss.item() == pytest.approx(1.3862944, abs=1e-6)
    assert (loss.policy_loss.item(), info.approx_kl.item(), info.clipfrac.item()) == (-3.0, 0.0, 0.0)
    loss.policy_loss.backward()
    torch.testing.assert_close(new.grad.cpu(), torch.tensor([[1.5, -1.5, 1.5, 0.0, -1.5]]))


@pytest.mark.parametrize('dist', [Categorical(6), MultiCategorical((4, 1, 3))], ids=lambda dist: dist.name)
def test_gradients_of_masked_logits_are_exactly_zero(dist):
    for case, results in ((policy_case, policy_results), (joint_case, joint_results)):
        data = moved(case(dist, 50, masked='both', weight=True))
        assert all(x.isfinite().all() for x in results(data, dist=dist))
        gone, grad = data.logit_new.isinf(), data.logit_new.grad
        assert gone.any() and (grad[gone] == 0).all() and (grad[~gone] != 0).any()


@pytest.mark.parametrize('masked', ['', 'both'])
def test_kernels_of_one_choice_are_those_of_the_categorical_bit_by_bit_with_any_integers(masked):
    one, same = Categorical(5), MultiCategorical((5,))
    data, joint = policy_case(one, 30, masked=masked, weight=True), joint_case(one, 30, masked=masked, weight=True)
    small = data._replace(action=data.action.unsqueeze(-1).to(torch.int32))
    assert equal(policy_results(moved(data), dist=one), policy_results(moved(small), dist=same))
    assert equal(joint_results(moved(joint), dist=one), joint_results(moved(joint), dist=same))
