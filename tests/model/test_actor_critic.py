"""Contracts of every actor-critic: outputs, gradients, statistics, masks and entries, sizes, initial values, errors."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.model.actor_critics import (
    IMAGES,
    KINDS,
    MASK,
    MODELS,
    VECTOR,
    at,
    box,
    duals,
    images,
    make,
    models,
    observe,
    outputs,
)
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Space
from zoo.model import PPG, VAC, PPGConfig, VACConfig, make_policy_head
from zoo.model.check import critic_names
from zoo.model.encoder import MLP
from zoo.model.inputs import OneHot
from zoo.rl_utils import Categorical, Gaussian
from zoo.rl_utils.normalizer import RunningMeanStd

CRITIC = {'separate': {'critic_encoder', 'critic_core', 'value_head'}, 'detach': {'value_head'}}
CRITIC['shared'] = {'actor_encoder', 'actor_core', 'value_head'}


MASKED = Dict({'obs': VECTOR, **MASK})
MANY = Dict({'seen': VECTOR, 'index': Discrete(5), 'hidden': box(2)})
MASKED_MANY = Dict({**MANY.spaces, **MASK})
SPACES: dict[str, tuple[Space, Space]] = {
    'vector': (VECTOR, Discrete(3)),
    'one number': (box(1), box(1)),
    'index': (Discrete(6), box(2)),
    'index from 2': (Discrete(6, start=2), Discrete(2, start=-1)),
    'images': (IMAGES, box(2)),
    'several entries': (MANY, Discrete(3)),
    'tuple': (Dict({'0': VECTOR, '1': Discrete(5)}, is_tuple=True), Discrete(3)),
    'masked': (MASKED, Discrete(3)),
    'masked entries': (MASKED_MANY, Discrete(3)),
}
spaces = pytest.mark.parametrize('space', SPACES)


def state_of(model: Any, n: int) -> tuple[Any, ...]:
    return (model.initial_state(n),) if hasattr(model, 'initial_state') else ()


@pytest.mark.parametrize('kind', KINDS)
def test_model_is_registered_with_its_config_and_has_a_memory_only_where_it_is_asked_for(kind: str) -> None:
    cls, config, recurrent = KINDS[kind]
    assert MODEL_REGISTRY.get(kind) is cls and cls.config is config and validate(config, {}).type == kind
    plain, keeps = (cls(validate(config, fields), VECTOR, Discrete(3)) for fields in ({}, {'recurrent': {}}))
    assert type(plain) is cls and not hasattr(plain, 'initial_state') and type(keeps) is recurrent
    # 64 numbers a layer, twice for an LSTM; for actor and critic
    assert {key: x.shape for key, x in keeps.initial_state(1).items()} == {'actor': (1, 128), 'critic': (1, 128)}
    vac, ppg = (set(section.model_fields) for section in (VACConfig, PPGConfig))
    assert vac ^ ppg == {'shared_encoder', 'arch'} and not issubclass(PPG, VAC)


@models
@spaces
def test_outputs_of_all_methods_agree_keep_leading_dimensions_and_rows_are_independent(name: str, space: str) -> None:
    obs_space, action_space = SPACES[space]
    model = make(name, obs_space, action_space, hidden_sizes=[8])
    n_param = 2 * action_space.shape[0] if isinstance(action_space, Box) else action_space.n  # type: ignore
    for lead in ((), (5,), (3, 2)):
        obs = observe(obs_space, *lead)
        found = outputs(model, obs)
        for key, x in found.items():
            is_logit = key.endswith('logit')
            assert x.shape == ((*lead, n_param) if is_logit else lead) and x.dtype == torch.float32
            if not key.endswith('aux_value'):
                torch.testing.assert_close(x, found['actor.logit' if is_logit else 'critic.value'])
    for key, x in outputs(model, at(obs, 2, 1)).items():
        torch.testing.assert_close(x, found[key][2, 1])


ACTIVATIONS = {'tanh': torch.tanh, 'relu': F.relu, 'elu': F.elu, 'gelu': F.gelu, 'silu': F.silu}


@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_networks_and_heads_are_the_layers_written_out(activation: str) -> None:
    model = make(hidden_sizes=[7, 5], actor_head=[5], critic_head=[7, 6], activation=activation)
    obs, w, act = 3 * observe(VECTOR, 6), model.state_dict(), ACTIVATIONS[activation]

    def layers(x: Tensor, *names: str) -> Tensor:
        for name in names:
            x = act(F.linear(x, w[f'{name}.weight'], w[f'{name}.bias']))
        return x

    assert w['actor_encoder.layers.0.weight'].shape == (7, 4) and w['actor_encoder.layers.1.weight'].shape == (5, 7)
    hidden = layers(obs, 'actor_encoder.layers.0', 'actor_encoder.layers.1', 'policy_head.0.layers.0')
    want = F.linear(hidden, w['policy_head.1.weight'], w['policy_head.1.bias'])
    torch.testing.assert_close(model.compute_actor(obs), want)
    heads = 'value_head.0.layers.0', 'value_head.0.layers.1'
    hidden = layers(obs, 'critic_encoder.layers.0', 'critic_encoder.layers.1', *heads)
    want = F.linear(hidden, w['value_head.1.layer.weight'], w['value_head.1.layer.bias']).squeeze(-1)
    torch.testing.assert_close(model.compute_critic(obs), want)
    plain = make().state_dict()
    assert 'policy_head.weight' in plain and 'value_head.layer.weight' in plain


def test_the_model_has_the_distribution_and_the_head_of_its_actions() -> None:
    assert type(make().dist) is Categorical and make().dist.n_param == 3
    assert type(make(action_space=box(2)).dist) is Gaussian
    assert type(make(distribution='categorical').dist) is Categorical
    assert make_policy_head(6, Discrete(3)).weight.shape == (3, 6)
    head = make_policy_head(6, box(2), log_std_init=-1.0)
    torch.testing.assert_close(head(torch.zeros(1, 6)), torch.tensor([[0.0, 0.0, math.exp(-1), math.exp(-1)]]))


@pytest.mark.parametrize('arch', ['dual', 'detach', 'shared'])
def test_each_stage_runs_once_per_pass(arch: str) -> None:
    model, calls = make(f'ppg {arch}'), []  # type: ignore[var-annotated]
    stages = ['input', 'actor_encoder', 'policy_head', 'value_head', 'aux_head']
    stages += ['critic_encoder'] if arch == 'dual' else []
    for name in stages:
        getattr(model, name).register_forward_hook(lambda *args, name=name: calls.append(name))
    model.compute_aux(observe(VECTOR, 6))
    assert sorted(calls) == sorted(stages)


@pytest.mark.parametrize('value, arch', [(False, 'dual'), ('off', 'dual'), (True, 'shared'), ('both', 'shared')])
def test_shared_encoder_takes_words_and_what_it_took_before(value: Any, arch: str) -> None:
    model = make(shared_encoder=value)
    assert model.arch == arch and model.one_trunk == (arch == 'shared')
    assert (model.critic_encoder is model.actor_encoder) == (arch == 'shared')


# --- gradients


def moved(model: Any, output: Tensor) -> set[str]:
    """Names of the parameters that a loss over an output reaches."""
    model.zero_grad(set_to_none=True)
    output.square().sum().backward(retain_graph=True)
    return {name for name, p in model.named_parameters() if p.grad is not None}


HEADS: dict[str, Any] = dict(actor_head=[5], critic_head=[7, 5], layer_norm=True)
ENTRIES = Dict({'image': IMAGES, 'vector': VECTOR, 'index': Discrete(5)})
OF_ENTRIES = {'type': 'multi', 'encoders': {'vector': 'mlp', 'index': 'simba'}}


@pytest.mark.many
@models
@pytest.mark.parametrize(
    ('obs_space', 'action_space', 'fields'),
    [
        (VECTOR, box(2), {}),
        (Discrete(6), Discrete(3), HEADS),
        (IMAGES, Discrete(3), {}),
        (ENTRIES, Discrete(3), dict(encoder=OF_ENTRIES, actor_head=[6], critic_head=[7])),
        (VECTOR, Discrete(3), dict(recurrent={'cell': 'lstm', 'hidden_size': 6})),
        (VECTOR, box(2), dict(recurrent={'cell': 'gru', 'hidden_size': 6}, **HEADS)),
        (VECTOR, Discrete(3), dict(recurrent={'cell': 'mingru', 'hidden_size': 6})),
    ],
    ids=['vector', 'heads', 'images', 'entries', 'lstm', 'gru and heads', 'mingru'],
)
def test_losses_over_outputs_move_the_parts_of_the_arch_and_critic_parameters_are_those_of_the_critic(
    name: str, obs_space: Space, action_space: Space, fields: dict[str, Any]
) -> None:
    model, arch = make(name, obs_space, action_space, hidden_sizes=[8], **fields), MODELS[name][1]
    found = outputs(model, observe(obs_space, 6), *state_of(model, 6))
    parts = dict(model.named_children()).keys()
    actor = {'actor_encoder', 'actor_core'}
    expected = {'logit': actor | {'policy_head'}, 'value': CRITIC[arch], 'aux_value': actor | {'aux_head'}}
    reached = {key: moved(model, x) for key, x in found.items()}
    for key, names in reached.items():
        assert {each.split('.')[0] for each in names} == expected[key.split('.')[1]] & parts, key
    mine, by_name = dict(model.critic_parameters()), dict(model.named_parameters())
    assert all(p is by_name[each] for each, p in mine.items()) and mine.keys() == reached['critic.value']
    assert bool(mine.keys() & reached['actor.logit']) == model.joint == (arch == 'shared')
    assert set().union(*reached.values()) == by_name.keys()
    assert critic_names(model, obs_space) == mine.keys() - reached['actor.logit']
    moved(model, found['actor.logit'])
    assert all(p.grad.any() for p in model.actor_encoder.parameters())


# --- copies


@pytest.mark.parametrize(
    ('name', 'space', 'fields'),
    [
        ('vac off', MASKED_MANY, {}),
        ('vac both', VECTOR, dict(recurrent={})),
        ('ppg dual', VECTOR, {}),
        ('ppg shared', MASKED, dict(recurrent={})),
    ],
)
@pytest.mark.parametrize('how', ['deepcopy', 'pickle', 'state dict'])
def test_a_copy_computes_the_same_and_owns_its_parameters(
    name: str, space: Space, fields: dict[str, Any], how: str
) -> None:
    model, obs = make(name, space, obs_norm=True, **fields), observe(space, 6)
    model.update_normalizer(observe(space, 20, seed=3))
    if how == 'state dict':
        twin = make(name, space, obs_norm=True, **fields)
        with torch.no_grad():
            for p in twin.parameters():
                p.add_(1)
        twin.load_state_dict(copy.deepcopy(model.state_dict()))
    else:
        twin = copy.deepcopy(model) if how == 'deepcopy' else pickle.loads(pickle.dumps(model))
    assert type(twin) is type(model)
    torch.testing.assert_close(outputs(twin, obs, *state_of(twin, 6)), outputs(model, obs, *state_of(model, 6)))
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in twin.parameters()}


# --- observation statistics


@models
@pytest.mark.parametrize('fields', [{}, dict(recurrent={'hidden_size': 6})], ids=['plain', 'memory'])
def test_obs_norm_sees_observations_standardised_and_clipped_in_all_outputs(name: str, fields: dict[str, Any]) -> None:
    plain, normed = make(name, **fields), make(name, obs_norm=True, **fields)
    rows = torch.tensor([1.0, -5.0, 100.0, 0.0]) + torch.tensor([1.0, 0.1, 30.0, 2.0]) * observe(VECTOR, 200)
    small, state = (observe(VECTOR, 6), *state_of(plain, 6)), copy.deepcopy(normed.state_dict())
    before = outputs(normed, *small)
    assert all(torch.equal(x, before[key]) for key, x in outputs(plain, *small).items())
    assert all(torch.equal(x, state[key]) for key, x in normed.state_dict().items())  # a pass changes no statistic
    normed.update_normalizer(rows[:120])
    normed.update_normalizer(rows[120:])
    obs = torch.cat((rows[:5], 1e6 * torch.ones(1, 4)))
    standard = ((obs - rows.mean(0)) / rows.std(0, correction=0)).clamp(-10, 10)
    want = outputs(plain, standard, *state_of(plain, 6))
    for key, x in outputs(normed, obs, *state_of(plain, 6)).items():
        torch.testing.assert_close(x, want[key], rtol=1e-4, atol=1e-5)


def test_obs_statistics_are_state_and_not_parameters_and_rows_of_weight_zero_enter_none() -> None:
    model = make(obs_norm=True)
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 3.0, 4.0], [1e6] * 4])
    model.update_normalizer(rows, torch.tensor([1.5, 1.5, 0.0]))
    state = model.state_dict()
    (mean,), (count,) = ([x for name, x in state.items() if name.endswith(key)] for key in ('.mean', '.count'))
    assert mean.tolist() == [2.0, 2.0, 3.0, 4.0] and count == 2
    assert not any(name.startswith('input') for name, _ in model.named_parameters())


@pytest.mark.parametrize('obs_space, fields', [(VECTOR, {}), (Discrete(6), dict(obs_norm=True))])
def test_update_normalizer_without_statistics_does_nothing(obs_space: Space, fields: dict[str, Any]) -> None:
    model = make('vac off', obs_space, **fields)
    before = copy.deepcopy(model.state_dict())
    model.update_normalizer(observe(obs_space, 9), torch.ones(9))
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# --- masks and entries


@duals
@pytest.mark.parametrize('space', [MASKED, MASKED_MANY], ids=['one', 'many'])
def test_every_logit_has_the_mask_applied_and_is_else_that_of_the_network(name: str, space: Space) -> None:
    model, obs = make(name, space), observe(space, 2, 3)
    plain = outputs(model, {**obs, ACTION_MASK: torch.ones(2, 3, 3, dtype=torch.bool)})
    assert model.is_masked and obs[ACTION_MASK].any() and not obs[ACTION_MASK].all()
    for key, x in outputs(model, obs).items():  # encoders do not see the mask
        assert torch.equal(x, torch.where(obs[ACTION_MASK], plain[key], -torch.inf) if 'logit' in key else plain[key])


def test_a_choice_that_is_never_allowed_gets_no_gradient() -> None:
    model, obs = make('vac off', MASKED), observe(MASKED, 6)
    obs[ACTION_MASK] = torch.tensor([True, False, True]).expand(6, 3)
    model.dist.log_prob(model.compute_actor(obs), torch.zeros(6, dtype=torch.int64)).sum().backward()
    assert not model.policy_head.weight.grad[1].any() and model.policy_head.weight.grad[[0, 2]].all()


@duals
def test_next_to_a_mask_the_network_of_one_leaf_is_that_of_the_leaf_alone(name: str) -> None:
    model, bare, obs = make(name, MASKED, obs_norm=True), make(name, VECTOR, obs_norm=True), observe(MASKED, 20)
    assert model.leaf == 'obs' and bare.leaf is None and not bare.is_masked
    assert type(model.input) is RunningMeanStd and type(model.actor_encoder) is type(model.critic_encoder) is MLP
    assert all(torch.equal(x, bare.state_dict()[key]) for key, x in model.state_dict().items())
    model.update_normalizer(obs)
    bare.update_normalizer(obs['obs'])
    assert torch.equal(model.compute_critic(obs), bare.compute_critic(obs['obs']))


@pytest.mark.parametrize('leaf, kind', [(VECTOR, nn.Identity), (Discrete(4), OneHot), (box(2, 2), None)])
def test_a_dict_of_one_leaf_needs_no_mask_for_that(leaf: Space, kind: Any) -> None:
    model = make('vac off', Dict({'x': leaf}))  # type: ignore[dict-item]
    assert model.leaf == 'x' and type(model.actor_encoder) is MLP
    assert kind is None or type(model.input) is kind


@duals
@pytest.mark.parametrize('space', [MANY, MASKED_MANY], ids=['plain', 'masked'])
def test_actor_and_critic_see_their_own_entries_alone_and_acting_does_without_the_others(name: str, space: Any) -> None:
    model, obs = make(name, space, actor_obs=['index', 'seen'], critic_obs=['seen', 'hidden']), observe(space, 6)
    for changed, of_actor in (({'hidden': obs['hidden'] + 1}, False), ({'index': (obs['index'] + 1) % 5}, True)):
        other = {**obs, **changed}
        assert torch.equal(model.compute_actor(obs), model.compute_actor(other)) != of_actor
        assert torch.equal(model.compute_critic(obs), model.compute_critic(other)) == of_actor
    mask = (ACTION_MASK,) if space is MASKED_MANY else ()
    assert model.actor_leaves == ('seen', 'index', *mask)  # in the order of the observations
    few = {key: obs[key] for key in model.actor_leaves}
    assert torch.equal(model.compute_actor(few), model.compute_actor(obs))


@pytest.mark.parametrize('fields', [{}, dict(critic_obs=['seen']), dict(actor_obs=['hidden', 'index', 'seen'])])
def test_where_the_actor_sees_all_acting_needs_all(fields: dict[str, Any]) -> None:
    assert make('vac off', MANY, **fields).actor_leaves is None


def test_the_same_lists_are_no_two_views_and_one_entry_is_its_leaf() -> None:
    model = make('vac both', MANY, actor_obs=['seen'], critic_obs=['seen'])
    assert model.leaf == 'seen' and type(model.actor_encoder) is MLP and model.actor_leaves == ('seen',)
    two = make('vac both', MANY, actor_obs=['seen', 'hidden'], critic_obs=['hidden', 'seen'])
    assert two.critic_encoder is two.actor_encoder


def test_statistics_of_a_shared_entry_are_shared() -> None:
    model = make('vac off', MANY, actor_obs=['seen'], critic_obs=['seen', 'hidden'], obs_norm=True)
    obs = observe(MANY, 50)
    model.update_normalizer(obs)
    assert [float(x) for key, x in model.state_dict().items() if key.endswith('count')] == [50.0, 50.0]
    seen = obs['seen']
    want = ((seen - seen.mean(0)) / seen.std(0, correction=0)).clamp(-10, 10)
    torch.testing.assert_close(model.input(obs)['seen'], want)


def test_encoders_of_single_entries_may_name_those_of_either_side() -> None:
    spec = {'type': 'multi', 'encoders': {'seen': 'mlp', 'hidden': {'type': 'mlp', 'hidden_sizes': [3]}}}
    model = make('vac off', MANY, encoder=spec, actor_obs=['seen'], critic_obs=['hidden'])
    assert [part.n_feature for part in model.actor_encoder.parts.values()] == [64]
    assert [part.n_feature for part in model.critic_encoder.parts.values()] == [3]


SIDES = dict(actor_obs=['seen'], critic_obs=['hidden'])
OTHER = {'type': 'multi', 'encoders': {'index': 'mlp'}}
SEEN, MEMORY = ["actor_obs is ['seen']", 'share'], dict(recurrent={'critic': False})
NO_CRITIC = ['policy.model.recurrent.critic is false but actor and critic share']


@pytest.mark.parametrize(
    ('name', 'obs_space', 'action_space', 'fields', 'words'),
    [
        ('vac off', MASKED, box(4), {}, ['gaussian', 'take no mask', 'env.action_mask=off']),
        ('vac off', MASKED, Discrete(4), {}, ['shape (3,)', '(4,)', 'categorical']),
        ('vac off', Dict(MASK), Discrete(3), {}, ["nothing but 'action_mask'"]),  # type: ignore[arg-type]
        ('vac off', MANY, Discrete(3), dict(actor_obs=['sen']), ["actor_obs names 'sen'", "'seen', 'index', 'hidden'"]),
        (
            'vac off',
            MASKED_MANY,
            Discrete(3),
            dict(critic_obs=[ACTION_MASK]),
            ["critic_obs names 'action_mask'", "'seen'"],
        ),
        (
            'vac off',
            VECTOR,
            Discrete(3),
            dict(critic_obs=['seen']),
            ['critic_obs', 'are no Dict', 'leave critic_obs out'],
        ),
        ('vac both', MANY, Discrete(3), dict(actor_obs=['seen']), [*SEEN, "'off'"]),
        ('vac detach', MANY, Discrete(3), dict(actor_obs=['seen']), SEEN),
        ('ppg detach', MANY, Discrete(3), dict(critic_obs=['seen']), ["critic_obs ['seen']", 'share', "arch 'dual'"]),
        (
            'vac off',
            MANY,
            Discrete(3),
            dict(encoder=OTHER, **SIDES),
            ["names 'index' but the entries of", "'seen', 'hid"],
        ),
        ('vac both', VECTOR, Discrete(3), MEMORY, NO_CRITIC),
        ('vac detach', VECTOR, Discrete(3), MEMORY, NO_CRITIC),
        ('ppg detach', VECTOR, Discrete(3), MEMORY, NO_CRITIC),
        ('ppg shared', VECTOR, Discrete(3), MEMORY, NO_CRITIC),
    ],
)
def test_spaces_and_fields_that_do_not_fit_are_refused(
    name: str, obs_space: Space, action_space: Space, fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        make(name, obs_space, action_space, **fields)
    assert all(word in str(error.value) for word in words), str(error.value)


# --- sizes and initial values

# nature, 84x84x4: maps of (84-8)/4+1 = 20, (20-4)/2+1 = 9, 9-3+1 = 7; 7*7*64 = 3136 numbers into the layer of 512.
# 4*8*8*32+32 = 8224, 32*4*4*64+64 = 32832, 64*3*3*64+64 = 36928, 3136*512+512 = 1606144
NATURE = 8224 + 32832 + 36928 + 1606144
# impala, 64x64x3: maps of 32, 16, 8; 8*8*32 = 2048 numbers into the layer of 256. Stages, 4 residual convolutions each:
# 3*9*16+16 = 448 and 4 * (16*9*16+16 = 2320); 16*9*32+32 = 4640 and 4 * (32*9*32+32 = 9248); 5 * 9248; 2048*256+256
IMPALA = 448 + 4 * 2320 + 4640 + 4 * 9248 + 5 * 9248 + 524544
REALS = dict(action_space=box(2))


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('name', 'fields', 'want'),
    [
        # an encoder of 4*64 + 64 = 320 and 64*64 + 64 = 4160; heads of 64*3 + 3 = 195 and 64 + 1 = 65
        ('vac off', {}, 2 * 4480 + 195 + 65),
        ('vac both', {}, 4480 + 195 + 65),  # the trunk is counted once
        # 64*16 + 16 = 1040, 16*3 + 3 = 51; 64*8 + 8 = 520, 8 + 1 = 9
        ('vac off', dict(actor_head=[16], critic_head=[8]), 2 * 4480 + 1040 + 51 + 520 + 9),
        ('vac both', dict(layer_norm=True), 4480 + 2 * 128 + 195 + 65),  # 2*64 factors and shifts a layer
        ('vac detach', REALS, 4480 + 130 + 2 + 65),  # two means and two free deviations
        ('vac off', dict(state_dependent_std=True, **REALS), 2 * 4480 + 2 * 130 + 65),
        ('vac off', dict(encoder='flat'), 4 * 3 + 3 + 4 + 1),
        ('ppg dual', {}, 2 * 4480 + 195 + 2 * 65),
        ('ppg shared', {}, 4480 + 195 + 2 * 65),
        ('ppg detach', dict(critic_head=[8]), 4480 + 195 + 520 + 9 + 65),  # the auxiliary head is a layer on the trunk
        # 4*128 + 128 = 640; 256, 128*512 + 512 = 66048, 512*128 + 128 = 65664; 256; heads of 128*3 + 3, 129, 129
        ('ppg dual', dict(encoder='simba'), 2 * (640 + 256 + 66048 + 65664 + 256) + 387 + 2 * 129),
        # an encoder of 4*8 + 8 = 40; lstm: 4 * 6 * (8 + 6 + 1) = 360; heads of 6*3 + 3 and 6 + 1
        ('vac off', dict(hidden_sizes=[8], recurrent={'hidden_size': 6}), 2 * (40 + 360) + 21 + 7),
        ('vac both', dict(hidden_sizes=[8], recurrent={'hidden_size': 6}), 40 + 360 + 21 + 7),
        # gru: 3 * 6 * (8 + 6 + 2) = 288 and another layer 3 * 6 * (6 + 6 + 2) = 252; the critic's head has 8 + 1
        (
            'ppg dual',
            dict(hidden_sizes=[8], recurrent={'hidden_size': 6, 'cell': 'gru', 'n_layer': 2, 'critic': False}),
            2 * 40 + 540 + 21 + 9 + 7,
        ),
        # mingru: 2 * 6 * (8 + 1) = 108
        ('ppg detach', dict(hidden_sizes=[8], recurrent={'hidden_size': 6, 'cell': 'mingru'}), 40 + 108 + 21 + 2 * 7),
        ('vac off', dict(obs_space=images(84, 84, 4), action_space=Discrete(6)), 2 * NATURE + 513 * 6 + 513),
        ('vac both', dict(obs_space=images(64, 64, 3), action_space=Discrete(15)), IMPALA + 257 * 15 + 257),
    ],
)
def test_parameters_are_those_of_the_parts_and_as_many_as_published(name: str, fields: Any, want: int) -> None:
    assert sum(p.numel() for p in make(name, **fields).parameters()) == want


def gain_of(weight: Tensor) -> Tensor:
    """All singular values of the weights; after orthogonal initialisation each equals the gain."""
    return torch.linalg.svdvals(weight.detach())


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
def test_weights_start_orthogonal_with_the_gains_of_ppo(activation: str) -> None:
    model = make(action_space=box(3), activation=activation, state_dependent_std=True)
    gains = {'actor_encoder': math.sqrt(2), 'critic_encoder': math.sqrt(2), 'policy_head': 0.01, 'value_head': 1.0}
    seen = 0
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            want = torch.full((min(layer.weight.shape),), gains[name.split('.')[0]])
            torch.testing.assert_close(gain_of(layer.weight), want, rtol=1e-4, atol=0)
            assert not layer.bias.any() or name == 'policy_head.log_std_layer'
            seen += 1
    assert seen == 2 + 2 + 2 + 1


@pytest.mark.parametrize(
    ('name', 'obs_space', 'fields', 'gain'),
    [
        ('ppg dual', VECTOR, {}, 1.0),
        ('ppg dual', VECTOR, dict(encoder='simba'), 1.0),
        ('ppg dual', IMAGES, {}, 0.1),
        ('vac off', images(36, 36, 1), dict(encoder='nature'), 1.0),
        ('vac off', images(36, 36, 1), dict(encoder='impala'), 0.1),
        ('vac off', images(36, 36, 1), dict(encoder='impala', critic_head=[8]), 1.0),
    ],
)
def test_value_heads_start_with_the_gain_of_their_encoder_and_the_policy_near_uniform(
    name: str, obs_space: Space, fields: dict[str, Any], gain: float
) -> None:
    model = make(name, obs_space, **fields)
    for head in [getattr(model, part) for part in ('value_head', 'aux_head') if hasattr(model, part)]:
        layer = (head[1] if isinstance(head, nn.Sequential) else head).layer
        torch.testing.assert_close(gain_of(layer.weight), torch.tensor([gain]), rtol=1e-4, atol=0)
    torch.testing.assert_close(gain_of(model.policy_head.weight), torch.full((3,), 0.01), rtol=1e-4, atol=0)
    if obs_space is VECTOR and not fields:
        logit = model.compute_actor(observe(VECTOR, 100))
        # 64 tanh features have a norm of at most 8, so no logit exceeds .08 and ln 3 - H is of the order .08^2
        assert logit.abs().max() < 0.08 and (math.log(3) - Categorical(3).entropy(logit)).max() < 0.08**2


# --- Gaussian deviation


def sigma_of(model: Any, n: int = 5) -> Tensor:
    """The second half of a Gaussian's parameters."""
    return model.compute_actor(observe(VECTOR, n)).chunk(2, -1)[1]


@pytest.mark.parametrize('log_std_init', [0.0, -1.0, 2.0, -10.0])
def test_free_std_starts_at_log_std_init_everywhere_and_is_a_parameter(log_std_init: float) -> None:
    model = make(action_space=box(2), log_std_init=log_std_init)
    sigma = sigma_of(model)
    torch.testing.assert_close(sigma, torch.full((5, 2), math.exp(log_std_init)))
    sigma.sum().backward()  # d sum(exp(log_std)) / d log_std over five rows
    torch.testing.assert_close(model.policy_head.log_std.grad, torch.full((2,), 5 * math.exp(log_std_init)))


def test_state_dependent_std_starts_near_log_std_init_and_differs_by_state() -> None:
    log_sigma = sigma_of(make(action_space=box(2), state_dependent_std=True, log_std_init=-1.0), 50).log()
    assert (log_sigma + 1).abs().max() < 0.08  # gain .01 on features of norm 8 at most
    assert log_sigma.std(0).min() > 0


@pytest.mark.parametrize('state_dependent_std', [False, True])
def test_log_std_is_clamped_to_minus_10_and_2(state_dependent_std: bool) -> None:
    head = (model := make(action_space=box(2), state_dependent_std=state_dependent_std)).policy_head
    if state_dependent_std:
        head.log_std_layer.weight.data.zero_()
    for log_std, bounded in ((100.0, 2.0), (2.5, 2.0), (-100.0, -10.0), (1.5, 1.5), (-9.5, -9.5)):
        (head.log_std_layer.bias if state_dependent_std else head.log_std).data.fill_(log_std)
        torch.testing.assert_close(sigma_of(model), torch.full((5, 2), math.exp(bounded)))
