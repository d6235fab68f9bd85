"""Fully connected layers on a CPU, and their gradient: few operations, each in the form that takes the least time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from zoo.backend.trace import is_tracing

Activation = Literal['tanh', 'relu']
FLOATS = frozenset((torch.float32, torch.float64))  # of fewer digits 2 * sigmoid - 1 would leave none
FAST_TANH_ROWS = 32  # from here on tanh by sigmoid is the faster one
_PLAIN = {'tanh': torch.tanh, 'relu': torch.relu}
_MINUS_ONE = torch.tensor(-1.0, device='cpu')
_tanh_backward = torch.ops.aten.tanh_backward.default
_relu_backward = torch.ops.aten.threshold_backward.default


def dense(x: Tensor, layers: Any, activation: Activation) -> Tensor:
    """x [..., n_in] through nn.Linear layers, each followed by the activation.

    On a CPU one node of the graph. All else (x wants a gradient, few rows and no graph, layers without bias, autocast,
    other devices, traces and transforms) is left to torch's operations.
    """
    params, grad = params_of(layers), torch.is_grad_enabled()
    if (
        (grad or x.numel() >= FAST_TANH_ROWS * x.size(-1))
        and x.dtype in FLOATS
        and is_covered(x)
        and all(p is not None for p in params)
    ):
        if grad:
            return _Dense.apply(activation, x, *params)
        return layer_outputs(_as_rows(x), params, activation)[-1].view(*x.shape[:-1], -1)
    return _plain(x, params, activation)


def params_of(layers: Any) -> list[Tensor]:
    """Weight, bias, weight, bias, ... of nn.Linear layers."""
    return [p for layer in layers for p in (layer.weight, layer.bias)]


def is_covered(x: Tensor) -> bool:
    """Whether x is on a CPU, wants no gradient, and goes through operations that run as they stand."""
    return (
        x.is_cpu
        and type(x) is Tensor
        and not x.requires_grad
        and not is_tracing()
        and not torch.is_autocast_enabled('cpu')
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
    )


def layer_outputs(x: Tensor, params: Sequence[Tensor], activation: Activation) -> list[Tensor]:
    """What each layer makes of x [N, n_in]."""
    outputs = []
    for i in range(0, len(params), 2):
        weight, bias = params[i].t(), params[i + 1]
        if activation == 'tanh':
            # tanh(z) = 2 * sigmoid(2z) - 1, to 2e-7 whatever the size of z (of 1e-5 two digits are left): torch's tanh
            # takes five times as long as its sigmoid
            x = torch.addmm(bias, x, weight, alpha=2, beta=2).sigmoid_()
            torch.add(_MINUS_ONE, x, alpha=2, out=x)
        else:
            x = torch.addmm(bias, x, weight).relu_()
        outputs.append(x)
    return outputs


def add_gradients(
    x: Tensor,
    params: Sequence[Tensor],
    outputs: Sequence[Tensor],
    activation: Activation,
    grad: Tensor,
    targets: Sequence[Tensor],
) -> None:
    """Adds to the targets the gradients in the params, of that in the last of outputs = layer_outputs(x, params)."""
    for i in range(len(outputs) - 1, -1, -1):
        grad = _tanh_backward(grad, outputs[i]) if activation == 'tanh' else _relu_backward(grad, outputs[i], 0)
        add_linear_gradients(outputs[i - 1] if i else x, grad, targets[2 * i], targets[2 * i + 1])
        if i:
            grad = torch.mm(grad, params[2 * i])


def add_linear_gradients(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Adds to `weight` and `bias` the gradients in those of a layer, of x [N, n_in] and grad [N, n_out]."""
    bias.add_(grad.sum(0))
    if x.shape[1] < grad.shape[1]:  # MKL is up to six times as fast this way round (256 rows, 4 x 64: 22 us against 6)
        weight.add_(torch.mm(x.t(), grad).t())
    else:
        weight.addmm_(grad.t(), x)


class _Dense(torch.autograd.Function):
    """The layers as one node, for an x that wants no gradient."""

    @staticmethod
    def forward(ctx: Any, activation: Activation, x: Tensor, *params: Tensor) -> Tensor:
        rows = _as_rows(x)
        outputs = layer_outputs(rows, params, activation)
        ctx.activation = activation
        ctx.save_for_backward(rows, *params, *outputs)
        return outputs[-1] if x.dim() == 2 else outputs[-1].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        n = len(saved) // 3 * 2
        params, outputs, grad = saved[:n], saved[n:], grad.reshape(-1, grad.shape[-1])
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            return None, None, *_gradients_with_graph(x, params, ctx.activation, grad)
        found = [torch.zeros_like(p) for p in params]
        add_gradients(x, params, outputs, ctx.activation, grad, found)
        return None, None, *found


def _gradients_with_graph(
    x: Tensor,
    params: Sequence[Tensor],
    activation: Activation,
    grad: Tensor,
) -> list[Tensor | None]:
    output = _plain(x, params, activation)
    found = iter(torch.autograd.grad(output, [p for p in params if p.requires_grad], grad, create_graph=True))
    return [next(found) if p.requires_grad else None for p in params]


def _plain(x: Tensor, params: Sequence[Tensor], activation: Activation) -> Tensor:
    apply = _PLAIN[activation]
    for weight, bias in zip(params[::2], params[1::2], strict=True):
        x = apply(linear(x, weight, bias))
    return x


def _as_rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
