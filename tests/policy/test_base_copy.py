"""A policy that is copied, pickled or restored during a run continues like the original and does not change it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from tests.policy.networks import network as model_with
from tests.policy.updates import N_ENV, N_STEP, OBS, N, parameters, samples_of
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, make_policy
from zoo.policy.base import Policy

NAMES = ['ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy']
WAYS = {'deepcopy': copy.deepcopy, 'pickle': lambda policy: pickle.loads(pickle.dumps(policy))}
NORMS: dict[str, Any] = dict(batch_size=N // 2, value_norm=True, reward_norm=True, learning_rate=1e-2)
PHASES: dict[str, Any] = dict(aux_freq=3, aux_batch_size=N)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    'ppo native': ('ppo', dict(learn=dict(executor='native', **NORMS), model=dict(obs_norm=True))),
    'ppo eager box': ('ppo', dict(learn=dict(executor='eager', **NORMS), space=ONE_NUMBER)),
    'ppg native box': ('ppg', dict(learn=dict(executor='native', **NORMS, **PHASES), space=ONE_NUMBER)),
    'ppg eager': ('ppg', dict(learn=dict(executor='eager', **NORMS, **PHASES), model=dict(obs_norm=True))),
    'ppg detach, disk': ('ppg', dict(learn=dict(aux_memory='disk', **NORMS, **PHASES), model=dict(arch='detach'))),
    'ppg shared, cpu': ('ppg', dict(learn=dict(aux_memory='cpu', **NORMS, **PHASES), model=dict(arch='shared'))),
    'ppo_offpolicy native': ('ppo_offpolicy', dict(learn=dict(executor='native', **NORMS))),
    'ppg_offpolicy': ('ppg_offpolicy', dict(learn=dict(executor='eager', **NORMS, **PHASES), space=ONE_NUMBER)),
    'dropout': ('ppo', dict(network='dropout')),
    **{
        next(iter(learn)): ('ppo', dict(learn=learn))
        for learn in (
            dict(proximal='ewma'),
            dict(optimizer='muon'),
            dict(value_loss='hl_gauss'),
            dict(plasticity={'type': 'shrink_perturb', 'every': 2}),
            dict(penalties=[{'type': 'kl', 'target': 0.01}]),
            dict(intrinsic='rnd'),
            dict(draw='prioritized'),
            dict(learning_rate={'start': 1e-3, 'kl_target': 0.01}),
            dict(accumulate=2, batch_size=8),
            dict(freeze=['policy_head.*']),
        )
    },
}


def made(kind: str, space: Any = TWO_ACTIONS, network: Any = None, **sections: Any) -> Policy:
    sections.setdefault('learn', {}).setdefault('batch_size', N // 2)
    given = None if network is None else model_with(network)
    return make_policy(OBS, space, type=kind, collect=dict(n_step=N_STEP), network=given, **sections)


def trained(policy: Policy, *seeds: int) -> dict[str, Any]:
    """Trains one round per seed; returns the whole state."""
    policy.collect_mode.begin(seeds[0])  # a state has neither the noise position in a rollout nor open episodes
    policy.collect_mode.forget(slice(0, N_ENV))
    for seed in seeds:
        policy.learn_mode.set_env_step(seed)
        policy.learn_mode.forward(samples_of(policy, seed))
    return everything(policy)


def everything(policy: Policy) -> dict[str, Any]:
    return {**policy.state_dict(), 'memory': policy.memory_state_dict()}


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('case', CASES)
def test_copies_and_restored_policy_end_in_the_same_bits_as_the_original(case: str) -> None:
    """PPG is in the middle of a phase. The restored policy has the same seed, because random orders depend on it."""
    kind, sections = CASES[case]
    policy, restored = made(kind, **copy.deepcopy(sections)), made(kind, **copy.deepcopy(sections))
    trained(policy, 0, 1)
    before = copy.deepcopy(everything(policy))
    assert differing(restored.state_dict()['model'], before['model'])
    restored.load_state_dict(copy.deepcopy(policy.state_dict()))
    restored.load_memory_state_dict(copy.deepcopy(policy.memory_state_dict()))
    others = {'state': restored, **{way: make(policy) for way, make in WAYS.items()}}
    found = {}
    for way, other in others.items():
        assert other.executor_name == policy.executor_name and not differing(everything(other), before), way
        found[way] = copy.deepcopy(trained(other, 2, 3, 4))
    assert not differing(everything(policy), before)  # training the others did not change the original
    after = trained(policy, 2, 3, 4)
    assert differing(after['model'], before['model'])
    for way, other in others.items():
        assert not differing(found[way], after), way
        assert not differing(everything(other), found[way]), way  # training the original did not change the others


@pytest.mark.parametrize('way', WAYS)
def test_parameters_of_a_copy_are_views_of_its_own_optimisers(way: str) -> None:
    policy = made('ppg')
    other = WAYS[way](policy)
    before = parameters(policy)
    for optimizer in other.optimizers.values():
        with torch.no_grad():
            optimizer.param.fill_(0.5)
    assert all((p == 0.5).all() for p in other.model.parameters())
    assert not differing(parameters(policy), before)
    # the auxiliary phase trains the same parameters with its own moments
    for name in ('actor', 'critic'):
        assert other.optimizers[name].param is other.optimizers[f'aux_{name}'].param
        assert other.optimizers[name].exp_avg is not other.optimizers[f'aux_{name}'].exp_avg


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('name', NAMES)
def test_modes_of_a_copy_act_for_the_copy(name: str, way: str) -> None:
    policy = made(name)
    trained(policy, 0)
    other = WAYS[way](policy)
    with torch.no_grad():
        for model, choice in ((policy.model, 0), (other.model, 1)):
            model.policy_head.bias[choice] += 100.0
    obs = torch.zeros(4, 2)
    for chosen, each in ((0, policy), (1, other)):
        assert each.eval_mode.forward(obs, None)['action'].tolist() == [chosen] * 4
        assert each.collect_mode.forward(obs, None)['action'].tolist() == [chosen] * 4
        assert each.act(obs.numpy()).tolist() == [chosen] * 4
        assert each.learn_mode.train_iter() == policy.learn_mode.train_iter() > 0


@pytest.mark.slow
def test_copy_of_a_copy_and_a_policy_of_one_mode() -> None:
    policy = make_policy(OBS, TWO_ACTIONS, enable_field=['collect'])
    obs = torch.zeros(4, 2)
    policy.collect_mode.forward(obs, None)  # the noise of this rollout is partly used
    other = copy.deepcopy(pickle.loads(pickle.dumps(policy)))
    for _ in range(3):
        a, b = (each.collect_mode.forward(obs, None) for each in (policy, other))
        assert torch.equal(a['action'], b['action'])
    with pytest.raises(AttributeError, match='has no learn mode'):
        other.learn_mode  # noqa: B018
