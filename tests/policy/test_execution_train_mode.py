"""Models with dropout or batch normalisation: acting and evaluation see eval mode, gradient steps training mode."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

from tests.policy.networks import LAYERS, Shared, network
from tests.policy.updates import N_STEP, OBS, N, random_rollout, samples_of
from tests.policy_envs import TWO_ACTIONS, differing, make_policy
from zoo.policy.base import Policy
from zoo.policy.execution import ModelMode


def policy_with(model: nn.Module, kind: str = 'ppo', executor: str = 'eager') -> Policy:
    learn: dict[str, Any] = dict(batch_size=N, learning_rate=1e-2, executor=executor)
    if kind == 'ppg':
        learn |= dict(aux_freq=1, aux_batch_size=N)
    return make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=dict(n_step=N_STEP), network=model)


layers = pytest.mark.parametrize('layer', LAYERS)
kinds = pytest.mark.parametrize('kind', ['ppo', 'ppg'])


@layers
@kinds
def test_what_acting_and_evaluation_compute_depends_on_the_observation_alone(layer: str, kind: str) -> None:
    model = network(layer)
    policy = policy_with(model, kind)
    learned = samples_of(policy)
    policy.learn_mode.forward(learned)
    before, row = copy.deepcopy(model.state_dict()), torch.randn(1, 2)
    found = [policy.eval_mode.forward(row.expand(n, 2), None)['action'][0] for n in (1, 4, 4, 64)]
    assert len(set(map(int, found))) == 1
    logits = [policy.collect_mode.forward(row.expand(n, 2), None)['logit'][0] for n in (1, 4, 4, 64)]
    for logit in logits[1:]:
        torch.testing.assert_close(logit, logits[0])
    random_rollout(policy)
    policy.act(row[0].numpy())
    assert not differing(before, model.state_dict())  # no statistic moved


@layers
@kinds
def test_gradient_steps_see_the_model_in_training_mode(layer: str, kind: str) -> None:
    model, seen = network(layer), []
    model.trunk[1].register_forward_hook(lambda module, *_: seen.append((module.training, torch.is_grad_enabled())))
    policy = policy_with(model, kind)
    samples = samples_of(policy)
    assert ('auxiliary_loss' in policy.learn_mode.forward(samples)) == (kind == 'ppg')
    assert {True, False} == {is_step for _, is_step in seen}
    assert all(in_training == is_step for in_training, is_step in seen)
    if layer == 'batch_norm':  # the statistics came from the samples
        assert model.trunk[1].num_batches_tracked > 0 and model.trunk[1].running_mean.abs().min() > 0


@layers
def test_a_layer_given_in_eval_mode_stays_in_it_so_that_the_first_ratio_is_one(layer: str) -> None:
    model = network(layer)
    model.trunk[1].eval()
    learn = dict(batch_size=N, epoch_per_collect=1)  # one minibatch
    policy = make_policy(OBS, TWO_ACTIONS, learn=learn, collect=dict(n_step=N_STEP), network=model)
    assert policy.learn_mode.forward(samples_of(policy))['approx_kl'].abs() < 1e-6
    assert not model.trunk[1].training and (layer == 'dropout' or model.trunk[1].num_batches_tracked == 0)


@pytest.mark.parametrize('norm', [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_follows_the_weights_in_gradient_steps_alone(norm: Any) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 4)))
    mode = ModelMode(model, torch.device('cpu'))
    x = torch.ones(1, 4)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(('original', 'weight_orig')):
                weight.mul_(10)  # as an optimiser might
        before = model(x)
        assert torch.equal(model(x), before)  # acting does not change the norm's estimate
        for i in range(50):
            with mode.steps(0, i):
                model(x)
        assert not model.training and torch.linalg.matrix_norm(model[0].weight, 2) == pytest.approx(1.0, abs=1e-2)


@layers
def test_a_model_given_to_a_second_policy_trains_as_with_the_first(layer: str) -> None:
    models = network(layer), network(layer)
    policy_with(models[1])  # leaves it in eval mode
    found = []
    for model in models:
        policy = policy_with(model)
        policy.learn_mode.forward(samples_of(policy))
        found.append(model.state_dict())
    assert not differing(*found)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'executor'), [('ppo', 'graph'), ('ppg', 'eager')])
def test_a_run_does_not_depend_on_the_global_random_stream_nor_moves_it(
    kind: str, executor: str, graphs: list[torch.fx.GraphModule]
) -> None:
    found = []
    for seed in (1, 2):
        policy = policy_with(network('dropout'), kind, executor)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        for i in range(2):
            policy.learn_mode.forward(samples_of(policy, i))
        assert torch.equal(torch.get_rng_state(), before)
        found.append(policy.state_dict())
    assert not differing(*found)


def test_dropout_draws_again_in_every_update() -> None:
    model, masks = network('dropout'), []
    policy = policy_with(model)
    samples = samples_of(policy)
    model.trunk[1].register_forward_hook(lambda module, x, y: masks.append(y == 0) if module.training else None)
    for _ in range(2):
        policy.learn_mode.forward(samples)
    assert len(masks) == 8 and not any(torch.equal(masks[i], masks[j]) for i in range(8) for j in range(i))
    assert sum(mask.float().mean() for mask in masks) / 8 == pytest.approx(0.5, abs=0.05)  # 4096 draws with p = .5


@pytest.mark.long
@pytest.mark.slow
def test_traced_steps_move_batch_statistics_as_eager_ones_do(graphs: list[torch.fx.GraphModule]) -> None:
    states = []
    for executor in ('eager', 'graph'):
        policy = policy_with(network('batch_norm'), executor=executor)
        for seed in range(2):
            policy.learn_mode.forward(samples_of(policy, seed))
        states.append(dict(policy.model.state_dict()))
    assert graphs  # otherwise both are eager
    del states[0]['trunk.0.bias']  # batch norm removes this bias; Adam enlarges the rounding of its gradient
    for name, x in states[0].items():
        torch.testing.assert_close(states[1][name], x, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f'{name}: {m}')


@layers
def test_one_warning_names_the_layer(layer: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        policy_with(network(layer))
    found = [record.getMessage() for record in caplog.records if 'training mode' in record.getMessage()]
    assert len(found) == 1 and f"'trunk.1' ({type(LAYERS[layer]()).__name__})" in found[0]
    caplog.clear()
    make_policy(OBS, TWO_ACTIONS, network=network(layer), enable_field=['eval'])
    policy_with(Shared(nn.Dropout(0.0)))
    policy_with(Shared(nn.LayerNorm(16)))
    assert not [record for record in caplog.records if 'training mode' in record.getMessage()]
