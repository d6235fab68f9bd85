"""Networks that compute in bfloat16 or float16 with float32 parameters."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.backend.problems import Case, Problem
from tests.gpu import needs_gpu
from tests.step_parts import PolicyNumbers
from zoo.backend.executor import Eager, StepPlan, forward_rows
from zoo.policy.options.passes import ForwardInPrecision, OptimizerMechanics
from zoo.rl_utils import FlatAdam


class Net(nn.Module):
    """Returns the output of its layer as a tensor, and inside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.inner = torch.float32  # dtype of the layer's output

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Any]:
        out = self.layer(obs)
        self.inner = out.dtype
        return {'logit': out, 'index': torch.zeros(2, dtype=torch.int64), 'none': None}

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.layer(obs)


IN_BF16 = ForwardInPrecision('bf16', forward_rows)


def test_outputs_are_float32_of_a_forward_pass_in_bfloat16() -> None:
    net, rows = Net(), {'obs': torch.ones(4, 3) / 3}
    found, same = IN_BF16(net, 'compute_actor_critic', rows)
    assert net.inner == torch.bfloat16 and same is rows
    assert found['logit'].dtype == torch.float32 and found['index'].dtype == torch.int64 and found['none'] is None
    want = net.layer(rows['obs'])
    assert not torch.equal(found['logit'], want)
    torch.testing.assert_close(found['logit'], want, rtol=0, atol=0.02)  # bfloat16 rounds by 2^-8 of numbers up to 2
    assert IN_BF16(net, 'compute_actor', rows)[0]['logit'].dtype == torch.float32


@torch.no_grad()
def test_a_pass_without_gradient_is_that_of_float32() -> None:
    net, rows = Net(), {'obs': torch.ones(4, 3) / 3}
    assert torch.equal(IN_BF16(net, 'compute_actor', rows)[0]['logit'], net.layer(rows['obs']))


def test_gradients_are_float32() -> None:
    net = Net()
    IN_BF16(net, 'compute_actor_critic', {'obs': torch.ones(4, 3)})[0]['logit'].sum().backward()
    assert net.layer.weight.grad.dtype == torch.float32 and net.layer.bias.grad.tolist() == [4, 4]


def test_formats_are_equal_and_copied_by_value() -> None:
    assert ForwardInPrecision('bf16', forward_rows) == IN_BF16 == copy.deepcopy(IN_BF16)
    assert hash(copy.deepcopy(IN_BF16)) == hash(IN_BF16) != hash(ForwardInPrecision('fp16', forward_rows))


@pytest.mark.parametrize(
    'precision, device, wants', [('fp16', 'cpu', True), ('bf16', 'cpu', False), ('fp16', 'cuda', False)]
)
def test_fp16_on_a_cpu_is_refused(precision: Any, device: str, wants: bool) -> None:
    cfg = SimpleNamespace(learn=SimpleNamespace(precision=precision))
    policy: Any = SimpleNamespace(cfg=cfg, device=torch.device(device))
    found = list(OptimizerMechanics().problems(policy))
    sentence = "policy.learn.precision is 'fp16' but the device is cpu, and fp16 is for CUDA GPUs; use 'bf16' or 'fp32'"
    assert [each.startswith(sentence) for each in found] == [True] * wants


def train(problem: Problem, precision: Any, device: str = 'cpu', **options: Any) -> tuple[list[FlatAdam], Any]:
    model = copy.deepcopy(problem.model).to(device)
    optimizers = problem.optimizers(model)
    for optimizer in optimizers:
        optimizer.configure(precision=precision, **options)
    columns = {name: x.to(device) for name, x in problem.columns.items()}
    data = StepPlan(columns, problem.order.to(device), problem.case.batch_size, torch.device(device))
    forward = forward_rows if precision == 'fp32' else ForwardInPrecision(precision, forward_rows)
    numbers = problem.case.numbers._replace(forward=forward)
    metrics = Eager(model, problem.dist).run(problem.step, optimizers, data, *numbers)
    return optimizers, metrics


@pytest.fixture
def problem() -> Problem:
    """The first step of a 16-16 network."""
    found = Problem(Case('PPO', numbers=PolicyNumbers(grad_clip=None)), n_step=1)
    found.order = found.order[:, : found.case.batch_size]
    return found


def test_updates_in_bfloat16_are_near_those_in_float32(problem: Problem) -> None:
    """The losses and the direction of the gradient agree within about a percent."""
    (low, low_metrics), (full, metrics) = train(problem, 'bf16'), train(problem, 'fp32')
    for a, b in zip(low, full, strict=True):
        assert a.param.dtype == torch.float32 and not torch.equal(a.grad, b.grad)
        assert torch.cosine_similarity(a.grad, b.grad, 0) > 0.999
    torch.testing.assert_close(low_metrics['value_loss'], metrics['value_loss'], rtol=0.02, atol=0)


@needs_gpu
def test_updates_in_float16_with_a_loss_scale_are_near_those_in_float32(problem: Problem) -> None:
    (low, _), (full, _) = train(problem, 'fp16', 'cuda'), train(problem, 'fp32', 'cuda')
    for a, b in zip(low, full, strict=True):
        assert a.count_skipped(9) == 0 and torch.cosine_similarity(a.grad, b.grad, 0) > 0.9999
