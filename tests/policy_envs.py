"""Small envs with known answers for tests of policies and runs, and quick configs for them.

one-step envs with a known best action:   match_env (discrete), aim_env (box)
every observation the same:               constant_env, and as gymnasium id 'tests.policy_envs:Constant-v0' (batched)
episode lengths that vary:                uneven_env (short or long, by the seed)
envs that misbehave:                      nan_env (a NaN reward), huge_env (rewards whose sum is infinite),
                                          stuck_env (a step that never returns)
reset rows with garbage in them:          'tests.policy_envs:Garbage-v0' (batched, NEXT_STEP)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

import zoo.core.spaces
from tests.envs import End, LimitEnv, LimitVectorEnv
from zoo.core.data import map_tensors
from zoo.core.registry import POLICY_REGISTRY
from zoo.policy.base import Policy
from zoo.run.config import resolve_policy

TWO_ACTIONS = zoo.core.spaces.Discrete(2)
ONE_NUMBER = zoo.core.spaces.Box(np.array([-1.0]), np.array([1.0]))


class ConstantEnv(LimitEnv):
    """LimitEnv whose observation is always 1, so that the time limit cannot be seen."""

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        super().reset(**kwargs)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.ones(1, np.float32), *super().step(action)[1:]


def constant_env(limit: int = 5, end: End = 'truncated') -> gymnasium.Env:
    return ConstantEnv(limit, end)


class ConstantVectorEnv(LimitVectorEnv):
    """A batch of B ConstantEnvs, with reset rows between the episodes."""

    def observed(self) -> np.ndarray:
        return np.ones((self.num_envs, 1), np.float32)


class GarbageVectorEnv(LimitVectorEnv):
    """LimitVectorEnv whose reset rows come with a reward of 1000, which belongs to no transition."""

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        obs, reward, terminated, truncated, info = super().step(actions)
        return obs, np.where(reward == 0, 1000.0, reward), terminated, truncated, info


class MatchEnv(gymnasium.Env):
    """One step per episode: reward 1 if the action is the observed number, else 0."""

    metadata = {'render_modes': []}
    observation_space, action_space = Discrete(3), Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self._target = int(self.np_random.integers(3))
        return self._target, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict]:
        return self._target, float(action == self._target), True, False, {}


class AimEnv(gymnasium.Env):
    """One step per episode: the reward is minus the squared distance of the action to half the observed number."""

    metadata = {'render_modes': []}
    observation_space, action_space = Box(-1.0, 1.0, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._x.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._x.copy(), -float((action[0] - 0.5 * self._x[0]) ** 2), True, False, {}


class UnevenEnv(LimitEnv):
    """LimitEnv whose episodes all last `short` steps (even seed) or all last `long` steps (odd seed)."""

    def __init__(self, short: int = 2, long: int = 20) -> None:
        super().__init__(short, 'terminated')
        self._lengths = (short, long)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self.limit = self._lengths[seed % 2]
        return super().reset(seed=seed, options=options)


class NanEnv(LimitEnv):
    """LimitEnv whose reward is NaN at the `at`-th step since it was made."""

    def __init__(self, at: int = 40) -> None:
        super().__init__()
        self._left = at

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        obs, reward, *rest = super().step(action)
        return obs, float('nan') if self._left == 0 else reward, *rest


class HugeEnv(LimitEnv):
    """LimitEnv with rewards of 3e38 from the `at`-th step on: finite, but the sum of two is infinite in float32."""

    def __init__(self, at: int = 40) -> None:
        super().__init__()
        self._left = at

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        obs, reward, *rest = super().step(action)
        return obs, reward if self._left > 0 else 3e38, *rest


class StuckEnv(LimitEnv):
    """LimitEnv that writes `marker` at its `at`-th step and then sleeps for ever; other steps take `pause` s."""

    def __init__(self, at: int = 0, marker: str = '', pause: float = 0.0) -> None:
        super().__init__()
        self._left, self._marker, self._pause = at, marker, pause

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        if self._left == 0:
            Path(self._marker).write_text('stuck')
            time.sleep(3600)
        time.sleep(self._pause)
        return super().step(action)


match_env, aim_env, uneven_env = MatchEnv, AimEnv, UnevenEnv
nan_env, huge_env, stuck_env = NanEnv, HugeEnv, StuckEnv

gymnasium.register(
    'Constant-v0', entry_point='tests.policy_envs:ConstantEnv', vector_entry_point='tests.policy_envs:ConstantVectorEnv'
)
gymnasium.register(
    'Garbage-v0', entry_point='tests.envs:LimitEnv', vector_entry_point='tests.policy_envs:GarbageVectorEnv'
)


class HandModel(nn.Module):
    """Two actions, equally likely; the critic is a given function of the first number of the observation."""

    def __init__(self, value: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(2))
        self._value = value

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.zero + torch.zeros(*obs.shape[:-1], 2)

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self._value(obs[..., 0])

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


def make_policy(
    obs_space: zoo.core.spaces.Space,
    action_space: zoo.core.spaces.Space,
    *,
    seed: int = 0,
    network: Any = None,
    enable_field: Sequence[Any] | None = None,
    **policy: Any,
) -> Policy:
    """A policy (ppo, unless `type` says otherwise) with 8-8 networks; `policy` holds its sections."""
    policy['model'] = {'hidden_sizes': [8, 8], **policy.get('model', {})}
    cfg, options = resolve_policy(policy), dict(seed=seed, model=network, enable_field=enable_field)
    return POLICY_REGISTRY.get(cfg.type)(cfg, obs_space, action_space, **options)


def job_config(root: Any, env_id: Any = 'tests.envs:limit_env', **sections: Any) -> dict[str, Any]:
    """A quick and quiet run of ppo, 4 envs x 16 steps a rollout, which logs every rollout; `sections` are merged in."""
    base = dict(
        max_env_step=256,
        logger=dict(root=str(root), console='off', tensorboard=False, freq=1),
        env=dict(id=env_id, collector_env_num=4, evaluator_env_num=2, check=False),
        policy=dict(
            model=dict(hidden_sizes=[8, 8]),
            learn=dict(batch_size=32, epoch_per_collect=2, learning_rate=1e-3),
            collect=dict(n_step=16),
            eval=dict(eval_freq=1_000_000, n_episode=2),
        ),
    )
    return _merged(base, sections)


def run_config(root: Any, name: str, env_id: str = 'tests.envs:limit_env', **sections: Any) -> dict[str, Any]:
    """A job config: 64 samples a rollout; off-policy draws of 64 from the last two rollouts."""
    cfg = job_config(root, env_id, **sections)
    learn = dict(batch_size=32, learning_rate=1e-3)
    if 'ppg' in name:
        learn |= dict(aux_freq=2, aux_batch_size=64, aux_train_epoch=2)
    cfg['policy'] = {**cfg['policy'], 'type': name, 'learn': {**learn, **sections.get('policy', {}).get('learn', {})}}
    draw = dict(n_sample=64, update_per_collect=2, max_staleness=1)
    if 'off' in name:
        cfg['buffer'] = dict(size=128, **(dict(policy=draw, value=draw) if 'ppg' in name else draw))
    return cfg


@contextmanager
def phase_held_back(policy: Any) -> Iterator[None]:
    """Within this context `forward` runs no auxiliary phase; afterwards `policy.learn_mode.learn_aux()` runs it if it is due."""
    policy.learn_aux = dict
    try:
        yield
    finally:
        del policy.learn_aux


def clone(samples: Any) -> Any:
    """A copy with separate memory."""
    return map_tensors(Tensor.clone, samples)


def take(samples: Any, rows: Any) -> Any:
    """The samples at these indices, of every tensor."""
    return map_tensors(lambda x: x[rows], samples)


def joined(parts: Sequence[Any]) -> Any:
    """Several batches as one."""
    return map_tensors(lambda *xs: torch.cat(xs), *parts)


def flat(state: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    """The leaves of a nested state by path."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        leaves |= flat(value, f'{prefix}{key}/') if isinstance(value, dict) else {prefix + key: value}
    return leaves


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Paths of the leaves in which two states are not bit-equal."""
    a, b = flat(a), flat(b)
    assert a.keys() == b.keys()
    return [k for k in a if not (torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) else a[k] == b[k])]


def _merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = [k for k, v in other.items() if isinstance(base.get(k), dict) and isinstance(v, dict)]
    return {**base, **other, **{k: _merged(base[k], other[k]) for k in both}}


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without times."""
    lines = map(json.loads, (run_dir / 'metrics.jsonl').read_text().splitlines())
    return [{k: v for k, v in line.items() if k != 'wall_s' and not k.startswith('time/')} for line in lines]
