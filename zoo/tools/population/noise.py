"""Noise on the weights of an actor, after a reset of dormant units: the mutation 'parameters'."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.model.check import reached
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, State
from zoo.tools.population.growth import Towers, why_not_grown_in, why_not_growth
from zoo.tools.population.layout import Rewriting, StateLayout, Tensors, policy_of, rewritten

SHARE = 0.1  # of the entries of a matrix, which change
REDRAWN = 0.05  # of these entries, which are drawn again; the others get noise
NOISE = 0.1  # standard deviation of the noise, relative to the entry
DORMANT = 0.01
"""A unit is dormant if the gradient of its incoming weights has at most this share of the mean size over the units of its layer."""
SECOND_MOMENT = 'exp_avg_sq'


def why_not_noise(cfg: JobConfig) -> str:
    """Returns a sentence if the policies of a config get no noise; else ''."""
    if cfg.agents.policies:
        return 'the weights of several policies get no noise: a mutation is of one policy; leave the mutation parameters out'
    if not cfg.policy.model:
        return f'policy {cfg.policy.type!r} has no network that could get noise; leave the mutation parameters out'
    return ''


def noisy(state: State, *, checkpoint: Checkpoint, parent: JobConfig, seed: int) -> State:
    """Returns the state of a checkpoint with other weights; the input is unchanged.

    First, dormant units are reset: new incoming weights, a bias of 0, outgoing weights of 0. Then matrices of the actor get
    noise: their number is drawn uniformly, then which. In each, a tenth of the entries change, each once: 95% of these by normal
    noise of a tenth of their size, 5% are drawn with the standard deviation of the matrix. Changed entries have no moments.
    Source: AgileRL 2.58 and ReGraMa. Departs: a unit's gradient is the root of Adam's second moments, which a checkpoint has,
    so that only networks that Adam trains have resets; AgileRL redraws with a standard deviation of 1 and resets all moments.
    Args: checkpoint: of the parent, for its spaces; parent: its config.
    """
    policy = policy_of(checkpoint, parent, seed)
    layout = StateLayout.of(policy)
    model = state['policy']['model']
    mutated = _Mutated(model, layout)
    if not (why_not_growth(parent) or why_not_grown_in(policy)):  # else its units are not known
        towers = Towers(layout, policy.model.one_trunk)
        for tower, layer, units in dormant_units(state, layout, towers):
            mutated.reset(tower, layer, units, towers.readers(tower, layer))
    generator = np.random.default_rng(seed)
    names = weight_matrices(policy)
    n = generator.integers(1, len(names) + 1)
    for i in sorted(generator.choice(len(names), size=n, replace=False)):
        mutated.disturb(names[i], generator)
    return rewritten(state, layout, layout, Rewriting(mutated.values, mutated.moments, _unchanged))


def weight_matrices(policy: Policy) -> list[str]:
    """Names of the matrices that the actor's outputs depend on, without those of memories and frozen ones."""
    names = reached(policy.model, policy.obs_space, 'compute_actor')
    shapes = {name: p.dim() for name, p in policy.model.named_parameters()}
    return [name for name, dim in shapes.items() if name in names and dim == 2 and _is_weight(name)]


def _is_weight(name: str) -> bool:
    return name.rpartition('.')[2] == 'weight' and 'core' not in name.partition('.')[0]


def dormant_units(state: State, layout: StateLayout, towers: Towers) -> list[tuple[str, int, Tensor]]:
    """Tower, layer and indices of the units whose incoming weights have had nearly no gradient."""
    found = []
    squares = _second_moments(state, layout)
    for tower in towers.names:
        layer = 0
        while f'{tower}.layers.{layer}.weight' in layout.values:
            square = squares.get(f'{tower}.layers.{layer}.weight')
            if square is not None:
                size = square.sqrt().mean(dim=1)
                units = (size <= DORMANT * size.mean()).nonzero().flatten()
                if 0 < len(units) < len(size):  # all: nothing has been learned yet
                    found.append((tower, layer, units))
            layer += 1
    return found


def _second_moments(state: State, layout: StateLayout) -> dict[str, Tensor]:
    """Sums of Adam's second moments over all optimisers, by name of the parameter."""
    sums: dict[str, Tensor] = {}
    buffers: Any
    for role, buffers in state['policy']['learn']['optimizer'].items():
        if SECOND_MOMENT in buffers:
            for name, x in layout.cut(role, buffers[SECOND_MOMENT]).items():
                sums[name] = sums.get(name, 0) + x
    return sums


def _unchanged(tensors: Tensors, wanted: list[str]) -> dict[str, Tensor]:
    return {name: tensors[name].clone() for name in wanted}


class _Mutated:
    """New weights of a model: entries that are replaced, and what is added to others.

    Args: model: its parameters by name; layout: those of a new network, for incoming weights of units.
    """

    def __init__(self, model: Tensors, layout: StateLayout) -> None:
        self._model = model
        self._fresh = layout.values
        self._first_name = layout.first_name
        self._new = {name: model[name].clone() for name in layout.first_name.values()}
        self._is_replaced = {name: torch.zeros_like(x, dtype=torch.bool) for name, x in self._new.items()}
        self._noise = {name: torch.zeros_like(x) for name, x in self._new.items()}

    def reset(self, tower: str, layer: int, units: Tensor, readers: list[str]) -> None:
        """Makes units of a layer new ones, which nothing reads yet."""
        for part in ('weight', 'bias'):
            name = f'{tower}.layers.{layer}.{part}'
            self._new[name][units] = self._fresh[name][units]
            self._is_replaced[name][units] = True
        for name in readers:
            self._new[name][:, units] = 0
            self._is_replaced[name][:, units] = True

    def disturb(self, name: str, generator: np.random.Generator) -> None:
        """Changes a tenth of the entries of a matrix."""
        x = self._new[name].flatten()
        n_changed = math.ceil(SHARE * len(x))
        n_redrawn = round(REDRAWN * n_changed)
        entries = torch.from_numpy(generator.choice(len(x), size=n_changed, replace=False))
        normal = torch.from_numpy(generator.standard_normal(n_changed)).to(x)
        redrawn = entries[:n_redrawn]
        others = entries[n_redrawn:]
        noise = torch.zeros_like(x)
        noise[others] = NOISE * x[others].abs() * normal[n_redrawn:]
        deviation = x.std(correction=0)
        x = x + noise
        x[redrawn] = deviation * normal[:n_redrawn]
        is_redrawn = torch.zeros(len(x), dtype=torch.bool)
        is_redrawn[redrawn] = True
        shape = self._new[name].shape
        self._new[name] = x.view(shape)
        self._noise[name] = noise.view(shape)
        self._is_replaced[name] |= is_redrawn.view(shape)

    def values(self, tensors: Tensors, wanted: list[str]) -> dict[str, Tensor]:
        """The model's parameters, or an average of them, which gets the same changes."""
        changed = {}
        for name in wanted:
            first = self._first_name[name]
            changed[name] = torch.where(self._is_replaced[first], self._new[first], tensors[name] + self._noise[first])
        return changed

    def moments(self, tensors: Tensors, wanted: list[str]) -> dict[str, Tensor]:
        """Moments, 0 where an entry changed."""
        changed = {}
        for name in wanted:
            first = self._first_name[name]
            is_changed = self._is_replaced[first] | (self._noise[first] != 0)
            changed[name] = torch.where(is_changed, 0.0, tensors[name])
        return changed
