"""Observations of several entries: action masks, what actor and critic each see, and what acting can do without."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.model.layers import MLP, OneHot
from zoo.rl_utils.normalizer import RunningMeanStd

VECTOR = Box(-np.ones(4), np.ones(4))
MASKED = Dict({'obs': VECTOR, 'action_mask': MultiBinary((3,))})
MANY = Dict({'seen': VECTOR, 'index': Discrete(5), 'hidden': Box(-np.ones(2), np.ones(2))})
MASKED_MANY = Dict({**MANY.spaces, 'action_mask': MultiBinary((3,))})
both = pytest.mark.parametrize('name', ['vac', 'ppg'])


def make(name: str, obs_space: Space, action_space: Space | None = None, **fields: Any) -> Any:
    cls, config = {'vac': (VAC, VACConfig), 'ppg': (PPG, PPGConfig)}[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(validate(config, fields), obs_space, action_space or Discrete(3))


def observe(*lead: int) -> dict[str, Tensor]:
    """Of MASKED_MANY and of MASKED."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(*lead, 3, generator=generator) < 0.5
    mask[..., 1] |= ~mask.any(-1)
    obs = torch.randn(*lead, 4, generator=generator)
    return {
        'seen': obs,
        'obs': obs,
        'index': torch.randint(5, lead, generator=generator),
        'hidden': torch.randn(*lead, 2, generator=generator),
        'action_mask': mask,
    }


# ---- masks


@both
@pytest.mark.parametrize('lead', [(6,), (2, 3)], ids=str)
@pytest.mark.parametrize('obs_space', [MASKED, MASKED_MANY], ids=['one', 'many'])
def test_every_logit_has_the_mask_applied_and_is_else_that_of_the_network(name, obs_space, lead):
    model, obs = make(name, obs_space), observe(*lead)
    open_mask = {**obs, 'action_mask': torch.ones(*lead, 3, dtype=torch.bool)}
    plain = model.compute_actor(open_mask)
    want = torch.where(obs['action_mask'], plain, -torch.inf)
    assert model.is_masked and torch.equal(model.compute_actor(obs), want)
    assert torch.equal(model.compute_actor_critic(obs)['logit'], want)
    if name == 'ppg':
        assert torch.equal(model.compute_aux(obs)['logit'], want)
    assert torch.equal(model.compute_critic(obs), model.compute_critic(open_mask))  # encoders do not see it


def test_a_choice_that_is_never_allowed_gets_no_gradient():
    model, obs = make('vac', MASKED), observe(6)
    obs['action_mask'] = torch.tensor([True, False, True]).expand(6, 3)
    model.dist.log_prob(model.compute_actor(obs), torch.zeros(6, dtype=torch.int64)).sum().backward()
    assert not model.policy_head.weight.grad[1].any() and model.policy_head.weight.grad[[0, 2]].all()


@both
def test_beside_a_mask_the_network_of_one_leaf_is_that_of_the_leaf_alone(name):
    model, bare, obs = make(name, MASKED, obs_norm=True), make(name, VECTOR, obs_norm=True), observe(20)
    assert model.leaf == 'obs' and bare.leaf is None and not bare.is_masked
    assert type(model.input) is RunningMeanStd and type(model.actor_encoder) is type(model.critic_encoder) is MLP
    assert all(torch.equal(x, bare.state_dict()[key]) for key, x in model.state_dict().items())
    model.update_normalizer(obs)
    bare.update_normalizer(obs['obs'])
    assert torch.equal(model.compute_critic(obs), bare.compute_critic(obs['obs']))


@pytest.mark.parametrize(
    'leaf, kind', [(VECTOR, nn.Identity), (Discrete(4), OneHot), (Box(np.zeros((2, 2)), np.ones((2, 2))), None)]
)
def test_a_dict_of_one_leaf_needs_no_mask_for_that(leaf, kind):
    model = make('vac', Dict({'x': leaf}))
    assert model.leaf == 'x' and type(model.actor_encoder) is MLP
    assert kind is None or type(model.input) is kind


@pytest.mark.parametrize(
    'obs_space, action_space, words',
    [
        (MASKED, VECTOR, ['gaussian', 'take no mask', 'env.action_mask=off']),
        (MASKED, Discrete(4), ['shape (3,)', '(4,)', 'categorical']),
        (Dict({'action_mask': MultiBinary((3,))}), Discrete(3), ["nothing but 'action_mask'"]),
    ],
)
def test_masks_that_cannot_be_used_are_refused(obs_space, action_space, words):
    with pytest.raises(UserError) as error:
        make('vac', obs_space, action_space)
    assert all(word in str(error.value) for word in words), str(error.value)


# ---- several entries


@both
@pytest.mark.parametrize('lead', [(), (6,), (2, 3)], ids=str)
def test_outputs_over_several_entries_keep_leading_dimensions(name, lead):
    model, obs = make(name, MANY), observe(*lead)
    output = model.compute_actor_critic(obs)
    assert output['logit'].shape == (*lead, 3) and output['value'].shape == lead
    torch.testing.assert_close(output['logit'], model.compute_actor(obs))
    torch.testing.assert_close(output['value'], model.compute_critic(obs))


def test_a_tuple_is_a_dict_with_numbers_for_names():
    model = make('vac', Dict({'0': VECTOR, '1': Discrete(5)}, is_tuple=True), critic_obs=['0'])
    obs = observe(3)
    assert model.compute_actor_critic({'0': obs['seen'], '1': obs['index']})['value'].shape == (3,)


# ---- asymmetric


@both
@pytest.mark.parametrize('obs_space', [MANY, MASKED_MANY], ids=['plain', 'masked'])
def test_actor_and_critic_see_their_own_entries_alone(name, obs_space):
    model = make(name, obs_space, actor_obs=['seen', 'index'], critic_obs=['seen', 'hidden'])
    obs, changed = observe(6), observe(6)
    changed['hidden'] = changed['hidden'] + 1
    assert torch.equal(model.compute_actor(obs), model.compute_actor(changed))
    assert not torch.equal(model.compute_critic(obs), model.compute_critic(changed))
    changed = {**observe(6), 'index': (obs['index'] + 1) % 5}
    assert not torch.equal(model.compute_actor(obs), model.compute_actor(changed))
    assert torch.equal(model.compute_critic(obs), model.compute_critic(changed))


@both
@pytest.mark.parametrize('obs_space', [MANY, MASKED_MANY], ids=['plain', 'masked'])
def test_acting_does_without_what_only_the_critic_sees(name, obs_space):
    model, obs = make(name, obs_space, actor_obs=['index', 'seen']), observe(6)
    mask = ('action_mask',) if obs_space is MASKED_MANY else ()
    assert model.actor_leaves == ('seen', 'index', *mask)  # in the order of the observations
    few = {key: obs[key] for key in model.actor_leaves}
    assert torch.equal(model.compute_actor(few), model.compute_actor(obs))


@pytest.mark.parametrize('fields', [{}, dict(critic_obs=['seen']), dict(actor_obs=['hidden', 'index', 'seen'])])
def test_where_the_actor_sees_all_acting_needs_all(fields):
    assert make('vac', MANY, **fields).actor_leaves is None


def test_the_same_lists_are_no_two_views_and_one_entry_is_its_leaf():
    model = make('vac', MANY, actor_obs=['seen'], critic_obs=['seen'], shared_encoder=True)
    assert model.leaf == 'seen' and type(model.actor_encoder) is MLP and model.actor_leaves == ('seen',)
    two = make('vac', MANY, actor_obs=['seen', 'hidden'], critic_obs=['hidden', 'seen'], shared_encoder=True)
    assert two.critic_encoder is two.actor_encoder


def test_statistics_of_a_shared_entry_are_shared():
    model = make('vac', MANY, actor_obs=['seen'], critic_obs=['seen', 'hidden'], obs_norm=True)
    obs = observe(50)
    model.update_normalizer(obs)
    counts = {key: x for key, x in model.state_dict().items() if key.endswith('count')}
    assert [float(count) for count in counts.values()] == [50.0, 50.0]  # of 'seen' and 'hidden'
    found = model.input(obs)['seen']
    torch.testing.assert_close(
        found, ((obs['seen'] - obs['seen'].mean(0)) / obs['seen'].std(0, correction=0)).clamp(-10, 10)
    )


@pytest.mark.parametrize(
    'name, obs_space, fields, words',
    [
        ('vac', MANY, dict(actor_obs=['sen']), ["policy.model.actor_obs names 'sen'", "'seen', 'index', 'hidden'"]),
        ('vac', MASKED_MANY, dict(critic_obs=['action_mask']), ["critic_obs names 'action_mask'", "'seen', 'index'"]),
        ('vac', VECTOR, dict(critic_obs=['seen']), ['policy.model.critic_obs', 'are no Dict', 'leave critic_obs out']),
        ('vac', MANY, dict(actor_obs=['seen'], shared_encoder=True), ["actor_obs is ['seen']", 'share', "'off'"]),
        ('vac', MANY, dict(actor_obs=['seen'], shared_encoder='detach'), ["actor_obs is ['seen']", 'share']),
        ('ppg', MANY, dict(critic_obs=['seen'], arch='detach'), ["critic_obs ['seen']", 'share', "arch 'dual'"]),
    ],
)
def test_entries_that_do_not_fit_are_refused(name, obs_space, fields, words):
    with pytest.raises(UserError) as error:
        make(name, obs_space, **fields)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_encoders_of_single_entries_may_name_those_of_either_side():
    spec = {'type': 'multi', 'encoders': {'seen': 'mlp', 'hidden': {'type': 'mlp', 'hidden_sizes': [3]}}}
    model = make('vac', MANY, encoder=spec, actor_obs=['seen'], critic_obs=['hidden'])
    assert [part.n_feature for part in model.actor_encoder.parts.values()] == [64]
    assert [part.n_feature for part in model.critic_encoder.parts.values()] == [3]
    with pytest.raises(UserError, match="encoders names 'index' but the entries of the observations are 'seen', 'hid"):
        make(
            'vac',
            MANY,
            encoder={'type': 'multi', 'encoders': {'index': 'mlp'}},
            actor_obs=['seen'],
            critic_obs=['hidden'],
        )


@pytest.mark.parametrize('how', [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=['deepcopy', 'pickle'])
@pytest.mark.parametrize('obs_space', [VECTOR, MASKED, MASKED_MANY], ids=['vector', 'masked', 'many'])
@pytest.mark.parametrize('recurrent', [None, {}], ids=['plain', 'recurrent'])
@both
def test_a_copy_computes_the_same_and_owns_its_parameters(name, recurrent, obs_space, how):
    model, obs = make(name, obs_space, recurrent=recurrent, obs_norm=True), observe(6)
    obs = obs['obs'] if obs_space is VECTOR else obs
    twin = how(model)
    more = (model.initial_state(6),) if recurrent is not None else ()
    assert type(twin) is type(model)
    torch.testing.assert_close(twin.compute_actor_critic(obs, *more), model.compute_actor_critic(obs, *more))
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1)
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in twin.parameters()}
