"""Model 'vac': shapes for every pair of spaces, what its parts share, how it starts, observation statistics."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.config.section import ConfigError, validate
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Box, Discrete, Space
from zoo.model import VAC, VACConfig
from zoo.rl_utils import Categorical

LEADS = [(), (5,), (3, 4)]


def box(*shape: int) -> Box:
    return Box(np.full(shape, -1.0), np.full(shape, 1.0))


def make(obs_space: Space | None = None, action_space: Space | None = None, seed: int = 0, **fields: Any) -> VAC:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VAC(validate(VACConfig, fields), obs_space or box(4), action_space or Discrete(3))


def observe(space: Space, lead: tuple[int, ...], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, Discrete):
        return torch.randint(space.n, lead, generator=generator)
    return torch.randn(*lead, *space.shape, generator=generator)


def test_vac_is_registered_with_its_config():
    assert MODEL_REGISTRY.get('vac') is VAC and VAC.config is VACConfig


@pytest.mark.parametrize('lead', LEADS)
@pytest.mark.parametrize('obs_space', [box(4), Discrete(6), Discrete(6, start=2), box(1)])
@pytest.mark.parametrize(
    'action_space, n_param',  # choices, or means beside deviations
    [(Discrete(3), 3), (Discrete(2, start=-1), 2), (box(2), 4), (box(1), 2)],
)
@pytest.mark.parametrize('shared_encoder', [False, True])
@pytest.mark.parametrize('state_dependent_std', [False, True])
def test_shapes_follow_the_spaces(lead, obs_space, action_space, n_param, shared_encoder, state_dependent_std):
    model = make(obs_space, action_space, shared_encoder=shared_encoder, state_dependent_std=state_dependent_std)
    obs = observe(obs_space, lead)
    logit, value, both = model.compute_actor(obs), model.compute_critic(obs), model.compute_actor_critic(obs)
    assert logit.shape == (*lead, n_param) and value.shape == lead
    assert logit.dtype == value.dtype == torch.float32
    assert set(both) == {'logit', 'value'}
    torch.testing.assert_close((both['logit'], both['value']), (logit, value))


@pytest.mark.parametrize('fields', [{}, dict(shared_encoder=True), dict(obs_norm=True), dict(state_dependent_std=True)])
def test_rows_are_independent(fields):
    model, obs = make(action_space=box(2), **fields), observe(box(4), (6,))
    whole = model.compute_actor_critic(obs)
    for i in range(6):
        alone = model.compute_actor_critic(obs[i])
        torch.testing.assert_close(alone['value'], whole['value'][i])
        torch.testing.assert_close(alone['logit'], whole['logit'][i])


ACTIVATIONS = {'tanh': torch.tanh, 'relu': F.relu, 'elu': F.elu, 'gelu': F.gelu, 'silu': F.silu}


@pytest.mark.parametrize('activation, function', ACTIVATIONS.items())
def test_the_networks_are_the_layers_written_out(activation, function):
    model, obs = make(hidden_sizes=[7, 5], activation=activation), observe(box(4), (6,))
    for encoder, head, output in (
        (model.actor_encoder, model.policy_head, model.compute_actor(obs)),
        (model.critic_encoder, model.value_head.layer, model.compute_critic(obs).unsqueeze(-1)),
    ):
        first, second = (layer for layer in encoder.modules() if isinstance(layer, nn.Linear))
        assert first.weight.shape == (7, 4) and second.weight.shape == (5, 7)
        hidden = function(function(obs @ first.weight.T + first.bias) @ second.weight.T + second.bias)
        torch.testing.assert_close(output, hidden @ head.weight.T + head.bias)


def test_discrete_observations_are_one_hot():
    discrete, vector = make(Discrete(6)), make(box(6))
    vector.load_state_dict(discrete.state_dict())
    torch.testing.assert_close(discrete.compute_actor(torch.arange(6)), vector.compute_actor(torch.eye(6)))
    torch.testing.assert_close(discrete.compute_critic(torch.arange(6)), vector.compute_critic(torch.eye(6)))


# ---- gradients


def touched(model: VAC, loss: Tensor) -> set[str]:
    """Names of the parts that a loss moves."""
    model.zero_grad()
    loss.backward()
    return {
        name
        for name, part in model.named_children()
        if any(p.grad is not None and p.grad.any() for p in part.parameters())
    }


def test_separate_encoders_share_no_gradient():
    model, obs = make(), observe(box(4), (6,))
    output = model.compute_actor_critic(obs)
    assert touched(model, output['value'].sum()) == {'critic_encoder', 'value_head'}
    assert touched(model, output['logit'].square().sum()) == {'actor_encoder', 'policy_head'}


def test_a_shared_encoder_is_one_module_moved_by_both():
    model, obs = make(shared_encoder=True), observe(box(4), (6,))
    output = model.compute_actor_critic(obs)
    assert model.critic_encoder is model.actor_encoder
    assert 'actor_encoder' in touched(model, output['value'].sum())
    output = model.compute_actor_critic(obs)
    assert 'actor_encoder' in touched(model, output['logit'].square().sum())
    # 4*64 + 64, 64*64 + 64, 64*3 + 3 and 64 + 1: the trunk is counted once
    assert sum(p.numel() for p in model.parameters()) == 320 + 4160 + 195 + 65
    assert sum(p.numel() for p in make().parameters()) == 2 * (320 + 4160) + 195 + 65


@pytest.mark.parametrize('shared_encoder', [False, True])
def test_state_dict_round_trip_acts_the_same(shared_encoder):
    one, other = (make(action_space=box(2), seed=k, obs_norm=True, shared_encoder=shared_encoder) for k in (0, 1))
    one.update_normalizer(3 + observe(box(4), (20,)))
    obs = observe(box(4), (5,), seed=1)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(one.compute_actor(obs), other.compute_actor(obs))
    assert torch.equal(one.compute_critic(obs), other.compute_critic(obs))


def byte_images(*shape: int) -> Box:
    return Box(np.zeros(shape), np.full(shape, 255.0), 'uint8')


@pytest.mark.parametrize('lead', LEADS)
@pytest.mark.parametrize('shared_encoder', [False, True])
def test_images_keep_their_leading_dimensions(lead, shared_encoder):
    model = make(byte_images(3, 10, 12), box(2), shared_encoder=shared_encoder)
    obs = torch.randint(256, (*lead, 3, 10, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    both = model.compute_actor_critic(obs)
    assert both['logit'].shape == (*lead, 4) and both['value'].shape == lead
    torch.testing.assert_close(both['value'], model.compute_critic(obs))
    torch.testing.assert_close(both['logit'], model.compute_actor(obs))


# nature, 84x84x4: maps of (84-8)/4+1 = 20, (20-4)/2+1 = 9, 9-3+1 = 7; 7*7*64 = 3136 numbers into the layer of 512.
# 4*8*8*32+32 = 8224, 32*4*4*64+64 = 32832, 64*3*3*64+64 = 36928, 3136*512+512 = 1606144
NATURE = 8224 + 32832 + 36928 + 1606144
# impala, 64x64x3: maps of 32, 16, 8; 8*8*32 = 2048 numbers into the layer of 256. Stages, 4 residual convolutions each:
# 3*9*16+16 = 448 and 4 * (16*9*16+16 = 2320); 16*9*32+32 = 4640 and 4 * (32*9*32+32 = 9248); 5 * 9248; 2048*256+256
IMPALA = 448 + 4 * 2320 + 4640 + 4 * 9248 + 5 * 9248 + 524544


@pytest.mark.slow
@pytest.mark.parametrize(
    'shape, n_action, trunk, n_feature',
    [((84, 84, 4), 6, NATURE, 512), ((4, 84, 84), 6, NATURE, 512), ((64, 64, 3), 15, IMPALA, 256)],
)
def test_networks_over_images_have_the_published_number_of_parameters(shape, n_action, trunk, n_feature):
    heads = (n_feature + 1) * n_action + n_feature + 1
    for shared_encoder in (True, False):
        model = make(byte_images(*shape), Discrete(n_action), shared_encoder=shared_encoder)
        assert sum(p.numel() for p in model.parameters()) == (2 - shared_encoder) * trunk + heads


@pytest.mark.parametrize('encoder, gain', [('nature', 1.0), ('impala', 0.1)])
def test_heads_on_a_cnn_start_with_its_gains(encoder, gain):
    model = make(byte_images(36, 36, 1), Discrete(3), encoder=encoder)
    torch.testing.assert_close(gain_of(model.value_head.layer.weight), torch.tensor([gain]), rtol=1e-4, atol=0)
    torch.testing.assert_close(gain_of(model.policy_head.weight), torch.full((3,), 0.01), rtol=1e-4, atol=0)


# ---- initialisation


def gain_of(weight: Tensor) -> Tensor:
    """All singular values of the weights; of an orthogonal matrix they are its gain."""
    return torch.linalg.svdvals(weight.detach())


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
def test_weights_start_orthogonal_with_the_gains_of_ppo(activation):
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


def test_discrete_head_starts_with_the_small_gain_and_a_near_uniform_policy():
    model = make(action_space=Discrete(3))
    torch.testing.assert_close(gain_of(model.policy_head.weight), torch.full((3,), 0.01), rtol=1e-4, atol=0)
    logit = model.compute_actor(observe(box(4), (100,)))
    # 64 tanh features have a norm of at most 8, so no logit exceeds .08 and ln 3 - H is of the order .08^2
    assert logit.abs().max() < 0.08 and (math.log(3) - Categorical(3).entropy(logit)).max() < 0.08**2


def test_the_same_seed_gives_the_same_weights():
    same, other = make(seed=0).state_dict(), make(seed=1).state_dict()
    for name, x in make(seed=0).state_dict().items():
        assert torch.equal(x, same[name])
        assert torch.equal(x, other[name]) == name.endswith('bias')


# ---- Gaussian deviation


def sigma_of(model: VAC, obs: Tensor) -> Tensor:
    """The second half of a Gaussian's parameters."""
    return model.compute_actor(obs).chunk(2, -1)[1]


@pytest.mark.parametrize('log_std_init', [0.0, -1.0, 2.0, -10.0])
def test_free_std_starts_at_log_std_init_everywhere(log_std_init):
    sigma = sigma_of(make(action_space=box(2), log_std_init=log_std_init), observe(box(4), (5,)))
    torch.testing.assert_close(sigma, torch.full((5, 2), math.exp(log_std_init)))


def test_state_dependent_std_starts_near_log_std_init_and_differs_by_state():
    model = make(action_space=box(2), state_dependent_std=True, log_std_init=-1.0)
    log_sigma = sigma_of(model, observe(box(4), (50,))).log()
    assert (log_sigma + 1).abs().max() < 0.08  # gain .01 on features of norm 8 at most
    assert log_sigma.std(0).min() > 0


@pytest.mark.parametrize('state_dependent_std', [False, True])
@pytest.mark.parametrize(
    'log_std, sigma',
    [(100.0, math.exp(2)), (2.5, math.exp(2)), (-100.0, math.exp(-10)), (1.5, math.exp(1.5)), (-9.5, math.exp(-9.5))],
)
def test_log_std_is_clamped_to_minus_10_and_2(state_dependent_std, log_std, sigma):
    model = make(action_space=box(2), state_dependent_std=state_dependent_std)
    head = model.policy_head
    with torch.no_grad():
        if state_dependent_std:
            head.log_std_layer.weight.zero_()
        (head.log_std_layer.bias if state_dependent_std else head.log_std).fill_(log_std)
    got = sigma_of(model, observe(box(4), (5,)))
    torch.testing.assert_close(got, torch.full((5, 2), sigma))


def test_free_std_is_a_parameter_with_gradient():
    model = make(action_space=box(2))
    sigma_of(model, observe(box(4), (5,))).sum().backward()
    # d sum(exp(log_std)) / d log_std over five rows, at log_std 0
    assert model.policy_head.log_std.grad.tolist() == [5.0, 5.0]


# ---- observation statistics


def test_obs_norm_sees_observations_standardised_and_clipped():
    plain, normed = make(), make(obs_norm=True)
    rows = torch.tensor([1.0, -5.0, 100.0, 0.0]) + torch.tensor([1.0, 0.1, 30.0, 2.0]) * observe(box(4), (200,))
    normed.update_normalizer(rows[:120])
    normed.update_normalizer(rows[120:])
    obs = torch.cat((rows[:5], 1e6 * torch.ones(1, 4)))
    standard = ((obs - rows.mean(0)) / rows.std(0, correction=0)).clamp(-10, 10)
    torch.testing.assert_close(normed.compute_actor(obs), plain.compute_actor(standard), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(normed.compute_critic(obs), plain.compute_critic(standard), rtol=1e-4, atol=1e-5)


def test_obs_norm_before_the_first_update_changes_nothing():
    obs = observe(box(4), (5,))
    assert torch.equal(make(obs_norm=True).compute_actor(obs), make().compute_actor(obs))


def test_obs_statistics_are_state_and_not_parameters():
    model = make(obs_norm=True)
    model.update_normalizer(torch.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 3.0, 4.0]]), torch.ones(2))
    state = model.state_dict()
    (mean,), (count,) = ([x for name, x in state.items() if name.endswith(key)] for key in ('.mean', '.count'))
    assert mean.tolist() == [2.0, 2.0, 3.0, 4.0] and count == 2
    assert not any(name.startswith('input') for name, _ in model.named_parameters())


def test_rows_of_weight_zero_enter_no_observation_statistic():
    one, other = make(obs_norm=True), make(obs_norm=True)
    rows = observe(box(4), (6,))
    one.update_normalizer(rows[:4])
    other.update_normalizer(torch.cat((rows[:4], 1e3 * rows[4:])), torch.tensor([1.5, 1.5, 1.5, 1.5, 0.0, 0.0]))
    assert torch.equal(one.compute_actor(rows), other.compute_actor(rows))


@pytest.mark.parametrize('obs_space, fields', [(box(4), {}), (Discrete(6), dict(obs_norm=True))])
def test_update_normalizer_without_statistics_does_nothing(obs_space, fields):
    model = make(obs_space, **fields)
    before = copy.deepcopy(model.state_dict())
    model.update_normalizer(observe(obs_space, (9,)), torch.ones(9))
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_forward_passes_do_not_update_statistics():
    model = make(obs_norm=True)
    before = copy.deepcopy(model.state_dict())
    model.compute_actor_critic(observe(box(4), (9,)))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# ---- what it refuses


@pytest.mark.parametrize(
    'fields, key',
    [
        (dict(hidden_sizes=[]), 'hidden_sizes'),
        (dict(hidden_sizes=[64, 0]), 'hidden_sizes'),
        (dict(hidden_size=[64]), 'hidden_sizes'),
        (dict(encoder='resnet'), 'encoder'),
        (dict(activation='sigmoid'), 'activation'),
        (dict(obs_norm=1), 'obs_norm'),
        (dict(log_std_init=3.0), 'log_std_init'),
        (dict(log_std_init=-11.0), 'log_std_init'),
    ],
)
def test_config_refuses_what_the_model_cannot_use(fields, key):
    with pytest.raises(ConfigError, match=key):
        validate(VACConfig, fields)
