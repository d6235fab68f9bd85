"""Plasticity: changes of a network's parameters between updates, so that it keeps learning when its task changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.components import make_component
from zoo.core.data import Columns, Metrics
from zoo.core.errors import UserError
from zoo.core.registry import PLASTICITY_REGISTRY, Component
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.options import Owner, UpdateOption

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots


class Plasticity(UpdateOption):
    """Calls a component of PLASTICITY_REGISTRY once per `every` updates (`every`: an option of the component, else 1).

    Parameters change in place, since they are views of the flat buffers of optimisers; the moments of optimisers do not
    change. Initial values are those with which the policy was made, or which replaced them later (e.g. init_from). Checkpoints
    have them, since no seed reproduces those of a model given by the user, or of one that began from another run.
    """

    key = 'policy.learn.plasticity'

    def problems(self, policy: Owner) -> Iterator[str]:
        component = make_component(PLASTICITY_REGISTRY, policy.cfg.learn.plasticity)
        if isinstance(component, Component) and component.function is reset_last:
            names = [name for name, p in policy.model.named_parameters() if p.requires_grad]
            yield _unmatched(dict(component.options)['layers'], names)

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._policy = policy
        self._component = make_component(PLASTICITY_REGISTRY, policy.cfg.learn.plasticity)
        self._every = dict(self._component.options).get('every', 1)
        self._named = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
        self._generator = torch_generator(policy.seed, 'plasticity')
        self._n_update = 0
        self.model_replaced()

    def after_update(self, batch: Columns) -> Metrics:
        self._n_update += 1
        if self._n_update % self._every == 0:
            generator = reseed(self._generator, self._policy.seed, 'plasticity', self._n_update)
            self._component({name: p.detach() for name, p in self._named.items()}, self._initial, generator)
            self._policy.policy_moved()
        return {}

    def model_replaced(self) -> None:
        self._initial = {name: p.detach().clone() for name, p in self._named.items()}

    def state_dict(self) -> dict[str, Any]:
        return {'plasticity': {'n_update': self._n_update, 'initial': dict(self._initial)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if 'plasticity' in state:
            self._n_update = state['plasticity']['n_update']
            for name, x in self._initial.items():
                x.copy_(state['plasticity']['initial'][name])


NamedTensors = dict[str, Tensor]
Every = Annotated[int, Field(ge=1, description='updates from one call to the next')]


@PLASTICITY_REGISTRY.register('shrink_perturb')
@torch.no_grad()
def shrink_perturb(
    named: NamedTensors,
    initial: NamedTensors,
    generator: torch.Generator,
    *,
    every: Every = 100,
    shrink: Annotated[float, Field(gt=0, le=1, description='factor of the weights; nearer 1 is gentler')] = 0.9,
    perturb: Annotated[float, Field(ge=0, description='noise, as a share of the size of the initial weights')] = 0.1,
) -> None:
    """Shrinks the weights and adds noise of the size of their initial values.

    w <- shrink w + perturb rms(w_initial) noise, noise normal, of each weight matrix or kernel
    Source: Ash and Adams 2020, arXiv:1910.08475. Departs: noise in units of each tensor's own initial size; tensors of one
      dimension (biases, gains of norms, free standard deviations) do not change.
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
    named: NamedTensors,
    initial: NamedTensors,
    generator: torch.Generator,
    *,
    every: Every = 1,
    strength: Annotated[float, Field(gt=0, le=1, description='share of the way back to the initial values')] = 1e-3,
) -> None:
    """Pulls all parameters towards their initial values.

    w <- w + strength (w_initial - w)
    Source: Kumar et al. 2023, arXiv:2308.11958. Departs: a separate step, like decoupled weight decay, not a term of the loss.
    """
    for name, x in named.items():
        x.lerp_(initial[name].to(x), strength)


@PLASTICITY_REGISTRY.register('reset_last')
@torch.no_grad()
def reset_last(
    named: NamedTensors,
    initial: NamedTensors,
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
    problem = _unmatched(layers, named)
    if problem:
        raise UserError(problem)
    for name in named:
        if any(text in name for text in layers):
            named[name].copy_(initial[name])


def _unmatched(layers: Iterable[str], names: Collection[str]) -> str:
    """Returns a sentence if no name of a parameter contains one of the texts; else ''."""
    if any(text in name for name in names for text in layers):
        return ''
    return (
        f"plasticity 'reset_last': no parameter has one of {', '.join(map(repr, layers))} in its name; the "
        f'parameters are {", ".join(names)}'
    )
