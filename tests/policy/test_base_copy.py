"""A policy that is copied, pickled or restored during a run continues like the original and does not change it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tests.policy.copies import CASES, everything, made, trained
from tests.policy.updates import OBS, parameters
from tests.policy_envs import TWO_ACTIONS, differing, make_policy

NAMES = ['ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy']
WAYS = {'deepcopy': copy.deepcopy, 'pickle': lambda policy: pickle.loads(pickle.dumps(policy))}


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('case', CASES)
@pytest.mark.slow(ci=True)
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
