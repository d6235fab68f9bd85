"""A small network, its losses and its training by an optimiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.rl_utils.optimizer import FlatOptimizer

# one kernel over the flat buffer and one per parameter: vector and scalar code may round differently in the last bit
CLOSE = dict(rtol=1e-5, atol=1e-7)


def make_net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_of(net: nn.Module, step: int, scale: float = 1.0) -> Tensor:
    """The loss on a batch that is different in every step."""
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


def parameters(net: nn.Module) -> list[Tensor]:
    return [p.detach() for p in net.parameters()]
