"""Clones of a policy, with its seed or another, and optimisers that begin again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.policy.copies import CASES, everything, made, trained
from tests.policy.updates import OBS, samples_of
from tests.policy_envs import TWO_ACTIONS, differing, make_policy
from zoo.core.errors import UserError


@pytest.mark.slow
@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('case', CASES)
def test_clone_with_another_seed_has_the_same_state_and_learns_otherwise(case: str) -> None:
    kind, sections = CASES[case]
    policy = made(kind, **copy.deepcopy(sections))
    trained(policy, 0, 1)
    before = copy.deepcopy(everything(policy))
    same = policy.clone()
    other = policy.clone(seed=7)
    assert other.seed == 7
    assert not differing(everything(same), before)
    assert not differing(everything(other), before)
    assert same.executor_name == other.executor_name == policy.executor_name
    ends = [copy.deepcopy(trained(each, 2, 3)) for each in (same, other)]
    assert not differing(everything(policy), before)  # training its clones did not change it
    after = trained(policy, 2, 3)
    assert not differing(ends[0], after)
    assert differing(ends[1]['model'], after['model'])  # its minibatches have another order


def test_clone_with_another_seed_draws_other_actions() -> None:
    policy = made('ppo')
    obs = torch.zeros(64, 2)
    actions = []
    for each in (policy, policy.clone(), policy.clone(seed=3)):
        each.collect_mode.begin(0)
        actions.append(each.collect_mode.forward(obs, None)['action'].tolist())
    assert actions[0] == actions[1] != actions[2]


def test_clone_of_a_policy_with_a_given_model_owns_its_parameters() -> None:
    policy = made('ppo', network='dropout')
    for clone in (policy.clone(), policy.clone(seed=1)):
        assert clone.given_model == policy.given_model is not None
        with torch.no_grad():
            next(clone.model.parameters()).fill_(3.0)
        assert not (next(policy.model.parameters()) == 3.0).any()


def test_clone_of_a_policy_of_one_mode_has_that_mode() -> None:
    clone = make_policy(OBS, TWO_ACTIONS, enable_field=['collect']).clone(seed=1)
    assert clone.collect_mode.n_step > 0
    with pytest.raises(AttributeError, match='learn'):
        clone.reset_optimizers()


def moments(policy: Any, name: str) -> list[float]:
    buffers = policy.optimizers[name].buffers
    return [float(buffers[key].abs().sum()) for key in ('exp_avg', 'exp_avg_sq', 'step_count')]


@pytest.mark.parametrize('kind', ['ppo', 'ppg', 'dqn'])
def test_reset_optimisers_step_as_at_the_beginning(kind: str) -> None:
    policy: Any = made(kind) if kind != 'dqn' else make_policy(OBS, TWO_ACTIONS, type='dqn')
    for optimizer in policy.optimizers.values():
        optimizer.grad.fill_(1.0)
        optimizer.step()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    policy.reset_optimizers()
    for name in policy.optimizers:
        assert moments(policy, name) == [0.0, 0.0, 0.0]
    assert not differing(dict(policy.model.named_parameters()), before)
    # the first step of Adam moves each parameter by lr * g / (|g| + eps), whatever the size of g
    optimizer = next(iter(policy.optimizers.values()))
    param = optimizer.param.clone()
    optimizer.grad.fill_(1e3)
    optimizer.step()
    torch.testing.assert_close(param - optimizer.param, torch.full_like(param, optimizer.lr), rtol=1e-3, atol=1e-7)


def test_reset_of_one_optimiser_leaves_the_others() -> None:
    policy: Any = made('ppg', learn=dict(aux_freq=1, aux_batch_size=8))
    policy.learn_mode.forward(samples_of(policy, 0))
    kept = {name: moments(policy, name) for name in policy.optimizers if name != 'actor'}
    policy.reset_optimizers(['actor'])
    assert moments(policy, 'actor') == [0.0, 0.0, 0.0]
    assert {name: moments(policy, name) for name in kept} == kept
    assert all(steps > 0 for _, _, steps in kept.values())
    with pytest.raises(UserError, match="unknown optimiser 'actr': did you mean 'actor'"):
        policy.reset_optimizers(['actr'])


def test_reset_average_is_the_parameters_and_skipped_steps_are_forgotten() -> None:
    policy: Any = made('ppo', learn=dict(proximal='ewma', batch_size=8))
    policy.learn_mode.forward(samples_of(policy, 0))
    optimizer = next(iter(policy.optimizers.values()))
    optimizer.grad.fill_(torch.nan)
    optimizer.step()
    assert optimizer.count_skipped(limit=5) == 1
    policy.reset_optimizers()
    assert torch.equal(optimizer.buffers['average'], optimizer.param)
    assert optimizer.count_skipped(limit=1) == 0
    assert not optimizer.grad.any()
