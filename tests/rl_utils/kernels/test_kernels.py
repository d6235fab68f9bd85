"""Every kernel, forward and backward, against the reference in float64."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu import no_waiting
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
from zoo.config.components import Part
from zoo.rl_utils import (
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
    value_losses,
)
from zoo.rl_utils.distribution import from_logits

pytest.importorskip('triton', reason='triton is not installed')
pytestmark = pytest.mark.usefixtures('kernels_everywhere', 'poisoned_memory')

SHAPES = [(1, 1), (7, 3), (600, 2), (5, 3, 18), (2, 3, 4, 5), (33, 130), (3, 4100)]


@pytest.mark.parametrize('gaussian', [False, True])
def test_find_takes_the_kernels(gaussian):
    data = moved(policy_case(7, 3, gaussian=gaussian))
    assert kernels.explain('ppo_policy_error', *data) == 'kernel: zoo.rl_utils.kernels.ppo_policy'
    dist, new, old = from_logits(data.logit_new, data.logit_old)
    assert kernels.explain('ppo_policy_error', new, old, *data[2:], dist=dist).startswith('kernel')
    assert kernels.find('ppo_policy_error', new, old, *data[2:], dist=dist).__module__.endswith('kernels.ppo_policy')


@pytest.mark.slow
@pytest.mark.parametrize('gaussian', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('shape', SHAPES)
def test_policy_kernel_equals_float64_reference(shape, dtype, gaussian):
    weight, dual_clip = len(shape) % 2 == 1, None if shape[0] == 7 else 1.5
    data = policy_case(*shape, gaussian=gaussian, weight=weight, dtype=dtype)
    got = policy_results(moved(data), dual_clip=dual_clip)
    assert_close(got, policy_results(moved(data, torch.float64), dual_clip=dual_clip), dtype)


@pytest.mark.parametrize('gaussian', [False, True])
@pytest.mark.parametrize('dual_clip', [None, 1.5])
@pytest.mark.parametrize('weight', [False, True])
def test_policy_kernel_of_spo_equals_float64_reference(weight, dual_clip, gaussian):
    """The kernel itself: the losses ask `find` for it."""
    data = policy_case(7, 3, gaussian=gaussian, weight=weight)

    def results(data, kernel):
        dist, new, old = from_logits(data.logit_new, data.logit_old)
        if kernel:
            args = (new, old, *data[2:5])
            found = kernels.find('ppo_policy_error', *args, dist=dist, numbers=(0.1, dual_clip), part=surrogates.spo)
            policy_loss, entropy_loss, *info = found(dist, *args, 0.1, dual_clip, surrogates.spo)
        else:
            loss, info = ppo_policy_error(data, 0.1, dual_clip, surrogate=surrogates.spo)
            policy_loss, entropy_loss = loss.policy_loss, loss.entropy_loss
        (0.7 * policy_loss - 0.3 * entropy_loss).backward()
        return finish([policy_loss, entropy_loss, *info], data, data.adv.numel())

    assert_close(results(moved(data), True), results(moved(data, torch.float64), False))


@pytest.mark.parametrize(
    'op, part, said',
    [
        ('ppo_policy_error', surrogates.clip, ''),
        ('ppo_policy_error', surrogates.spo, ''),
        ('ppo_policy_error', surrogates.dpo, "surrogate 'dpo' is not covered, only clip and spo of zoo"),
        ('ppo_value_error', value_losses.clip, ''),
        ('ppo_value_error', value_losses.huber, "value loss 'huber' is not covered, only mse and clip of zoo"),
        ('ppo_value_error', value_losses.TwoHot(), "value loss 'two_hot' is not covered, only mse and clip of zoo"),
    ],
)
def test_parts_that_no_kernel_knows_use_the_reference(op, part, said):
    data = value_case(3) if op == 'ppo_value_error' else policy_case(3, 2)
    options = dict(part=part, dist=None if op == 'ppo_value_error' else Categorical(2))
    data = moved(data)
    assert (kernels.find(op, *data[:4], **options) is None) == bool(said)
    explained = kernels.explain(op, *data[:4], **options)
    assert explained == f'reference: the {said}' if said else explained.startswith('kernel: ')


def test_function_of_a_users_own_under_a_name_of_zoo_uses_the_reference():
    def clip(log_ratio, ratio, adv, clip_ratio):
        return ratio * adv

    data = moved(policy_case(3, 2))
    assert kernels.find('ppo_policy_error', *data[:4], dist=Categorical(2), part=clip) is None
    part = Part('surrogate', 'clip', clip)
    assert kernels.find('ppo_policy_error', *data[:4], dist=Categorical(2), part=part) is None


@pytest.mark.parametrize('gaussian', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('shape', SHAPES)
def test_joint_kernel_equals_float64_reference(shape, dtype, gaussian):
    data, clip = joint_case(*shape, gaussian=gaussian, weight=len(shape) % 2 == 1, dtype=dtype), shape[0] != 7
    got = joint_results(moved(data), use_value_clip=clip)
    assert_close(got, joint_results(moved(data, torch.float64), use_value_clip=clip), dtype, n_sum=2)


@pytest.mark.parametrize('weight', [False, True])
@pytest.mark.parametrize('clip', [False, True])
@pytest.mark.parametrize('shape', [(1,), (511,), (3, 5, 7), (5000,)])
def test_value_kernel_equals_float64_reference(shape, clip, weight):
    data = value_case(*shape, weight=weight)

    def results(data):
        loss = ppo_value_error(data, use_value_clip=clip)
        (1.3 * loss).backward()
        return finish([loss], data, data.return_.numel())

    assert_close(results(moved(data)), results(moved(data, torch.float64)), n_sum=1)


GAE_SHAPES = [(1,), (7,), (600,), (1, 1), (128, 9), (5000, 2), (3, 700), (5, 3, 2), (130, 2, 3)]


FLAGS = [('none', torch.bool), ('done', torch.bool), ('both', torch.float32), ('both', torch.int64)]


@pytest.mark.slow
@pytest.mark.parametrize(
    'shape, flags, kind',
    [*((shape, 'both', torch.bool) for shape in GAE_SHAPES), *(((130, 2, 3), *each) for each in FLAGS)],
    ids=str,
)
def test_gae_kernel_equals_float64_reference(shape, flags, kind):
    data = gae_case(shape, flags, kind)
    got, wanted = gae_return(moved(data), 0.97, 0.9), gae_return(moved(data, torch.float64), 0.97, 0.9)
    for x, y in zip(got, wanted, strict=True):  # sums of some ten terms of size 1
        torch.testing.assert_close(x.double(), y.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(gae(moved(data), 0.97, 0.9), got.adv)


def test_gae_kernel_all_done_is_reward_minus_value():
    data = moved(gae_case((9, 4)))
    done = torch.ones(9, 4, dtype=torch.bool, device=DEVICE)
    adv = gae(data._replace(done=done, traj_flag=None), 0.99, 0.95)
    torch.testing.assert_close(adv, data.reward - data.value)


@pytest.mark.slow
def test_gae_kernel_all_done_in_a_long_rollout_crosses_no_tile():
    data = moved(gae_case((5000, 1)))
    end = torch.ones(5000, 1, dtype=torch.bool, device=DEVICE)
    adv = gae(data._replace(done=end, traj_flag=end), 1.0, 1.0)
    torch.testing.assert_close(adv, data.reward - data.value)


def test_gae_kernel_mean_of_large_advantages_keeps_the_spread():
    # rewards 10,000 +- 1 with every row an end: adv = reward, so mean 10,000 and std 1 exactly
    reward = torch.tensor([9999.0, 10001.0], device=DEVICE).repeat(300).view(300, 2)
    zero, end = torch.zeros_like(reward), torch.ones_like(reward)
    result = gae_return(gae_data(zero, zero, reward, end, end))
    assert float(result.mean) == 10_000 and float(result.std) == pytest.approx(1, abs=1e-6)


def test_policy_kernel_at_ties_equals_float32_reference(monkeypatch):
    # equal logits: every ratio is 1 and min(r * adv, clip(r) * adv) a tie; 1 + 1e-9 is 1 in float32, so that the dual
    # bound is a tie too
    logit = torch.randn(6, 3)
    data = ppo_policy_data(
        logit.clone().requires_grad_(),
        logit,
        torch.tensor([0, 1, 2, 0, 1, 2]),
        torch.tensor([1.0, -1.0, 0.0, 2.0, -2.0, 0.0]),
    )
    for dual_clip in (None, 1 + 1e-9):
        got = policy_results(moved(data), dual_clip=dual_clip)
        set_mode(monkeypatch, '0')
        assert_close(got, policy_results(moved(data), dual_clip=dual_clip))
        set_mode(monkeypatch, 'interpret')


def test_value_kernel_at_ties_equals_float32_reference(monkeypatch):
    # change exactly at the clip range; and (R - V)^2 = (R - V_clip)^2 with R midway between V and V_clip
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
@pytest.mark.parametrize('spacing', ['rows', 'rows and columns'])
def test_kernels_of_strided_inputs_equal_those_of_copies(gaussian, spacing):
    def spread(x: Tensor | None) -> Tensor | None:
        """The same numbers, every second row (and column) of something larger."""
        if x is None:
            return None
        wide = x.detach().repeat_interleave(2, 0)
        if spacing != 'rows' and x.dim() > 1:
            wide = wide.repeat_interleave(2, -1)[..., ::2]
        return wide[::2].requires_grad_(x.requires_grad)

    for case, run in (
        (policy_case, lambda d, dist: ppo_policy_error(d, dist=dist)[0][0]),
        (joint_case, lambda d, dist: ppg_joint_error(d, dist=dist)[1]),
    ):
        plain = moved(case(21, 6, gaussian=gaussian, weight=True))
        dist, new, old = from_logits(plain.logit_new, plain.logit_old)
        plain = plain._replace(logit_new=new.detach().requires_grad_(), logit_old=old)
        results = []
        for data in (plain, type(plain)(*map(spread, plain))):
            loss = run(data, dist)
            loss.backward()
            results.append([loss.detach(), *(x.grad for x in leaves(data) if x.grad is not None)])
        for x, y in zip(*results, strict=True):
            assert torch.equal(x, y)


def test_gae_kernel_of_strided_inputs_equals_that_of_copies():
    data = gae_case((12, 6))
    strided = gae_data(*(x.to(DEVICE).t().contiguous().t() for x in data))
    assert not strided.value.is_contiguous()
    assert torch.equal(gae(strided), gae(moved(data)))


def calls() -> list[tuple[Any, Any]]:
    """Each op with inputs of more than one program's worth."""
    return [
        (lambda d: [*ppo_policy_error(d)[0][:2], *ppo_policy_error(d)[1]], policy_case(700, 3, weight=True)),
        (lambda d: [*ppo_policy_error(d)[0][:2]], policy_case(700, 3, gaussian=True)),
        (lambda d: [ppo_value_error(d)], value_case(3000)),
        (lambda d: list(ppg_joint_error(d)), joint_case(700, 3)),
        (lambda d: list(ppg_joint_error(d)), joint_case(700, 3, gaussian=True)),
        (lambda d: [x for x in gae_return(d)], gae_case((100, 40))),
    ]


@pytest.mark.slow
@pytest.mark.parametrize('call, data', calls(), ids=['policy', 'gaussian', 'value', 'joint', 'joint gaussian', 'gae'])
def test_kernel_twice_is_bit_equal_and_changes_no_input(call, data):
    data = moved(data)
    before = moved(data)
    first, second = call(data), call(data)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    for x, y in zip(data, before, strict=True):
        pairs = zip(x.values(), y.values(), strict=True) if isinstance(x, dict) else [(x, y)]
        assert all(a is None or torch.equal(a, b) for a, b in pairs)


@pytest.mark.filterwarnings('ignore:invalid value encountered')  # the interpreter is numpy, which tells of NaN
@pytest.mark.parametrize('field', ['logit_new', 'logit_old', 'adv', 'weight'])
def test_policy_kernel_of_nan_gives_nan(field):
    data = moved(policy_case(9, 3, weight=True))
    data.weight.fill_(1.0)
    with torch.no_grad():
        getattr(data, field)[4] = torch.nan
    loss, info = ppo_policy_error(data)
    assert loss.policy_loss.isnan()
    assert field in ('adv', 'weight') or info.clipfrac.isnan() and info.approx_kl.isnan()
    loss.policy_loss.backward()
    assert data.logit_new.grad[4].isnan().any() and data.logit_new.grad[:4].isfinite().all()


@pytest.mark.filterwarnings('ignore:invalid value encountered')
@pytest.mark.parametrize('field', ['logit_new', 'logit_old', 'return_', 'weight'])
def test_joint_kernel_of_nan_gives_nan(field):
    data = moved(joint_case(9, 3, weight=True))
    with torch.no_grad():
        getattr(data, field)[4] = torch.nan
    loss = ppg_joint_error(data)
    assert loss.auxiliary_loss.isnan() == (field in ('return_', 'weight'))
    assert loss.behavioral_cloning_loss.isnan() == (field != 'return_')


@pytest.mark.filterwarnings('ignore:invalid value encountered')
@pytest.mark.parametrize('action', [-1, 3, 7])
def test_policy_kernel_of_an_action_outside_the_choices_gives_nan(action):
    data = moved(policy_case(9, 3))
    data.action[4] = action
    assert ppo_policy_error(data)[0].policy_loss.isnan()


@pytest.mark.parametrize('dist', [Categorical(3), MultiCategorical((3, 2)), Gaussian(2)], ids=lambda dist: dist.name)
def test_a_training_step_with_kernels_is_the_step_without(dist, monkeypatch):
    found = []
    for mode in ('interpret', '0'):
        set_mode(monkeypatch, mode)
        data = moved(joint_case(20, dist.n_action or dist.n_param, gaussian=dist.name == 'gaussian', weight=True))
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
        (
            loss.policy_loss
            - 0.03 * loss.entropy_loss
            + ppg_joint_error(ppg_data(param, old, None, *data[3:]), dist=dist).behavioral_cloning_loss
        ).backward()
        found.append(optimizer.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('gaussian', [False, True])
@pytest.mark.parametrize('dual_clip', [None, 3.0])
@pytest.mark.filterwarnings('ignore:overflow encountered')  # the interpreter is numpy, which tells of 9 * e^88
def test_policy_kernel_caps_the_ratio_as_the_reference(gaussian, dual_clip, monkeypatch):
    # log ratios: four of 100 and one of 80; 9 * e^88 is beyond float32
    log_ratio, adv = torch.tensor([100.0, 100.0, 100.0, 100.0, 80.0]), torch.tensor([1.0, -1.0, -9.0, -1e-30, -1e-30])
    if gaussian:  # of N(0, 1) and N(a - 1, 1) at a: (a^2 - 1) / 2
        action = (2 * log_ratio + 1).sqrt().unsqueeze(-1)
        new, old = torch.cat((action - 1, torch.ones(5, 1)), -1), torch.tensor([[0.0, 1.0]]).repeat(5, 1)
    else:  # of logits (-x, x) and (x, -x) at choice 1: 2 x
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
    for x, y in zip(got, wanted, strict=True):  # e^80 has the relative error of 80: 80 * 6e-8
        torch.testing.assert_close(x, y, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize('tensor_number', [False, True])
def test_a_distribution_or_number_that_no_kernel_knows_uses_the_reference(tensor_number):
    class Other(Categorical):
        name = 'other'

    data = moved(policy_case(7, 3))
    flat, dist = data[:4], Categorical(3) if tensor_number else Other(3)
    numbers = (torch.tensor(0.2), None) if tensor_number else (0.2, None)
    assert kernels.find('ppo_policy_error', *flat, dist=dist, numbers=numbers) is None
    loss = ppo_policy_error(data, numbers[0], dist=dist)[0].policy_loss
    torch.testing.assert_close(loss, ppo_policy_error(data)[0].policy_loss)
    if not tensor_number:
        covered = 'categorical, multi_categorical and gaussian'
        said = f"reference: the distribution 'other' (Other) is not covered, only {covered}"
        assert kernels.explain('ppo_policy_error', *flat, dist=dist) == said


def test_losses_of_kernels_may_be_changed_in_place():
    policy, joint, value = moved(policy_case(9, 3)), moved(joint_case(9, 3)), moved(value_case(9))
    total = ppo_policy_error(policy)[0].policy_loss
    for loss in (ppo_policy_error(policy)[0].entropy_loss, *ppg_joint_error(joint), ppo_value_error(value)):
        loss *= 0.5
        total += loss
    total.backward()
    assert all(x.grad.isfinite().all() for x in (*leaves(policy), *leaves(joint), *leaves(value)))


@pytest.mark.filterwarnings('ignore:invalid value encountered')
@pytest.mark.parametrize('field', ['value_new', 'value_old', 'return_'])
def test_value_kernel_of_nan_gives_nan(field):
    data = moved(value_case(9))
    with torch.no_grad():
        getattr(data, field)[4] = torch.nan
    loss = ppo_value_error(data)
    loss.backward()
    assert loss.isnan() and data.value_new.grad[4].isnan() and data.value_new.grad[:4].isfinite().all()


@pytest.mark.filterwarnings('ignore:invalid value encountered')
@pytest.mark.parametrize('field', ['value', 'next_value', 'reward', 'done', 'traj_flag'])
def test_gae_kernel_of_nan_gives_nan(field):
    data = moved(gae_case((9, 2), kind=torch.float32))
    getattr(data, field)[4, 1] = torch.nan
    adv = gae(data)
    assert adv[3, 1].isnan() and adv[:, 0].isfinite().all()


def test_policy_kernel_of_rows_without_weight_takes_nothing_from_them():
    data = policy_case(9, 3, weight=True)
    data.weight[4] = 0.0
    wanted = policy_results(moved(data))
    with torch.no_grad():
        data.logit_new[4] = torch.tensor([200.0, -200.0, 0.0])
        data.logit_old[4] = torch.tensor([-200.0, 200.0, 0.0])  # a ratio of e^400, beyond float32
        data.adv[4], data.action[4] = 5.0, 0
    assert_close(policy_results(moved(data)), wanted)


@pytest.mark.long
@pytest.mark.filterwarnings('ignore::DeprecationWarning')  # torch's own tracer and compiler use what torch deprecates
@pytest.mark.parametrize('backend', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)])
def test_kernels_compile_without_graph_breaks(backend):
    policy, joint, value, rollout = (
        moved(x) for x in (policy_case(30, 3), joint_case(30, 3), value_case(30), gae_case((9, 4)))
    )

    def step(policy, joint, value, rollout):
        loss, info = ppo_policy_error(policy)
        total = loss.policy_loss - 0.01 * loss.entropy_loss + ppo_value_error(value) + sum(ppg_joint_error(joint))
        return total, gae(rollout), *info

    wanted = step(policy, joint, value, rollout)
    wanted[0].backward()
    grads = [x.grad.clone() for x in (*leaves(policy), *leaves(joint), *leaves(value))]
    for x in (*leaves(policy), *leaves(joint), *leaves(value)):
        x.grad = None
    got = torch.compile(step, fullgraph=True, backend=backend)(policy, joint, value, rollout)
    got[0].backward()
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y)
    for x, y in zip((*leaves(policy), *leaves(joint), *leaves(value)), grads, strict=True):
        assert torch.equal(x.grad, y)


@pytest.mark.slow
def test_ops_pass_torchs_own_checks():
    for op in ('gae', 'ppo_policy_error', 'ppo_value_error', 'ppg_joint_error'):
        kernels.find(op, torch.zeros(1, 1, device=DEVICE))  # which registers it
    policy, joint, value, rollout = (
        moved(x) for x in (policy_case(30, 3), joint_case(30, 3), value_case(30), gae_case((9, 4)))
    )
    ops, slope, one = torch.ops.zoo, torch.randn(30, device=DEVICE), torch.ones((), device=DEVICE)
    rows, rows_old = policy.logit_new.detach(), policy.logit_old
    for op, args in (
        (ops.ppo_policy_error, (rows, rows_old, policy.action, policy.adv, None, 0.2, None, 'clip', 'categorical', [])),
        (ops.ppo_policy_error_backward, (rows, policy.action, slope, None, one, one, 'categorical', [])),
        (ops.ppo_value_error, (value[0].detach(), value[1], value[2], None, 0.2)),
        (
            ops.ppg_joint_error,
            (rows, rows_old, joint.value_new.detach(), joint.value_old, joint.return_, None, None, 'categorical', []),
        ),
        (ops.gae, (*rollout, 0.99, 0.95, True)),
    ):
        assert set(torch.library.opcheck(op, args).values()) == {'SUCCESS'}


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a CUDA device')
def test_kernels_inside_a_captured_graph_replay_on_new_inputs():
    data, other = (moved(policy_case(700, 3, seed=seed)) for seed in (0, 1))
    static = moved(data)
    ppo_policy_error(static)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = ppo_policy_error(static)[0].policy_loss
    with torch.no_grad():
        for x, y in zip(static[:4], other[:4], strict=True):
            x.copy_(y)
    for _ in range(2):  # the counter is back at zero after each replay
        graph.replay()
        assert torch.equal(loss, ppo_policy_error(other)[0].policy_loss)


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a CUDA device')
def test_kernels_compile_into_cuda_graphs():
    data = moved(policy_case(700, 3))
    wanted = ppo_policy_error(data)[0].policy_loss
    compiled = torch.compile(lambda data: ppo_policy_error(data)[0].policy_loss, mode='reduce-overhead')
    for _ in range(4):  # warmed up, captured, replayed
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(data), wanted)


@pytest.mark.skipif(DEVICE == 'cpu', reason='needs a CUDA device')
def test_kernels_make_no_host_synchronisation():
    policy, joint, value, rollout = (
        moved(x) for x in (policy_case(30, 3), joint_case(30, 3), value_case(30), gae_case((9, 4)))
    )
    for mode in ('default', 'error'):  # the first round compiles
        with no_waiting() if mode == 'error' else nullcontext():
            loss = ppo_policy_error(policy)[0]
            (loss.policy_loss - loss.entropy_loss + ppo_value_error(value) + sum(ppg_joint_error(joint))).backward()
            adv = gae_return(rollout).adv
    assert adv.isfinite().all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two CUDA devices')
def test_kernels_run_on_the_device_of_their_inputs():
    data = gae_case((9, 4))
    adv = gae(gae_data(*(x.to('cuda:1') for x in data)))
    torch.testing.assert_close(adv.cpu(), gae(moved(data)).cpu())
