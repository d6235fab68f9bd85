"""Symmetry: mirrored samples and the mirror loss by hand; a policy that is pulled to its mirror image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy_envs import job_config, make_policy, rows
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiDiscrete
from zoo.pipeline import serial_pipeline
from zoo.policy.options.symmetry import with_mirrored

THREE = Box(np.full(3, -np.inf), np.full(3, np.inf))
TWO = Box(np.full(2, -1.0), np.ones(2))
SWAP = {'index': [0, 2, 1], 'sign': [-1, 1, 1]}  # the first number changes its sign, the others change places


def policy_with(
    action: Any, action_space: Any = TWO, obs: Any = SWAP, obs_space: Any = THREE, model: Any = None, **symmetry: Any
) -> Any:
    learn = {'symmetry': {'obs': obs, 'action': action, **symmetry}}
    return make_policy(obs_space, action_space, learn=learn, model=model or {})


def negative(x: Any) -> Any:
    return -x


def next_choice(x: Tensor) -> Tensor:
    return (x + 1) % 3


def one_minus(x: Tensor) -> Tensor:
    return 1 - x


def mixed(x: Tensor) -> Tensor:
    return x @ torch.tensor([[0.6, 0.8], [-0.8, 0.6]])


def array_of(x: Tensor) -> Any:
    return x.numpy()


def too_long(x: Tensor) -> Tensor:
    return torch.cat((x, x), -1)


# --- mirrored samples ---


def test_samples_of_numbers_are_mirrored_as_worked_by_hand() -> None:
    policy = policy_with({'index': [1, 0], 'sign': [-1, -1]})
    batch = {
        'obs': torch.tensor([[1.0, 2.0, 3.0]]),
        'action': torch.tensor([[0.5, -0.2]]),
        'logit': torch.tensor([[0.1, 0.4, 1.0, 2.0]]),  # mu, sigma
        'adv': torch.tensor([7.0]),
        'return_': torch.tensor([5.0]),
        'value': torch.tensor([3.0]),
    }
    found = policy.samples.read_by_steps(batch)
    assert found['obs'].tolist() == [[1, 2, 3], [-1, 3, 2]]
    assert found['action'].tolist() == [[0.5, pytest.approx(-0.2)], [pytest.approx(0.2), -0.5]]
    assert found['logit'][1].tolist() == pytest.approx([-0.4, -0.1, 2.0, 1.0])
    for name in ('adv', 'return_', 'value'):
        assert found[name].tolist() == batch[name].tolist() * 2


def test_samples_of_choices_are_mirrored_as_worked_by_hand() -> None:
    policy = policy_with(next_choice, Discrete(3), obs=negative)
    batch = {'obs': torch.ones(1, 3), 'action': torch.tensor([2]), 'logit': torch.tensor([[1.0, 2.0, 3.0]])}
    option = next(each for each in policy.options if each.key == 'policy.learn.symmetry')
    found = with_mirrored(negative, option.mirror, batch)
    assert found['obs'].tolist() == [[1, 1, 1], [-1, -1, -1]]
    assert found['action'].tolist() == [2, 0]
    assert found['logit'].tolist() == [[1, 2, 3], [3, 1, 2]]  # what choice 2 was is choice 0 now


def test_mirrored_action_is_as_likely_as_the_action() -> None:
    policy = policy_with({'index': [1, 0], 'sign': [-1, -1]}, obs=negative)
    generator = torch.Generator().manual_seed(0)
    logit = torch.cat((torch.randn(9, 2, generator=generator), torch.rand(9, 2, generator=generator) + 0.1), -1)
    action = torch.randn(9, 2, generator=generator)
    batch = {'obs': torch.zeros(9, 3), 'action': action, 'logit': logit}
    found = policy.samples.read_by_steps({**batch, 'value': torch.zeros(9), 'return_': torch.zeros(9)})
    log_prob = policy.dist.log_prob(found['logit'], found['action'])
    torch.testing.assert_close(log_prob[:9], log_prob[9:])


def test_mirror_with_a_constant_keeps_the_deviations_of_actions() -> None:
    policy = policy_with(one_minus, obs=negative)
    batch = {
        'obs': torch.zeros(1, 3),
        'action': torch.tensor([[0.2, 0.7]]),
        'logit': torch.tensor([[0.1, 0.4, 0.3, 2.0]]),  # mu, sigma
        'value': torch.zeros(1),
        'return_': torch.zeros(1),
    }
    found = policy.samples.read_by_steps(batch)
    assert found['action'][1].tolist() == pytest.approx([0.8, 0.3])
    assert found['logit'][1].tolist() == pytest.approx([0.9, 0.6, 0.3, 2.0])


def test_without_augmentation_steps_read_the_samples_alone() -> None:
    policy = policy_with({'index': [1, 0]}, augment=False, mirror_loss=0.1)
    batch = {'obs': torch.ones(1, 3), 'value': torch.zeros(1), 'return_': torch.zeros(1)}
    assert policy.samples.read_by_steps(batch)['obs'].tolist() == [[1, 1, 1]]


# --- mirror loss ---


def test_mirror_loss_is_the_kl_from_the_mirror_image() -> None:
    policy = policy_with({'index': [1, 0]}, Discrete(2), augment=False, mirror_loss=0.5)
    obs = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]])
    columns = policy.loss.extra_columns(policy.model, [], {'obs': obs}, policy.loss)
    image = policy.model.compute_actor(torch.tensor([[-1.0, 3.0, 2.0], [0.0, -1.0, 1.0]])).flip(-1)
    torch.testing.assert_close(columns['logit_image'], image)
    logit = policy.model.compute_actor(obs)
    p, q = image.softmax(-1), logit.softmax(-1)
    expected = 0.5 * (p * (p.log() - q.log())).sum(-1)
    (term,) = policy.loss.terms
    torch.testing.assert_close(term(policy.dist, {'logit': logit}, columns), expected)


class SameLogits(torch.nn.Module):
    """A policy that is its own image when observations and choices move on by one place: p(a + 1 | moved s) = p(a | s)."""

    def compute_actor(self, obs: Tensor) -> Tensor:
        return obs


def moved(x: Tensor) -> Tensor:
    return x.roll(1, -1)


def test_policy_with_a_symmetry_that_does_not_undo_itself_is_its_own_image() -> None:
    policy = policy_with(next_choice, Discrete(3), obs=moved, augment=False, mirror_loss=0.5)
    obs = torch.tensor([[0.0, 1.0, 5.0]])
    columns = policy.loss.extra_columns(SameLogits(), [], {'obs': obs}, policy.loss)
    assert columns['logit_image'].tolist() == obs.tolist()


@pytest.mark.slow
def test_mirror_loss_makes_a_policy_symmetric(tmp_path: Path) -> None:
    asymmetry = []
    for factor in (0.0, 20.0):
        symmetry = {
            'obs': {'sign': [-1] * 4},
            'action': {'index': [1, 0]},
            'augment': factor == 0,
            'mirror_loss': factor,
        }
        cfg = job_config(tmp_path, 'CartPole-v1', policy={'learn': {'symmetry': symmetry, 'learning_rate': 1e-2}})
        if not factor:
            del cfg['policy']['learn']['symmetry']
        result = serial_pipeline(cfg)
        obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        share, image = (result.policy.model.compute_actor(x).softmax(-1)[:, 0] for x in (obs, -obs))
        asymmetry.append((share - (1 - image)).abs().mean().item())
        if factor:
            assert 'learn/penalty_mirror' in rows(result.run_dir)[0]
    assert asymmetry[1] < 0.5 * asymmetry[0]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ppo', 'ppg'])
def test_run_with_symmetry_takes_twice_as_many_steps(tmp_path: Path, name: str) -> None:
    found = []
    for symmetry in (None, {'obs': {'sign': [-1] * 4}, 'action': {'index': [1, 0]}}):
        learn = {'batch_size': 32, 'epoch_per_collect': 2, 'symmetry': symmetry}
        if name == 'ppg':
            learn = {'batch_size': 32, 'symmetry': symmetry, 'aux_freq': 99, 'aux_batch_size': 64}
        cfg = job_config(tmp_path, 'CartPole-v1')
        cfg['policy'] = {**cfg['policy'], 'type': name, 'learn': learn}
        found.append(serial_pipeline(cfg).train_iter)
    assert found[1] == 2 * found[0]


# --- refusals ---


@pytest.mark.parametrize(
    ('symmetry', 'spaces', 'words'),
    [
        ({'obs': {'sign': [-1]}}, {}, r'obs.sign is \[-1\] but must be 3 numbers, 1 or -1 each'),
        ({'obs': {'sign': [-1, 2, 1]}}, {}, r'obs.sign is \[-1, 2, 1\] but must be 3 numbers'),
        ({'obs': {'index': [0, 1, 1]}}, {}, 'obs.index is .* but must have each of 0 to 2 once'),
        ({'obs': {'index': [1, 2, 0]}}, {}, 'obs is no mirror: applied twice'),
        ({'obs': {'signs': [1, 1, 1]}}, {}, 'obs is .* but must have index, sign or both'),
        ({'obs': too_long}, {}, 'obs, a function, returned'),
        ({'obs': array_of}, {}, 'obs, a function, returned'),
        ({'action': too_long}, {}, 'action, a function, returned'),
        ({'action': mixed}, {}, 'action, a function, does more than change the places and signs of 2 numbers'),
        ({'action': torch.tanh}, {}, 'action, a function, does more'),
        (
            {'action': one_minus, 'model': {'distribution': 'squashed_gaussian'}},
            {},
            r'adds \[1.0, 1.0\] to actions, but it gets them before they are squashed',
        ),
        ({}, {'obs_space': Dict({'a': THREE})}, 'obs is .*, for vectors, but observations are'),
        ({'action': {'index': [1, 0], 'sign': [1, -1]}}, {}, 'action is no mirror'),
        (
            {'action': {'sign': [1, 1]}},
            {'action_space': Discrete(2)},
            'action.sign is given, but actions are one of 2 choices',
        ),
        (
            {},
            {'action_space': MultiDiscrete((2, 2), (0, 0), (2,))},
            'mirrors one choice or numbers, but the actions are',
        ),
        ({'action': torch.zeros_like}, {'action_space': Discrete(2)}, r'turned the choices 0 to 1 into \[0, 0\]'),
    ],
)
def test_mirror_that_cannot_be_is_refused(symmetry: Any, spaces: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        policy_with(**{'action': {'index': [1, 0]}, **symmetry, **spaces})


def test_memory_is_refused() -> None:
    learn = {'symmetry': {'obs': SWAP, 'action': {'index': [1, 0]}}}
    with pytest.raises(UserError, match='mirrors observations, but not the state of a memory'):
        make_policy(THREE, TWO, learn=learn, model={'recurrent': {'cell': 'gru'}})
