"""A copy of a policy, by deepcopy or pickle in the middle of a run, continues as the original and moves nothing of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.policy.test_ppo import N_STEP, OBS, N, parameters, samples_of
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, make_policy
from zoo.policy.base import Policy

NAMES = ['ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy']
WAYS: dict[str, Callable[[Policy], Policy]] = {
    'deepcopy': copy.deepcopy,
    'pickle': lambda policy: pickle.loads(pickle.dumps(policy)),
}
every = [
    pytest.mark.parametrize('name', NAMES),
    pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box']),
    pytest.mark.parametrize('executor', ['native', 'eager']),
    pytest.mark.parametrize('way', WAYS),
]


def for_every(test: Any) -> Any:
    for mark in every:
        test = mark(test)
    return pytest.mark.usefixtures('native')(test)


def running(name: str, space: Any, executor: str) -> Policy:
    """In the middle of a run: acted, trained, and for PPG in the middle of a phase."""
    learn: dict[str, Any] = dict(batch_size=N // 2, value_norm=True, reward_norm=True, learning_rate=1e-2)
    if 'ppg' in name:
        learn |= dict(aux_freq=3, aux_batch_size=N)
    sections: dict[str, Any] = dict(collect=dict(n_step=N_STEP), model=dict(obs_norm=True))
    policy = make_policy(OBS, space, type=name, learn=dict(executor=executor, **learn), **sections)
    for seed in range(2):
        policy.learn_mode.forward(samples_of(policy, seed))
    return policy


def continued(policy: Policy, n: int = 3) -> dict[str, Any]:
    """Everything that n more rounds leave, the auxiliary phase among them."""
    for seed in range(2, 2 + n):
        policy.learn_mode.set_env_step(seed)
        policy.learn_mode.forward(samples_of(policy, seed))
    return {**policy.state_dict(), 'memory': policy.memory_state_dict()}


@for_every
def test_copy_and_original_end_in_the_same_bits(name: str, space: Any, executor: str, way: str) -> None:
    policy = running(name, space, executor)
    other = WAYS[way](policy)
    assert other.executor_name == policy.executor_name and policy.executor_name.startswith(executor)
    assert not differing(continued(other), continued(policy))


@for_every
def test_training_the_copy_moves_nothing_of_the_original(name: str, space: Any, executor: str, way: str) -> None:
    policy = running(name, space, executor)
    before = copy.deepcopy({**policy.state_dict(), 'memory': policy.memory_state_dict()})
    other = WAYS[way](policy)
    moved = continued(other)
    assert differing(moved['model'], before['model'])
    assert not differing({**policy.state_dict(), 'memory': policy.memory_state_dict()}, before)
    kept = copy.deepcopy(moved)
    continued(policy)
    assert not differing({**other.state_dict(), 'memory': other.memory_state_dict()}, kept)


@pytest.mark.parametrize('way', WAYS)
def test_parameters_of_a_copy_are_views_of_its_own_optimisers(way: str) -> None:
    policy = running('ppg', TWO_ACTIONS, 'eager')
    other = WAYS[way](policy)
    before = parameters(policy)
    for optimizer in other.optimizers.values():
        with torch.no_grad():
            optimizer.param.fill_(0.5)
    assert all((p == 0.5).all() for p in other._model.parameters())
    assert not differing(parameters(policy), before)
    # the auxiliary phase moves the same parameters, with moments of its own
    for name in ('actor', 'critic'):
        assert other.optimizers[name].param is other.optimizers[f'aux_{name}'].param
        assert other.optimizers[name].exp_avg is not other.optimizers[f'aux_{name}'].exp_avg


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('name', NAMES)
def test_modes_of_a_copy_act_for_the_copy(name: str, way: str) -> None:
    policy = running(name, TWO_ACTIONS, 'eager')
    other = WAYS[way](policy)
    with torch.no_grad():
        for model, choice in ((policy._model, 0), (other._model, 1)):
            model.policy_head.bias[choice] += 100.0
    obs = torch.zeros(4, 2)
    for chosen, each in ((0, policy), (1, other)):
        assert each.eval_mode.forward(obs, None)['action'].tolist() == [chosen] * 4
        assert each.collect_mode.forward(obs, None)['action'].tolist() == [chosen] * 4
        assert each.act(obs.numpy()).tolist() == [chosen] * 4
        assert each.learn_mode.train_iter() == policy.learn_mode.train_iter() > 0


def test_copy_of_a_copy_and_a_policy_of_one_mode() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, enable_field=['collect'])
    other = copy.deepcopy(pickle.loads(pickle.dumps(policy)))
    obs = torch.zeros(4, 2)
    for _ in range(3):
        a, b = (each.collect_mode.forward(obs, None) for each in (policy, other))
        assert torch.equal(a['action'], b['action'])
    with pytest.raises(AttributeError, match='has no learn mode'):
        other.learn_mode  # noqa: B018
