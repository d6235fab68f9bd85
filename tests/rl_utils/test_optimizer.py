"""FlatAdam against torch.optim.Adam and clip_grad_norm_, and what a gradient that is not finite does.

Other rules are in test_update_rules.py, limits, accumulation, average and loss scale in test_mechanics.py.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer, NonFiniteGradientError

# one kernel over the flat buffer or one per parameter: vector and scalar code may round differently in the last bit
CLOSE = dict(rtol=1e-5, atol=1e-7)


def make_net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_of(net: nn.Module, step: int, scale: float = 1.0) -> Tensor:
    """A different batch in every step."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)
    return scale * (net(x) - y).square().mean()


def train(
    net: nn.Module, optimizer: FlatOptimizer, steps: range, grad_clip: float | None = None, scale: float = 1.0
) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(net, step, scale).backward()
        optimizer.step(grad_clip)


def poison(net: nn.Module, optimizer: FlatOptimizer, step: int, name: str, value: float) -> None:
    """A gradient as usual, but for one number of the parameter `name`."""
    optimizer.zero_grad()
    loss_of(net, step).backward()
    dict(net.named_parameters())[name].grad.view(-1)[1] = value


def parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize('grad_clip, scale', [(None, 1.0), (0.5, 1.0), (0.5, 100.0), (0.5, 1e-3), (1e-2, 1.0)])
@pytest.mark.parametrize('options', [{}, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-8)])
def test_twenty_steps_equal_torch_adam(grad_clip, scale, options):
    net, other = make_net(), make_net()
    optimizer = FlatAdam(net.named_parameters(), **options)
    reference = torch.optim.Adam(other.parameters(), **{'lr': 1e-3, 'eps': 1e-5, **options})
    train(net, optimizer, range(20), grad_clip, scale)
    for step in range(20):
        reference.zero_grad()
        loss_of(other, step, scale).backward()
        if grad_clip is not None:
            nn.utils.clip_grad_norm_(other.parameters(), grad_clip)
        reference.step()
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


def test_cut_gives_views_by_name():
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    flat = torch.arange(32.0)
    pieces = optimizer.cut(flat)
    assert list(pieces) == optimizer.names == ['0.weight', '0.bias', '2.weight', '2.bias']
    assert pieces['0.bias'].tolist() == [15, 16, 17, 18, 19] and pieces['2.weight'].shape == (2, 5)
    pieces['2.bias'][1] = -1
    assert flat[31] == -1


def test_a_changed_learning_rate_counts_from_the_next_step():
    net, other = make_net(), make_net()
    optimizer, reference = FlatAdam(net.named_parameters()), torch.optim.Adam(other.parameters(), eps=1e-5)
    for step in range(6):
        optimizer.lr = reference.param_groups[0]['lr'] = 0.01 / (1 + step)
        train(net, optimizer, range(step, step + 1))
        reference.zero_grad()
        loss_of(other, step).backward()
        reference.step()
    torch.testing.assert_close(parameters(net), parameters(other), **CLOSE)


@pytest.mark.parametrize('scale', [1e-3, 100.0])
def test_grad_clip_equals_clip_grad_norm(scale):
    net, other = make_net(), make_net()
    optimizer = FlatAdam(net.named_parameters())
    loss_of(net, 0, scale).backward()
    loss_of(other, 0, scale).backward()
    norm, want = optimizer.step(0.5), nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    torch.testing.assert_close(norm, want)  # the norm before the limit
    torch.testing.assert_close([p.grad for p in net.parameters()], [p.grad for p in other.parameters()])


def test_parameters_and_gradients_are_views_of_the_flat_buffers():
    net = make_net()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = FlatAdam(net.named_parameters())
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    optimizer.param.copy_(torch.arange(32.0))
    optimizer.grad.copy_(-torch.arange(32.0))
    # 15 + 5 + 10 + 2 numbers, in the order of named_parameters
    assert torch.equal(torch.cat([p.flatten() for p in parameters(net)]), torch.arange(32.0))
    assert torch.equal(torch.cat([p.grad.flatten() for p in net.parameters()]), -torch.arange(32.0))


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


def test_frozen_parameters_stay_out():
    net = make_net()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    optimizer = FlatAdam(net.named_parameters())
    train(net, optimizer, range(2))
    assert optimizer.param.numel() == 32 - 15 and torch.equal(net[0].weight, before)


def test_transposed_parameters_keep_their_values():
    p = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    FlatAdam([('p', p)])
    assert torch.equal(p, torch.arange(6.0).view(2, 3).t())


@pytest.mark.parametrize('value', [float('nan'), float('inf'), float('-inf')])
@pytest.mark.parametrize('grad_clip', [None, 0.5])
@pytest.mark.parametrize('n_before', [0, 3])
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
    # and the run continues as if that step had never been
    train(net, optimizer, range(10, 13), grad_clip)
    other = make_net()
    undisturbed = FlatAdam(other.named_parameters())
    train(other, undisturbed, range(n_before), grad_clip)
    train(other, undisturbed, range(10, 13), grad_clip)
    assert torch.equal(optimizer.param, undisturbed.param) and optimizer.count_skipped(1) == 1


@pytest.mark.parametrize('grad_clip', [None, 0.5])
@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_count_skipped_names_the_first_parameter_that_is_not_finite(grad_clip, value):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    for step in range(3):
        assert optimizer.count_skipped(3) == step  # not yet
        poison(net, optimizer, step, '2.weight', value)
        net[2].bias.grad[0] = float('nan')  # later in the order
        optimizer.step(grad_clip)
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


@pytest.mark.parametrize('grad_clip', [None, 0.5])
def test_count_skipped_names_the_parameter_whose_norm_overflows(grad_clip):
    # 1e20 is finite but its square is not, in float32
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    for step in range(3):
        poison(net, optimizer, step, '2.weight', 1e20)
        assert not optimizer.step(grad_clip).isfinite()
    with pytest.raises(NonFiniteGradientError, match=r"first in parameter '2\.weight'"):
        optimizer.count_skipped(3)


@pytest.mark.parametrize('skipped', [False, True])
def test_state_round_trip_continues_identically(skipped):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    train(net, optimizer, range(5), 0.5)
    if skipped:
        poison(net, optimizer, 5, '0.bias', float('nan'))
        optimizer.step(0.5)
        optimizer.count_skipped(2)
    other = make_net(seed=1)
    restored = FlatAdam(other.named_parameters())
    other.load_state_dict(net.state_dict())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(net, optimizer, range(6, 12), 0.5)
    train(other, restored, range(6, 12), 0.5)
    assert torch.equal(optimizer.param, restored.param)
    assert optimizer.count_skipped(2) == restored.count_skipped(2) == int(skipped)
    for name, x in optimizer.state_dict().items():
        assert torch.equal(torch.as_tensor(x), torch.as_tensor(restored.state_dict()[name]))


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


def test_loading_leaves_the_given_state_alone():
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    train(net, optimizer, range(2))
    state = copy.deepcopy(optimizer.state_dict())
    restored = FlatAdam(make_net().named_parameters())
    restored.load_state_dict(state)
    restored.exp_avg.fill_(7)
    assert torch.equal(state['exp_avg'], optimizer.exp_avg)


def test_siblings_are_two_adams_over_the_same_parameters():
    """Steps in turn, as of phases of training: each with its own moments, step size and bias correction."""
    net, other = make_net(), make_net()
    first = FlatAdam(net.named_parameters(), lr=0.01)
    second = first.sibling()
    second.lr = 0.003
    references = [torch.optim.Adam(other.parameters(), lr=lr, eps=1e-5) for lr in (0.01, 0.003)]
    for step in range(20):
        turn = step % 5 > 2  # three of the one, two of the other, and so on
        train(net, (first, second)[turn], range(step, step + 1))
        references[turn].zero_grad()
        loss_of(other, step).backward()
        references[turn].step()
    torch.testing.assert_close(parameters(net), parameters(other), **CLOSE)
    assert (first.step_count, second.step_count) == (12, 8)
    for optimizer, reference in zip((first, second), references, strict=True):
        want = torch.cat([reference.state[p]['exp_avg_sq'].flatten() for p in other.parameters()])
        torch.testing.assert_close(optimizer.exp_avg_sq, want, **CLOSE)


def test_sibling_starts_anew_and_shares_parameters_and_gradients():
    net = make_net()
    first = FlatAdam(net.named_parameters(), betas=(0.8, 0.95), eps=1e-3)
    train(net, first, range(3))
    poison(net, first, 3, '2.weight', float('nan'))
    first.step()
    second = first.sibling()
    assert second.param is first.param and second.grad is first.grad
    assert not second.exp_avg.any() and not second.exp_avg_sq.any() and second.step_count == 0
    assert second.count_skipped(1) == 0 and first.count_skipped(2) == 1  # nor are its skipped steps those of the first
    assert second.rates == (first.lr, 0.8, 0.95, 1e-3)


def test_steps_of_a_sibling_leave_the_moments_of_the_other_alone():
    net = make_net()
    first = FlatAdam(net.named_parameters())
    second = first.sibling()
    train(net, first, range(3))
    before = copy.deepcopy(first.state_dict())
    train(net, second, range(3, 9), 0.5)
    poison(net, second, 9, '0.bias', float('nan'))
    second.step()
    second.count_skipped(2)
    assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(before[name])) for name, x in first.state_dict().items())


def test_sibling_names_the_parameter_that_broke_in_its_own_steps():
    net = make_net()
    first = FlatAdam(net.named_parameters())
    second = first.sibling()
    poison(net, second, 0, '2.bias', float('inf'))
    second.step()
    assert first.count_skipped(1) == 0
    with pytest.raises(NonFiniteGradientError, match=r"1 steps in a row was not finite, first in parameter '2\.bias'"):
        second.count_skipped(1)


def by_torch_save(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    'deepcopy': copy.deepcopy,
    'pickle': lambda x: pickle.loads(pickle.dumps(x)),
    'torch.save': by_torch_save,
}
each_copy = pytest.mark.parametrize('duplicate', COPIES.values(), ids=COPIES)


@each_copy
@pytest.mark.parametrize('model_first', [True, False])
def test_a_copy_with_its_model_trains_that_model_and_leaves_the_first_alone(duplicate, model_first):
    net = make_net()
    optimizer = FlatAdam(net.named_parameters(), lr=0.01)
    train(net, optimizer, range(3), 0.5)
    poison(net, optimizer, 3, '2.weight', float('nan'))
    optimizer.step(0.5)  # a step whose norm waits to be counted
    pair = duplicate((net, optimizer) if model_first else (optimizer, net))
    other_net, other = pair if model_first else pair[::-1]
    assert torch.equal(other.grad.nan_to_num(), optimizer.grad.nan_to_num())
    for p, flat in ((p, other.param) for p in other_net.parameters()):
        assert p.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() and p.requires_grad
        assert p.grad.untyped_storage().data_ptr() == other.grad.untyped_storage().data_ptr()
    before = [x.clone() for x in (*optimizer.state, *parameters(net))]
    train(other_net, other, range(4, 9), 0.5)
    assert all(
        torch.equal(x.nan_to_num(), y.nan_to_num())
        for x, y in zip((*optimizer.state, *parameters(net)), before, strict=True)
    )
    train(net, optimizer, range(4, 9), 0.5)  # the same steps: the same bits
    for x, y in zip((*optimizer.state, *parameters(net)), (*other.state, *parameters(other_net)), strict=True):
        assert torch.equal(x, y)
    assert optimizer.count_skipped(2) == other.count_skipped(2) == 1


@each_copy
def test_copies_of_siblings_share_parameters_and_gradients(duplicate):
    net = make_net()
    first = FlatAdam(net.named_parameters(), lr=0.01)
    siblings = [first, first.sibling()]
    for k in (0, 1):
        train(net, siblings[k], range(k, 3))
    other_net, others = duplicate((net, siblings))
    assert others[0].param is others[1].param and others[0].grad is others[1].grad
    for k, step in ((0, 3), (1, 4), (0, 5)):
        train(other_net, others[k], range(step, step + 1))
        train(net, siblings[k], range(step, step + 1))
    assert torch.equal(others[0].param, first.param)
    assert torch.equal(torch.cat([p.flatten() for p in parameters(other_net)]), first.param)
    for x, y in zip(siblings, others, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(x.state, y.state, strict=True))


def test_a_copy_without_its_model_owns_its_parameters():
    net = make_net()
    optimizer = FlatAdam(net.named_parameters())
    other = copy.deepcopy(optimizer)
    other.param.fill_(7.0)
    assert not (optimizer.param == 7).any() and not any((p == 7).any() for p in net.parameters())


def test_frozen_parameters_of_a_copy_stay_its_own():
    net = make_net()
    net[0].weight.requires_grad_(False)
    optimizer = FlatAdam(net.named_parameters())
    other_net, other = copy.deepcopy((net, optimizer))
    before = net[0].weight.clone()
    train(other_net, other, range(2))
    assert torch.equal(other_net[0].weight, before) and other_net[0].weight.grad is None
