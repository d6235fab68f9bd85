"""Models with a memory: sequences, state entries that pass through, and models with one memory or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.actor_critics import IMAGES, MASK, MODELS, VECTOR, at, duals, make, models, observe, outputs
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.spaces import Dict, Discrete
from zoo.model import VAC, VACConfig

MASKED = Dict({'image': IMAGES, 'obs': VECTOR, **MASK})
L, B = 5, 3
FIRST = torch.zeros(L, B, dtype=torch.bool)
FIRST[2, 0] = FIRST[4, 0] = FIRST[0, 1] = True


def remembering(name: str, obs_space: Any = VECTOR, **recurrent: Any) -> Any:
    return make(name, obs_space, hidden_sizes=[8], recurrent={'hidden_size': 6, **recurrent}, precision='fp32')


def some_state(model: Any) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(x.shape, generator=generator) for name, x in model.initial_state(B).items()}


@models
@pytest.mark.parametrize('recurrent', [dict(cell='lstm', n_layer=2), dict(cell='gru')], ids=['lstm', 'gru'])
def test_a_sequence_is_as_many_single_steps_in_every_method(name: str, recurrent: dict[str, Any]) -> None:
    obs_space = VECTOR if recurrent['cell'] == 'lstm' else MASKED
    model = remembering(name, obs_space, **recurrent)
    obs, state = observe(obs_space, L, B), some_state(model)
    one_state, zeros, rows = state, model.initial_state(B), []
    for t in range(L):
        begins = FIRST[t].unsqueeze(-1)
        one_state = {key: torch.where(begins, zeros[key], x) for key, x in one_state.items()}
        rows.append(model.compute_actor_critic(at(obs, t), one_state))
        one_state = rows[-1]['state']
    for key, x in outputs(model, obs, state, FIRST).items():
        if key != 'aux.aux_value':
            want = torch.stack([row[key.split('.')[1]] for row in rows])
            torch.testing.assert_close(x, want, rtol=0, atol=1e-5)
    both = model.compute_actor_critic(obs, state, FIRST)['state']
    actor, critic = model.compute_actor(obs, state, FIRST)[1], model.compute_critic(obs, state, FIRST)[1]
    own = 'critic' if 'critic' in state else 'actor'
    for found, keys in ((both, list(state)), (actor, ['actor']), (critic, [own])):
        assert found.keys() == state.keys()
        for key in keys:
            torch.testing.assert_close(found[key], one_state[key], rtol=0, atol=1e-5)
    if 'ppg' in name:
        assert model.compute_aux(obs, state, FIRST)['state'].keys() == state.keys()


@duals
def test_what_a_method_does_not_compute_passes_through(name: str) -> None:
    model = remembering(name)
    obs, state = observe(VECTOR, L, B), some_state(model)
    assert model.compute_actor(obs, state, FIRST)[1]['critic'] is state['critic']
    assert model.compute_critic(obs, state, FIRST)[1]['actor'] is state['actor']
    assert model.compute_actor(obs[0], state)[1].keys() == state.keys()


@duals
def test_a_critic_without_memory_sees_the_present_alone(name: str) -> None:
    model = remembering(name, critic=False)
    obs, state = observe(VECTOR, L, B), some_state(model)
    assert state.keys() == {'actor'}
    value, same = model.compute_critic(obs, state, FIRST)
    assert same is state and value.shape == (L, B)
    torch.testing.assert_close(value[2], model.compute_critic(obs[2], model.initial_state(B))[0])
    assert model.value_head.layer.in_features == 8 and model.policy_head.in_features == 6


@pytest.mark.parametrize('name', [name for name, (_, arch) in MODELS.items() if arch != 'separate'])
def test_on_a_shared_encoder_there_is_one_memory(name: str) -> None:
    model = remembering(name)
    assert model.critic_core is model.actor_core and model.one_trunk and model.initial_state(2).keys() == {'actor'}


def test_a_class_of_ones_own_that_extends_a_model_without_memory_is_told_so() -> None:
    class Mine(VAC):
        pass

    with pytest.raises(UserError, match='model Mine extends VAC, which has no memory; let it extend RecurrentVAC'):
        Mine(validate(VACConfig, {'recurrent': {}}), VECTOR, Discrete(3))
    assert type(Mine(validate(VACConfig, {}), VECTOR, Discrete(3))) is Mine
