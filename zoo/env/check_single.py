"""Checks one env in a few steps: each value that it returns, and whether a seed repeats its episodes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from zoo.core.action_map import ActionMap
from zoo.core.spaces import ACTION_MASK, mask_space
from zoo.env.adapter import env_spaces, takes_keyword
from zoo.env.calls import CALLS, env_call
from zoo.env.check_family import LONG, MAX_REPLAY, SEED, Finding, StepWatch, endless, not_repeated
from zoo.env.check_obs import ToleratedError, checked_leaves, difference
from zoo.env.check_wrappers import running_statistics, step_limit
from zoo.env.config import EnvConfig
from zoo.env.diagnosis import action_of, as_flag
from zoo.env.errors import (
    RESET_DO,
    STEP_DO,
    BrokenContractError,
    EnvContractError,
    add_place,
    contract_error,
    location_of,
    of_entry,
    show_value,
)
from zoo.env.make import env_name
from zoo.env.masks import ChoiceCheck, flat_mask, mask_size, masked_space
from zoo.env.random_actions import random_actions
from zoo.env.wrappers import mask_method

Leaves = dict[str, dict[str, Any]]  # the leaves of what a step returned, by name and path
Report = Callable[[str, str], None]
"""Is told of a break after which the check continues: the sentence, and a key that is the same for breaks of one kind."""

SEED_DO = 'call super().reset(seed=seed) and draw all random numbers from self.np_random'
TAKEN = 'or set env.check=false to train with it'
MOVED = '(env.check=false only moves this error into the run)'


class EnvCheck:
    """The checks of one env; keeps its name and the number of steps for the messages."""

    def __init__(
        self, env: gymnasium.Env, cfg: EnvConfig, watch: StepWatch | None = None, report: Report | None = None
    ) -> None:
        """
        Args: watch: is shown each first step; report: is told of breaks after which the check can continue; None: the
          first one is raised.
        """
        self._env, self._name, self._n_step = env, env_name(cfg), 0
        self._watch, self._report = watch, report
        self._space, self._action_space = env_spaces(env, self._name)
        seen = masked_space(self._space, self._action_space, cfg.action_mask, self._name)
        self._choices = ChoiceCheck(self._action_space) if mask_space(seen) is not None else None
        self._finds_masks = cfg.action_mask == 'auto' and self._choices is None and mask_size(self._action_space) > 0
        self._has_limit, self._n_end = step_limit(env) is not None, 0
        self._statistics = running_statistics(env)
        self._explained = {each.stream for each in self._statistics if each.is_sure}
        self._to_env = ActionMap(self._action_space)
        self._rng = torch.Generator().manual_seed(SEED)

    def run(self, n_step: int) -> list[Finding]:
        """Returns: warnings. Raises: EnvContractError at a break; what the env's own code raises."""
        try:
            with env_call(f'env {self._name!r}, index 0, in its check'):
                unlike = self._run(n_step)
        except BrokenContractError as broken:
            raise self._error(broken) from broken
        except (Exception, SystemExit) as error:
            add_place(error, location_of(self._name, 0, self._n_step))
            raise
        sure = [each.sentence(self._name) for each in self._statistics if each.is_sure]
        chance = [*sure, *([unlike] if unlike else [])]
        endless = self._endless(n_step)
        return [*(Finding(text, is_chance=True) for text in chance), *([Finding(endless)] if endless else [])]

    def _run(self, n_step: int) -> str | None:
        """All steps; returns the warning about the first value that the same seed did not give twice."""
        self._core()
        first, again = self._reset(SEED), self._reset(SEED)
        self._env.action_space.seed(SEED)
        actions: list[Any] = []

        def choose(obs: dict[str, np.ndarray]) -> Any:
            actions.append(self._sample(obs.get(ACTION_MASK)))
            return actions[-1]

        once: list[Leaves] = []
        for seen in self._rollout(n_step, choose, self._watch):
            if len(once) < MAX_REPLAY:
                once.append(seen)
        if 'observation' not in self._explained and (path := difference(first, again)) is not None:
            pair = f'{of_entry(path)} {show_value(first[path])} and {show_value(again.get(path))}'
            return self._unlike(0, 'observation', f'two resets with seed={SEED} returned{pair}')
        taken = iter(actions)
        for was, now in zip(once, self._rollout(len(once), lambda _: next(taken)), strict=False):
            if unlike := self._compare(was, now):
                return unlike
        return None

    def _unlike(self, step: int, what: str, got: str) -> str:
        """The warning about a value that differs; a wrapper whose name says that it normalises these is the cause."""
        for each in self._statistics:
            if what.endswith(each.stream):
                return each.sentence(self._name)
        return not_repeated(location_of(self._name, 0, step), got, SEED_DO)

    def _endless(self, n_step: int) -> str | None:
        """The warning about an env that may never end."""
        if self._has_limit or self._n_end or n_step < LONG:
            return None
        return endless(self._name, n_step)

    def _sample(self, mask: Any) -> Any:
        """A random action, a legal one where there is a mask."""
        if self._choices is None or mask is None:
            return self._env.action_space.sample()
        bits = torch.from_numpy(flat_mask(self._action_space, mask)[None])
        return action_of(self._to_env(random_actions(self._action_space, 1, self._rng, bits)), 0)

    def _rollout(
        self, n_step: int, choose: Callable[[dict[str, np.ndarray]], Any], watch: StepWatch | None = None
    ) -> Iterator[Leaves]:
        """What each action leads to, from the state that `SEED` gives; where an episode ends, another one follows."""
        self._n_step = 0
        obs = self._reset(SEED, watch)
        for self._n_step in range(1, n_step + 1):
            raw, obs, reward, terminated, truncated = self._step(choose(obs), watch)
            values = {'reward': reward, 'terminated': terminated, 'truncated': truncated}
            seen = {'observation': obs, **{what: {'': value} for what, value in values.items()}}
            if terminated or truncated:
                self._n_end += 1
                obs = seen['first observation of the next episode'] = self._reset_leaves(raw, watch)
            elif self._n_step == n_step:
                self._reset_leaves(raw)
            yield seen
            if watch is not None and watch.is_over():
                return

    def _compare(self, was: Leaves, now: Leaves) -> str | None:
        for what, values in was.items():
            if 'observation' in what and 'observation' in self._explained or what in self._explained:
                continue
            path = difference(values, now.get(what, {}))
            if path is not None:
                pair = f'{show_value(values[path])} and {show_value(now.get(what, {}).get(path))}'
                got = f'two episodes with seed={SEED} and the same actions differ: {what}{of_entry(path)} {pair}'
                return self._unlike(self._n_step, 'observation' if 'observation' in what else what, got)
        return None

    def _core(self) -> None:
        """The env inside all wrappers, which would trip over a wrong signature or number of values themselves."""
        env = self._env.unwrapped
        missing = [k for k in ('seed', 'options') if not takes_keyword(env.reset, k)]
        if missing:
            got = f'reset has no argument {" or ".join(missing)}'
            is_tolerated = 'seed' not in missing and env is self._env  # wrappers pass both on
            self._unusable((got, 'reset(*, seed=None, options=None)', RESET_DO), is_tolerated)
        obs, info = self._unpack_reset(env.reset(seed=SEED))
        mask = self._core_mask(obs, info)
        if self._choices is not None and mask is None:
            return  # a wrapper has the mask; any action may be an illegal one
        self._n_step = 1
        env.action_space.seed(SEED)
        is_same = self._env.action_space == env.action_space  # else a wrapper takes other actions
        self._unpack_step(env.step(self._sample(mask) if is_same else env.action_space.sample()))
        self._n_step = 0

    def _core_mask(self, obs: Any, info: Any) -> Any:
        if self._choices is None:
            return None
        for place in (obs, info):
            if isinstance(place, Mapping) and ACTION_MASK in place:
                return place[ACTION_MASK]
        method = mask_method(self._env)
        return None if method is None else method()

    def _reset(self, seed: int | None, watch: StepWatch | None = None) -> dict[str, np.ndarray]:
        """The leaves of a first observation by their paths."""
        start = time.perf_counter()
        result = self._env.reset(seed=seed)
        seconds = time.perf_counter() - start
        obs, info = self._unpack_reset(result)
        self._check_info(info, 'reset')
        found = self._leaves(obs, 'reset')
        self._check_mask(found)
        if watch is not None:
            watch.began(seconds, found)
        return found

    def _step(self, action: Any, watch: StepWatch | None = None) -> tuple[Any, dict[str, np.ndarray], Any, bool, bool]:
        start = time.perf_counter()
        result = self._env.step(action)
        seconds = time.perf_counter() - start
        obs, reward, terminated, truncated, info = self._unpack_step(result)
        found = self._leaves(obs, 'step')
        self._check_reward(reward)
        ends = self._flag('terminated', terminated), self._flag('truncated', truncated)
        self._check_info(info, 'step')
        if not any(ends):
            self._check_mask(found)
        if watch is not None:
            watch.stepped(seconds, found, reward, *ends, info)
        return obs, found, reward, *ends

    def _leaves(self, obs: Any, source: str) -> dict[str, np.ndarray]:
        return checked_leaves(obs, self._space, source, self._note)

    def _flag(self, what: str, flag: Any) -> bool:
        if isinstance(flag, (bool, np.bool_)):
            return bool(flag)
        broken = f'{what} is {show_value(flag)}', 'a bool', f'return bool({what})'
        try:
            value = as_flag(what, flag)
        except BrokenContractError:
            self._note(BrokenContractError(*broken))
            return False
        self._note(ToleratedError(*broken))
        return value

    def _check_info(self, info: Any, call: str) -> None:
        if not isinstance(info, dict):
            self._note(
                BrokenContractError(f'info is {show_value(info)}', 'a dict', RESET_DO if call == 'reset' else STEP_DO)
            )
        elif self._finds_masks and ACTION_MASK in info:
            self._note(
                BrokenContractError(
                    f'the info of {call} has {ACTION_MASK!r} but that of the first reset had none',
                    'it in both, or in neither',
                    f'put {ACTION_MASK!r} into the info of every reset too, or set env.action_mask=off',
                )
            )

    def _check_mask(self, obs: dict[str, np.ndarray]) -> None:
        if self._choices is not None and ACTION_MASK in obs:
            mask = flat_mask(self._action_space, obs[ACTION_MASK])
            if self._choices.empty(mask[None])[0]:
                self._note(BrokenContractError(*self._choices.fault(mask)))

    def _unpack_reset(self, result: Any) -> tuple[Any, ...]:
        CALLS.count += 1  # a call has ended
        if not (isinstance(result, tuple) and len(result) == 2):
            broken = f'reset returned {show_value(result)}', 'a tuple (obs, info)', RESET_DO
            self._unusable(broken, isinstance(result, list) and len(result) == 2)
        return tuple(result)

    def _unpack_step(self, result: Any) -> tuple[Any, ...]:
        CALLS.count += 1
        if not (isinstance(result, tuple) and len(result) == 5):
            size = f' of {len(result)}' if isinstance(result, tuple) else ''
            broken = f'step returned a {type(result).__name__}{size}', 'a tuple of 5', STEP_DO
            self._unusable(broken, isinstance(result, list) and len(result) == 5)
        return tuple(result)

    def _reset_leaves(self, obs: Any, watch: StepWatch | None = None) -> dict[str, np.ndarray]:
        """Resets the env, which must not write into the final observation of the episode."""
        before = self._leaves(obs, 'step')
        first = self._reset(None, watch)
        after = self._leaves(obs, 'step')
        if (path := difference(before, after)) is not None:
            got = (
                f'the next reset turns the observation{of_entry(path)} of this step from '
                f'{show_value(before[path])} into {show_value(after.get(path))}'
            )
            wanted = 'an unchanged one, since it is the final one of the episode'
            self._note(ToleratedError(got, wanted, 'return a copy, e.g. self.state.copy()'))
        return first

    def _check_reward(self, reward: Any) -> None:
        if np.shape(reward) != () or np.asarray(reward).dtype.kind not in 'biuf':
            self._note(BrokenContractError(f'the reward is {show_value(reward)}', 'a number', 'return float(reward)'))
        elif not np.isfinite(float(reward)):
            self._note(BrokenContractError(f'the reward is {reward}', 'a finite number', 'find where it comes from'))

    def _unusable(self, broken: tuple[str, str, str], is_tolerated: bool) -> None:
        """A result of which only a run may make something; else nothing can be checked after it."""
        if not is_tolerated:
            raise BrokenContractError(*broken)
        self._note(ToleratedError(*broken))

    def _note(self, broken: BrokenContractError) -> None:
        if self._report is None:
            raise broken
        got, _, do = broken.args
        what = re.split(r' (?:is|has|turns|returned) ', got)[0]
        self._report(str(self._error(broken)), f'{re.sub(" of (reset|step)$", "", what)}; {do}')

    def _error(self, broken: BrokenContractError) -> EnvContractError:
        got, wanted, do = broken.args
        if 'set env.' not in do:
            do = f'{do}, {TAKEN}' if isinstance(broken, ToleratedError) else f'{do} {MOVED}'
        return contract_error(self._name, 0, self._n_step, got, wanted, do)
