"""The node of fully connected layers against torch's own operations."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from zoo.backend.trace import replaced
from zoo.model.dense import FAST_TANH_ROWS, params_of
from zoo.model.encoder import MLP

FUNCTIONS = {'tanh': torch.tanh, 'relu': torch.relu}
SIZES = [[5], [6, 4], [3, 7, 5]]
LEADS = [(9,), (3, 4), (), (1,), (40,)]
activations = pytest.mark.parametrize('activation', FUNCTIONS)
sizes = pytest.mark.parametrize('hidden_sizes', SIZES, ids=len)
leads = pytest.mark.parametrize('lead', LEADS, ids=str)


def make(hidden_sizes: list[int], activation: str, n_in: int = 4, dtype: torch.dtype = torch.float64) -> MLP:
    torch.manual_seed(0)
    mlp = MLP(n_in, hidden_sizes, activation).to(dtype)
    with torch.no_grad():
        for p in mlp.parameters():
            p += 0.3 * torch.randn_like(p)  # biases start at 0
    return mlp


def plain(mlp: MLP, x: Tensor) -> Tensor:
    for layer in mlp.layers:
        x = FUNCTIONS[mlp.activation](nn.functional.linear(x, layer.weight, layer.bias))
    return x


def observations(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


@activations
@sizes
@leads
def test_gradients_are_those_of_finite_differences(activation, hidden_sizes, lead):
    mlp, x = make(hidden_sizes, activation), observations(*lead, 4)
    params = params_of(mlp.layers)

    def run(*tensors: Tensor) -> Tensor:
        with replaced(mlp, dict(zip([name for name, _ in mlp.named_parameters()], tensors, strict=True))):
            return mlp(x)

    tensors = [p.detach().clone().requires_grad_() for p in params]
    assert type(mlp(x).grad_fn).__name__ == '_DenseBackward'
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


@activations
@sizes
@pytest.mark.parametrize('n_in', [2, 5, 40])
@pytest.mark.parametrize('lead', [(9,), (3, 4), (300,)], ids=str)
def test_float32_is_that_of_torch_to_rounding(activation, hidden_sizes, lead, n_in):
    mlp = make(hidden_sizes, activation, n_in, torch.float32)
    x = observations(*lead, n_in, dtype=torch.float32)
    slope = observations(*lead, hidden_sizes[-1], dtype=torch.float32)
    params = list(mlp.parameters())
    got, want = mlp(x), plain(mlp, x)
    # tanh as 2 * sigmoid - 1 is off by 2 roundings of a number near 2, 2.4e-7, and so is each layer's input
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)
    for a, b in zip(torch.autograd.grad(got, params, slope), torch.autograd.grad(want, params, slope), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=float(b.abs().max()) * 1e-6 * (1 + x.numel() ** 0.5 / 10))


@activations
@pytest.mark.parametrize('lead', [(), (8,), (FAST_TANH_ROWS,), (2, FAST_TANH_ROWS)], ids=str)
def test_without_graph_it_says_the_same(activation, lead):
    mlp = make([6, 4], activation, dtype=torch.float32)
    x = observations(*lead, 4, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), plain(mlp, x), rtol=0, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(mlp(x), plain(mlp, x), rtol=0, atol=1e-6)


@activations
def test_input_gets_the_gradient_it_asks_for_and_a_second_one(activation):
    mlp, x = make([6, 4], activation), observations(9, 4).requires_grad_()
    assert torch.autograd.gradcheck(mlp, x)
    assert torch.autograd.gradgradcheck(mlp, x)


@activations
def test_a_trunk_used_twice_adds_up(activation):
    mlp, x, y = make([6, 4], activation), observations(9, 4), observations(12, 4) + 1
    params = list(mlp.parameters())
    got = torch.autograd.grad(mlp(x).sum() + mlp(y).square().sum(), params)
    want = torch.autograd.grad(plain(mlp, x).sum() + plain(mlp, y).square().sum(), params)
    torch.testing.assert_close(got, want)


def test_frozen_parameters_get_no_gradient_and_the_others_theirs():
    mlp, x = make([6, 4], 'tanh'), observations(9, 4)
    mlp.layers[0].weight.requires_grad_(False)
    (want,) = torch.autograd.grad(plain(mlp, x).sum(), [mlp.layers[1].bias])
    for create_graph in (False, True):
        mlp.zero_grad()
        (got,) = torch.autograd.grad(mlp(x).sum(), [mlp.layers[1].bias], create_graph=create_graph)
        torch.testing.assert_close(got, want)
    mlp(x).sum().backward()
    assert mlp.layers[0].weight.grad is None and mlp.layers[0].bias.grad is not None


@activations
def test_layers_without_bias_are_left_to_torch(activation):
    mlp, x = make([6, 4], activation), observations(40, 4)
    mlp.layers[0].bias = None
    assert torch.equal(mlp(x), plain(mlp, x))
    with torch.no_grad():
        assert torch.equal(mlp(x), plain(mlp, x))


def test_a_parametrized_weight_is_computed_once_and_gets_its_gradient():
    mlp, x = make([6, 4], 'tanh'), observations(9, 4)
    calls = []

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            calls.append(1)
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(mlp.layers[0], 'weight', Twice())
    params = list(mlp.parameters())
    (want, *_) = torch.autograd.grad(plain(mlp, x).sum(), params)
    for wants_gradient in (False, True):  # the node; torch's operations
        calls.clear()
        (got, *_) = torch.autograd.grad(mlp(x.clone().requires_grad_(wants_gradient)).sum(), params)
        assert len(calls) == 1
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings('ignore:Initializing zero-element tensors')
def test_observations_of_no_numbers_give_what_the_biases_make():
    mlp = make([6, 4], 'tanh', n_in=0)
    torch.testing.assert_close(
        mlp(torch.empty(3, 0, dtype=torch.float64)), plain(mlp, torch.empty(3, 0, dtype=torch.float64))
    )


def test_features_changed_in_place_are_found_out():
    y = make([6, 4], 'tanh')(observations(9, 4))
    y.mul_(2)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        y.sum().backward()


def test_copies_are_independent_and_the_same():
    mlp, x = make([6, 4], 'relu'), observations(9, 4)
    for other in (copy.deepcopy(mlp), pickle.loads(pickle.dumps(mlp))):
        assert torch.equal(other(x), mlp(x))
        with torch.no_grad():
            other.layers[0].bias += 1
        assert not torch.equal(other(x), mlp(x))


@pytest.mark.filterwarnings('ignore:.torch.jit:DeprecationWarning')
def test_traces_of_torch_hold_its_operations():
    mlp, x = make([6, 4], 'tanh'), observations(40, 4)
    for traced in (torch.jit.trace(mlp, x, check_trace=False), torch.export.export(mlp, (x,)).module()):
        torch.testing.assert_close(traced(x), plain(mlp, x), rtol=0, atol=0)


def test_autocast_transforms_and_other_types_are_left_to_torch():
    mlp, x = make([6, 4], 'tanh', dtype=torch.float32), observations(40, 4, dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        assert mlp(x).dtype == plain(mlp, x).dtype == torch.bfloat16
        assert torch.equal(mlp(x), plain(mlp, x))
    rows = torch.func.vmap(mlp)(x)
    torch.testing.assert_close(rows, plain(mlp, x))
    params = dict(mlp.named_parameters())
    got = torch.func.grad(lambda p: torch.func.functional_call(mlp, p, (x,)).sum())(params)
    want = torch.autograd.grad(plain(mlp, x).sum(), list(params.values()))
    torch.testing.assert_close(list(got.values()), list(want))
    half = make([6, 4], 'tanh', dtype=torch.bfloat16)
    with torch.no_grad():  # 2 * sigmoid - 1 would leave no digit of a small one
        assert torch.equal(half(x.bfloat16()), plain(half, x.bfloat16()))
