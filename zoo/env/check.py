"""Checks in a few steps whether an env keeps the gymnasium interface.

What makes learning wrong is an error. Episodes that no seed repeats are a warning: to a policy they are chance like any
other, and only the promise that runs with one seed are equal is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch

from zoo.core.action_map import ActionMap
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, mask_space
from zoo.env.adapter import env_spaces, takes_keyword
from zoo.env.calls import CALLS, env_call
from zoo.env.check_family import MAX_REPLAY, SEED, check_family, not_repeated
from zoo.env.check_obs import checked_leaves
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config
from zoo.env.diagnosis import action_of
from zoo.env.errors import (
    RESET_DO,
    STEP_DO,
    BrokenContractError,
    add_place,
    contract_error,
    location_of,
    of_entry,
    show_value,
)
from zoo.env.families.family import EnvFamily
from zoo.env.make import env_name, find_env, make_env
from zoo.env.masks import ChoiceCheck, flat_mask, mask_size, masked_space
from zoo.env.random_actions import random_actions
from zoo.env.wrappers import mask_method

Leaves = dict[str, dict[str, Any]]  # the leaves of what a step returned, by name and path
SEED_DO = 'call super().reset(seed=seed) and draw all random numbers from self.np_random'
LONG = 1000  # steps from which on a check in which no episode ended says so

logger = logging.getLogger(__name__)


def check_env(cfg: EnvConfig | Mapping[str, Any], n_step: int = 10) -> list[str]:
    """Make one env of the config and take `n_step` random steps with it, starting new episodes where they end.

    The first of these steps are taken twice, with the same seed and the same actions. A family makes two envs that
    step together; VectorEnv checks what they return.

    Returns: warnings, one sentence each, which are also logged: episodes with the same seed differ; in 1,000 steps or
      more no episode ended, and nothing limits them.
    Raises: EnvContractError that names env, index, step, what was got, what was wanted and what to do; UserError if
      n_step is below 1; and what make_env raises.
    """
    if n_step < 1:
        raise UserError(f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps.')
    cfg = env_config(cfg)
    is_family = isinstance(find_env(cfg.id, cfg.game), EnvFamily)
    warnings = check_family(cfg, n_step) if is_family else _check_single(cfg, n_step)
    for sentence in warnings:
        logger.warning('%s', sentence)
    return warnings


def _check_single(cfg: EnvConfig, n_step: int) -> list[str]:
    env = make_env(cfg)
    try:
        return _EnvCheck(env, cfg).run(n_step)
    finally:
        close_in_time({f'env {env_name(cfg)!r}': env.close}, cfg.step_timeout)


class _EnvCheck:
    """The checks of one env; keeps its name and the number of steps for the messages."""

    def __init__(self, env: gymnasium.Env, cfg: EnvConfig) -> None:
        self._env, self._name, self._n_step = env, env_name(cfg), 0
        self._space, self._action_space = env_spaces(env, self._name)
        seen = masked_space(self._space, self._action_space, cfg.action_mask, self._name)
        self._choices = ChoiceCheck(self._action_space) if mask_space(seen) is not None else None
        self._finds_masks = cfg.action_mask == 'auto' and self._choices is None and mask_size(self._action_space) > 0
        self._has_limit, self._n_end = _has_limit(env), 0
        self._to_env = ActionMap(self._action_space)
        self._rng = torch.Generator().manual_seed(SEED)

    def run(self, n_step: int) -> list[str]:
        """Returns: warnings."""
        try:
            with env_call(f'env {self._name!r}, index 0, in its check'):
                found = [self._run(n_step), self._endless(n_step)]
            return [sentence for sentence in found if sentence is not None]
        except BrokenContractError as error:
            raise contract_error(self._name, 0, self._n_step, *error.args) from error
        except (Exception, SystemExit) as error:
            add_place(error, location_of(self._name, 0, self._n_step))
            raise

    def _run(self, n_step: int) -> str | None:
        """All steps; returns the warning about the first value that the same seed did not give twice."""
        self._core()
        first, again = self._reset(SEED), self._reset(SEED)
        self._env.action_space.seed(SEED)
        actions: list[Any] = []

        def choose(obs: dict[str, np.ndarray]) -> Any:
            actions.append(self._sample(obs.get(ACTION_MASK)))
            return actions[-1]

        once = list(self._rollout(n_step, choose))
        if (path := _difference(first, again)) is not None:
            pair = f'{of_entry(path)} {show_value(first[path])} and {show_value(again[path])}'
            return self._unlike(0, f'two resets with seed={SEED} returned{pair}')
        taken = iter(actions)
        for was, now in zip(once, self._rollout(min(n_step, MAX_REPLAY), lambda _: next(taken)), strict=False):
            if unlike := self._compare(was, now):
                return unlike
        return None

    def _unlike(self, step: int, got: str) -> str:
        return not_repeated(location_of(self._name, 0, step), got, SEED_DO)

    def _endless(self, n_step: int) -> str | None:
        """The warning about an env that may never end."""
        if self._has_limit or self._n_end or n_step < LONG:
            return None
        return (
            f'env {self._name!r}: no episode ended in {n_step} random steps and it has no time limit, so an evaluation '
            'may never end; set env.max_episode_steps, or end the episodes in step.'
        )

    def _sample(self, mask: Any) -> Any:
        """A random action, a legal one where there is a mask."""
        if self._choices is None or mask is None:
            return self._env.action_space.sample()
        bits = torch.from_numpy(flat_mask(self._action_space, mask)[None])
        return action_of(self._to_env(random_actions(self._action_space, 1, self._rng, bits)), 0)

    def _rollout(self, n_step: int, choose: Callable[[dict[str, np.ndarray]], Any]) -> Iterator[Leaves]:
        """What each action leads to, from the state that `SEED` gives; where an episode ends, another one follows."""
        self._n_step = 0
        obs = self._reset(SEED)
        for self._n_step in range(1, n_step + 1):
            raw, obs, reward, terminated, truncated = self._step(choose(obs))
            values = {'reward': reward, 'terminated': terminated, 'truncated': truncated}
            seen = {'observation': obs, **{what: {'': value} for what, value in values.items()}}
            if terminated or truncated:
                self._n_end += 1
                obs = seen['first observation of the next episode'] = self._reset_leaves(raw)
            elif self._n_step == n_step:
                self._reset_leaves(raw)
            yield seen

    def _compare(self, was: Leaves, now: Leaves) -> str | None:
        for what, values in was.items():
            path = _difference(values, now.get(what, {}))
            if path is not None:
                pair = f'{show_value(values[path])} and {show_value(now.get(what, {}).get(path))}'
                got = f'two episodes with seed={SEED} and the same actions differ: {what}{of_entry(path)} {pair}'
                return self._unlike(self._n_step, got)
        return None

    def _core(self) -> None:
        """The env inside all wrappers, which would trip over a wrong signature or number of values themselves."""
        env = self._env.unwrapped
        missing = [k for k in ('seed', 'options') if not takes_keyword(env.reset, k)]
        if missing:
            self._fail(f'reset has no argument {" or ".join(missing)}', 'reset(*, seed=None, options=None)', RESET_DO)
        obs, info = self._unpack_reset(env.reset(seed=SEED))
        mask = self._core_mask(obs, info)
        if self._choices is not None and mask is None:
            return  # a wrapper has the mask; any action may be an illegal one
        self._n_step = 1
        self._unpack_step(env.step(self._sample(mask)))
        self._n_step = 0

    def _core_mask(self, obs: Any, info: Any) -> Any:
        if self._choices is None:
            return None
        for place in (obs, info):
            if isinstance(place, Mapping) and ACTION_MASK in place:
                return place[ACTION_MASK]
        method = mask_method(self._env)
        return None if method is None else method()

    def _reset(self, seed: int | None) -> dict[str, np.ndarray]:
        """The leaves of a first observation by their paths."""
        obs, info = self._unpack_reset(self._env.reset(seed=seed))
        self._check_info(info, 'reset')
        found = checked_leaves(obs, self._space, 'reset')
        self._check_mask(found)
        return found

    def _step(self, action: Any) -> tuple[Any, dict[str, np.ndarray], Any, bool, bool]:
        obs, reward, terminated, truncated, info = self._unpack_step(self._env.step(action))
        found = checked_leaves(obs, self._space, 'step')
        self._check_reward(reward)
        for what, flag in (('terminated', terminated), ('truncated', truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                self._fail(f'{what} is {show_value(flag)}', 'a bool', f'return bool({what})')
        self._check_info(info, 'step')
        if not terminated and not truncated:
            self._check_mask(found)
        return obs, found, reward, bool(terminated), bool(truncated)

    def _check_info(self, info: Any, call: str) -> None:
        if not isinstance(info, dict):
            self._fail(f'info is {show_value(info)}', 'a dict', RESET_DO if call == 'reset' else STEP_DO)
        if self._finds_masks and ACTION_MASK in info:
            self._fail(
                f'the info of {call} has {ACTION_MASK!r} but that of the first reset had none',
                'it in both, or in neither',
                f'put {ACTION_MASK!r} into the info of every reset too, or set env.action_mask=off',
            )

    def _check_mask(self, obs: dict[str, np.ndarray]) -> None:
        if self._choices is not None:
            mask = flat_mask(self._action_space, obs[ACTION_MASK])
            if self._choices.empty(mask[None])[0]:
                self._fail(*self._choices.fault(mask))

    def _unpack_reset(self, result: Any) -> tuple[Any, ...]:
        CALLS.count += 1  # a call has ended
        if not (isinstance(result, tuple) and len(result) == 2):
            self._fail(f'reset returned {show_value(result)}', 'a tuple (obs, info)', RESET_DO)
        return result

    def _unpack_step(self, result: Any) -> tuple[Any, ...]:
        CALLS.count += 1
        if not (isinstance(result, tuple) and len(result) == 5):
            size = f' of {len(result)}' if isinstance(result, tuple) else ''
            self._fail(f'step returned a {type(result).__name__}{size}', 'a tuple of 5', STEP_DO)
        return result

    def _reset_leaves(self, obs: Any) -> dict[str, np.ndarray]:
        """Resets the env, which must not write into the final observation of the episode."""
        before = checked_leaves(obs, self._space, 'step')
        first = self._reset(None)
        after = checked_leaves(obs, self._space, 'step')
        if (path := _difference(before, after)) is not None:
            self._fail(
                f'the next reset turns the observation{of_entry(path)} of this step from '
                f'{show_value(before[path])} into {show_value(after[path])}',
                'an unchanged one, since it is the final one of the episode',
                'return a copy, e.g. self.state.copy()',
            )
        return first

    def _check_reward(self, reward: Any) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in 'biuf':
            self._fail(f'the reward is {show_value(reward)}', 'a number', 'return float(reward)')
        if not np.isfinite(float(reward)):
            self._fail(f'the reward is {reward}', 'a finite number', 'find where it comes from')

    def _fail(self, got: str, wanted: str, do: str) -> NoReturn:
        raise contract_error(self._name, 0, self._n_step, got, wanted, do)


def _has_limit(env: Any) -> bool:
    """Whether a wrapper of an env ends its episodes after a number of steps."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return False


def _difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The path of the first leaf that differs, or is missing."""
    return next((path for path in was if path not in now or not np.array_equal(was[path], now[path])), None)
