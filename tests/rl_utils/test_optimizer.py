"""FlatAdam against torch.optim.Adam and clip_grad_norm_, and steps whose gradient is not finite.

Other rules are in test_update_rules.py. test_optimizer_mechanics.py tests limits, accumulation, average and loss scale, and the
features common to all rules: copies, siblings, state.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.rl_utils.small_net import CLOSE, loss_of, make_net, parameters, train
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer, NonFiniteGradientError


def poison(net: nn.Module, optimizer: FlatOptimizer, step: int, name: str, value: float) -> None:
    """Sets a gradient as usual, but one number of the parameter `name` gets `value`."""
    optimizer.zero_grad()
    loss_of(net, step).backward()
    dict(net.named_parameters())[name].grad.view(-1)[1] = value


@pytest.mark.parametrize(
    'grad_clip, scale, options',
    [(None, 1.0, {}), (0.5, 100.0, dict(betas=(0.8, 0.95), eps=1e-8)), (0.5, 1e-3, {}), (1e-2, 1.0, {})],
)
def test_twenty_steps_of_changing_size_equal_torch_adam(grad_clip, scale, options):
    net, other = make_net(), make_net()
    optimizer = FlatAdam(net.named_parameters(), **options)
    reference = torch.optim.Adam(other.parameters(), **{'eps': 1e-5, **options})
    for step in range(20):
        optimizer.lr = reference.param_groups[0]['lr'] = 0.01 / (1 + step)
        optimizer.zero_grad(), reference.zero_grad()
        loss_of(net, step, scale).backward(), loss_of(other, step, scale).backward()
        limit = float('inf') if grad_clip is None else grad_clip
        norm, want = optimizer.step(grad_clip), nn.utils.clip_grad_norm_(other.parameters(), limit)
        reference.step()
        torch.testing.assert_close(norm, want)  # the norm before the limit
        torch.testing.assert_close([p.grad for p in net.parameters()], [p.grad for p in other.parameters()], **CLOSE)
    torch.testing.assert_close(parameters(net), parameters(other), **CLOSE)
    assert optimizer.step_count == 20 and optimizer.count_skipped(1) == 0
    for moments, key in ((optimizer.exp_avg, 'exp_avg'), (optimizer.exp_avg_sq, 'exp_avg_sq')):
        want = torch.cat([reference.state[p][key].flatten() for p in other.parameters()])
        torch.testing.assert_close(moments, want, **CLOSE)


def test_first_step_by_hand():
    # bias-corrected moments of the first step are g and g^2: p - lr * g / (|g| + eps); a gradient of 0 moves nothing
    p = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    optimizer = FlatAdam([('p', p)], lr=0.1, eps=1.0)
    optimizer.grad.copy_(torch.tensor([1.0, -3.0, 0.0]))
    norm = optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([1 - 0.1 / 2, 2 + 0.1 * 3 / 4, 3.0]))
    assert norm.shape == () and norm.item() == pytest.approx(10**0.5)


def test_parameters_and_gradients_are_views_of_the_flat_buffers_in_the_order_of_their_names():
    net = make_net()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = FlatAdam(net.named_parameters())
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    optimizer.param.copy_(torch.arange(32.0))
    optimizer.grad.copy_(-torch.arange(32.0))
    # 15 + 5 + 10 + 2 numbers, in the order of named_parameters
    assert torch.equal(torch.cat([p.flatten() for p in parameters(net)]), torch.arange(32.0))
    assert torch.equal(torch.cat([p.grad.flatten() for p in net.parameters()]), -torch.arange(32.0))
    pieces = optimizer.cut(optimizer.param)
    assert list(pieces) == optimizer.names == ['0.weight', '0.bias', '2.weight', '2.bias']
    pieces['2.bias'][1] = -1
    assert net[2].bias[1] == -1 and pieces['2.weight'].shape == (2, 5)


def test_parameters_stay_views_through_training_and_loading():
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    train(net, optimizer, range(3), 0.5)
    net.load_state_dict(make_net(seed=1).state_dict())
    assert torch.equal(optimizer.param, torch.cat([p.flatten() for p in parameters(make_net(seed=1))]))
    train(net, optimizer, range(2))
    assert torch.equal(optimizer.param, torch.cat([p.flatten() for p in parameters(net)]))
    assert torch.equal(optimizer.grad, torch.cat([p.grad.flatten() for p in net.parameters()]))


def test_gradients_add_up_until_zero_grad():
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    loss_of(net, 0).backward()
    first = optimizer.grad.clone()
    loss_of(net, 0).backward()
    torch.testing.assert_close(optimizer.grad, 2 * first)
    optimizer.zero_grad()
    assert not optimizer.grad.any() and all(not p.grad.any() for p in net.parameters())


def test_transposed_parameters_keep_their_values():
    p = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    FlatAdam([('p', p)])
    assert torch.equal(p, torch.arange(6.0).view(2, 3).t())


@pytest.mark.parametrize(
    'value, grad_clip, n_before',
    [(float('nan'), None, 0), (float('nan'), 0.5, 3), (float('inf'), None, 3), (float('-inf'), 0.5, 0)],
)
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(value, grad_clip, n_before):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    train(net, optimizer, range(n_before), grad_clip)
    watched = (optimizer.param, optimizer.exp_avg, optimizer.exp_avg_sq, optimizer.step_count)
    before = [x.clone() for x in watched]
    poison(net, optimizer, 7, '2.weight', value)
    norm = optimizer.step(grad_clip)
    assert all(torch.equal(x, y) for x, y in zip(watched, before, strict=True))
    assert not norm.isfinite() and optimizer.count_skipped(9) == 1 and optimizer.step_count == n_before
    # the run continues as if that step had never been taken
    train(net, optimizer, range(10, 13), grad_clip)
    other = make_net()
    undisturbed = FlatAdam(other.named_parameters())
    train(other, undisturbed, range(n_before), grad_clip)
    train(other, undisturbed, range(10, 13), grad_clip)
    assert torch.equal(optimizer.param, undisturbed.param) and optimizer.count_skipped(1) == 1


@pytest.mark.parametrize('grad_clip', [None, 0.5])
@pytest.mark.parametrize(
    'value, later',
    # 1e20 is finite but its square is not, in float32: the norm overflows
    [(float('nan'), float('nan')), (float('inf'), float('nan')), (1e20, 0.0)],
)
def test_count_skipped_names_the_first_parameter_that_is_not_finite(grad_clip, value, later):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    for step in range(3):
        assert optimizer.count_skipped(3) == step  # not refused yet
        poison(net, optimizer, step, '2.weight', value)
        net[2].bias.grad[0] = later
        assert not optimizer.step(grad_clip).isfinite()
    message = r"3 steps in a row was not finite, first in parameter '2\.weight'; "
    with pytest.raises(NonFiniteGradientError, match=message):
        optimizer.count_skipped(3)
    assert optimizer.count_skipped(4) == 3


@pytest.mark.parametrize('each', [True, False])
def test_count_skipped_takes_only_steps_in_a_row(each):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    for step in range(8):  # two bad, one good, and so on: never three in a row
        if step % 3 == 2:
            train(net, optimizer, range(1))
        else:
            poison(net, optimizer, step, '0.bias', float('nan'))
            optimizer.step()
        if each:
            optimizer.count_skipped(3)
    assert optimizer.count_skipped(3) == 6 and optimizer.step_count == 2
    assert optimizer.count_skipped(3) == 6  # nothing is counted twice


def test_state_round_trip_keeps_the_run_of_skipped_steps():
    net, other = make_net(), make_net()
    optimizer, restored = FlatAdam(net.named_parameters()), FlatAdam(other.named_parameters())
    for step in range(2):
        poison(net, optimizer, step, '0.bias', float('nan'))
        optimizer.step()
    optimizer.count_skipped(3)
    restored.load_state_dict(optimizer.state_dict())
    poison(other, restored, 2, '0.bias', float('nan'))
    restored.step()
    with pytest.raises(NonFiniteGradientError, match="3 steps in a row was not finite, first in parameter '0.bias'"):
        restored.count_skipped(3)


def test_siblings_are_two_adams_over_the_same_parameters():
    """Two phases alternate; each optimiser has its own moments, step size and bias correction."""
    net, other = make_net(), make_net()
    first = FlatAdam(net.named_parameters(), lr=0.01)
    second = first.sibling()
    second.lr = 0.003
    references = [torch.optim.Adam(other.parameters(), lr=lr, eps=1e-5) for lr in (0.01, 0.003)]
    for step in range(20):
        turn = step % 5 > 2  # three steps of the first, two of the second, and so on
        train(net, (first, second)[turn], range(step, step + 1))
        references[turn].zero_grad()
        loss_of(other, step).backward()
        references[turn].step()
    torch.testing.assert_close(parameters(net), parameters(other), **CLOSE)
    assert (first.step_count, second.step_count) == (12, 8)
    for optimizer, reference in zip((first, second), references, strict=True):
        want = torch.cat([reference.state[p]['exp_avg_sq'].flatten() for p in other.parameters()])
        torch.testing.assert_close(optimizer.exp_avg_sq, want, **CLOSE)


def test_sibling_counts_its_own_skipped_steps_and_has_the_rates_of_the_first():
    net = make_net()
    first = FlatAdam(net.named_parameters(), betas=(0.8, 0.95), eps=1e-3)
    poison(net, first, 0, '2.weight', float('nan'))
    first.step()
    second = first.sibling()
    assert second.count_skipped(1) == 0 and second.rates == (first.lr, 0.8, 0.95, 1e-3)
    poison(net, second, 0, '2.bias', float('inf'))
    second.step()
    assert first.count_skipped(2) == 1
    with pytest.raises(NonFiniteGradientError, match=r"1 steps in a row was not finite, first in parameter '2\.bias'"):
        second.count_skipped(1)


def test_frozen_parameters_stay_out_and_those_of_a_copy_its_own():
    net = make_net()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    optimizer = FlatAdam(net.named_parameters())
    other_net, other = copy.deepcopy((net, optimizer))
    train(net, optimizer, range(2))
    train(other_net, other, range(3))
    assert optimizer.param.numel() == 32 - 15
    for each in (net[0].weight, other_net[0].weight):
        assert torch.equal(each, before) and each.grad is None
    alone = copy.deepcopy(optimizer)  # a copy without its model owns its parameters
    alone.param.fill_(7.0)
    assert not any((p == 7).any() for p in net.parameters())
