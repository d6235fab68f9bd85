"""When a policy's plasticity part acts on its model: after every so many updates."""

from __future__ import annotations

from typing import Any

from torch import nn

from zoo.core.part import Part
from zoo.core.seeding import reseed, torch_generator


class Regrowth:
    """Calls a part of PLASTICITY_REGISTRY on a model after every `every`-th update, `every` an option of the part (1 without).

    Parameters change in place, so that flat buffers of which they are views stay valid; the moments of an optimiser stay as
    they are. The initial values are those at construction, or at `begin`. They go into checkpoints: a model given from outside, or one
    that began from another run, has values that no seed brings back.
    Args: part: as `make_part` gives it; seed: the run's; what the part draws is a function of it and of the count of updates.
    """

    def __init__(self, part: Part, model: nn.Module, seed: int) -> None:
        self._part, self._every = part, dict(part.options).get('every', 1)
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.begin()
        self._seed, self._generator = seed, torch_generator(seed, 'plasticity')
        self.n_update = 0

    def begin(self) -> None:
        """The parameters as they are now are the initial ones."""
        self._initial = {name: p.detach().clone() for name, p in self._named.items()}

    def after_update(self) -> bool:
        """Counts an update, and calls the part where it is its turn; returns whether it did."""
        self.n_update += 1
        acts = self.n_update % self._every == 0
        if acts:
            generator = reseed(self._generator, self._seed, 'plasticity', self.n_update)
            self._part({name: p.detach() for name, p in self._named.items()}, self._initial, generator)
        return acts

    def state_dict(self) -> dict[str, Any]:
        """The count of updates and the initial parameters."""
        return {'n_update': self.n_update, 'initial': dict(self._initial)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in."""
        self.n_update = state['n_update']
        for name, x in self._initial.items():
            x.copy_(state['initial'][name])
