"""Actor-critic models of every kind, spaces for them, and random observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.config.section import validate
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, Space
from zoo.model import PPG, VAC, PPGConfig, RecurrentPPG, RecurrentVAC, VACConfig

# fields, and the key in CRITIC of the modules that a loss over the value moves
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    'vac off': (dict(shared_encoder='off'), 'separate'),
    'vac both': (dict(shared_encoder='both'), 'shared'),
    'vac detach': (dict(shared_encoder='detach'), 'detach'),
    'ppg dual': (dict(arch='dual'), 'separate'),
    'ppg detach': (dict(arch='detach'), 'detach'),
    'ppg shared': (dict(arch='shared'), 'shared'),
}
models = pytest.mark.parametrize('name', MODELS)
duals = pytest.mark.parametrize('name', ['vac off', 'ppg dual'])


def box(*shape: int) -> Box:
    return Box(np.full(shape, -1.0), np.full(shape, 1.0))


def images(*shape: int) -> Box:
    return Box(np.zeros(shape), np.full(shape, 255.0), 'uint8')


THREE, VECTOR, IMAGES, MASK = Discrete(3), box(4), images(8, 9, 3), {ACTION_MASK: MultiBinary((3,))}


def make(name: str = 'vac off', obs_space: Space = VECTOR, action_space: Space = THREE, **fields: Any) -> Any:
    cls, config, _ = KINDS[name.split()[0]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(validate(config, {**MODELS[name][0], **fields}), obs_space, action_space)


def observe(space: Space, *lead: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, Dict):
        return {name: observe(part, *lead, seed=seed + i) for i, (name, part) in enumerate(space.spaces.items())}
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead, generator=generator)
    if isinstance(space, MultiBinary):
        mask = torch.rand(*lead, *space.shape, generator=generator) < 0.5
        mask[..., 1] |= ~mask.any(-1)
        return mask
    if len(space.shape) == 3:
        return torch.randint(256, (*lead, *space.shape), dtype=torch.uint8, generator=generator)
    return torch.randn(*lead, *space.shape, generator=generator)


def at(obs: Any, *index: int) -> Any:
    return {name: x[index] for name, x in obs.items()} if isinstance(obs, dict) else obs[index]


def outputs(model: Any, obs: Any, *more: Any) -> dict[str, Tensor]:
    """All outputs of all methods, by method and name."""
    pairs = {'actor.logit': model.compute_actor(obs, *more), 'critic.value': model.compute_critic(obs, *more)}
    found = {name: x[0] if isinstance(x, tuple) else x for name, x in pairs.items()}
    methods = {'both': model.compute_actor_critic} | ({'aux': model.compute_aux} if hasattr(model, 'aux_head') else {})
    for method, call in methods.items():
        found |= {f'{method}.{key}': x for key, x in call(obs, *more).items() if key != 'state'}
    return found


KINDS: dict[str, tuple[Any, Any, Any]] = {'vac': (VAC, VACConfig, RecurrentVAC), 'ppg': (PPG, PPGConfig, RecurrentPPG)}
