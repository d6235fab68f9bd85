"""Real pools of envpool, beside gymnasium's envs of the same name or a pool that is asked directly."""
from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.env import (
    EnvConfig,
    EnvError,
    EnvKwargsError,
    MissingExtraError,
    UnknownEnvError,
    UnsupportedEnvError,
    VectorEnv,
    check_env,
    make_vector_env,
)
from zoo.spaces import Box, Discrete

pytestmark = pytest.mark.skipif(importlib.util.find_spec('envpool') is None,
                                reason='the extra envpool is not installed')
TASKS = ['CartPole-v1', 'HalfCheetah-v4', 'LunarLander-v3', 'MiniGrid-DoorKey-6x6-v0', 'Breakout-v5']


def make(game: str, n_env: int = 3, training: bool = False, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id='envpool', game=game, **fields), n_env, training=training)


def some_actions(env: VectorEnv, n_step: int) -> list[torch.Tensor]:
    rng, space = torch.Generator().manual_seed(0), env.action_space
    if isinstance(space, Discrete):
        return list(torch.randint(space.n, (n_step, env.n_env), generator=rng))
    return list(torch.randn(n_step, env.n_env, *space.shape, generator=rng))


@pytest.mark.parametrize('game', TASKS)
def test_reset_same_seed_gives_the_same_episodes_another_seed_others(game: str) -> None:
    env = make(game)
    runs = []
    for _ in range(2):
        first = env.reset(np.random.SeedSequence(3)).clone()
        steps = [env.step(action) for action in some_actions(env, 30)]
        runs.append(torch.stack([first, *(step.obs for step in steps)]))
    assert torch.equal(runs[0], runs[1])
    env.reset(4)
    assert not torch.equal(torch.stack([env.step(action).obs for action in some_actions(env, 30)]), runs[0][1:])


@pytest.mark.parametrize('game', TASKS[:4])
def test_reset_env_i_is_the_same_in_a_larger_vector(game: str) -> None:
    two, five = make(game, 2).reset(1), make(game, 5).reset(1)
    assert torch.equal(five[:2], two) and not torch.equal(two[0], two[1])


def test_reset_again_and_again_leaves_no_threads() -> None:
    env = make('CartPole-v1')
    env.reset(0)
    n_thread = len(os.listdir('/proc/self/task'))
    for seed in range(5):
        env.reset(seed)
    assert len(os.listdir('/proc/self/task')) == n_thread
    env.close()
    assert len(os.listdir('/proc/self/task')) < n_thread


def test_step_cartpole_truncated_row_shows_the_true_final_obs_and_the_next_only_resets() -> None:
    """gymnasium's CartPole, put into the state before the last step, says what that step leads to."""
    env = make('CartPole-v1', 2, max_episode_steps=5)
    reference: Any = gymnasium.make('CartPole-v1').unwrapped
    last = env.reset(0)
    for t, action in enumerate(some_actions(env, 12), 1):
        step = env.step(action)
        is_reset = t % 6 == 0
        assert step.is_reset.tolist() == [is_reset] * 2
        assert step.truncated.tolist() == [t % 6 == 5] * 2 and not step.terminated.any()
        assert step.final_obs is None and step.reward.tolist() == [0.0 if is_reset else 1.0] * 2
        if is_reset:
            assert step.obs.abs().max() <= 0.05  # where CartPole's episodes begin
        else:
            for b in range(2):
                reference.reset()
                reference.state = last[b].numpy().astype(np.float64)
                want = reference.step(int(action[b]))[0]
                np.testing.assert_allclose(step.obs[b].numpy(), want, atol=1e-6)  # f32, rounded once on either side
        last = step.obs


def test_step_terminal_state_is_not_truncated() -> None:
    env = make('CartPole-v1', 1)
    env.reset(0)
    for _ in range(20):
        step = env.step(torch.tensor([1]))  # pushed to one side, the pole falls within 12 steps
        if step.terminated.any():
            break
    assert step.terminated.tolist() == [True] and step.truncated.tolist() == [False]
    assert step.obs[0, 2].abs() > 12 * 2 * np.pi / 360  # the angle at which an episode ends


@pytest.mark.parametrize(('mode', 'action', 'sent'), [('clip', 5.0, 1.0), ('clip', -0.25, -0.25), ('rescale', -9, -1)])
def test_step_mujoco_actions_are_mapped_to_their_bounds(mode: str, action: float, sent: float) -> None:
    env, plain = make('HalfCheetah-v4', 2, action_mode=mode), make('HalfCheetah-v4', 2)
    assert torch.equal(env.reset(0), plain.reset(0))
    got, want = env.step(torch.full((2, 6), float(action))), plain.step(torch.full((2, 6), float(sent)))
    assert torch.equal(got.obs, want.obs) and got.obs.dtype == got.reward.dtype == torch.float32
    assert torch.equal(got.reward, want.reward)


@pytest.mark.parametrize(('game', 'action', 'message'), [
    ('CartPole-v1', [0, 1], r"env 'envpool/CartPole-v1', step 1: the actions have shape \(2,\), wanted \(3,\); pass"),
    ('CartPole-v1', [0, 1, 0, 1], r'the actions have shape \(4,\), wanted \(3,\)'),
    ('CartPole-v1', [0.0, 0.5, 1.0], "step 1: the actions are of float32, wanted integers; pass the policy's output"),
    ('CartPole-v1', [0, 1, 2], "env 'envpool/CartPole-v1', index 2, step 1: the action is 2, wanted 0 to 1; look at"),
    ('CartPole-v1', [0, -1, 0], 'index 1, step 1: the action is -1, wanted 0 to 1'),
    ('HalfCheetah-v4', [[0.0] * 6] * 2, r'the actions have shape \(2, 6\), wanted \(3, 6\)'),
    ('HalfCheetah-v4', [[0.0] * 6] * 2 + [[float('nan')] * 6], 'index 2, step 1: the action is .*nan.*, wanted num')])
def test_step_action_that_does_not_fit_is_refused_before_the_call(game: str, action: list, message: str) -> None:
    env = make(game)
    env.reset(0)
    with pytest.raises(EnvError, match=message):
        env.step(torch.tensor(action))
    assert env.step(some_actions(env, 1)[0]).obs.isfinite().all()  # the process and the pool live on


def test_step_before_the_first_reset_raises() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        make('CartPole-v1', 1).step(torch.tensor([0]))


# --- Atari, whose options change rewards and ends

def test_step_atari_options_hold_in_training_only_and_leave_the_score_whole() -> None:
    """Four envs until each has ended a game; the raw pool beside it plays until the first life is lost."""
    kwargs = {'episodic_life': True, 'reward_clip': True}
    env, raw = make('Qbert-v5', 4, True, kwargs=kwargs), make('Qbert-v5', 4, kwargs=kwargs)
    assert torch.equal(env.reset(0), raw.reset(0))
    alike = torch.ones(4, dtype=torch.bool)
    score, n_raw, n_end, n_game = 0.0, 0, 0, 0
    for action in some_actions(env, 600):
        step, want = env.step(action), raw.step(action)
        assert want.raw_reward is None and want.raw_end is None
        assert torch.equal(step.reward, step.raw_reward.sign())
        assert torch.equal(step.raw_reward[alike], want.reward[alike])
        score += step.raw_reward.sum().item()
        alike &= ~step.terminated
        n_end, n_game = n_end + int(step.terminated.sum()), n_game + int(step.raw_end.sum())
        assert not (step.raw_end & ~(step.terminated | step.truncated)).any()
        n_raw += int(want.terminated.sum())
    assert score >= 100 and n_raw > 0
    assert 0 < 3 * n_game < n_end  # Qbert has four lives


def test_step_atari_without_options_is_the_raw_game_in_training_too() -> None:
    env = make('Qbert-v5', 4, True)
    env.reset(0)
    steps = [env.step(action) for action in some_actions(env, 100)]
    assert steps[0].raw_reward is None
    assert torch.stack([step.reward for step in steps]).max() >= 25


# --- spaces

def test_make_vector_env_image_and_index_observations_keep_their_kind() -> None:
    image, index = make('CarRacing-v3', 1), make('FrozenLake-v1', 1)
    assert image.obs_space.shape == (96, 96, 3) and image.reset(0).dtype == torch.uint8
    assert index.obs_space == Discrete(16) and index.reset(0).tolist() == [0]


def test_make_vector_env_lower_bound_of_the_smallest_float_is_none() -> None:
    """envpool says 1.2e-38 to 3.4e38 for LunarLander, whose first observation has negative numbers too."""
    env = make('LunarLander-v3', 8)
    assert env.obs_space == Box(np.full(8, -np.inf), np.full(8, np.inf), 'float32')
    assert (env.reset(0) < 0).any()


def test_make_vector_env_dict_of_vectors_becomes_one_vector() -> None:
    import envpool

    env = make('CheetahRun-v1', 2)
    seeds = [int(child.generate_state(1)[0]) >> 1 for child in np.random.SeedSequence(0).spawn(2)]
    obs, _ = envpool.make_gymnasium('CheetahRun-v1', num_envs=2, seed=seeds).reset()
    want = np.concatenate([obs['position'], obs['velocity']], axis=1).astype(np.float32)  # 8 and 9 numbers
    assert env.obs_space.shape == (17,) and np.array_equal(env.reset(0).numpy(), want)


def test_make_vector_env_observations_that_are_no_vector_or_image_raise() -> None:
    with pytest.raises(UnsupportedEnvError, match="env 'envpool/Catch-v0' has the observation space .*three-dimens"):
        make('Catch-v0')


# --- names and options

@pytest.mark.parametrize(('game', 'message'), [
    ('CartPole-v2', "unknown game 'CartPole-v2': did you mean 'CartPole-v0' or 'CartPole-v1'? env '"),
    ('minigrid-doorkey-6x6-v0', "did you mean 'MiniGrid-DoorKey-6x6-v0'"),
    (None, "env.game is missing: env 'envpool' has Adventure-v5, ")])
def test_make_vector_env_unknown_game_names_the_closest(game: str | None, message: str) -> None:
    with pytest.raises(UnknownEnvError) as raised:
        make_vector_env(EnvConfig(id='envpool', game=game), 1)
    assert message in str(raised.value)


@pytest.mark.parametrize(('kwargs', 'message'), [
    ({'noopmax': 3}, "env.kwargs has 'noopmax' but envpool/Pong-v5 takes num_threads, .*noop_max.*; correct the name"),
    ({'num_envs': 3}, "env.kwargs has 'num_envs' but envpool/Pong-v5 takes"),
    ({'max_episode_steps': 3}, 'env.kwargs has .* does not take; set env.max_episode_steps'),
    ({'noop_max': '3'}, "env.kwargs.noop_max is '3' but envpool/Pong-v5 takes int, such as 30; correct it."),
    ({'gray_scale': 1}, 'env.kwargs.gray_scale is 1 but envpool/Pong-v5 takes bool, such as True')])
def test_make_vector_env_options_that_do_not_fit_raise(kwargs: dict, message: str) -> None:
    with pytest.raises(EnvKwargsError, match=message):
        make('Pong-v5', kwargs=kwargs)


def test_make_vector_env_options_reach_the_pool() -> None:
    assert make('Pong-v5', 1, kwargs={'stack_num': 2, 'img_height': 42}).obs_space.shape == (2, 42, 84)


def test_make_vector_env_without_envpool_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'envpool', None)
    with pytest.raises(MissingExtraError, match=r"needs the envpool extra, .*: pip install 'policy-zoo\[envpool\]'"):
        make('CartPole-v1')


@pytest.mark.parametrize('game', TASKS)
def test_check_env_passes(game: str) -> None:
    check_env(EnvConfig(id='envpool', game=game), n_step=30)
