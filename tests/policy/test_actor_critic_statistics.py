"""Running statistics of observations and returns: each env step counts once, however often, or never, it is learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from zoo import serial_pipeline
from zoo.rl_utils.normalizer import RunningMeanStd

N_STEP, N_ROLLOUT, N_ENV = 16, 8, 4


class Drift(gymnasium.Env):
    """The observation is the number of steps since the env was made, and the reward grows with it; no episode ends."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._t = 0

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        return np.full(1, self._t, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        return np.full(1, self._t, np.float32), self._t / 64, False, False, {}


class Clock(gymnasium.Env):
    """The observation is the step of the episode, of 10 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        return np.full(1, self._t, np.float32), 1.0, self._t == 10, False, {}


def drift_env() -> gymnasium.Env:
    return Drift()


def clock_env() -> gymnasium.Env:
    return Clock()


def trained(
    root: Path,
    kind: str,
    env: str = 'drift_env',
    buffer: Any = None,
    learn: dict[str, Any] | None = None,
    collect: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> Any:
    """The policy of a run of 8 rollouts of 4 envs x 16 steps, with obs_norm."""
    config = dict(
        max_env_step=N_STEP * N_ROLLOUT * N_ENV,
        logger=dict(root=str(root), console='off', tensorboard=False),
        env=dict(
            id=f'tests.policy.test_actor_critic_statistics:{env}',
            collector_env_num=N_ENV,
            evaluator_env_num=1,
            check=False,
        ),
        policy=dict(
            type=kind,
            model=dict(obs_norm=True, hidden_sizes=[8, 8], **(model or {})),
            learn={} if kind == 'pg' else dict(batch_size=32, **(learn or {})),
            collect=dict(n_step=N_STEP, **(collect or {})),
            eval=dict(eval_freq=1_000_000, n_episode=1, max_episode_steps=20),
        ),
        **({} if buffer is None else dict(buffer=buffer)),
    )
    return serial_pipeline(config).policy


def statistics(policy: Any) -> RunningMeanStd:
    (found,) = (module for module in policy.model.modules() if isinstance(module, RunningMeanStd))
    return found


DRAW = dict(size=512, n_sample=64, update_per_collect=4)


@pytest.mark.parametrize(
    ('kind', 'buffer', 'learn'),
    [
        ('ppo', None, dict(value_norm=True)),
        ('ppo_offpolicy', DRAW, dict(value_norm=True)),
        ('ppo_ewma_offpolicy', DRAW, dict(value_norm=True)),
        ('ppg', dict(type='replay', **DRAW), {}),
        ('ppg_offpolicy', dict(policy=DRAW, value=dict(DRAW, update_per_collect=2)), {}),
    ],
)
def test_each_observation_and_return_counts_once_also_where_draws_are_learned_from(
    kind: str, buffer: Any, learn: dict[str, Any], tmp_path: Path
) -> None:
    """128 steps of 4 envs: observations 0 to 127 in each, of mean 63.5 and variance (128^2 - 1) / 12."""
    policy = trained(tmp_path, kind, buffer=buffer, learn=learn)
    found, n = statistics(policy), N_STEP * N_ROLLOUT
    assert found.count.item() == policy.normalizers['value'].count.item() == n * N_ENV
    assert found.mean.item() == pytest.approx((n - 1) / 2) and found.var.item() == pytest.approx((n * n - 1) / 12)


@pytest.mark.parametrize(
    ('kind', 'learn', 'collect', 'mean', 'square'),
    [
        ('pg', {}, {}, 568 / 128, 3560 / 128),
        ('ppo', dict(baseline='none'), dict(estimator='returns'), 568 / 128, 3560 / 128),
        ('ppo', {}, dict(batch_mode='episode'), 60 / 16, 340 / 16),
    ],
)
def test_observations_of_steps_that_train_nothing_count_too(
    kind: str, learn: dict[str, Any], collect: dict[str, Any], mean: float, square: float, tmp_path: Path
) -> None:
    """Episodes of 10 steps in rollouts of 16, of which the steps of unfinished episodes have weight 0.

    128 steps are 12 episodes and the observations 0 to 7: mean (12 * 45 + 28) / 128, squares (12 * 285 + 140) / 128. With
    batch_mode 'episode' each rollout begins episodes, so it has 0 to 9 and 0 to 5: (45 + 15) / 16, (285 + 55) / 16.
    """
    found = statistics(trained(tmp_path, kind, 'clock_env', learn=learn, collect=collect))
    assert found.count.item() == 128 * N_ENV
    assert found.mean.item() == pytest.approx(mean) and found.var.item() == pytest.approx(square - mean**2)


def test_sequences_that_overlap_count_each_step_once_also_where_it_trains_nothing(tmp_path: Path) -> None:
    sections, model = dict(sequence=dict(len=8, overlap='half')), dict(recurrent=dict(hidden_size=4))
    found = statistics(
        trained(tmp_path, 'ppo', 'clock_env', learn=sections, collect=dict(batch_mode='episode'), model=model)
    )
    assert found.count.item() == 128 * N_ENV and found.mean.item() == pytest.approx(60 / 16)
