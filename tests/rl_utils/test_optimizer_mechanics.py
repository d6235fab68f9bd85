"""Mechanics of an optimiser around its rule: limit of elements, accumulation, average, loss scale; copies and state."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.rl_utils.matrix_net import make_net, optimizer_of
from tests.rl_utils.small_net import CLOSE, loss_of, parameters, train
from zoo.rl_utils.optimizer import (
    FIRST_SCALE,
    N_GOOD_STEPS,
    FlatAdam,
    FlatOptimizer,
    NonFiniteGradientError,
    backward,
)
from zoo.rl_utils.update_rules import SGDRule

SPECS: list[Any] = [
    'adam',
    'adamw',
    {'type': 'rmsprop', 'momentum': 0.5, 'eps': 0.1},
    {'type': 'sgd', 'momentum': 0.9, 'nesterov': True},
    'muon',
]
ALL = dict(grad_clip_value=0.1, accumulate=2, average_decay=0.9, precision='fp16')


def made(net: nn.Module, spec: Any = 'adam', lr: float = 1e-2, **options: Any) -> FlatOptimizer:
    optimizer = optimizer_of(spec, net)
    optimizer.configure(**options)
    optimizer.lr = lr
    return optimizer


def descend(net: nn.Module, optimizer: FlatOptimizer, step: int, grad_clip: float | None = 0.5) -> Tensor:
    """Takes a step like zoo.policy.ppo."""
    optimizer.zero_grad()
    backward(loss_of(net, step), [optimizer])
    return optimizer.step(grad_clip)


def one_number(**options: Any) -> tuple[nn.Parameter, FlatOptimizer]:
    """A parameter that starts at 0 and moves by -gradient, and its optimiser."""
    p = nn.Parameter(torch.zeros(1))
    optimizer = FlatOptimizer([('p', p)], SGDRule(), lr=1.0)
    optimizer.configure(**options)
    return p, optimizer


def test_backward_calls_hooks_adds_up_and_refuses_more_than_one_number_as_torch_does() -> None:
    net, other = make_net(), make_net()
    optimizer, seen = made(net), []
    next(net.parameters()).register_hook(lambda grad: seen.append(grad.clone()))
    for step in range(2):
        backward(loss_of(net, step), [optimizer])
        loss_of(other, step).backward()
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]
    assert torch.equal(sum(seen), next(other.parameters()).grad)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match='only for scalar outputs'):
        backward(loss_of(net, 0).expand(3), [optimizer])
    with pytest.raises(RuntimeError, match='does not require grad'):
        backward(loss_of(net, 0).detach(), [optimizer])


# --- limit of gradient elements


def test_grad_clip_value_equals_torch_and_comes_before_the_norm() -> None:
    net, other = make_net(), make_net()
    optimizer, reference = made(net, grad_clip_value=0.02), torch.optim.Adam(other.parameters(), 1e-2, eps=1e-5)
    train(net, optimizer, range(20))
    train(net, optimizer, range(20, 40), 0.05)
    for step in range(40):
        reference.zero_grad()
        loss_of(other, step).backward()
        nn.utils.clip_grad_value_(other.parameters(), 0.02)
        nn.utils.clip_grad_norm_(other.parameters(), 0.05 if step >= 20 else torch.inf)
        reference.step()
    torch.testing.assert_close(parameters(net), parameters(other), rtol=0, atol=1e-6)


def test_norm_that_step_returns_is_that_before_all_limits() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = FlatOptimizer([('p', p)], SGDRule(), lr=1.0)
    optimizer.configure(grad_clip_value=1.0)
    optimizer.grad.copy_(torch.tensor([3.0, -4.0]))
    assert optimizer.step(1.0) == 5
    torch.testing.assert_close(p.detach(), torch.tensor([-1.0, 1.0]) / 2**0.5)  # limited to (1, -1), then to norm 1


def test_infinite_element_is_skipped_though_a_limit_would_make_it_finite() -> None:
    p, optimizer = one_number(grad_clip_value=1.0)
    optimizer.grad.fill_(torch.inf)
    optimizer.step()
    assert p == 0 and optimizer.count_skipped(2) == 1


# --- accumulation


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_accumulated_minibatches_equal_one_that_is_as_large(spec: Any) -> None:
    """Three minibatches of eight rows move the parameters like one of twenty-four rows."""
    net, other = make_net(), make_net()
    small, large = made(net, spec, 1e-3, accumulate=3), made(other, spec, 1e-3)
    for step in range(0, 18, 3):
        for i in range(3):
            descend(net, small, step + i)
        large.zero_grad()
        torch.stack([loss_of(other, step + i) for i in range(3)]).mean().backward()
        large.step(0.5)
    torch.testing.assert_close(parameters(net), parameters(other), rtol=0, atol=1e-6)
    assert small.step_count == large.step_count == 6


def test_accumulation_by_hand() -> None:
    p, optimizer = one_number(accumulate=2)
    found = []
    for gradient in (1.0, 3.0, 10.0, 20.0):
        optimizer.zero_grad()
        (gradient * p).sum().backward()
        norm = optimizer.step()
        found.append((norm.item(), p.item()))
    assert found == [(1, 0), (2, -2), (10, -2), (15, -17)]  # (norm of the mean so far, parameter)


def test_last_step_of_a_pass_moves_by_the_mean_of_what_there_is() -> None:
    p, optimizer = one_number(accumulate=2)
    for _ in range(2):  # two passes of three gradients
        optimizer.expect_steps(3)
        for gradient in (1.0, 3.0, 10.0):
            optimizer.zero_grad()
            (gradient * p).sum().backward()
            optimizer.step()
    assert p.item() == 2 * (-2 - 10) and optimizer.step_count == 4


def test_gradient_counts_by_the_rows_of_its_minibatch() -> None:
    """Two passes over ten rows in minibatches of four: a step takes two of the six, so one begins with the small one."""
    p, optimizer = one_number(accumulate=2)
    optimizer.expect_steps(6, [4, 4, 2, 4, 4, 2])
    norms = []
    for gradient in (1.0, 3.0, 10.0, 1.0, 3.0, 9.0):
        optimizer.zero_grad()
        (gradient * p).sum().backward()
        norms.append(optimizer.step().item())
    assert norms[1::2] == [2, (2 * 10 + 4 * 1) / 6, (4 * 3 + 2 * 9) / 6] and p.item() == -(2 + 4 + 5)


def test_gradient_that_is_not_finite_spoils_its_group_alone() -> None:
    p, optimizer = one_number(accumulate=2)
    for gradient in (1.0, torch.nan, 5.0, 7.0):
        optimizer.zero_grad()
        (gradient * p).sum().backward()
        optimizer.step()
    assert p.item() == -6 and optimizer.count_skipped(9) == 1


# --- average


def test_average_by_hand() -> None:
    """Decay .5 and parameters 0, -1, -2: the weights are .25, .5, 1, divided by their sum 1.75."""
    p, optimizer = one_number(average_decay=0.5)
    for _ in range(2):
        optimizer.grad.fill_(1.0)
        optimizer.step()
    assert p == -2 and optimizer.averaged['p'].item() == pytest.approx((0.25 * 0 + 0.5 * -1 - 2) / 1.75)
    optimizer.reset_average()
    assert optimizer.averaged['p'] == -2
    optimizer.grad.fill_(1.0)
    optimizer.step()
    assert optimizer.averaged['p'].item() == pytest.approx((0.5 * -2 - 3) / 1.5)


def test_skipped_step_leaves_the_average_alone() -> None:
    p, optimizer = one_number(average_decay=0.5)
    for gradient in (1.0, torch.nan, 1.0):
        optimizer.grad.fill_(gradient)
        optimizer.step()
    assert optimizer.averaged['p'].item() == pytest.approx((0.25 * 0 + 0.5 * -1 - 2) / 1.75)


def test_averaged_are_views_by_name_and_refused_where_there_are_none() -> None:
    net = make_net()
    optimizer = made(net, average_decay=0.9)
    assert list(optimizer.averaged) == optimizer.names
    assert all(torch.equal(x, p) for x, p in zip(optimizer.averaged.values(), net.parameters(), strict=True))
    with pytest.raises(ValueError, match='keeps no average of its parameters; give it an average_decay'):
        _ = made(make_net()).averaged


# --- loss scale


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_loss_scale_changes_no_step(spec: Any) -> None:
    """A power of two is divided out without rounding, also in the limit of the norm."""
    net, other = make_net(), make_net()
    scaled, plain = made(net, spec, precision='fp16'), made(other, spec)
    for step in range(6):
        norms = descend(net, scaled, step), descend(other, plain, step)
        torch.testing.assert_close(*norms)
    torch.testing.assert_close(parameters(net), parameters(other), **CLOSE)
    assert scaled.loss_scale == FIRST_SCALE == 65536


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_overflow_leaves_parameters_bit_equal_halves_the_scale_and_is_counted(spec: Any) -> None:
    net = make_net()
    optimizer = made(net, spec, precision='fp16', average_decay=0.9)
    for step in range(3):
        descend(net, optimizer, step)
    before = {name: x.clone() for name, x in optimizer.buffers.items()}
    optimizer.loss_scale.fill_(2.0**127)  # type: ignore[union-attr]  # times a gradient of 4 or more is infinite
    optimizer.zero_grad()
    backward(100 * loss_of(net, 3), [optimizer])
    assert not optimizer.step(0.5).isfinite()
    for name, x in optimizer.buffers.items():
        assert name in ('grad', 'loss_scale', 'n_good_step') or torch.equal(x, before[name]), name
    assert optimizer.loss_scale == 2.0**126 and optimizer.buffers['n_good_step'] == 0
    assert optimizer.count_skipped(9) == 1 and optimizer.step_count == 3


def test_loss_scale_doubles_after_so_many_good_steps() -> None:
    p, optimizer = one_number(precision='fp16')
    optimizer.buffers['n_good_step'].fill_(N_GOOD_STEPS - 2)
    scales = []
    for _ in range(3):
        optimizer.zero_grad()
        backward(p.sum(), [optimizer])
        optimizer.step()
        scales.append(optimizer.loss_scale.item())  # type: ignore[union-attr]
    assert scales == [FIRST_SCALE, 2 * FIRST_SCALE, 2 * FIRST_SCALE] and p == -3
    assert optimizer.buffers['n_good_step'] == 1


def test_broken_gradient_ends_the_run_once_the_scale_is_at_its_least() -> None:
    """16 halvings lead from 65536 to 1; then the run ends as without a scale."""
    p, optimizer = one_number(precision='fp16')
    for step in range(16):
        optimizer.zero_grad()
        backward(torch.nan * p.sum(), [optimizer])
        optimizer.step()
        if step < 15:
            assert optimizer.count_skipped(3) == step + 1
    assert optimizer.loss_scale == 1
    with pytest.raises(NonFiniteGradientError, match="16 steps in a row was not finite, first in parameter 'p'"):
        optimizer.count_skipped(3)


@pytest.mark.parametrize('smaller', [0, 1])
def test_optimisers_of_one_loss_share_the_smaller_scale(smaller: int) -> None:
    (p, first), (q, second) = one_number(precision='fp16'), one_number(precision='fp16')
    (first, second)[smaller].loss_scale.fill_(8.0)  # type: ignore[union-attr]
    backward((2 * p + 3 * q).sum(), [first, second])
    assert first.grad == 16 and second.grad == 24
    first.step(), second.step()
    assert (p.item(), q.item()) == (-2, -3) and first.loss_scale == second.loss_scale == 8


def test_gradient_of_an_unscaled_loss_is_taken_as_it_is() -> None:
    """A user's own step may call loss.backward()."""
    p, optimizer = one_number(precision='fp16')
    (2 * p).sum().backward()
    optimizer.step()
    assert p == -2 and optimizer.buffers['n_good_step'] == 0


# --- copies, siblings, state


def by_torch_save(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by_pickle(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize(
    'spec, options, duplicate',
    [
        *((spec, ALL, copy.deepcopy) for spec in SPECS),
        ('muon', ALL, by_pickle),
        *(('adam', {}, duplicate) for duplicate in (copy.deepcopy, by_pickle, by_torch_save)),
    ],
)
def test_copy_moves_the_copied_model_alone_and_as_the_original(spec: Any, options: Any, duplicate: Any) -> None:
    net = make_net()
    optimizer = made(net, spec, **options)
    sibling = optimizer.sibling()
    for step in range(3):  # the last step is in the middle of a group
        descend(net, optimizer, step)
    optimizer.grad[1] = torch.nan
    optimizer.step(0.5)  # the norm of this step is not counted yet
    other, [twin, twin_sibling] = duplicate((net, [optimizer, sibling]))
    (other_twin, also_other) = duplicate((optimizer, net))  # the order of the two does not matter
    for each, model in ((twin, other), (twin_sibling, other), (other_twin, also_other)):
        for p in model.parameters():
            assert p.untyped_storage().data_ptr() == each.param.untyped_storage().data_ptr() and p.requires_grad
            assert p.grad is not None
            assert p.grad.untyped_storage().data_ptr() == each.grad.untyped_storage().data_ptr()
    before = [p.clone() for p in parameters(net)]
    turns = [(step, (optimizer, sibling)[step % 2], (twin, twin_sibling)[step % 2]) for step in range(4, 10)]
    for step, _, each in turns:
        descend(other, each, step)
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    for step, each, _ in turns:
        descend(net, each, step)
    for one, copied in ((optimizer, twin), (sibling, twin_sibling)):
        for name, x in one.buffers.items():
            assert torch.equal(x, copied.buffers[name]), name
        assert one.count_skipped(2) == copied.count_skipped(2) == int(one is optimizer)
    assert not torch.equal(parameters(net)[0], before[0])


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_sibling_shares_parameters_and_gradient_and_starts_again(spec: Any) -> None:
    net = make_net()
    first = made(net, spec, **ALL)
    for step in range(4):
        descend(net, first, step)
    kept = {name: x.clone() for name, x in first.buffers.items() if name not in ('param', 'grad')}
    second = first.sibling()
    assert second.param is first.param and second.grad is first.grad and second.rule == first.rule
    assert second.step_count == 0 and second.mechanics.accumulate == 2 and second.mechanics.average_decay is None
    before = first.param.clone()
    for step in range(4, 6):
        descend(net, second, step)
    assert not torch.equal(first.param, before) and second.step_count == 1
    assert all(torch.equal(first.buffers[name], x) for name, x in kept.items())


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_state_round_trip_continues_identically(spec: Any) -> None:
    net, other = make_net(), make_net(seed=1)
    optimizer, restored = made(net, spec, **ALL), made(other, spec, **ALL)
    for step in range(6):
        descend(net, optimizer, step)
    optimizer.loss_scale.fill_(1024.0)  # type: ignore[union-attr]
    other.load_state_dict(net.state_dict())
    restored.load_state_dict(optimizer.state_dict())  # this copies the state: otherwise both would step in one buffer
    for step in range(6, 12):
        descend(net, optimizer, step), descend(other, restored, step)
    for name, x in optimizer.buffers.items():
        assert torch.equal(x, restored.buffers[name]), name
    assert restored.loss_scale == 1024 and optimizer.step_count == restored.step_count == 6


def test_state_from_before_there_were_mechanics_is_loaded() -> None:
    """The state has the keys of plain Adam; the average starts with the loaded parameters."""
    net, other = make_net(), make_net(seed=1)
    old = FlatAdam(net.named_parameters())
    train(net, old, range(3))
    state = old.state_dict()
    assert list(state) == ['exp_avg', 'exp_avg_sq', 'step_count', 'n_skipped', 'n_in_row']
    optimizer = made(other, **ALL)
    other.load_state_dict(net.state_dict())
    optimizer.load_state_dict(state)
    assert optimizer.step_count == 3 and optimizer.loss_scale == FIRST_SCALE
    assert torch.equal(optimizer.buffers['average'], old.param)


def test_state_of_another_rule_is_refused() -> None:
    state = made(make_net(), 'adam').state_dict()
    with pytest.raises(ValueError, match='with exp_avg, .* but this one needs momentum_buffer too; continue with'):
        made(make_net(), 'muon').load_state_dict(state)


@pytest.mark.parametrize(
    'options, sentence',
    [
        (dict(grad_clip_value=0.0), 'grad_clip_value is 0.0 but must be > 0; leave it out for no limit'),
        (dict(accumulate=0), 'accumulate is 0 but must be 1 or more gradients a step'),
        (dict(average_decay=1.0), r'average_decay is 1.0 but must be in \[0, 1\)'),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        made(make_net(), **options)


def test_plain_is_what_does_nothing_around_the_rule() -> None:
    optimizer = made(make_net())
    assert optimizer.is_plain
    for name, value in ALL.items():
        optimizer.configure(**{name: value})  # type: ignore[arg-type]
        assert not optimizer.is_plain
    optimizer.configure(precision='bf16')
    assert optimizer.is_plain
