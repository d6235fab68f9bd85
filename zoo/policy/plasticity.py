"""Plasticity: changes of a network's parameters between updates, so that it keeps learning when its task changes.

Each takes (named, initial, generator) and changes the tensors of `named` in place, {name: parameter}; `initial` has the
values of all of them before the first update. The caller calls it after every `every`-th update.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.registry import PLASTICITY_REGISTRY

Named = dict[str, Tensor]
Every = Annotated[int, Field(ge=1, description='updates from one call to the next')]


@PLASTICITY_REGISTRY.register('shrink_perturb')
@torch.no_grad()
def shrink_perturb(
    named: Named,
    initial: Named,
    generator: torch.Generator,
    *,
    every: Every = 100,
    shrink: Annotated[float, Field(gt=0, le=1, description='factor of the weights; nearer 1 is gentler')] = 0.9,
    perturb: Annotated[float, Field(ge=0, description='noise, as a share of the size of the initial weights')] = 0.1,
) -> None:
    """Shrinks the weights and adds noise of the size of their initial values.

    w <- shrink w + perturb rms(w_initial) noise, noise normal, of each weight matrix or kernel
    Source: Ash and Adams 2020, arXiv:1910.08475. Departs: noise in units of each tensor's own initial size; biases, gains of
      norms and free deviations (tensors of one dimension) stay.
    """
    for name, x in named.items():
        if x.dim() < 2:
            continue
        noise = torch.empty(x.shape, device=generator.device).normal_(generator=generator).to(x)
        size = initial[name].square().mean().sqrt().to(x)
        x.mul_(shrink).add_(perturb * size * noise)


@PLASTICITY_REGISTRY.register('l2_init')
@torch.no_grad()
def l2_init(
    named: Named,
    initial: Named,
    generator: torch.Generator,
    *,
    every: Every = 1,
    strength: Annotated[float, Field(gt=0, le=1, description='share of the way back to the initial values')] = 1e-3,
) -> None:
    """Pulls all parameters towards their initial values.

    w <- w + strength (w_initial - w)
    Source: Kumar et al. 2023, arXiv:2308.11958. Departs: a step of its own, as decoupled weight decay, not a term of the loss.
    """
    for name, x in named.items():
        x.lerp_(initial[name].to(x), strength)


@PLASTICITY_REGISTRY.register('reset_last')
@torch.no_grad()
def reset_last(
    named: Named,
    initial: Named,
    generator: torch.Generator,
    *,
    every: Every = 100,
    layers: Annotated[
        list[str],
        Field(min_length=1, description='parameters to be reset: those with one of these texts in their names'),
    ] = ['_head.'],  # noqa: B006
) -> None:
    """Sets the last layers back to their initial values, by default the heads of policy and value.

    Source: Nikishin et al. 2022, arXiv:2205.07802.
    Raises: UserError if no parameter has such a name.
    """
    if problem := _unmatched(layers, named):
        raise UserError(problem)
    for name in named:
        if any(text in name for text in layers):
            named[name].copy_(initial[name])


def plasticity_problem(part: Any, names: Iterable[str]) -> str:
    """Why a part cannot act on a model, as a sentence; empty if it can, or if that is not known.

    Args: part: as `make_part` gives it, or None; names: of the model's parameters.
    """
    is_ours = part is not None and getattr(part, 'function', None) is reset_last
    return _unmatched(dict(part.options)['layers'], names) if is_ours else ''


def _unmatched(layers: Iterable[str], names: Iterable[str]) -> str:
    names = list(names)
    if any(text in name for name in names for text in layers):
        return ''
    return (
        f"plasticity 'reset_last': no parameter has one of {', '.join(map(repr, layers))} in its name; the "
        f'parameters are {", ".join(names)}'
    )
