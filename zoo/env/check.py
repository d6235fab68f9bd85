"""Checks in a few steps whether an env keeps the gymnasium interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.spaces import Discrete
from zoo.env.adapter import env_spaces, takes_keyword
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import RESET_DO, STEP_DO, contract_error, show_value
from zoo.env.families.family import EnvFamily
from zoo.env.make import env_name, find_env, make_env
from zoo.env.make_vector import AnyVectorEnv, make_vector_env

SEED = 0
N_ENV = 2  # envs of a family, which makes vectors only
SEED_DO = 'call super().reset(seed=seed) and draw all random numbers from self.np_random'
MAX_REPLAY = 20  # steps; BipedalWalker keeps its Box2D world in a reset, so two of its episodes differ from step 61


def check_env(cfg: EnvConfig | Mapping[str, Any], n_step: int = 10) -> None:
    """Make one env of the config and take `n_step` random steps with it, starting new episodes where they end.

    The first of these steps are taken twice, with the same seed and the same actions. A family makes two envs that
    step together; VectorEnv checks what they return.

    Raises: EnvContractError that names env, index, step, what was got, what was wanted and what to do; UserError if
      n_step is below 1; and what make_env raises.
    """
    if n_step < 1:
        raise UserError(f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps.')
    cfg = env_config(cfg)
    if isinstance(find_env(cfg.id, cfg.game), EnvFamily):
        _check_family(cfg, n_step)
        return
    env = make_env(cfg)
    try:
        _EnvCheck(env, env_name(cfg)).run(n_step)
    finally:
        env.close()


def _check_family(cfg: EnvConfig, n_step: int) -> None:
    env = make_vector_env(cfg, N_ENV)
    try:
        first = env.reset(SEED).clone()
        again = env.reset(SEED).clone()
        _same_twice(env.name, 0, 'the observations of two resets', first, again)
        once = list(_vector_rollout(env, n_step))
        for step, (was, now) in enumerate(zip(once, _vector_rollout(env, min(n_step, MAX_REPLAY)), strict=False), 1):
            for what, value in was.items():
                _same_twice(env.name, step, f'{what} of two runs with the same actions', value, now[what])
    finally:
        env.close()


def _vector_rollout(env: AnyVectorEnv, n_step: int) -> Iterator[dict[str, Tensor]]:
    env.reset(SEED)
    rng = torch.Generator().manual_seed(SEED)
    space = env.action_space
    for _ in range(n_step):
        step = env.step(
            torch.randint(space.n, (env.n_env,), generator=rng)
            if isinstance(space, Discrete)
            else torch.rand((env.n_env, *space.shape), generator=rng) * 2 - 1
        )
        yield {
            'the observations': step.obs.clone(),
            'the rewards': step.reward.clone(),
            'terminated': step.terminated.clone(),
            'truncated': step.truncated.clone(),
        }
    env.check()


def _same_twice(name: str, step: int, what: str, was: Tensor, now: Tensor) -> None:
    differ = (was != now).reshape(len(was), -1).any(1)
    if differ.any():
        index = int(differ.nonzero()[0])
        raise contract_error(
            name,
            index,
            step,
            f'{what} with seed={SEED} differ: {show_value(was[index].numpy())} and {show_value(now[index].numpy())}',
            'the same twice',
            'seed all random numbers in reset',
        )


class _EnvCheck:
    """The checks of one env; keeps its name and the number of steps for the messages."""

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
            self._fail(
                f'two resets with seed={SEED} returned {show_value(first)} and {show_value(again)}',
                'the same twice',
                SEED_DO,
            )
        self._env.action_space.seed(SEED)
        actions = [self._env.action_space.sample() for _ in range(n_step)]
        once = list(self._rollout(actions))
        for was, now in zip(once, self._rollout(actions[:MAX_REPLAY]), strict=False):
            self._compare(was, now)

    def _rollout(self, actions: list[Any]) -> Iterator[dict[str, Any]]:
        """What each action leads to, from the state that `SEED` gives; where an episode ends, another one follows."""
        self._n_step = 0
        self._reset(SEED)
        for self._n_step, action in enumerate(actions, 1):
            obs, reward, terminated, truncated = self._step(action)
            seen = {'observation': np.copy(obs), 'reward': reward, 'terminated': terminated, 'truncated': truncated}
            if terminated or truncated:
                seen['first observation of the next episode'] = self._reset_leaves(obs)
            elif self._n_step == len(actions):
                self._reset_leaves(obs)
            yield seen

    def _compare(self, was: dict[str, Any], now: dict[str, Any]) -> None:
        for what, value in was.items():
            if what not in now or not np.array_equal(value, now[what]):
                self._fail(
                    f'two episodes with seed={SEED} and the same actions differ at step {self._n_step}: '
                    f'{what} {show_value(value)} and {show_value(now.get(what))}',
                    'the same twice',
                    SEED_DO,
                )

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

    def _step(self, action: Any) -> tuple[Any, Any, bool, bool]:
        obs, reward, terminated, truncated, info = self._unpack_step(self._env.step(action))
        self._check_obs(obs, 'step')
        self._check_reward(reward)
        for what, flag in (('terminated', terminated), ('truncated', truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                self._fail(f'{what} is {show_value(flag)}', 'a bool', f'return bool({what})')
        self._check_info(info, STEP_DO)
        return obs, reward, bool(terminated), bool(truncated)

    def _unpack_reset(self, result: Any) -> tuple[Any, ...]:
        if not (isinstance(result, tuple) and len(result) == 2):
            self._fail(f'reset returned {show_value(result)}', 'a tuple (obs, info)', RESET_DO)
        return result

    def _unpack_step(self, result: Any) -> tuple[Any, ...]:
        if not (isinstance(result, tuple) and len(result) == 5):
            size = f' of {len(result)}' if isinstance(result, tuple) else ''
            self._fail(f'step returned a {type(result).__name__}{size}', 'a tuple of 5', STEP_DO)
        return result

    def _reset_leaves(self, obs: Any) -> Any:
        """Resets the env, which must not write into the final observation of the episode."""
        before = np.copy(obs)
        first = self._reset(None)
        if not np.array_equal(before, obs):
            self._fail(
                f'the next reset turns the observation of this step from {show_value(before)} into {show_value(obs)}',
                'an unchanged one, since it is the final one of the episode',
                'return a copy, e.g. self.state.copy()',
            )
        return first

    @property
    def _is_discrete(self) -> bool:
        return isinstance(self._space, Discrete)

    def _check_obs(self, obs: Any, source: str) -> None:
        space = self._space
        if isinstance(space, Discrete):
            if isinstance(obs, bool) or np.shape(obs) != () or np.asarray(obs).dtype.kind not in 'iu':
                self._fail(f'the observation of {source} is {show_value(obs)}', 'an int', 'return int(obs)')
            if not 0 <= int(obs) - space.start < space.n:
                self._fail(
                    f'the observation of {source} is {obs}',
                    f'{space.start} to {space.start + space.n - 1} as in observation_space',
                    'correct one of the two',
                )
            return
        if not isinstance(obs, np.ndarray):
            self._fail(
                f'the observation of {source} is {show_value(obs)}',
                'a numpy array',
                f'return np.asarray(obs, dtype=np.{space.dtype})',
            )
        if obs.shape != space.shape:
            self._fail(
                f'the observation of {source} has shape {obs.shape}',
                f'{space.shape} as in observation_space',
                'correct one of the two',
            )
        if obs.dtype != space.dtype:
            self._fail(
                f'the observation of {source} has dtype {obs.dtype}',
                f'{space.dtype} as in observation_space',
                f'return obs.astype(np.{space.dtype})',
            )
        self._check_values(obs, source, space.low, space.high)

    def _check_values(self, obs: np.ndarray, source: str, low: np.ndarray, high: np.ndarray) -> None:
        finite = np.isfinite(obs)
        wrong = np.argwhere(~(finite & (low <= obs) & (obs <= high)))
        if not len(wrong):
            return
        at = tuple(map(int, wrong[0]))
        got = f'the observation of {source} has {obs[at]} at {list(at)}'
        if not finite[at]:
            self._fail(got, 'finite numbers', 'find where it comes from')
        self._fail(got, f'{low[at]:g} to {high[at]:g} as in observation_space', 'correct it, or widen the space')

    def _check_reward(self, reward: Any) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in 'biuf':
            self._fail(f'the reward is {show_value(reward)}', 'a number', 'return float(reward)')
        if not np.isfinite(float(reward)):
            self._fail(f'the reward is {reward}', 'a finite number', 'find where it comes from')

    def _check_info(self, info: Any, do: str) -> None:
        if not isinstance(info, dict):
            self._fail(f'info is {show_value(info)}', 'a dict', do)

    def _fail(self, got: str, wanted: str, do: str) -> NoReturn:
        raise contract_error(self._name, 0, self._n_step, got, wanted, do)
