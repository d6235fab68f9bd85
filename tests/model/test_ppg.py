"""Model 'ppg': where each output's gradient goes, in each arch, and what the auxiliary head does not touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.config.section import ConfigError, validate
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig

ARCHS = ['dual', 'detach', 'shared']
VECTORS = Box(np.full(4, -1.0), np.full(4, 1.0))
IMAGES = Box(np.zeros((8, 9, 3)), np.full((8, 9, 3), 255.0), 'uint8')
ACTIONS = [Discrete(3), Box(-np.ones(2), np.ones(2))]
archs = pytest.mark.parametrize('arch', ARCHS)
obs_spaces = pytest.mark.parametrize('obs_space', [VECTORS, Discrete(5), IMAGES], ids=['vectors', 'indices', 'images'])
action_spaces = pytest.mark.parametrize('action_space', ACTIONS, ids=['discrete', 'gaussian'])


def make(arch: str, obs_space: Space = VECTORS, action_space: Space = ACTIONS[0], **fields: Any) -> PPG:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PPG(validate(PPGConfig, {'arch': arch, **fields}), obs_space, action_space)


def observe(space: Space, *lead: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead, generator=generator)
    if space is IMAGES:
        return torch.randint(256, (*lead, *space.shape), dtype=torch.uint8, generator=generator)
    return torch.randn(*lead, *space.shape, generator=generator)


def touched(model: PPG, loss: Tensor) -> set[str]:
    """Names of the parts that a loss moves; a shared trunk is 'actor_encoder'."""
    model.zero_grad()
    loss.backward()
    return {
        name
        for name, part in model.named_children()
        if any(p.grad is not None and p.grad.any() for p in part.parameters())
    }


def test_ppg_is_registered_with_its_config():
    assert MODEL_REGISTRY.get('ppg') is PPG and PPG.config is PPGConfig and validate(PPGConfig, {}).type == 'ppg'


@archs
@obs_spaces
@action_spaces
@pytest.mark.parametrize('lead', [(), (6,), (2, 3)], ids=str)
def test_the_auxiliary_pass_gives_what_the_others_give(arch, obs_space, action_space, lead):
    model, obs = make(arch, obs_space, action_space), observe(obs_space, *lead)
    aux, both = model.compute_aux(obs), model.compute_actor_critic(obs)
    assert aux.keys() == {'logit', 'aux_value', 'value'} and aux['aux_value'].shape == lead
    for one in (both, {'logit': model.compute_actor(obs), 'value': model.compute_critic(obs)}):
        torch.testing.assert_close(aux['logit'], one['logit'])
        torch.testing.assert_close(aux['value'], one['value'])


@archs
def test_each_stage_runs_once_per_pass(arch):
    model, calls = make(arch), []
    stages = {
        'input': model.input,
        'actor': model.actor_encoder,
        'critic': model.critic_encoder,
        'policy': model.policy_head,
        'value': model.value_head,
        'aux': model.aux_head,
    }
    for name, stage in stages.items():
        if name != 'critic' or arch == 'dual':
            stage.register_forward_hook(lambda *args, name=name: calls.append(name))
    model.compute_aux(observe(VECTORS, 6))
    assert sorted(calls) == sorted(set(stages) - ({'critic'} if arch != 'dual' else set()))


# parts that a loss over one output moves; 'actor_encoder' is the trunk of detach and shared
CRITIC = {'dual': {'critic_encoder', 'value_head'}, 'detach': {'value_head'}, 'shared': {'actor_encoder', 'value_head'}}


@archs
@obs_spaces
def test_the_critic_in_the_policy_phase_moves_only_what_the_arch_allows(arch, obs_space):
    model, obs = make(arch, obs_space), observe(obs_space, 6)
    assert touched(model, model.compute_critic(obs).square().sum()) == CRITIC[arch]
    assert touched(model, model.compute_actor_critic(obs)['value'].square().sum()) == CRITIC[arch]


@archs
@obs_spaces
@action_spaces
def test_the_policy_moves_its_trunk_and_head_alone(arch, obs_space, action_space):
    model, obs = make(arch, obs_space, action_space), observe(obs_space, 6)
    for compute in (
        model.compute_actor,
        lambda x: model.compute_actor_critic(x)['logit'],
        lambda x: model.compute_aux(x)['logit'],
    ):
        assert touched(model, compute(obs).square().sum()) == {'actor_encoder', 'policy_head'}


@archs
@obs_spaces
def test_in_the_auxiliary_phase_the_critic_moves_what_it_moves_in_the_policy_phase(arch, obs_space):
    model, obs = make(arch, obs_space), observe(obs_space, 6)
    assert touched(model, model.compute_aux(obs)['aux_value'].square().sum()) == {'actor_encoder', 'aux_head'}
    assert touched(model, model.compute_aux(obs)['value'].square().sum()) == CRITIC[arch]


@archs
def test_critic_parameters_are_those_that_its_loss_moves(arch):
    model, obs = make(arch), observe(VECTORS, 6)
    by_name = dict(model.named_parameters())

    def moved_by(output: Tensor) -> set[str]:
        model.zero_grad(set_to_none=True)
        output.square().sum().backward()
        return {name for name, p in by_name.items() if p.grad is not None}

    mine = dict(model.critic_parameters())
    assert all(p is by_name[name] for name, p in mine.items())
    assert mine.keys() == moved_by(model.compute_critic(obs))
    both = mine.keys() & moved_by(model.compute_actor(obs))
    assert bool(both) == model.joint == (arch == 'shared')


SEVERAL = Dict({'image': IMAGES, 'vector': VECTORS, 'index': Discrete(5)})


@archs
@pytest.mark.parametrize('heads', [{}, dict(actor_head=[6], critic_head=[7])], ids=['plain', 'heads'])
def test_critic_parameters_over_several_entries_and_behind_heads_are_those_that_its_loss_moves(arch, heads):
    own = {'type': 'multi', 'encoders': {'vector': 'mlp', 'index': 'simba'}}
    model = make(arch, SEVERAL, encoder=own, hidden_sizes=[8], **heads)
    obs = {name: observe(space, 6) for name, space in SEVERAL.spaces.items()}

    def moved_by(output: Tensor) -> set[str]:
        model.zero_grad(set_to_none=True)
        output.square().sum().backward()
        return {name for name, p in model.named_parameters() if p.grad is not None}

    mine = {name for name, _ in model.critic_parameters()}
    actor, aux = moved_by(model.compute_actor(obs)), moved_by(model.compute_aux(obs)['aux_value'])
    assert mine == moved_by(model.compute_critic(obs)) and bool(mine & (actor | aux)) == (arch == 'shared')
    everything = {name for name, _ in model.named_parameters()}
    assert mine | actor | aux == everything


@archs
@obs_spaces
def test_garbage_in_the_auxiliary_head_changes_its_own_value_alone(arch, obs_space):
    model, obs = make(arch, obs_space), observe(obs_space, 6)
    before, critic = model.compute_aux(obs), model.compute_critic(obs)
    with torch.no_grad():
        for p in model.aux_head.parameters():
            p.fill_(1e6)
    after = model.compute_aux(obs)
    assert torch.equal(model.compute_critic(obs), critic) and torch.equal(after['value'], before['value'])
    assert torch.equal(after['logit'], before['logit']) and not torch.equal(after['aux_value'], before['aux_value'])


@pytest.mark.parametrize('arch, trunks', [('dual', 2), ('detach', 1), ('shared', 1)])
def test_parameters_are_trunks_and_three_heads(arch, trunks):
    # 4*64 + 64 and 64*64 + 64 a trunk; heads of 64*3 + 3, and twice 64 + 1
    assert sum(p.numel() for p in make(arch).parameters()) == trunks * (320 + 4160) + 195 + 2 * 65


@pytest.mark.parametrize('obs_space, gain', [(VECTORS, 1.0), (IMAGES, 0.1)], ids=['vectors', 'images'])
def test_both_value_heads_start_with_the_gain_of_the_encoder(obs_space, gain):
    model = make('dual', obs_space)
    for head in (model.value_head, model.aux_head):
        torch.testing.assert_close(head.layer.weight.norm(), torch.tensor(gain))


def test_observation_statistics_reach_all_outputs():
    plain, normed = make('dual'), make('dual', obs_norm=True)
    rows = 3 + 2 * observe(VECTORS, 200)
    normed.update_normalizer(rows)
    standard = ((rows - rows.mean(0)) / rows.std(0, correction=0)).clamp(-10, 10)
    got, want = normed.compute_aux(rows), plain.compute_aux(standard)
    for key in ('logit', 'aux_value', 'value'):
        torch.testing.assert_close(got[key], want[key], rtol=1e-4, atol=1e-5)


def test_config_has_the_fields_of_vac_and_arch_in_place_of_shared_encoder():
    vac, ppg = (set(section.model_fields) for section in (VACConfig, PPGConfig))
    assert vac ^ ppg == {'shared_encoder', 'arch'} and not issubclass(PPG, VAC)


@pytest.mark.parametrize(
    'fields, words',
    [
        (dict(arch='duel'), ['policy.model.arch', "'duel'", "'dual'", "'detach'", "'shared'"]),
        (dict(shared_encoder=True), ['policy.model.shared_encoder']),
    ],
)
def test_config_refuses_an_unknown_arch_and_the_field_of_vac(fields, words):
    with pytest.raises(ConfigError) as error:
        validate(PPGConfig, fields, 'policy.model')
    assert all(word in str(error.value) for word in words), str(error.value)
