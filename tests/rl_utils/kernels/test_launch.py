"""Every kernel, forward and backward, against the float64 reference; uncovered inputs are in test_find.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu import needs_gpu, no_waiting, with_gpu_too
from tests.rl_utils.kernels.cases import gae_case, joint_case, policy_case, value_case
from tests.rl_utils.kernels.compare import (
    DEVICE,
    assert_close,
    finish,
    joint_results,
    leaves,
    moved,
    policy_results,
    set_mode,
)
from zoo.rl_utils import (
    ActionDist,
    Categorical,
    FlatAdam,
    Gaussian,
    MultiCategorical,
    gae,
    gae_data,
    gae_return,
    kernels,
    ppg_data,
    ppg_joint_error,
    ppo_policy_data,
    ppo_policy_error,
    ppo_value_data,
    ppo_value_error,
    surrogates,
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = [
    with_gpu_too,
    pytest.mark.usefixtures('kernels_everywhere', 'poisoned_memory'),
    # the interpreter uses numpy, which warns of NaN and of the overflow of 9 * e^88
    pytest.mark.filterwarnings('ignore:(invalid value|overflow) encountered'),
]
BFLOAT16 = dict(dtype=torch.bfloat16)
DISTS = [Categorical(5), Gaussian(3), MultiCategorical((3, 4))]
each_dist = pytest.mark.parametrize('dist', DISTS, ids=lambda dist: dist.name)
MANY = MultiCategorical((5, 1, 33, 2, 7))

# One row; several tiles; more than one program; rows wider than a tile; masks of new and of old; choices of one option; 300
# choices, which are computed 256 at a time; choices that are computed one at a time; a game's choices
CASES: list[tuple[ActionDist, tuple[int, ...], dict[str, Any]]] = [
    *((kind(1), (1,), {}) for kind in (Categorical, Gaussian)),
    *((kind(3), (7,), {}) for kind in (Categorical, Gaussian)),
    *((kind(2), (600,), {}) for kind in (Categorical, Gaussian)),
    *((kind(18), (5, 3), dict(weight=True)) for kind in (Categorical, Gaussian)),
    *((kind(18), (5, 3), dict(BFLOAT16, weight=True)) for kind in (Categorical, Gaussian)),
    *((kind(5), (2, 3, 4), {}) for kind in (Categorical, Gaussian)),
    *((kind(130), (9,), BFLOAT16) for kind in (Categorical, Gaussian)),
    *((kind(4100), (3,), {}) for kind in (Categorical, Gaussian)),
    (Categorical(1), (21,), dict(masked='both', weight=True)),
    *((Categorical(5), (21,), dict(masked=masked, weight=masked == 'old')) for masked in ('new', 'old', 'both')),
    (Categorical(130), (9,), dict(masked='both', weight=True)),
    (MultiCategorical((2, 1)), (1,), {}),
    (MultiCategorical((3, 2)), (7,), dict(masked='both')),
    (MultiCategorical((4, 3)), (9,), dict(masked='new')),
    (MANY, (5, 3), dict(weight=True)),
    (MANY, (5, 3), dict(BFLOAT16, masked='both', weight=True)),
    (MultiCategorical((18,)), (7,), dict(BFLOAT16, masked='both')),
    (MultiCategorical((2,) * 300), (3,), dict(masked='both')),
    (MultiCategorical((300, 3, 257)), (2, 2), dict(weight=True)),
    (MultiCategorical((6, 4, 4, 4, 4, 7, 49)), (9,), dict(masked='both')),
    (MultiCategorical((3, 3)), (150,), {}),
]
each_case = pytest.mark.parametrize(
    'dist, lead, options',
    CASES,
    ids=[f'{dist.name} {dist.n_param} {lead} {" ".join(map(str, options.values()))}' for dist, lead, options in CASES],
)


def test_kernels_are_what_is_found():
    data, joint, value = moved(policy_case(Gaussian(3), 7)), moved(joint_case(Gaussian(3), 7)), moved(value_case(7))
    parts = [{'mu': x[:, :3], 'sigma': x[:, 3:]} for x in data[:2]]
    for op, args, options in (
        ('ppo_policy_error', (*parts, *data[2:]), {}),
        ('ppo_policy_error', data, dict(dist=Gaussian(3))),
        ('ppg_joint_error', (*joint[:2], *joint[3:]), dict(dist=Gaussian(3))),
        ('ppo_value_error', value, {}),
        ('gae', moved(gae_case((9, 4))), {}),
    ):
        module = f'zoo.rl_utils.kernels.{op.removesuffix("_error")}'
        assert kernels.explain(op, *args, **options) == f'kernel: {module}'
        if not isinstance(args[0], dict):
            assert kernels.find(op, *args, **options).__module__ == module


@pytest.mark.slow
@each_case
def test_policy_kernel_equals_float64_reference(dist, lead, options):
    data, dual_clip = policy_case(dist, *lead, **options), None if lead[0] == 7 else 1.5
    got, wanted = (
        policy_results(moved(data, dtype), dual_clip=dual_clip, dist=dist) for dtype in (None, torch.float64)
    )
    assert_close(got, wanted, data.logit_new.dtype)


@pytest.mark.slow
@each_case
def test_joint_kernel_equals_float64_reference(dist, lead, options):
    # where only `new` forbids an option the divergence is infinite, but its gradient is finite
    data, clip = joint_case(dist, *lead, **options), lead[0] != 7
    got, wanted = (joint_results(moved(data, dtype), use_value_clip=clip, dist=dist) for dtype in (None, torch.float64))
    assert (got[1] == torch.inf) == (options.get('masked') == 'new') and got[2].isfinite().all()
    assert_close(got, wanted, data.logit_new.dtype, n_sum=2)


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


# ---- numbers worked by hand, ties, and numbers that overflow


def test_gae_kernel_mean_of_large_advantages_keeps_the_spread():
    # rewards 10,000 +- 1 with every row an end: adv = reward, so mean 10,000 and std 1 exactly
    reward = torch.tensor([9999.0, 10001.0], device=DEVICE).repeat(300).view(300, 2)
    zero, end = torch.zeros_like(reward), torch.ones_like(reward)
    result = gae_return(gae_data(zero, zero, reward, end, end))
    assert float(result.mean) == 10_000 and float(result.std) == pytest.approx(1, abs=1e-6)


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


# ---- rows and logits without influence; strided inputs; equal bits; training steps


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


@pytest.mark.parametrize('dist', [Categorical(6), MultiCategorical((4, 1, 3))], ids=lambda dist: dist.name)
def test_gradients_of_masked_logits_are_exactly_zero(dist):
    for case, results in ((policy_case, policy_results), (joint_case, joint_results)):
        data = moved(case(dist, 50, masked='both', weight=True))
        assert all(x.isfinite().all() for x in results(data, dist=dist))
        gone, grad = data.logit_new.isinf(), data.logit_new.grad
        assert gone.any() and (grad[gone] == 0).all() and (grad[~gone] != 0).any()


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.slow
@each_dist
def test_kernels_of_strided_inputs_equal_those_of_copies(dist):
    def spread(x: Tensor | None, columns: bool) -> Tensor | None:
        """The same numbers in every second row (and column) of a larger tensor."""
        if x is None:
            return None
        wide = x.detach().repeat_interleave(2, 0)
        if columns and x.dim() > 1:
            wide = wide.repeat_interleave(2, -1)[..., ::2]
        return wide[::2].requires_grad_(x.requires_grad)

    for case, results in ((policy_case, policy_results), (joint_case, joint_results)):
        data = moved(case(dist, 21, weight=True))
        for columns in (False, True):
            strided = type(data)(*(spread(x, columns) for x in data))
            assert not strided.logit_new.is_contiguous()
            assert equal(results(moved(data), dist=dist), results(strided, dist=dist))


def test_gae_kernel_of_strided_inputs_equals_that_of_copies():
    data = gae_case((12, 6))
    strided = gae_data(*(x.to(DEVICE).t().contiguous().t() for x in data))
    assert not strided.value.is_contiguous()
    assert torch.equal(gae(strided), gae(moved(data)))


@pytest.mark.parametrize('masked', ['', 'both'])
def test_kernels_of_one_choice_are_those_of_the_categorical_bit_by_bit_with_any_integers(masked):
    one, same = Categorical(5), MultiCategorical((5,))
    data, joint = policy_case(one, 30, masked=masked, weight=True), joint_case(one, 30, masked=masked, weight=True)
    small = data._replace(action=data.action.unsqueeze(-1).to(torch.int32))
    assert equal(policy_results(moved(data), dist=one), policy_results(moved(small), dist=same))
    assert equal(joint_results(moved(joint), dist=one), joint_results(moved(joint), dist=same))


def value_results(data: ppo_value_data) -> list[Tensor]:
    return [ppo_value_error(data).detach()]


@pytest.mark.slow
@pytest.mark.parametrize(
    'results, data',
    [  # each op, with inputs for more than one program
        *((lambda d, dist=dist: policy_results(d, dist=dist), policy_case(dist, 300, weight=True)) for dist in DISTS),
        *((lambda d, dist=dist: joint_results(d, dist=dist), joint_case(dist, 300)) for dist in DISTS),
        (value_results, value_case(1500)),
        (lambda d: list(gae_return(d)), gae_case((3, 140))),
    ],
    ids=[*(f'{op} {dist.name}' for op in ('policy', 'joint') for dist in DISTS), 'value', 'gae'],
)
def test_kernel_twice_is_bit_equal_and_changes_no_input(results: Callable[[Any], list[Tensor]], data: Any):
    first, second = moved(data), moved(data)
    assert equal(results(first), results(second))
    assert all(x is None or torch.equal(x, y.to(DEVICE)) for x, y in zip(first, data, strict=True))


def test_losses_of_kernels_may_be_changed_in_place():
    dist = Categorical(3)
    policy, joint, value = moved(policy_case(dist, 9)), moved(joint_case(dist, 9)), moved(value_case(9))
    total = ppo_policy_error(policy)[0].policy_loss
    for loss in (ppo_policy_error(policy)[0].entropy_loss, *ppg_joint_error(joint), ppo_value_error(value)):
        loss *= 0.5
        total += loss
    total.backward()
    assert all(x.grad.isfinite().all() for x in (*leaves(policy), *leaves(joint), *leaves(value)))


@each_dist
def test_a_training_step_with_kernels_is_the_step_without(dist, monkeypatch):
    found = []
    for mode in ('interpret', '0'):
        set_mode(monkeypatch, mode)
        data = moved(joint_case(dist, 20, weight=True))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            head = dist.make_head(5, {})
        head, feature = head.to(DEVICE), torch.linspace(-1, 1, 100, device=DEVICE).view(20, 5)
        optimizer = FlatAdam(head.named_parameters())
        param = head(feature)
        action = dist.sample(param.detach(), param.new_zeros(20, dist.n_noise))
        old = param.detach() * 1.1
        policy = ppo_policy_data(param, old, action, data.return_, data.weight)
        loss = ppo_policy_error(policy, dist=dist)[0]
        cloning = ppg_joint_error(ppg_data(param, old, None, *data[3:]), dist=dist).behavioral_cloning_loss
        (loss.policy_loss - 0.03 * loss.entropy_loss + cloning).backward()
        found.append(optimizer.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


# ---- NaN, and actions outside their choice


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


@pytest.mark.parametrize('field', ['value_new', 'value_old', 'return_'])
def test_value_kernel_of_nan_gives_nan(field):
    data = moved(value_case(9))
    with torch.no_grad():
        getattr(data, field)[4] = torch.nan
    loss = ppo_value_error(data)
    loss.backward()
    assert loss.isnan() and data.value_new.grad[4].isnan() and data.value_new.grad[:4].isfinite().all()


@pytest.mark.parametrize('field', ['value', 'next_value', 'reward', 'done', 'traj_flag'])
def test_gae_kernel_of_nan_gives_nan(field):
    data = moved(gae_case((9, 2), kind=torch.float32))
    getattr(data, field)[4, 1] = torch.nan
    adv = gae(data)
    assert adv[3, 1].isnan() and adv[:, 0].isfinite().all()


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


# ---- compilers


@pytest.mark.soak
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # torch's own tracer and compiler use what torch deprecates
@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)])
def test_kernels_compile_without_graph_breaks(backend):
    # no other test uses the sizes of the second distribution: its bounds are made while the function is traced
    dists = Categorical(3), MultiCategorical((2, 5, len(backend)))
    data = [case(dist, 30) for dist in dists for case in (policy_case, joint_case)] + [value_case(30), gae_case((9, 4))]

    def step(policy, joint, policies, joints, value, rollout):
        total, metrics = ppo_value_error(value), []
        for dist, p, j in zip(dists, (policy, policies), (joint, joints), strict=True):
            loss, info = ppo_policy_error(p, dist=dist)
            total = total + loss.policy_loss - 0.01 * loss.entropy_loss + sum(ppg_joint_error(j, dist=dist))
            metrics.extend(info)
        return total, gae(rollout), *metrics

    torch.compiler.reset()  # a trace with other sizes would make the sizes symbolic
    found = []
    for run in (torch.compile(step, fullgraph=True, backend=backend), step):
        inputs = list(map(moved, data))
        results = run(*inputs)
        results[0].backward()
        found.append([*results, *(x.grad for each in inputs for x in leaves(each))])
        bounds = [launch.bounds(dists[1].nvec, inputs[2].adv.device) for _ in range(2)]
        assert bounds[0] is bounds[1]  # the bounds are cached
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_find_is_traced_again_for_choices_of_other_sizes():
    # at the second trace a compiler treats the sizes as variables
    def policy_loss(data, dist):
        kernel = kernels.find('ppo_policy_error', *data[:5], dist=dist, numbers=(0.2, None))
        return kernel(dist, *data[:5], 0.2, None)[0]

    torch.compiler.reset()
    compiled = torch.compile(policy_loss, fullgraph=True, backend='aot_eager')
    for nvec in ((2, 5), (4, 6), (3, 3, 9)):
        dist = MultiCategorical(nvec)
        data = moved(policy_case(dist, 30))
        torch.testing.assert_close(compiled(data, dist), policy_loss(data, dist))


@pytest.mark.slow
@pytest.mark.parametrize('dist', DISTS[::2], ids=lambda dist: dist.name)
def test_ops_pass_torchs_own_checks(dist):
    for op in ('gae', 'ppo_policy_error', 'ppo_value_error', 'ppg_joint_error'):
        kernels.find(op, torch.zeros(1, 1, device=DEVICE))  # find registers the op
    cases = policy_case(dist, 30), joint_case(dist, 30), value_case(30), gae_case((9, 4))
    policy, joint, value, rollout = map(moved, cases)
    ops, slope, one = torch.ops.zoo, torch.randn(30, device=DEVICE), torch.ones((), device=DEVICE)
    kind, new, old = (dist.name, list(getattr(dist, 'nvec', []))), policy.logit_new.detach(), policy.logit_old
    values = joint.value_new.detach(), joint.value_old, joint.return_
    for op, args in (
        (ops.ppo_policy_error, (new, old, policy.action, policy.adv, None, 0.2, None, 'clip', *kind)),
        (ops.ppo_policy_error_backward, (new, policy.action, slope, None, one, one, *kind)),
        (ops.ppo_value_error, (value[0].detach(), value[1], value[2], None, 0.2)),
        (ops.ppg_joint_error, (new, old, *values, None, None, *kind)),
        (ops.gae, (*rollout, 0.99, 0.95, True)),
    ):
        assert set(torch.library.opcheck(op, args).values()) == {'SUCCESS'}


# ---- tests that need a GPU


@needs_gpu
@each_dist
def test_kernels_inside_a_captured_graph_replay_on_new_inputs(dist):
    data, other = (moved(policy_case(dist, 700, seed=seed)) for seed in (0, 1))
    static = moved(data)
    ppo_policy_error(static, dist=dist)  # compiles the kernel and makes its bounds before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = ppo_policy_error(static, dist=dist)[0].policy_loss
    with torch.no_grad():
        for x, y in zip(static[:4], other[:4], strict=True):
            x.copy_(y)
    for _ in range(2):  # each replay leaves the kernel's counter at zero
        graph.replay()
        assert torch.equal(loss, ppo_policy_error(other, dist=dist)[0].policy_loss)


@needs_gpu
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # as above
@pytest.mark.filterwarnings('ignore:The CUDA Graph is empty')  # torch makes one to hold its memory
@pytest.mark.parametrize('dist', [Categorical(3), MultiCategorical((6, 3, 2))], ids=lambda dist: dist.name)
def test_kernels_compile_into_cuda_graphs(dist):
    data = moved(policy_case(dist, 700))
    compiled = torch.compile(lambda data: ppo_policy_error(data, dist=dist)[0].policy_loss, mode='reduce-overhead')
    results = []  # with several choices the bounds are first made during tracing
    for _ in range(4):  # warm-up, capture, replay
        torch.compiler.cudagraph_mark_step_begin()
        results.append(compiled(data).clone())
    wanted = ppo_policy_error(data, dist=dist)[0].policy_loss
    assert all(torch.equal(x, wanted) for x in results)


@needs_gpu
@each_dist
def test_kernels_make_no_host_synchronisation(dist):
    cases = policy_case(dist, 30), joint_case(dist, 30), value_case(30), gae_case((9, 4))
    policy, joint, value, rollout = map(moved, cases)
    for mode in ('default', 'error'):  # the first round compiles
        with no_waiting() if mode == 'error' else nullcontext():
            loss = ppo_policy_error(policy, dist=dist)[0]
            joint_loss = sum(ppg_joint_error(joint, dist=dist))
            (loss.policy_loss - loss.entropy_loss + ppo_value_error(value) + joint_loss).backward()
            adv = gae_return(rollout).adv
    assert adv.isfinite().all()


@needs_gpu
def test_kernels_run_on_the_device_of_their_inputs():
    if torch.cuda.device_count() < 2:
        pytest.skip('needs two CUDA devices')
    data = gae_case((9, 4))
    adv = gae(gae_data(*(x.to('cuda:1') for x in data)))
    torch.testing.assert_close(adv.cpu(), gae(moved(data)).cpu())
