"""Checkpoints of DI-engine's ppo with fully connected networks: `ckpt/*.pth.tar` with the entries model and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from zoo.core.spaces import Box, Discrete
from zoo.tools.exchange.form import ForeignModel, ModelFileError, NewPlace, placed
from zoo.tools.exchange.networks import layer_places, numbered_layers

ALIASES = ('actor.', 'critic.')
"""Beginnings of names under which each parameter is there a second time."""


def is_di_engine(content: object) -> bool:
    """Whether what torch.load gives is a checkpoint of DI-engine."""
    return isinstance(content, Mapping) and {'model', 'last_iter'} <= set(content)


def of_di_engine(path: Path, content: Mapping[str, Any]) -> ForeignModel:
    """Reads a checkpoint. Raises: ModelFileError for other networks than those of ppo on vectors."""
    state = content['model']
    if not isinstance(state, Mapping) or not all(isinstance(x, Tensor) for x in state.values()):
        raise ModelFileError(path, "has other entries than parameters in 'model'; give a checkpoint of ppo")
    tensors: dict[str, Tensor] = {name: x for name, x in state.items() if not name.startswith(ALIASES)}
    model: dict[str, Any] = {'activation': 'relu', 'log_std_min': -20.0, 'log_std_max': 10.0}
    places, n_obs = _encoder_places(path, tensors, model)
    actor = _hidden(tensors, ('actor_head.Q.0', 'actor_head.main'))
    critic = _hidden(tensors, ('critic_head.main', 'critic_head.Q.0'))
    model['actor_head'] = [len(tensors[f'{name}.weight']) for name in actor]
    model['critic_head'] = [len(tensors[f'{name}.weight']) for name in critic]
    for here, layers in (('policy_head.0', actor), ('value_head.0', critic)):
        for i, there in enumerate(layers):
            places |= layer_places(there, f'{here}.layers.{i}')
    ends = {
        role: f'{role}_head.1' if layers else f'{role}_head' for role, layers in (('policy', actor), ('value', critic))
    }
    places |= layer_places('critic_head.last', f'{ends["value"]}.layer')
    action_space: Box | Discrete
    if 'actor_head.mu.weight' in tensors:
        places |= layer_places('actor_head.mu', f'{ends["policy"]}.mu')
        places['actor_head.log_sigma_param'] = NewPlace(f'{ends["policy"]}.log_std', Tensor.flatten)
        action_space = _unbounded(len(tensors['actor_head.mu.weight']))
    else:
        places |= layer_places('actor_head.Q.1.0', ends['policy'])
        del model['log_std_min'], model['log_std_max']
        action_space = Discrete(len(tensors.get('actor_head.Q.1.0.bias', ())) or 1)
    weights = placed(tensors, places, path)
    n = sum(x.numel() for x in weights.values())
    train_iter = content['last_iter']
    if type(train_iter) is not int or train_iter < 0:
        train_iter = 0
    return ForeignModel(
        path=path,
        source='DI-engine ppo',
        config={'policy': {'type': 'ppo', 'model': model, 'learn': {'value_norm': False, 'adam_eps': 1e-8}}},
        obs_space=_unbounded(n_obs),
        action_space=action_space,
        weights=weights,
        moments=None,
        became=[(f'{len(places)} tensors of model', f'{n:,} parameters of the network')],
        left_out=[
            (
                'value_norm',
                'the deviation of returns is not in the file, so values stay in the unit that the critic had',
            ),
            ('optimizer', 'it begins anew: its gradients were of values in that unit'),
            (
                'settings',
                'the file has none: they are those of ppo here; KEY=VALUE sets others, and zoo convert translates',
            ),
        ],
        train_iter=train_iter,
        places=places,
    )


def _encoder_places(
    path: Path, tensors: Mapping[str, Tensor], model: dict[str, Any]
) -> tuple[dict[str, NewPlace], int]:
    """The places of the encoders, which may be one, and the width of observations; sets their widths."""
    encoders = {'encoder': 'actor_encoder'}
    if 'encoder.init.weight' not in tensors:
        encoders = {'actor_encoder': 'actor_encoder', 'critic_encoder': 'critic_encoder'}
    if any(f'{there}.init.weight' not in tensors for there in encoders):
        raise ModelFileError(
            path, 'has an encoder that is no stack of layers (FCEncoder); checkpoints of ppo on vectors are imported'
        )
    model['shared_encoder'] = len(encoders) == 1
    places: dict[str, NewPlace] = {}
    for there, here in encoders.items():
        layers = [f'{there}.init', *numbered_layers(tensors, f'{there}.main')]
        model['hidden_sizes'] = [len(tensors[f'{name}.weight']) for name in layers]
        for i, name in enumerate(layers):
            places |= layer_places(name, f'{here}.layers.{i}')
        n_obs = tensors[f'{layers[0]}.weight'].shape[1]
    return places, n_obs


def _hidden(tensors: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> list[str]:
    """The hidden layers of a head, which begin with one of the prefixes."""
    for prefix in prefixes:
        layers = numbered_layers(tensors, prefix)
        if layers:
            return layers
    return []


def _unbounded(n: int) -> Box:
    return Box(np.full(n, -np.inf), np.full(n, np.inf))
