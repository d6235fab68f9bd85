"""Contract of every registered surrogate and value loss, built in or not. By hand: test_surrogates.py, test_value_losses.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.config.components import make_component
from zoo.core.registry import SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY, Registry

CLIP, HIGH = 0.2, 0.28
RETURN, OLD = 1.0, 0.5


def tensor(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


# far below, the lower edge, inside, 1, inside, the upper edges of 'clip' and 'asymmetric_clip', far above
RATIO, ADV = torch.meshgrid(
    tensor(0.3, 1 - CLIP, 0.95, 1, 1.1, 1 + CLIP, 1 + HIGH, 3), tensor(2, -1.5, 0), indexing='ij'
)
# far out, below and on the edge of the value clip (.3, .7), inside it, at the return, on huber's edges (0, 2), far out
VALUE = tensor(-4, 0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1, 1.3, 1.7, 2, 1 + math.sqrt(10), 6)


def gain(part: Callable[..., Tensor], change: Tensor, clip_ratio: Any = CLIP) -> Tensor:
    """Gain of a surrogate at the ratios above, multiplied by exp(change); at change 0 they are exact."""
    ratio, adv = RATIO.to(change.dtype), ADV.to(change.dtype)
    return part(ratio.log() + change, ratio * change.exp(), adv, clip_ratio)


def error(part: Callable[..., Tensor], change: Tensor, clip_ratio: Any = CLIP) -> Tensor:
    """Error of a value loss at the values above plus change."""
    value = VALUE.to(change.dtype) + change
    return part(value, torch.full_like(value, RETURN), torch.full_like(value, OLD), clip_ratio)


def names(registry: Registry[Any]) -> list[str]:
    """The registered functions; the classes are for critics that predict a histogram."""
    return [name for name in registry.names() if not isinstance(registry.get(name), type)]


CASES = [
    *((make_component(SURROGATE_REGISTRY, name), gain, torch.zeros_like(RATIO)) for name in names(SURROGATE_REGISTRY)),
    *(
        (make_component(VALUE_LOSS_REGISTRY, name), error, torch.zeros_like(VALUE))
        for name in names(VALUE_LOSS_REGISTRY)
    ),
]
each_part = pytest.mark.parametrize('part, result, zero', CASES, ids=[f'{x.kind} {x.name}' for x, *_ in CASES])


@each_part
def test_slope_lies_between_the_finite_differences_of_the_two_sides(part, result, zero):
    change, step = zero.clone().requires_grad_(), 1e-7
    middle = result(part, change)
    (slope,) = torch.autograd.grad(middle.sum(), change)
    low, high = (result(part, zero + x) for x in (-step, step))
    # the two are equal except at a kink, where any slope between them is valid; second derivatives up to 100: an error of 1e-5
    sides = torch.stack(((middle - low) / step, (high - middle) / step)).detach()
    assert (sides.amin(0) - 1e-4 <= slope).all() and (slope <= sides.amax(0) + 1e-4).all()


@each_part
def test_nan_is_not_hidden(part, result, zero):
    change = torch.full_like(zero, math.nan).requires_grad_()
    found = result(part, change)
    assert found.isnan().all()  # the optimiser then skips and counts the step
    assert result is gain or torch.autograd.grad(found.sum(), change)[0].isnan().all()


@each_part
def test_each_element_is_its_own_in_any_shape_and_no_input_changes(part, result, zero):
    noise = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
    inputs = noise[0], noise[1].exp(), noise[2]
    before = [x.clone() for x in inputs]
    found = part(*inputs, CLIP)
    assert found.shape == (4, 3) and found.dtype == torch.float32
    torch.testing.assert_close(found[1, 2], part(*(x[1, 2] for x in inputs), CLIP))
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


@pytest.mark.slow
@each_part
def test_clip_ratio_in_a_tensor_and_a_traced_graph_give_the_same_bits(part, result, zero):
    torch.compiler.reset()  # all components share the function below, and the compiler keeps only a few graphs of one function
    change = torch.randn(zero.shape, generator=torch.Generator().manual_seed(0))
    traced = torch.compile(lambda x, c: result(part, x, c), backend='eager', fullgraph=True, dynamic=False)
    wanted = result(part, change, 0.25)
    for found in (result(part, change, torch.tensor(0.25)), traced(change, torch.tensor(0.25))):
        assert torch.equal(found, wanted)
