"""The classic-control tensor envs, compared with gymnasium's own, which compute in float64."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.core.spaces import Discrete
from zoo.env import TENSOR_ENV_REGISTRY, EnvConfig, TensorEnv, make_vector_env

GAMES = ['Acrobot-v1', 'CartPole-v1', 'MountainCar-v0', 'MountainCarContinuous-v0', 'Pendulum-v1']
# float32 has 24 bits, 1.2e-7; a step rounds about ten times, and observations reach 28 (Acrobot's speed)
CLOSE = {'rtol': 1e-6, 'atol': 1e-6}


def random_actions(space: Any, n: int, rng: torch.Generator) -> Tensor:
    if isinstance(space, Discrete):
        return torch.randint(space.n, (n,), generator=rng)
    return (torch.rand((n, *space.shape), generator=rng) * 2 - 1) * torch.from_numpy(space.high)


def reference_step(env: Any, state: Tensor, action: Tensor) -> tuple[np.ndarray, float, bool, bool]:
    """gymnasium's step from a given state."""
    env.unwrapped.state = state.double().numpy()
    return env.step(int(action) if action.dim() == 0 else action.numpy())[:4]


@pytest.mark.slow
@pytest.mark.parametrize('game', GAMES)
def test_step_random_steps_equal_gymnasium(game: str) -> None:
    """Before each step gymnasium's env gets our state, so that rounding does not add up; all else, also the limit, is its own."""
    n_env, rng = 3, torch.Generator().manual_seed(0)
    env = make_vector_env(EnvConfig(id='torch', game=game, max_episode_steps=60), n_env)
    references = [gymnasium.make(game, max_episode_steps=60) for _ in range(n_env)]
    for reference in references:
        reference.reset(seed=0)
    env.reset(0)
    n_ended = 0
    for _ in range(130):
        action, states = random_actions(env.action_space, n_env, rng), env.carry.state
        step = env.step(action)
        for b, reference in enumerate(references):
            obs, reward, terminated, truncated = reference_step(reference, states[b], action[b])
            np.testing.assert_allclose(step.next_obs[b], obs, **CLOSE)
            np.testing.assert_allclose(step.reward[b], reward, **CLOSE)
            assert (step.terminated[b], step.truncated[b]) == (terminated, truncated)
            if terminated or truncated:
                n_ended += 1
                reference.reset()
    env.check()
    assert n_ended >= n_env  # each env passed its limit or another end


RANGES = {  # start states: all that can be reached; from some a wall, a goal or a bound is one step away
    'Acrobot-v1': ([-math.pi, -math.pi, -4 * math.pi, -9 * math.pi], [math.pi, math.pi, 4 * math.pi, 9 * math.pi]),
    'CartPole-v1': ([-2.4, -4, -0.209, -4], [2.4, 4, 0.209, 4]),
    'MountainCar-v0': ([-1.2, -0.07], [0.6, 0.07]),
    'MountainCarContinuous-v0': ([-1.2, -0.07], [0.6, 0.07]),
    'Pendulum-v1': ([-math.pi, -8], [math.pi, 8]),
}
KWARGS = [
    ('CartPole-v1', {'sutton_barto_reward': True}),
    ('Pendulum-v1', {'g': 3.7}),
    ('MountainCar-v0', {'goal_velocity': 0.05}),
    ('MountainCarContinuous-v0', {'goal_velocity': 0.05}),
]


@pytest.mark.slow
@pytest.mark.parametrize(('game', 'kwargs'), [*((game, {}) for game in GAMES), *KWARGS])
def test_step_from_anywhere_equals_gymnasium(game: str, kwargs: dict) -> None:
    """Computed in float64: at Acrobot's highest speeds one step makes a rounding error a hundred times larger."""
    n, rng = 300, torch.Generator().manual_seed(1)
    env: TensorEnv = TENSOR_ENV_REGISTRY.get(game)(**kwargs)
    reference = gymnasium.make(game, **kwargs)
    reference.reset(seed=0)
    low, high = (torch.tensor(bound) for bound in RANGES[game])
    states = (low + torch.rand((n, len(low)), generator=rng) * (high - low)).double()
    actions = random_actions(env.action_space, n, rng)
    after, reward, terminated = env.step(states, actions, torch.empty(n, 0))
    seen, ends = env.observe(after), []
    for i in range(n):
        reference.unwrapped.steps_beyond_terminated = None  # CartPole pays nothing for steps after the end
        obs, want, end, _ = reference_step(reference.unwrapped, states[i], actions[i])
        ends.append(end)
        np.testing.assert_allclose(seen[i], obs, **CLOSE)
        np.testing.assert_allclose(reward[i], want, **CLOSE)
    assert terminated.tolist() == ends and any(ends) == (game != 'Pendulum-v1')


@pytest.mark.parametrize('game', GAMES)
def test_reset_has_the_range_mean_and_variance_of_gymnasium(game: str) -> None:
    n, n_reference = 20_000, 4_000
    env: TensorEnv = TENSOR_ENV_REGISTRY.get(game)()
    states = env.reset(torch.rand((n, env.n_noise), generator=torch.Generator().manual_seed(0))).double().numpy()
    reference: Any = gymnasium.make(game).unwrapped
    reference.reset(seed=0)
    wanted = np.array([(reference.reset(), reference.state)[1] for _ in range(n_reference)])
    spread = wanted.std(0)
    # uniform: 4,000 draws come within a thousandth of the range to its ends, and sqrt(12) * std is the range
    np.testing.assert_allclose(states.min(0), wanted.min(0), atol=0.005 * np.sqrt(12) * spread.max())
    np.testing.assert_allclose(states.max(0), wanted.max(0), atol=0.005 * np.sqrt(12) * spread.max())
    # within four standard errors; that of the variance is spread^2 * sqrt(0.8 / n) for a uniform distribution
    assert (abs(states.mean(0) - wanted.mean(0)) <= 4 * spread * np.sqrt(1 / n + 1 / n_reference)).all()
    assert (abs(states.var(0) - wanted.var(0)) <= 4 * spread**2 * np.sqrt(0.8 * (1 / n + 1 / n_reference))).all()
    off_diagonal = np.corrcoef(states[:, spread > 0].T) - np.eye(np.count_nonzero(spread))
    assert (abs(off_diagonal) < 4 / np.sqrt(n)).all()  # the numbers are independent


@pytest.mark.parametrize('game', GAMES)
def test_spaces_are_those_of_gymnasium(game: str) -> None:
    env, reference = (make_vector_env(config, 1) for config in (EnvConfig(id='torch', game=game), EnvConfig(id=game)))
    assert (env.obs_space, env.action_space) == (reference.obs_space, reference.action_space)
    assert TENSOR_ENV_REGISTRY.get(game).max_episode_steps == gymnasium.spec(game).max_episode_steps


def test_pendulum_angle_stays_in_one_turn() -> None:
    # at the highest speed of 8 rad/s a step of 50 ms is 0.4 rad: from 3.1 rad to 3.5 - 2 pi = -2.783
    env = TENSOR_ENV_REGISTRY.get('Pendulum-v1')()
    state, _, _ = env.step(torch.tensor([[3.1, 8.0]]), torch.tensor([[2.0]]), torch.empty(1, 0))
    np.testing.assert_allclose(state, [[3.5 - math.tau, 8.0]], atol=1e-6)
