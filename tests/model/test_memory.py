"""Models with a memory: sequences, what passes through in the state, where gradients go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, Space
from zoo.model import PPG, VAC, PPGConfig, RecurrentPPG, RecurrentVAC, VACConfig

VECTOR = Box(-np.ones(4), np.ones(4))
IMAGE = Box(np.zeros((8, 9, 3)), np.full((8, 9, 3), 255.0), 'uint8')
MASKED = Dict({'image': IMAGE, 'obs': VECTOR, 'action_mask': MultiBinary((3,))})
CELLS = ['lstm', 'gru', 'mingru']
L, B = 7, 3

MODELS = {
    'vac off': ('vac', dict(shared_encoder='off')),
    'vac both': ('vac', dict(shared_encoder='both')),
    'vac detach': ('vac', dict(shared_encoder='detach')),
    'ppg dual': ('ppg', dict(arch='dual')),
    'ppg detach': ('ppg', dict(arch='detach')),
    'ppg shared': ('ppg', dict(arch='shared')),
}
models = pytest.mark.parametrize('name', MODELS)
dual = pytest.mark.parametrize('name', ['vac off', 'ppg dual'])


def make(name: str, obs_space: Space = VECTOR, action_space: Space | None = None, **fields: Any) -> Any:
    kind, more = MODELS[name]
    cls, config = {'vac': (VAC, VACConfig), 'ppg': (PPG, PPGConfig)}[kind]
    memory = {'hidden_size': 6, **fields.pop('recurrent', {})}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cfg = validate(config, {**more, 'hidden_sizes': [8], 'recurrent': memory, **fields})
        return cls(cfg, obs_space, action_space or Discrete(3))


def observe(space: Space, *lead: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(*lead, 4, generator=generator)
    if space is VECTOR:
        return vector.double()
    mask = torch.rand(*lead, 3, generator=generator) < 0.5
    mask[..., 0] |= ~mask.any(-1)
    image = torch.randint(256, (*lead, 8, 9, 3), dtype=torch.uint8, generator=generator)
    return {'image': image, 'obs': vector.double(), 'action_mask': mask}


def at(obs: Any, t: int) -> Any:
    return {name: x[t] for name, x in obs.items()} if isinstance(obs, dict) else obs[t]


def some_state(model: Any) -> dict[str, Tensor]:
    zeros = model.initial_state(B)
    return {name: torch.randn(x.shape, dtype=x.dtype) for name, x in zeros.items()}


FIRST = torch.zeros(L, B, dtype=torch.bool)
FIRST[3, 0] = FIRST[5, 0] = FIRST[0, 1] = True


def anew(model: Any, state: dict[str, Tensor], begins: Tensor) -> dict[str, Tensor]:
    zeros = model.initial_state(B)
    return {name: torch.where(begins.unsqueeze(-1), zeros[name], x) for name, x in state.items()}


@models
def test_a_model_has_a_memory_only_where_it_is_asked_for(name):
    kind, fields = MODELS[name]
    cls, config = {'vac': (VAC, VACConfig), 'ppg': (PPG, PPGConfig)}[kind]
    plain = cls(validate(config, fields), VECTOR, Discrete(3))
    assert type(plain) is cls and not hasattr(plain, 'initial_state')
    assert type(make(name)) is {'vac': RecurrentVAC, 'ppg': RecurrentPPG}[kind]


@models
@pytest.mark.parametrize('cell', CELLS)
@pytest.mark.parametrize('n_layer', [1, 2])
@pytest.mark.parametrize('obs_space', [VECTOR, MASKED], ids=['vector', 'masked'])
def test_a_sequence_is_as_many_single_steps_in_every_method(name, cell, n_layer, obs_space):
    model = make(name, obs_space, recurrent={'cell': cell, 'n_layer': n_layer}, precision='fp32')
    if obs_space is VECTOR:
        model = model.double()
        tolerance = 1e-10
    else:
        model, tolerance = model.float(), 1e-5  # images are computed in single precision
    obs, state = observe(obs_space, L, B), some_state(model)
    if obs_space is MASKED:
        obs['obs'] = obs['obs'].float()
    one_state, rows = state, []
    for t in range(L):
        one_state = anew(model, one_state, FIRST[t])
        rows.append(model.compute_actor_critic(at(obs, t), one_state))
        one_state = rows[-1]['state']
    want = {key: torch.stack([row[key] for row in rows]) for key in ('logit', 'value')}
    found = model.compute_actor_critic(obs, state, FIRST)
    logit, actor_state = model.compute_actor(obs, state, FIRST)
    value, critic_state = model.compute_critic(obs, state, FIRST)
    for got, key in ((found['logit'], 'logit'), (logit, 'logit'), (found['value'], 'value'), (value, 'value')):
        torch.testing.assert_close(got, want[key], rtol=0, atol=tolerance)
    for key, x in one_state.items():
        torch.testing.assert_close(found['state'][key], x, rtol=0, atol=tolerance)
    torch.testing.assert_close(actor_state['actor'], one_state['actor'], rtol=0, atol=tolerance)
    own = 'critic' if 'critic' in state else 'actor'
    torch.testing.assert_close(critic_state[own], one_state[own], rtol=0, atol=tolerance)
    if 'ppg' in name:
        aux = model.compute_aux(obs, state, FIRST)
        for key in ('logit', 'value'):
            torch.testing.assert_close(aux[key], want[key], rtol=0, atol=tolerance)
        assert aux['aux_value'].shape == (L, B) and aux['state'].keys() == state.keys()


@dual
def test_what_a_method_does_not_compute_passes_through(name):
    model = make(name).double()
    obs, state = observe(VECTOR, L, B), some_state(model)
    assert model.compute_actor(obs, state, FIRST)[1]['critic'] is state['critic']
    assert model.compute_critic(obs, state, FIRST)[1]['actor'] is state['actor']
    assert model.compute_actor(obs[0], state)[1].keys() == state.keys()


@dual
def test_a_critic_without_memory_sees_the_present_alone(name):
    model = make(name, recurrent={'critic': False}).double()
    obs, state = observe(VECTOR, L, B), some_state(model)
    assert state.keys() == {'actor'}
    value, same = model.compute_critic(obs, state, FIRST)
    assert same is state and value.shape == (L, B)
    torch.testing.assert_close(value[2], model.compute_critic(obs[2], some_state(model))[0])
    assert model.value_head.layer.in_features == 8 and model.policy_head.in_features == 6


@pytest.mark.parametrize('name', ['vac both', 'vac detach', 'ppg detach', 'ppg shared'])
def test_on_a_shared_encoder_there_is_one_memory(name):
    model = make(name)
    assert model.critic_core is model.actor_core and model.one_trunk and model.initial_state(2).keys() == {'actor'}
    with pytest.raises(UserError, match='policy.model.recurrent.critic is false but actor and critic share'):
        make(name, recurrent={'critic': False})


# parts that a loss over one output moves; those of the critic are as without memory, with its core
CRITIC = {
    'vac off': {'critic_encoder', 'critic_core', 'value_head'},
    'vac both': {'actor_encoder', 'actor_core', 'value_head'},
    'vac detach': {'value_head'},
    'ppg dual': {'critic_encoder', 'critic_core', 'value_head'},
    'ppg detach': {'value_head'},
    'ppg shared': {'actor_encoder', 'actor_core', 'value_head'},
}
ACTOR = {'actor_encoder', 'actor_core', 'policy_head'}


def moved(model: Any, output: Tensor) -> set[str]:
    """Names of the parameters that a loss over an output moves."""
    model.zero_grad(set_to_none=True)
    output.square().sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


def parts(names: set[str]) -> set[str]:
    return {name.split('.')[0] for name in names}


@models
@pytest.mark.parametrize('cell', CELLS)
def test_gradients_go_where_the_arch_says(name, cell):
    model = make(name, recurrent={'cell': cell}).double()
    obs, state = observe(VECTOR, L, B), some_state(model)
    assert parts(moved(model, model.compute_critic(obs, state, FIRST)[0])) == CRITIC[name]
    assert parts(moved(model, model.compute_actor_critic(obs, state, FIRST)['value'])) == CRITIC[name]
    assert parts(moved(model, model.compute_actor(obs, state, FIRST)[0])) == ACTOR
    assert parts(moved(model, model.compute_actor_critic(obs, state, FIRST)['logit'])) == ACTOR
    if 'ppg' in name:
        aux = model.compute_aux(obs, state, FIRST)
        assert parts(moved(model, aux['aux_value'])) == {'actor_encoder', 'actor_core', 'aux_head'}
        assert parts(moved(model, model.compute_aux(obs, state, FIRST)['value'])) == CRITIC[name]


@models
@pytest.mark.parametrize(
    'fields', [{}, dict(actor_head=[5], critic_head=[7, 5], layer_norm=True)], ids=['plain', 'heads']
)
def test_critic_parameters_are_those_that_its_loss_moves_and_no_others(name, fields):
    model = make(name, **fields).double()
    obs, state = observe(VECTOR, L, B), some_state(model)
    mine = dict(model.critic_parameters())
    assert mine.keys() == moved(model, model.compute_critic(obs, state, FIRST)[0])
    both = mine.keys() & moved(model, model.compute_actor(obs, state, FIRST)[0])
    assert bool(both) == model.joint == (name in ('vac both', 'ppg shared'))


@models
def test_obs_statistics_reach_a_model_with_memory(name):
    model, plain = make(name, obs_norm=True).double(), make(name).double()
    rows = 3 + 2 * observe(VECTOR, 200)
    model.update_normalizer(rows)
    standard = ((rows - rows.mean(0)) / rows.std(0, correction=0)).clamp(-10, 10)
    state = model.initial_state(200)
    torch.testing.assert_close(
        model.compute_actor(rows, state)[0], plain.compute_actor(standard, state)[0], rtol=1e-4, atol=1e-6
    )


def test_a_class_of_ones_own_that_extends_a_model_without_memory_is_told_so():
    class Mine(VAC):
        pass

    with pytest.raises(UserError, match='model Mine extends VAC, which has no memory; let it extend RecurrentVAC'):
        Mine(validate(VACConfig, {'recurrent': {}}), VECTOR, Discrete(3))
    assert type(Mine(validate(VACConfig, {}), VECTOR, Discrete(3))) is Mine


@pytest.mark.parametrize(
    'name, fields, want',
    [
        # an encoder of 4*8 + 8 = 40; lstm: 4 * 6 * (8 + 6 + 1) = 360; heads of 6*3 + 3 and 6 + 1
        ('vac off', {}, 2 * (40 + 360) + 21 + 7),
        ('vac both', {}, 40 + 360 + 21 + 7),
        # gru: 3 * 6 * (8 + 6 + 2) = 288 and another layer 3 * 6 * (6 + 6 + 2) = 252; the critic's head has 8 + 1
        ('ppg dual', dict(recurrent={'cell': 'gru', 'n_layer': 2, 'critic': False}), 2 * 40 + 540 + 21 + 9 + 7),
        # mingru: 2 * 6 * (8 + 1) = 108
        ('ppg detach', dict(recurrent={'cell': 'mingru'}), 40 + 108 + 21 + 2 * 7),
    ],
)
def test_parameters_are_those_of_the_parts(name, fields, want):
    assert sum(p.numel() for p in make(name, **fields).parameters()) == want
