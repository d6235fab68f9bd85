"""Kernels of distributions over choices: several choices, and choices that a mask forbids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu import no_waiting
from tests.rl_utils.kernels.cases import choices_case, joint_choices_case
from tests.rl_utils.kernels.compare import (
    DEVICE,
    assert_close,
    joint_results,
    leaves,
    moved,
    policy_results,
    set_mode,
)
from zoo.rl_utils import (
    Categorical,
    MultiCategorical,
    kernels,
    ppg_data,
    ppg_joint_error,
    ppo_policy_data,
    ppo_policy_error,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = pytest.mark.usefixtures('kernels_everywhere', 'poisoned_memory')

# Leading shape and nvec: one row; several tiles; groups of one option; 300 groups, that are computed 256 at a time;
# groups that are computed one at a time; a game's; more than one program
CASES = [
    ((1,), (2, 1)),
    ((7,), (3, 2)),
    ((5, 3), (5, 1, 33, 2, 7)),
    ((3,), (2,) * 300),
    ((2, 2), (300, 3, 257)),
    ((33,), (6, 4, 4, 4, 4, 7, 49)),
    ((600,), (3, 3)),
]
MASKED = ['', 'new', 'old', 'both']


def as_categorical(data: ppo_policy_data) -> ppo_policy_data:
    return data._replace(action=data.action[..., 0])


@pytest.mark.parametrize('masked', ['', 'both'])
@pytest.mark.parametrize('lead, nvec', CASES, ids=str)
def test_policy_kernel_of_several_choices_equals_float64_reference(lead, nvec, masked):
    weight, options = len(lead) == 2, {'dual_clip': None if lead[0] == 7 else 1.5, 'dist': MultiCategorical(nvec)}
    data = choices_case(*lead, nvec=nvec, masked=masked, weight=weight)
    assert_close(policy_results(moved(data), **options), policy_results(moved(data, torch.float64), **options))


@pytest.mark.parametrize('masked', ['', 'both'])
@pytest.mark.parametrize('lead, nvec', CASES, ids=str)
def test_joint_kernel_of_several_choices_equals_float64_reference(lead, nvec, masked):
    options = {'use_value_clip': lead[0] != 7, 'dist': MultiCategorical(nvec)}
    data = joint_choices_case(*lead, nvec=nvec, masked=masked, weight=len(lead) == 2)
    assert_close(joint_results(moved(data), **options), joint_results(moved(data, torch.float64), **options), n_sum=2)


@pytest.mark.slow
@pytest.mark.parametrize('lead, nvec', [((5, 3), (5, 1, 33, 2, 7)), ((7,), (18,))], ids=str)
def test_kernels_of_bfloat16_logits_equal_float64_reference(lead, nvec):
    dist = MultiCategorical(nvec)
    data = choices_case(*lead, nvec=nvec, masked='both', weight=True, dtype=torch.bfloat16)
    got, wanted = policy_results(moved(data), dist=dist), policy_results(moved(data, torch.float64), dist=dist)
    assert_close(got, wanted, torch.bfloat16)
    joint = joint_choices_case(*lead, nvec=nvec, masked='both', dtype=torch.bfloat16)
    got, wanted = joint_results(moved(joint), dist=dist), joint_results(moved(joint, torch.float64), dist=dist)
    assert_close(got, wanted, torch.bfloat16, n_sum=2)


@pytest.mark.parametrize('weight', [False, True])
@pytest.mark.parametrize('masked', MASKED)
@pytest.mark.parametrize('n_choice', [1, 5, 130])
def test_policy_kernel_of_masked_choices_equals_float64_reference(n_choice, masked, weight):
    data = as_categorical(choices_case(21, nvec=(n_choice,), masked=masked, weight=weight))
    options: dict[str, Any] = {'dual_clip': 1.5 if weight else None}
    assert_close(policy_results(moved(data), **options), policy_results(moved(data, torch.float64), **options))


@pytest.mark.parametrize('weight', [False, True])
@pytest.mark.parametrize('masked', ['', 'old', 'both'])
@pytest.mark.parametrize('n_choice', [1, 5, 130])
def test_joint_kernel_of_masked_choices_equals_float64_reference(n_choice, masked, weight):
    data = joint_choices_case(21, nvec=(n_choice,), masked=masked, weight=weight)
    assert_close(joint_results(moved(data)), joint_results(moved(data, torch.float64)), n_sum=2)


@pytest.mark.parametrize('nvec', [(6,), (4, 1, 3)], ids=str)
def test_gradients_of_masked_logits_are_exactly_zero(nvec):
    dist = MultiCategorical(nvec)
    data = moved(choices_case(50, nvec=nvec, masked='both', weight=True))
    joint = moved(joint_choices_case(50, nvec=nvec, masked='both', weight=True))
    for each, results in ((data, policy_results), (joint, joint_results)):
        found = results(each, dist=dist)
        gone = each.logit_new.isinf()
        assert all(x.isfinite().all() for x in found)
        assert gone.any() and (each.logit_new.grad[gone] == 0).all() and (each.logit_new.grad[~gone] != 0).any()


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


def test_joint_kernel_counts_nothing_where_the_old_probability_is_zero():
    # p_old = (3/4, 1/4, 0), p_new = 1/3 each: KL = .75 ln 2.25 + .25 ln .75 = .60820 - .07192; gradient p_new - p_old
    old = torch.tensor([[3.0, 1.0, 0.0]], device=DEVICE).log()
    new, zero = torch.zeros(1, 3, device=DEVICE, requires_grad=True), torch.zeros(1, device=DEVICE)
    loss = ppg_joint_error(ppg_data(new, old, None, zero, zero, zero)).behavioral_cloning_loss
    assert loss.item() == pytest.approx(0.5362771, abs=1e-6)
    loss.backward()
    torch.testing.assert_close(new.grad.cpu(), torch.tensor([[1 / 3 - 3 / 4, 1 / 3 - 1 / 4, 1 / 3]]))


def test_joint_kernel_of_an_option_that_only_new_forbids_is_infinite_with_a_finite_gradient():
    data = joint_choices_case(9, nvec=(4, 3), masked='new')
    dist = MultiCategorical((4, 3))
    got, wanted = joint_results(moved(data), dist=dist), joint_results(moved(data, torch.float64), dist=dist)
    assert got[1] == torch.inf and got[2].isfinite().all()
    assert_close(got, wanted, n_sum=2)


def test_masked_options_count_as_if_they_were_not_there():
    data = choices_case(40, nvec=(3, 2), weight=True)
    wanted = policy_results(moved(data), dist=MultiCategorical((3, 2)))
    place = torch.tensor(
        [0, 1, 2, 5, 6]
    )  # among 4 and 3 options: the first choice lacks its last, the second its first

    def spread(x: Tensor) -> Tensor:
        return torch.full((40, 7), -torch.inf).index_copy(1, place, x.detach())

    more = ppo_policy_data(
        spread(data.logit_new).requires_grad_(),
        spread(data.logit_old),
        data.action + torch.tensor([0, 1]),
        *data[3:],
    )
    *sums, grad = policy_results(moved(more), dist=MultiCategorical((4, 3)))
    assert_close([*sums, grad[:, place]], wanted)


@pytest.mark.parametrize('masked', ['', 'both'])
def test_kernels_of_one_choice_are_those_of_the_categorical_bit_by_bit(masked):
    data = choices_case(30, nvec=(5,), masked=masked, weight=True)
    one = policy_results(moved(data), dist=MultiCategorical((5,)))
    other = policy_results(moved(as_categorical(data)), dist=Categorical(5))
    joint = joint_choices_case(30, nvec=(5,), masked=masked, weight=True)
    one += joint_results(moved(joint), dist=MultiCategorical((5,)))
    other += joint_results(moved(joint), dist=Categorical(5))
    assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_kernels_of_several_choices_of_strided_inputs_equal_those_of_copies():
    def spread(x: Tensor | None) -> Tensor | None:
        """The same numbers, every second row and column of something larger."""
        if x is None:
            return None
        wide = x.detach().repeat_interleave(2, 0)
        wide = wide.repeat_interleave(2, -1)[..., ::2] if x.dim() > 1 else wide
        return wide[::2].requires_grad_(x.requires_grad)

    dist = MultiCategorical((3, 4))
    for case, results in ((choices_case, policy_results), (joint_choices_case, joint_results)):
        data = moved(case(21, nvec=(3, 4), weight=True))
        strided = type(data)(*map(spread, data))
        assert not strided.logit_new.is_contiguous()
        one, other = results(data, dist=dist), results(strided, dist=dist)
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_policy_kernel_of_several_choices_takes_smaller_integers_as_actions():
    data, dist = choices_case(9, nvec=(3, 4)), MultiCategorical((3, 4))
    one = policy_results(moved(data), dist=dist)
    other = policy_results(moved(data)._replace(action=data.action.to(DEVICE, torch.int32)), dist=dist)
    assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.filterwarnings('ignore:invalid value encountered')  # the interpreter is numpy, which tells of NaN
@pytest.mark.parametrize('action', [[-1, 0], [3, 0], [0, -1], [0, 4]])
def test_policy_kernel_of_an_action_outside_its_choice_gives_nan(action):
    # 3 is no option of the first choice, although the row has a fourth logit
    data = moved(choices_case(9, nvec=(3, 4)))
    data.action[4] = torch.tensor(action)
    assert ppo_policy_error(data, dist=MultiCategorical((3, 4)))[0].policy_loss.isnan()


@pytest.mark.filterwarnings('ignore:invalid value encountered')
@pytest.mark.parametrize('field', ['logit_new', 'logit_old'])
def test_kernels_of_several_choices_of_nan_give_nan(field):
    dist = MultiCategorical((3, 4))
    data, joint = moved(choices_case(9, nvec=(3, 4))), moved(joint_choices_case(9, nvec=(3, 4)))
    with torch.no_grad():
        getattr(data, field)[4, 5] = torch.nan
        getattr(joint, field)[4, 5] = torch.nan
    loss, info = ppo_policy_error(data, dist=dist)
    assert loss.policy_loss.isnan() and info.clipfrac.isnan() and info.approx_kl.isnan()
    loss.policy_loss.backward()
    assert data.logit_new.grad[4].isnan().any() and data.logit_new.grad[:4].isfinite().all()
    assert ppg_joint_error(joint, dist=dist).behavioral_cloning_loss.isnan()


def test_policy_kernel_of_several_choices_takes_nothing_from_rows_without_weight():
    dist, data = MultiCategorical((3, 2)), choices_case(9, nvec=(3, 2), weight=True)
    data.weight[4] = 0.0
    wanted = policy_results(moved(data), dist=dist)
    with torch.no_grad():  # a ratio of e^400, beyond float32
        data.logit_new[4] = torch.tensor([200.0, -200.0, 0.0, 0.0, 0.0])
        data.logit_old[4] = torch.tensor([-200.0, 200.0, 0.0, 0.0, 0.0])
        data.adv[4], data.action[4] = 5.0, 0
    assert_close(policy_results(moved(data), dist=dist), wanted)


@pytest.mark.slow
def test_kernels_of_several_choices_twice_are_bit_equal_and_change_no_input():
    dist = MultiCategorical((3, 4))
    for case, results in ((choices_case, policy_results), (joint_choices_case, joint_results)):
        data = case(700, nvec=(3, 4), masked='both', weight=True)
        first, second = moved(data), moved(data)
        pairs = zip(results(first, dist=dist), results(second, dist=dist), strict=True)
        assert all(torch.equal(x, y) for x, y in pairs)
        assert all(x is None or torch.equal(x, y.to(DEVICE)) for x, y in zip(first, data, strict=True))


@pytest.mark.parametrize('covered', [Categorical(7), MultiCategorical((7,)), MultiCategorical((3, 4))])
def test_a_subclass_uses_the_reference_although_it_inherits_the_name(covered):
    class Own(type(covered)):
        pass

    own = Own(covered.nvec if isinstance(covered, MultiCategorical) else covered.n_param)
    data = moved(choices_case(9, nvec=getattr(covered, 'nvec', (7,))))
    data = data if isinstance(covered, MultiCategorical) else as_categorical(data)
    for op in ('ppo_policy_error', 'ppg_joint_error'):
        assert (
            kernels.find(op, *data[:4], dist=covered).__module__ == f'zoo.rl_utils.kernels.{op.removesuffix("_error")}'
        )
        assert kernels.find(op, *data[:4], dist=own) is None
    assert kernels.explain('ppo_policy_error', *data[:4], dist=covered) == 'kernel: zoo.rl_utils.kernels.ppo_policy'
    assert kernels.explain('ppo_policy_error', *data[:4], dist=own) == (
        f'reference: the distribution {covered.name!r} (Own) is not covered, '
        'only categorical, multi_categorical and gaussian'
    )


@pytest.mark.parametrize(
    'nvec, reason',
    [
        ((16384, 16385), 'rows of 16385 are not covered, only up to 16384'),
        # padded to 10 * 91 = 910 of 100 logits, over 8 times as many
        ((1,) * 9 + (91,), '10 choices, the largest of 91 options, would take over 8 times their 100 logits'),
        ((1,) * 8 + (92,), '9 choices, the largest of 92 options, would take over 8 times their 100 logits'),
        ((1,) * 7 + (93,), ''),  # 8 * 93 = 744
        ((100,) * 200, ''),  # 20,000 logits, but 100 of a choice
    ],
    ids=['wide', 'skewed', 'just skewed', 'not skewed', 'long'],
)
def test_choices_of_sizes_that_no_kernel_takes_use_the_reference(nvec, reason):
    dist = MultiCategorical(nvec)
    row = torch.zeros(1, dist.n_param, device=DEVICE)
    assert (kernels.find('ppo_policy_error', row, row, dist=dist) is None) == bool(reason)
    wanted = f'reference: {reason}' if reason else 'kernel: zoo.rl_utils.kernels.ppo_policy'
    assert kernels.explain('ppo_policy_error', row, row, dist=dist) == wanted


@pytest.mark.long
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # torch's own tracer and compiler use what torch deprecates
@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)])
def test_kernels_of_several_choices_compile_without_graph_breaks(backend):
    dist = MultiCategorical((2, 5, len(backend)))  # used nowhere else: its bounds are made while the function is traced
    data = choices_case(30, nvec=dist.nvec), joint_choices_case(30, nvec=dist.nvec)

    def step(policy, joint):
        loss, info = ppo_policy_error(policy, dist=dist)
        total = loss.policy_loss - 0.01 * loss.entropy_loss + sum(ppg_joint_error(joint, dist=dist))
        return total, *info

    torch.compiler.reset()  # a dist of other sizes would make the sizes symbols
    found = []
    for run in (torch.compile(step, fullgraph=True, backend=backend), step):
        policy, joint = map(moved, data)
        results = run(policy, joint)
        results[0].backward()
        found.append([*results, *(x.grad for x in (*leaves(policy), *leaves(joint)))])
        assert (policy.adv.device, dist.nvec) in launch._bounds
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_find_is_traced_again_for_choices_of_other_sizes():
    # the second time a compiler takes the sizes for variables
    def policy_loss(data, dist):
        kernel = kernels.find('ppo_policy_error', *data[:5], dist=dist, numbers=(0.2, None))
        return kernel(dist, *data[:5], 0.2, None)[0]

    torch.compiler.reset()
    compiled = torch.compile(policy_loss, fullgraph=True, backend='aot_eager')
    for nvec in ((2, 5), (4, 6), (3, 3, 9)):
        data, dist = moved(choices_case(30, nvec=nvec)), MultiCategorical(nvec)
        torch.testing.assert_close(compiled(data, dist), policy_loss(data, dist))


@pytest.mark.slow
def test_ops_of_several_choices_pass_torchs_own_checks():
    nvec = (3, 4)
    policy, joint = moved(choices_case(30, nvec=nvec)), moved(joint_choices_case(30, nvec=nvec))
    for op in ('ppo_policy_error', 'ppg_joint_error'):
        kernels.find(op, torch.zeros(1, 1, device=DEVICE))  # which registers it
    ops, slope, one = torch.ops.zoo, torch.randn(30, device=DEVICE), torch.ones((), device=DEVICE)
    kind, new, old = 'multi_categorical', policy.logit_new.detach(), policy.logit_old
    values = joint.value_new.detach(), joint.value_old, joint.return_
    for op, args in (
        (ops.ppo_policy_error, (new, old, policy.action, policy.adv, None, 0.2, None, 'clip', kind, nvec)),
        (ops.ppo_policy_error_backward, (new, policy.action, slope, None, one, one, kind, nvec)),
        (ops.ppg_joint_error, (new, old, *values, None, None, kind, nvec)),
    ):
        assert set(torch.library.opcheck(op, args).values()) == {'SUCCESS'}


@pytest.mark.parametrize('tensor_number', [False, True])
def test_losses_of_several_choices_are_the_same_without_kernels(monkeypatch, tensor_number):
    data, dist = choices_case(40, nvec=(3, 4), masked='both', weight=True), MultiCategorical((3, 4))
    clip_ratio = torch.tensor(0.2) if tensor_number else 0.2  # a tensor is for the reference
    got = policy_results(moved(data), clip_ratio=clip_ratio, dist=dist)
    set_mode(monkeypatch, '0')
    assert_close(got, policy_results(moved(data), clip_ratio=clip_ratio, dist=dist))


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a CUDA device')
def test_kernels_of_several_choices_replay_from_a_graph_and_make_no_host_synchronisation():
    dist = MultiCategorical((3, 4))
    static, other = (moved(choices_case(700, nvec=(3, 4), masked='both', seed=seed)) for seed in (0, 1))
    ppo_policy_error(static, dist=dist)  # compiled, and its bounds made, before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = ppo_policy_error(static, dist=dist)[0].policy_loss
    with torch.no_grad():
        for x, y in zip(static[:4], other[:4], strict=True):
            x.copy_(y)
    with no_waiting():
        wanted = ppo_policy_error(other, dist=dist)[0].policy_loss
    for _ in range(2):
        graph.replay()
        assert torch.equal(loss, wanted)


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a CUDA device')
def test_kernels_of_several_choices_compile_into_cuda_graphs():
    dist = MultiCategorical((6, 3, 2))  # its bounds are first made while the function is traced
    data = moved(choices_case(700, nvec=(6, 3, 2)))
    compiled = torch.compile(lambda data: ppo_policy_error(data, dist=dist)[0].policy_loss, mode='reduce-overhead')
    results = []
    for _ in range(4):  # warmed up, captured, replayed
        torch.compiler.cudagraph_mark_step_begin()
        results.append(compiled(data).clone())
    wanted = ppo_policy_error(data, dist=dist)[0].policy_loss
    assert all(torch.equal(x, wanted) for x in results)
