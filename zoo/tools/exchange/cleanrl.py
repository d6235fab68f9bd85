"""Parameters that scripts of CleanRL save: those of ppo_continuous_action."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from zoo.core.spaces import Box
from zoo.tools.exchange.form import ForeignModel, ModelFileError, NewPlace, placed
from zoo.tools.exchange.networks import Tower, head_name, layer_places, numbered_layers, put_towers

MARK = 'actor_logstd'
"""The entry that only parameters of CleanRL's continuous PPO have."""
LEARN = {
    'learning_rate': 3e-4,
    'batch_size': 64,
    'epoch_per_collect': 10,
    'clip_ratio': 0.2,
    'entropy_weight': 0.0,
    'value_weight': 0.5,
    'value_loss': 'clip',
    'grad_clip': 0.5,
    'adam_eps': 1e-5,
    'reward_norm': True,
    'reward_norm_discount': 0.99,
}
"""The usual settings of the script; those of a run stand in no file."""


def is_cleanrl(content: object) -> bool:
    """Whether what torch.load gives are parameters of CleanRL."""
    return isinstance(content, Mapping) and MARK in content


def of_cleanrl(path: Path, content: Mapping[str, Any]) -> ForeignModel:
    """Reads parameters. Raises: ModelFileError for others than those of ppo_continuous_action."""
    if not all(isinstance(x, Tensor) for x in content.values()):
        raise ModelFileError(path, 'has other entries than parameters; save agent.state_dict()')
    tensors: dict[str, Tensor] = dict(content)
    layers = {name: numbered_layers(tensors, name) for name in ('actor_mean', 'critic')}
    if not all(layers.values()):
        raise ModelFileError(
            path,
            'has an actor or critic that is no stack of layers, as ppo_continuous_action has it; copy its tensors by hand',
        )
    model: dict[str, Any] = {'log_std_min': -20.0, 'log_std_max': 10.0}
    towers = {name: Tower.of(tensors, names[:-1]) for name, names in layers.items()}
    places = put_towers(model, towers['actor_mean'], towers['critic'], None)
    policy_head = head_name(model, 'policy')
    places[MARK] = NewPlace(f'{policy_head}.log_std', Tensor.flatten)
    places |= layer_places(layers['actor_mean'][-1], f'{policy_head}.mu')
    places |= layer_places(layers['critic'][-1], f'{head_name(model, "value")}.layer')
    weights = placed(tensors, places, path)
    n_obs = tensors[f'{layers["actor_mean"][0]}.weight'].shape[1]
    n_action = tensors[MARK].numel()
    n = sum(x.numel() for x in weights.values())
    return ForeignModel(
        path=path,
        source='CleanRL ppo_continuous_action',
        config={'policy': {'type': 'ppo', 'model': model, 'learn': dict(LEARN), 'collect': {'n_step': 2048}}},
        obs_space=_unbounded(n_obs),
        action_space=_unbounded(n_action),
        weights=weights,
        moments=None,
        became=[(f'{len(places)} tensors', f'{n:,} parameters of the network')],
        left_out=[
            (
                'NormalizeObservation',
                'the script does not save its statistics, so the policy acts equally on observations that they have '
                'normalised, and on no others: normalise them in a wrapper of the env',
            ),
            ('optimizer', 'the script does not save its state: it begins anew'),
            ('settings', 'the script does not save them: they are its usual ones; KEY=VALUE sets others'),
        ],
        places=places,
    )


def _unbounded(n: int) -> Box:
    return Box(np.full(n, -np.inf), np.full(n, np.inf))
