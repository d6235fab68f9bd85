"""Tells the parameters of actor and critic apart, for optimisers of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.data import keeps_state
from zoo.core.spaces import Space, empty_obs


def critic_names(model: nn.Module, obs_space: Space) -> set[str]:
    """Names of the parameters that a loss over `compute_critic` moves and one over `compute_actor` does not.

    Found by a backward pass through each, so that it holds for models of any kind; gradients are left as they were.
    """
    critic, actor = (reached(model, obs_space, method) for method in ('compute_critic', 'compute_actor'))
    return critic - actor


def actor_parameters(model: nn.Module, obs_space: Space) -> list[tuple[str, nn.Parameter]]:
    """All parameters by name but those of `critic_names`."""
    critic = critic_names(model, obs_space)
    return [(name, p) for name, p in model.named_parameters() if name not in critic]


def reached(model: Any, obs_space: Space, method: str) -> set[str]:
    """Names of the parameters that a loss over what a method of the model computes would move; frozen ones are not."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    device = next(iter(named.values())).device
    n_row = 2
    inputs = [empty_obs(obs_space, (n_row,), device)]
    if keeps_state(model):
        inputs.append(model.initial_state(n_row))
    with torch.enable_grad():
        found = getattr(model, method)(*inputs)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        if not output.requires_grad:  # all that it is made of is frozen
            return set()
        finite = torch.where(output.isfinite(), output, 0.0)  # masked choices
        grads = torch.autograd.grad(finite.sum(), list(named.values()), allow_unused=True)
    return {name for name, grad in zip(named, grads, strict=True) if grad is not None}
