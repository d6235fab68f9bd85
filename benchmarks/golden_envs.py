"""Envs, a network and a callback for benchmarks/golden.py that zoo does not register; this module does not import zoo."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

N_OBS, N_ACTION = 3, 3
LIMIT = 13  # steps after which an episode is cut off


class Walk(gymnasium.Env):
    """A point on a line: action 0 goes left, 1 stays, 2 goes right; leaving [-1, 1] ends the episode, LIMIT steps cut it off.

    The info has 'place' and 'n_step'; `wind` is added to every move, and each reset takes the option 'start'.

    Args: huge_at: step of each episode at which the reward is 3e38; two of these add up to infinity in float32.
      fails_at: step at which an episode that began right of 0 raises RuntimeError.
    """

    metadata = {'render_modes': []}  # noqa: RUF012
    observation_space, action_space = Box(-2.0, 20.0, (N_OBS,), np.float32), Discrete(N_ACTION)

    def __init__(self, huge_at: int = 0, fails_at: int = 0) -> None:
        self.wind = 0.0
        self._huge_at, self._fails_at = huge_at, fails_at
        self._x, self._n_step, self._is_weak = 0.0, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._x = (options or {}).get('start', 0.0) + float(self.np_random.uniform(-0.5, 0.5))
        self._n_step, self._is_weak = 0, self._x > 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._n_step += 1
        if self._n_step == self._fails_at and self._is_weak:
            raise RuntimeError('the wheel came off')
        self._x += 0.2 * (int(action) - 1) + self.wind + float(self.np_random.normal(0.0, 0.1))
        reward = 3e38 if self._n_step == self._huge_at else 1.0 - abs(self._x)
        return self._obs(), reward, abs(self._x) > 1.0, self._n_step == LIMIT, self._info()

    def _obs(self) -> np.ndarray:
        return np.array([self._x, self._n_step / LIMIT, self.wind], np.float32)

    def _info(self) -> dict[str, Any]:
        return {'place': self._x, 'n_step': self._n_step}


class _Walks(gymnasium.vector.VectorEnv):
    """B walks at once; the subclass sets the autoreset mode. A row that only resets an env has a reward of 1000."""

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Walk.observation_space, Walk.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended = np.zeros(num_envs, bool)
        self._x, self._n_step = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed if seed is None or isinstance(seed, int) else seed[0])
        self._begin((options or {}).get('reset_mask', np.ones(self.num_envs, bool)))
        return self._obs(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        mode, was_ended = self.metadata['autoreset_mode'], self._ended
        noise = self.np_random.normal(0.0, 0.1, self.num_envs)
        self._x = self._x + 0.2 * (np.asarray(actions) - 1) + noise
        self._n_step = self._n_step + 1
        reward = 1.0 - np.abs(self._x)
        if mode is AutoresetMode.NEXT_STEP:
            self._begin(was_ended)
            reward = np.where(was_ended, 1000.0, reward)
        else:
            was_ended = np.zeros_like(was_ended)
        terminated = (np.abs(self._x) > 1.0) & ~was_ended
        truncated = (self._n_step == LIMIT) & ~terminated & ~was_ended
        self._ended = terminated | truncated
        info: dict[str, Any] = {}
        if mode is AutoresetMode.SAME_STEP and self._ended.any():
            info = {'final_obs': self._obs()}
            self._begin(self._ended)
        return self._obs(), reward, terminated, truncated, info

    def _begin(self, rows: np.ndarray) -> None:
        self._x = np.where(rows, self.np_random.uniform(-0.5, 0.5, self.num_envs), self._x)
        self._n_step = np.where(rows, 0, self._n_step)
        self._ended = self._ended & ~rows

    def _obs(self) -> np.ndarray:
        return np.stack([self._x, self._n_step / LIMIT, np.zeros(self.num_envs)], 1).astype(np.float32)


class NextStepWalks(_Walks):
    """Walks with autoreset mode NEXT_STEP: the step after the last one of an episode only resets the env."""

    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.NEXT_STEP}  # noqa: RUF012


class SameStepWalks(_Walks):
    """Walks with autoreset mode SAME_STEP: the last step of an episode also resets the env."""

    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.SAME_STEP}  # noqa: RUF012


class DisabledWalks(_Walks):
    """Walks with autoreset mode DISABLED: the caller resets an ended episode."""

    metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.DISABLED}  # noqa: RUF012


class Scaled(gymnasium.ObservationWrapper):
    """A wrapper that multiplies observations by a factor."""

    def __init__(self, env: gymnasium.Env, factor: float = 0.5) -> None:
        super().__init__(env)
        self._factor = factor

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return (observation * self._factor).astype(np.float32)


class DropoutModel(nn.Module):
    """A user's own network for `Walk`, with dropout, which acts only in gradient steps."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(N_OBS, 16), nn.Tanh(), nn.Dropout(0.5))
        self.actor, self.critic = nn.Linear(16, N_ACTION), nn.Linear(16, 1)

    def compute_actor(self, obs: Tensor) -> Tensor:
        """obs [..., N_OBS] -> logits [..., N_ACTION]."""
        return self.actor(self.trunk(obs))

    def compute_critic(self, obs: Tensor) -> Tensor:
        """obs [..., N_OBS] -> value [...]."""
        return self.critic(self.trunk(obs)).squeeze(-1)

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        """Logits and values with one pass through the trunk."""
        feature = self.trunk(obs)
        return {'logit': self.actor(feature), 'value': self.critic(feature).squeeze(-1)}


def dropout_model() -> nn.Module:
    """A new `DropoutModel` with the same parameters at every call."""
    torch.manual_seed(0)
    return DropoutModel()


class Halve:
    """A callback that halves every gradient, adds a metric, and takes 1 off the rewards of each rollout."""

    def on_rollout(self, job: Any, rollout: Any) -> None:
        """Changes the column in place, which callbacks may do."""
        rollout.data['reward'] -= 1.0

    def on_gradient(self, job: Any, optimizers: Any, loss: Tensor) -> None:
        """Halves the gradients; called before their norm is limited."""
        for optimizer in optimizers:
            optimizer.grad.mul_(0.5)

    def on_update(self, job: Any, metrics: Any) -> dict[str, float]:
        """Adds a metric."""
        return {'env_step_now': float(job.env_step)}
