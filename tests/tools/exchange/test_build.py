"""Policies of models in zoo's names: parameters, statistics and moments go where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Discrete
from zoo.tools.exchange.build import policy_of
from zoo.tools.exchange.form import ForeignModel, ModelFileError, Moments, SavedStatistics

NAMES = [
    f'{part}.{kind}' for part in ('actor_encoder.layers.0', 'critic_encoder.layers.0') for kind in ('weight', 'bias')
]
SHAPES: dict[str, tuple[int, ...]] = dict(zip(NAMES, [(3, 2), (3,)] * 2, strict=True))
SHAPES |= {'policy_head.weight': (2, 3), 'policy_head.bias': (2,)}
SHAPES |= {'value_head.layer.weight': (1, 3), 'value_head.layer.bias': (1,)}


def model(**changes: Any) -> ForeignModel:
    config: dict[str, Any] = {'policy': {'type': 'ppo', 'model': {'hidden_sizes': [3], 'obs_norm': True}}}
    weights = {name: torch.full(shape, float(i)) for i, (name, shape) in enumerate(SHAPES.items())}
    moments = Moments({'exp_avg': weights, 'exp_avg_sq': {name: x + 100 for name, x in weights.items()}}, 7)
    box = Box(np.full(2, -np.inf), np.full(2, np.inf))
    statistics = {'': SavedStatistics(np.array([1.0, 2.0]), np.array([4.0, 9.0]), 50)}
    made = ForeignModel(Path('m'), 'test', config, box, Discrete(2), weights, moments, [], [], statistics)
    return made._replace(**changes)


def test_parameters_moments_and_statistics_are_those_of_the_model() -> None:
    policy: Any = policy_of(model(), None)[0]
    own = dict(policy.model.named_parameters())
    optimizer = policy.optimizers['all']
    for i, name in enumerate(SHAPES):
        assert (own[name] == i).all()
        assert (optimizer.cut(optimizer.exp_avg)[name] == i).all()
        assert (optimizer.cut(optimizer.exp_avg_sq)[name] == i + 100).all()
    assert optimizer.step_count == 7
    # (5 - 1) / sqrt(4) = 2, (5 - 2) / sqrt(9) = 1
    assert policy.model.input(torch.tensor([5.0, 5.0])).tolist() == pytest.approx([2, 1], rel=1e-6)
    assert policy.model.input.count == 50


def test_model_that_was_trained_without_a_seed_gets_the_default() -> None:
    config = {**model().config, 'seed': None}  # the default of stable-baselines3 and RLlib
    assert policy_of(model(config=config), None)[1].seed == 0
    assert policy_of(model(config={**config, 'seed': 3}), None)[1].seed == 3


def test_network_of_another_form_is_refused() -> None:
    weights = dict(model().weights)
    del weights['policy_head.bias']
    with pytest.raises(ModelFileError, match='policy_head.bias is not in the file'):
        policy_of(model(weights=weights), None)
    with pytest.raises(ModelFileError, match='policy_head.bias is .2. there and .3. here'):
        policy_of(model(action_space=Discrete(3)), None)


def test_model_without_spaces_needs_an_env() -> None:
    with pytest.raises(ModelFileError, match='name its env'):
        policy_of(model(obs_space=None), None)


def test_missing_moments_are_said() -> None:
    made = model(moments=Moments({'exp_avg': model().weights}, 7))
    policy: Any = policy_of(made, None)[0]
    assert policy.optimizers['all'].step_count == 0
    assert made.left_out == [('policy.optimizer.pth', 'exp_avg_sq is missing: the optimiser begins anew')]
