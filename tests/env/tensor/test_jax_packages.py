"""Envs of packages written in JAX beside those packages, and beside gymnasium."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, EnvKwargsError, UnknownEnvError, make_vector_env
from zoo.env.errors import SeveralAgentsError

pytest.importorskip('jax')


@pytest.mark.slow
def test_gymnax_cartpole_is_that_of_gymnasium() -> None:
    pytest.importorskip('gymnax')
    env: Any = make_vector_env(EnvConfig(id='gymnax:CartPole-v1', max_episode_steps=30), 1)
    obs = env.reset(3)
    other: Any = gymnasium.make('CartPole-v1').unwrapped
    other.reset(seed=0)
    rng = np.random.default_rng(0)
    ends = []
    age = 0
    for _ in range(200):
        if age == 0:
            other.state = obs[0].numpy().astype(np.float64)
            other.steps_beyond_terminated = None
        action = int(rng.integers(2))
        if len(ends) == 3:  # the way to stay up, until the limit of 30 steps
            action = int(obs[0, 2] + obs[0, 3] > 0)
        step = env.step(torch.tensor([action]))
        wanted, reward, terminated, *_ = other.step(action)
        age += 1
        np.testing.assert_allclose(step.next_obs[0], wanted, rtol=1e-4, atol=1e-5)
        assert (float(step.reward), bool(step.terminated)) == (reward, terminated)
        assert bool(step.truncated) == (age == 30)
        if step.terminated or step.truncated:
            ends.append(bool(step.truncated))
            age = 0
            assert (step.obs.abs() <= 0.05).all()  # a start
        obs = step.obs
    assert ends[:4] == [False, False, False, True]


def test_gymnax_env_kwargs_are_fields_of_its_params() -> None:
    pytest.importorskip('gymnax')
    env: Any = make_vector_env(EnvConfig(id='gymnax:CartPole-v1', kwargs={'force_mag': 0.0}), 1)
    obs = env.reset(0)
    left, right = (env.step(torch.tensor([action])).next_obs for action in (0, 1))
    assert float(left[0, 0]) == pytest.approx(float(obs[0, 0] + 0.02 * obs[0, 1]), abs=1e-6)  # no push: x + .02 v
    assert float(right[0, 1] - left[0, 1]) == pytest.approx(float(left[0, 1] - obs[0, 1]), abs=1e-4)
    with pytest.raises(EnvKwargsError, match="'force'.*force_mag"):
        make_vector_env(EnvConfig(id='gymnax:CartPole-v1', kwargs={'force': 0.0}), 1)


def test_jax_package_without_the_id_names_the_closest_one() -> None:
    pytest.importorskip('gymnax')
    with pytest.raises(UnknownEnvError, match="gymnax has no 'CartPole-v2'; did you mean 'CartPole-v1'"):
        make_vector_env(EnvConfig(id='gymnax:CartPole-v2'), 1)


@pytest.mark.soak
@pytest.mark.filterwarnings('ignore')  # brax and jaxopt warn that they are no longer maintained
def test_brax_begins_each_episode_at_a_new_start() -> None:
    pytest.importorskip('brax')
    env: Any = make_vector_env(EnvConfig(id='brax:inverted_pendulum', max_episode_steps=2), 2)
    starts = [env.reset(0)]
    for t in range(6):
        step = env.step(torch.zeros(2, 1))
        assert step.truncated.tolist() == [t % 2 == 1] * 2
        if t % 2:
            starts.append(step.obs)
            assert not torch.equal(step.obs, step.next_obs)
    places = torch.cat(starts)[:, 1].tolist()
    assert len(set(places)) == 8  # brax's own wrapper has two: each copy begins where it began first


def test_brax_env_with_numbers_of_python_for_reward_and_end_steps() -> None:
    class Plain:  # as Ant without ends: its `done` is the number 0.0
        action_size = 1
        observation_size = 2

        def reset(self, key: Any) -> Any:
            return SimpleNamespace(obs=np.zeros(2, np.float32), reward=0.0, done=0.0)

        def step(self, state: Any, action: Any) -> Any:
            return SimpleNamespace(obs=state.obs + 1, reward=2.0, done=0.0)

    from zoo.env.tensor.jax_packages import BraxTask

    task = BraxTask(Plain(), 5)
    state, _ = task.reset(None)  # type: ignore[arg-type]
    step = task.step(None, state, None)  # type: ignore[arg-type]
    assert (float(step.reward), bool(step.terminated)) == (2.0, False)


@pytest.mark.slow
def test_jumanji_tells_its_limit_from_a_lost_game() -> None:
    pytest.importorskip('jumanji')
    cfg = EnvConfig(id='jumanji:Snake-v1', kwargs={'num_rows': 4, 'num_cols': 4}, max_episode_steps=3)
    env: Any = make_vector_env(cfg, 8)
    obs = env.reset(0)
    generator = torch.Generator().manual_seed(0)
    age = torch.zeros(8)
    n_lost = n_late = 0
    for _ in range(60):
        forbidden = ~obs['action_mask']
        action = torch.randint(4, (8,), generator=generator)
        loses = forbidden[torch.arange(8), action]
        step = env.step(action)
        age += 1
        assert torch.equal(step.terminated, loses)  # a move that the mask forbids loses the game
        assert torch.equal(step.truncated, age == 3)
        n_lost += int(step.terminated.sum())
        n_late += int((step.truncated & ~step.terminated).sum())
        age[step.terminated | step.truncated] = 0
        obs = step.obs
    assert n_lost > 10 and n_late > 10


@pytest.mark.soak
def test_jumanji_pair_of_choices_with_one_mask_is_one_choice() -> None:
    pytest.importorskip('jumanji')
    env: Any = make_vector_env(EnvConfig(id='jumanji:Tetris-v0'), 2)
    assert env.action_space == Discrete(40)  # 4 rotations of 10 columns
    mask = env.reset(0)['action_mask']
    assert mask.shape == (2, 40)
    first = mask.float().argmax(1)
    assert not env.step(first).terminated.any()


@pytest.mark.soak
def test_pgx_game_of_one_player_has_its_mask_and_a_game_of_two_is_refused() -> None:
    pytest.importorskip('pgx')
    env: Any = make_vector_env(EnvConfig(id='pgx:2048'), 2)
    obs = env.reset(0)
    assert (obs['obs'].flatten(1).sum(1) == 16).all()  # one-hot: of each of the 16 squares
    forbidden = (~obs['action_mask']).float()
    if (forbidden.sum(1) > 0).all():
        assert env.step(forbidden.argmax(1)).terminated.all()
    with pytest.raises(SeveralAgentsError, match='a game of 2 players'):
        make_vector_env(EnvConfig(id='pgx:connect_four'), 2)


@pytest.mark.soak
@pytest.mark.filterwarnings('ignore')
def test_mujoco_playground_has_the_limit_of_its_config() -> None:
    pytest.importorskip('mujoco_playground')
    with pytest.raises(EnvKwargsError, match="impl of env 'mujoco_playground:CartpoleBalance' is 'warp', but only"):
        make_vector_env(EnvConfig(id='mujoco_playground:CartpoleBalance', kwargs={'impl': 'warp'}), 1)
    env: Any = make_vector_env(EnvConfig(id='mujoco_playground:CartpoleBalance', kwargs={'episode_length': 2}), 1)
    assert isinstance(env.action_space, Box)
    env.reset(0)
    assert [bool(env.step(torch.zeros(1, 1)).truncated) for _ in range(4)] == [False, True, False, True]
