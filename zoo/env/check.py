"""Does an env keep the gymnasium contract? A few steps that say what is wrong, where, and what to do."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np

from zoo.env.adapter import env_spaces, takes_keyword
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import EnvContractError
from zoo.env.make import env_name, make_env
from zoo.spaces import Discrete

SEED = 0
RESET_DO = 'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`'
STEP_DO = '`return obs, reward, terminated, truncated, info`'


def check_env(cfg: EnvConfig | Mapping[str, Any], n_step: int = 10) -> None:
    """Make one env of the config and take `n_step` random steps with it, starting new episodes where they end.

    Raises: EnvContractError that names env, index, step, what was got, what was wanted and what to do; and what
      make_env raises.
    """
    cfg = env_config(cfg)
    env = make_env(cfg)
    try:
        _EnvCheck(env, env_name(cfg)).run(n_step)
    finally:
        env.close()


class _EnvCheck:
    """The checks of one env, with what their messages need to know: its name and the steps taken."""

    def __init__(self, env: gymnasium.Env, name: str) -> None:
        self._env = env
        self._name = name
        self._n_step = 0
        self._space, _ = env_spaces(env, name)

    def run(self, n_step: int) -> None:
        self._core()
        first = self._reset(SEED)
        again = self._reset(SEED)
        if not np.array_equal(first, again):
            self._fail(f'two resets with seed={SEED} returned {_show(first)} and {_show(again)}', 'the same twice',
                       'call super().reset(seed=seed) and draw all random numbers from self.np_random')
        self._env.action_space.seed(SEED)
        for self._n_step in range(1, n_step + 1):
            obs, ended = self._step(self._env.action_space.sample())
            if ended or self._n_step == n_step:
                self._reset_leaves(obs)

    def _core(self) -> None:
        """The env inside all wrappers, which would trip over a wrong signature or number of values themselves."""
        env = self._env.unwrapped
        missing = [k for k in ('seed', 'options') if not takes_keyword(env.reset, k)]
        if missing:
            self._fail(f'reset has no argument {" or ".join(missing)}', 'reset(*, seed=None, options=None)', RESET_DO)
        self._unpack_reset(env.reset(seed=SEED))
        self._n_step = 1
        self._unpack_step(env.step(env.action_space.sample()))
        self._n_step = 0

    def _reset(self, seed: int | None) -> Any:
        obs, info = self._unpack_reset(self._env.reset(seed=seed))
        self._check_info(info, RESET_DO)
        self._check_obs(obs, 'reset')
        return obs if self._is_discrete else obs.copy()

    def _step(self, action: Any) -> tuple[Any, bool]:
        obs, reward, terminated, truncated, info = self._unpack_step(self._env.step(action))
        self._check_obs(obs, 'step')
        self._check_reward(reward)
        for what, flag in (('terminated', terminated), ('truncated', truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                self._fail(f'{what} is {_show(flag)}', 'a bool', f'return bool({what})')
        self._check_info(info, STEP_DO)
        return obs, bool(terminated or truncated)

    def _unpack_reset(self, result: Any) -> tuple[Any, ...]:
        if not (isinstance(result, tuple) and len(result) == 2):
            self._fail(f'reset returned {_show(result)}', 'a tuple (obs, info)', RESET_DO)
        return result

    def _unpack_step(self, result: Any) -> tuple[Any, ...]:
        if not (isinstance(result, tuple) and len(result) == 5):
            size = f' of {len(result)}' if isinstance(result, tuple) else ''
            self._fail(f'step returned a {type(result).__name__}{size}', 'a tuple of 5', STEP_DO)
        return result

    def _reset_leaves(self, obs: Any) -> None:
        """Reset must not write into an observation handed out before: it is the episode's final one."""
        before = np.copy(obs)
        self._reset(None)
        if not np.array_equal(before, obs):
            self._fail(f'the next reset turns the observation of this step from {_show(before)} into {_show(obs)}',
                       'one that stays as it was, since it is the final one of the episode',
                       'return a copy, e.g. self.state.copy()')

    @property
    def _is_discrete(self) -> bool:
        return isinstance(self._space, Discrete)

    def _check_obs(self, obs: Any, source: str) -> None:
        space = self._space
        if isinstance(space, Discrete):
            if isinstance(obs, bool) or np.shape(obs) != () or np.asarray(obs).dtype.kind not in 'iu':
                self._fail(f'the observation of {source} is {_show(obs)}', 'an int', 'return int(obs)')
            if not 0 <= int(obs) - space.start < space.n:
                self._fail(f'the observation of {source} is {obs}',
                           f'{space.start} to {space.start + space.n - 1} as in observation_space',
                           'correct one of the two')
            return
        if not isinstance(obs, np.ndarray):
            self._fail(f'the observation of {source} is {_show(obs)}', 'a numpy array',
                       f'return np.asarray(obs, dtype=np.{space.dtype})')
        if obs.shape != space.shape:
            self._fail(f'the observation of {source} has shape {obs.shape}', f'{space.shape} as in observation_space',
                       'correct one of the two')
        if obs.dtype != space.dtype:
            self._fail(f'the observation of {source} has dtype {obs.dtype}', f'{space.dtype} as in observation_space',
                       f'return obs.astype(np.{space.dtype})')
        self._check_values(obs, source, space.low, space.high)

    def _check_values(self, obs: np.ndarray, source: str, low: np.ndarray, high: np.ndarray) -> None:
        for i, x in enumerate(obs):
            got = f'the observation of {source} has {x} at [{i}]'
            if not np.isfinite(x):
                self._fail(got, 'finite numbers', 'find where it comes from')
            if not low[i] <= x <= high[i]:
                self._fail(got, f'{low[i]:g} to {high[i]:g} as in observation_space', 'correct it, or widen the space')

    def _check_reward(self, reward: Any) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in 'biuf':
            self._fail(f'the reward is {_show(reward)}', 'a number', 'return float(reward)')
        if not np.isfinite(float(reward)):
            self._fail(f'the reward is {reward}', 'a finite number', 'find where it comes from')

    def _check_info(self, info: Any, do: str) -> None:
        if not isinstance(info, dict):
            self._fail(f'info is {_show(info)}', 'a dict', do)

    def _fail(self, got: str, wanted: str, do: str) -> NoReturn:
        raise EnvContractError(f'env {self._name!r}, index 0, step {self._n_step}: {got}, wanted {wanted}; {do}.')


def _show(value: Any) -> str:
    text = ' '.join(repr(value).split())
    return f'{text if len(text) <= 80 else text[:77] + "..."} ({type(value).__name__})'
