"""The toy envs: actions that use the right answer reach the best return."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

import zoo.core.spaces as plain
from zoo.core.action_map import ActionMap
from zoo.core.spaces import leaf_spaces, mask_space
from zoo.env import EnvConfig, EnvError, EnvKwargsError, check_env, make_env, make_vector_env
from zoo.env.inspection.family import random_actions
from zoo.env.toy.targets import ACTION_SPACES, OBS_SPACES
from zoo.env.validation import action_of


def test_remember_cue_pays_only_for_the_cue_of_the_first_observation() -> None:
    env = make_env(EnvConfig(id='remember_cue', kwargs={'n_cue': 3, 'delay': 4}))
    for seed in range(12):
        obs, _ = env.reset(seed=seed)
        cue = int(obs.argmax())
        assert obs.tolist() == np.eye(4)[cue].tolist() and cue < 3
        for t in range(1, 5):
            obs, reward, terminated, *_ = env.step(2)
            assert obs.tolist() == [0, 0, 0, t == 4] and reward == 0 and not terminated
        guess = seed % 3
        _, reward, terminated, *_ = env.step(guess)
        assert reward == (guess == cue) and terminated


def test_remember_cue_shows_each_cue_about_as_often() -> None:
    env = make_env(EnvConfig(id='remember_cue'))
    cues = [int(env.reset(seed=None if i else 0)[0].argmax()) for i in range(1000)]
    assert 430 < sum(cues) < 570  # 500 +- 4.4 standard deviations


def test_cartpole_no_velocity_is_cartpole_without_its_speeds() -> None:
    env, full = make_env(EnvConfig(id='cartpole_no_velocity')), gymnasium.make('CartPole-v1')
    obs, want = env.reset(seed=3)[0], full.reset(seed=3)[0]
    for t in range(30):
        assert obs.tolist() == [want[0], want[2]]
        (obs, *rest), (want, *others) = env.step(t % 2), full.step(t % 2)
        assert rest[:3] == others[:3]
        if rest[1]:
            break
    vector = make_vector_env(EnvConfig(id='cartpole_no_velocity'), 1)
    assert vector.obs_space.shape == (2,)


def best_action(space: plain.Space, target: Tensor) -> Tensor:
    """The action that a target [1, size] of one_step encodes, in the form that ActionMap takes."""
    parts, start = [], 0

    def take(n: int) -> Tensor:
        nonlocal start
        start += n
        return target[:, start - n : start]

    for _, leaf in leaf_spaces(space):
        if isinstance(leaf, plain.Box):
            low, high = (np.where(np.isfinite(leaf.low), x, y).ravel() for x, y in ((leaf.low, -1), (leaf.high, 1)))
            middle, half = torch.tensor((low + high) / 2), torch.tensor((high - low) / 2)
            parts.append((take(len(low)) * half + middle).float())
        elif isinstance(leaf, plain.MultiBinary):
            parts.append((take(int(np.prod(leaf.shape))) > 0).long())
        else:
            nvec = leaf.nvec if isinstance(leaf, plain.MultiDiscrete) else (leaf.n,)
            parts.append(torch.stack([take(n).argmax(1) for n in nvec], 1))
    if isinstance(space, plain.Dict):
        return torch.cat([part.float() for part in parts], 1)
    return parts[0][:, 0] if isinstance(space, plain.Discrete) else parts[0]


@pytest.mark.parametrize(
    ('action', 'masked'), [*((name, True) for name in ACTION_SPACES), ('discrete', False), ('multi_discrete', False)]
)
def test_one_step_pays_1_for_the_target_that_it_shows_and_less_for_others(action: str, masked: bool) -> None:
    env = make_vector_env(EnvConfig(id='one_step', kwargs={'action': action, 'masked': masked}), 4)
    obs, rng = env.reset(0), torch.Generator().manual_seed(0)
    for t in range(20):
        shown = obs if isinstance(obs, Tensor) else obs['obs']
        mask = obs['action_mask'] if mask_space(env.obs_space) is not None else None
        best = torch.cat([best_action(env.action_space, row[None]) for row in shown])
        step = env.step(best if t % 2 else random_actions(env.action_space, 4, rng, mask))
        if t % 2:
            assert torch.allclose(step.reward, torch.ones(4), atol=1e-6)
        else:
            assert (step.reward >= -1).all() and (step.reward <= 1).all()
        assert step.terminated.all()
        obs = step.obs
    is_maskable = not action.startswith('box')
    assert (mask is not None) == (masked and is_maskable)


def test_one_step_reward_falls_with_the_distance() -> None:
    env = make_env(EnvConfig(id='one_step', kwargs={'action': 'box'}))
    target, _ = env.reset(seed=0)
    away = np.array([0.5, 0.25]) * -np.sign(target)
    _, reward, *_ = env.step(target + away)
    assert reward == pytest.approx(1 - 0.375)  # mean of 0.5 and 0.25


def test_one_step_wrong_choices_cost_2_each_over_their_number() -> None:
    env = make_env(EnvConfig(id='one_step', kwargs={'action': 'multi_discrete'}))
    target, _ = env.reset(seed=0)
    right = [int(target[:3].argmax()), int(target[3:].argmax())]
    assert env.step(np.array([right[0], 1 - right[1]]))[1] == 0  # the mean of 1 and -1
    assert env.step(np.array([(right[0] + 1) % 3, 1 - right[1]]))[1] == -1


def test_random_masks_counts_the_illegal_action_that_it_raises_on() -> None:
    env: Any = make_env(EnvConfig(id='random_masks')).unwrapped
    _, info = env.reset(seed=0)
    for _ in range(5):
        _, reward, *_, info = env.step(int(info['action_mask'].argmax()))
        assert reward == 1
    highest = int(np.flatnonzero(info['action_mask'])[-1])
    assert env.n_illegal == 0
    with pytest.raises(EnvError, match='is illegal under the mask'):
        env.step(int(np.flatnonzero(~info['action_mask'])[0]))
    assert env.n_illegal == 1 and highest >= 0


def test_random_masks_are_the_same_for_the_same_seed_and_change_at_every_step() -> None:
    env = make_vector_env(EnvConfig(id='random_masks'), 2)
    runs = []
    for _ in range(2):
        masks = [env.reset(5)['action_mask'].clone()]
        for _ in range(20):
            masks.append(env.step(masks[-1].int().argmax(1)).obs['action_mask'].clone())
        runs.append(torch.stack(masks))
    assert torch.equal(*runs)
    assert (runs[0][1:] != runs[0][:-1]).any(2).float().mean() > 0.9


@pytest.mark.parametrize('obs', OBS_SPACES)
def test_any_space_keeps_the_contract_with_every_observation_space(obs: str) -> None:
    assert len(OBS_SPACES) == 15 and len(ACTION_SPACES) == 12  # the names of the matrix
    action = list(ACTION_SPACES)[list(OBS_SPACES).index(obs) % 12]
    assert check_env(EnvConfig(id='any_space', kwargs={'obs': obs, 'action': action}), n_step=20) == []


@pytest.mark.parametrize('action', ACTION_SPACES)
def test_any_space_is_sent_legal_actions_of_every_space(action: str) -> None:
    """The env itself raises where an action is not in its space, or not legal; 40 steps of 2 copies count 80 actions."""
    env = make_vector_env(EnvConfig(id='any_space', kwargs={'obs': 'nested_mask', 'action': action}), 2)
    obs, rng = env.reset(0), torch.Generator().manual_seed(0)
    n_action = 0
    for _ in range(40):
        mask = obs['action_mask'] if mask_space(env.obs_space) is not None else None
        step = env.step(random_actions(env.action_space, 2, rng, mask))
        obs = step.obs
        n_action += len(step.reward)
    assert n_action == 80


def test_any_space_with_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(EnvKwargsError, match="env.kwargs.obs is 'boxx': did you mean 'box'.* it is one of box"):
        make_env(EnvConfig(id='any_space', kwargs={'obs': 'boxx'}))


@pytest.mark.parametrize('action', ACTION_SPACES)
def test_random_actions_are_legal_and_reach_every_choice(action: str) -> None:
    space = make_vector_env(EnvConfig(id='any_space', kwargs={'action': action}), 1).action_space
    rng = torch.Generator().manual_seed(0)
    actions = random_actions(space, 500, rng)
    env_space = ACTION_SPACES[action]()
    sent = ActionMap(space)(actions)
    rows = [action_of(sent, i) for i in range(500)]
    assert all(env_space.contains(np.asarray(x) if action == 'box_0d' else x) for x in rows)
    column = 0
    for _, leaf in leaf_spaces(space):
        nvec = {plain.MultiDiscrete: lambda x: x.nvec, plain.Discrete: lambda x: (x.n,)}.get(type(leaf), lambda x: ())(
            leaf
        )
        for n in nvec:
            assert actions.reshape(500, -1)[:, column].unique().tolist() == list(range(n))
            column += 1
        column += 0 if nvec else int(np.prod(leaf.shape))
