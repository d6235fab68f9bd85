"""All kernels: strides, equal bits, training steps, compilers, CUDA graphs; uncovered inputs are in test_launch_find.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu import needs_gpu, no_waiting
from tests.rl_utils.kernels.cases import (
    DISTS,
    each_dist,
    gae_case,
    joint_case,
    policy_case,
    value_case,
)
from tests.rl_utils.kernels.compare import (
    DEVICE,
    ON_KERNELS,
    equal,
    joint_results,
    leaves,
    moved,
    policy_results,
    set_mode,
)
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
)

launch = pytest.importorskip('zoo.rl_utils.kernels.launch', reason='triton is not installed', exc_type=ImportError)
pytestmark = ON_KERNELS


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


@pytest.mark.long
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
