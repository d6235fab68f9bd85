"""Envs that step one after the other in this process.

Their infos are not merged, which would take longer than a step of a small env. Only the last observations and numbers of
ended episodes are kept, and the entries that `request_infos` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakSet

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from zoo.config.section import own_copy
from zoo.core.action_map import Actions
from zoo.env.adapter import takes_options
from zoo.env.calls import CALLS, CONSTRUCTION_CALLS, env_call, locate
from zoo.env.closing import close_in_time
from zoo.env.errors import STOPS, BrokenContractError, Place, UnsupportedEnvError, add_hint, made_at
from zoo.env.infos import BROKEN, FINAL_INFO, FINAL_OBS, add_requested, last_obs, numbers_of, requested_of
from zoo.env.interface import EnvCommand
from zoo.env.restarts import CONSTRUCTION, RESET, Restarts
from zoo.env.seeded import Seeds, restart_seed, seeds_of
from zoo.env.settings import apply, keep_setting
from zoo.env.validation import (
    FLAGS,
    RAW_ERRORS,
    as_flag,
    check_n_action,
    check_obs,
    check_result,
    check_spaces,
    checked_call,
    raise_if_broken,
)
from zoo.env.vector import VectorEnv, use_fast_action_space

ONE_PER_PROCESS = (
    'another env of this kind is open in the process: if there can be only one, set env.vectorization=async, which gives each '
    'a process of its own'
)
_OPEN: WeakSet[SerialVectorEnv] = WeakSet()  # those that are not closed


def with_quick_actions(env: gymnasium.Env) -> gymnasium.Env:
    """The same env; if it is one of gymnasium's own, which check each action, with an action space that checks faster."""
    if type(env.unwrapped).__module__.startswith('gymnasium.envs.'):
        use_fast_action_space(env.unwrapped)
    return env


class CopiedObservations(gymnasium.ObservationWrapper):
    """Copies each observation, for an env that writes into arrays which other envs of the process have too."""

    def observation(self, observation: Any) -> Any:
        return deepcopy(observation)


def _share_arrays(first: Any, second: Any) -> bool:
    """Whether the observations of two envs have an array in the same memory."""
    if isinstance(first, dict):
        return any(_share_arrays(first[key], second[key]) for key in first if key in second)
    if isinstance(first, tuple):
        return any(_share_arrays(*pair) for pair in zip(first, second, strict=False))
    return isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and np.may_share_memory(first, second)


class SerialVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv with a shorter loop and without copies: gymnasium's overhead is half as long as a step of Pendulum.

    Args: restarts: counts envs that raise and are recreated; None: their exceptions pass through.
      timeout: seconds that the envs may take to close.
    Attributes: failed_index: the env whose reset or step raised, or returned an invalid result.
      commands: those that a recreated env gets again, by the attributes that they set.
    """

    failed_index: int | None = None
    closed = True  # until its envs are made: gymnasium 1.1 closes a vector env when it is deleted

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        autoreset_mode: AutoresetMode,
        name: str,
        restarts: Restarts | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._name = name
        self._restarts = restarts
        self._timeout = timeout
        self._maker_name = name.partition('[')[0]  # without the envs of a group
        self._make_envs(env_fns, autoreset_mode)
        self.closed = False
        self.env_fns = env_fns
        _OPEN.add(self)
        self.metadata = {**self.metadata, 'autoreset_mode': autoreset_mode}
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._next_step = autoreset_mode == AutoresetMode.NEXT_STEP
        nested = gymnasium.spaces.Dict | gymnasium.spaces.Tuple
        self._has_nested_actions = isinstance(self.single_action_space, nested)
        self._copy: Callable[[Any], Any] = copy
        if isinstance(self.single_observation_space, nested):
            self._copy = deepcopy
        self._copies = False  # whether the envs write into arrays of one another
        self._seen: list[Any] = [None] * self.num_envs  # the last observation of each env
        self._castable = _castable_dtypes(self.single_observation_space)
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._step_count = 0
        self._requested: tuple[str, ...] = ()
        self._reset_kwargs: dict[str, Any] = {}  # options
        self.commands: dict[str, EnvCommand] = {}

    def _make_envs(self, env_fns: Sequence[Callable[[], gymnasium.Env]], autoreset_mode: AutoresetMode) -> None:
        """Makes the envs, and calls gymnasium's constructor with them; if one fails, those made before it are closed."""
        made = self.envs = []
        try:
            for i, env_fn in enumerate(env_fns):
                with locate(made_at(self._name, i)):
                    made.append(with_quick_actions(env_fn()))
                check_spaces(made[i], (made[0].observation_space, made[0].action_space))
            give = [partial(made.__getitem__, i) for i in range(len(made))]
            super().__init__(give, copy=False, autoreset_mode=autoreset_mode)
        except BaseException as error:
            self.close_extras()
            if made or any(other._maker_name == self._maker_name for other in _OPEN):
                add_hint(error, ONE_PER_PROCESS)
            if isinstance(error, BrokenContractError):
                raise Place(self._name).error(len(made) - 1, *error.args) from error
            raise

    @property
    def takes_options(self) -> bool:
        """Whether the resets of the envs read options."""
        return takes_options(self.envs[0])

    def request(self, requested: tuple[str, ...], options: dict[str, Any] | None, what: str) -> None:
        """Sets the entries of infos that every step gives, and the options of all resets. what: names the new setting."""
        self._requested = requested
        self._reset_kwargs = {}
        if options is not None:
            self._reset_kwargs['options'] = options

    def command(self, command: EnvCommand) -> list[Any]:
        return [apply(env, command) for env in self.envs]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """options: {'reset_mask': [B] bool}, the envs to reset; None: all."""
        self._reset_envs(seed, options)
        if self.num_envs > 1 and not self._copies and _share_arrays(*self._seen[:2]):
            self._copies = True
            self.envs = [CopiedObservations(env) for env in self.envs]
            self._reset_envs(seed, options)
        return self._gathered(), {}

    def _reset_envs(self, seed: Seeds, options: dict[str, Any] | None) -> None:
        self.failed_index = None
        mask = (options or {}).get('reset_mask', np.ones(self.num_envs, dtype=bool))
        seeds = seeds_of(seed, self.num_envs)
        if seed is not None:
            self._seeds = seeds
        for i in np.flatnonzero(mask).tolist():
            try:
                self._reset_env(i, seed=seeds[i])
            except STOPS:
                raise
            except BaseException as error:
                if self._restarts is None:
                    raise
                self._restart(i, error, f'the reset after step {self._step_count}')
        self._ended = self._ended & ~mask
        if not options:
            self._step_count = 0

    def step(self, actions: Actions) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        check_n_action(actions, self.num_envs)
        env_actions: Iterable[Any] = actions
        if self._has_nested_actions:
            env_actions = list(iterate(self.action_space, actions))
        self._step_count += 1
        infos: dict[str, Any] = {}
        self._step_envs(env_actions, infos)
        self._ended = self._terminations | self._truncations
        return self._gathered(), self._rewards, self._terminations, self._truncations, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all envs; warns of each that raises or hangs."""
        _OPEN.discard(self)
        places = {f'env {self._name!r}, index {i}': env.close for i, env in enumerate(self.envs)}
        close_in_time(places, self._timeout)

    def _step_envs(self, actions: Iterable[Any], infos: dict[str, Any]) -> None:
        """Steps all envs. If an env raises and is recreated, its episode counts as broken off, unless it is complete."""
        seen = self._seen
        rewards = self._rewards
        terminated = self._terminations
        truncated = self._truncations
        result: tuple[Any, ...] | None = None
        calls = CALLS[get_ident()]
        is_complete = False  # whether the episode has ended and its env is being reset
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            calls.index = i
            try:
                if self._next_step and self._ended[i]:
                    self._reset_env(i)
                    self._clear_step(i)
                    continue
                result = seen[i], rewards[i], is_over, is_cut, info = env.step(action)
                if type(is_over) not in FLAGS or type(is_cut) not in FLAGS:
                    is_over = as_flag('terminated', is_over)
                    is_cut = as_flag('truncated', is_cut)
                if not isinstance(info, dict):
                    check_result('step', result, self.single_observation_space)
                terminated[i] = is_over
                truncated[i] = is_cut
                if self._requested:
                    add_requested(infos, requested_of(self._requested, info), i, self.num_envs)
                if (is_over or is_cut) and info:
                    seen[i] = last_obs(seen[i], info)
                    infos.setdefault(FINAL_INFO, np.full(self.num_envs, None, dtype=object))[i] = numbers_of(info)
                if self._same_step and (is_over or is_cut):
                    finals = infos.setdefault(FINAL_OBS, np.full(self.num_envs, None, dtype=object))
                    finals[i] = self._copy(seen[i])  # the reset may write into it
                    is_complete = True
                    self._reset_env(i)
                    is_complete = False
            except STOPS:
                raise
            except BaseException as error:
                self.failed_index = i
                raise_if_broken(error, 'step', result, self.single_observation_space)
                if self._restarts is None:
                    raise
                if is_complete:
                    self._restart(i, error, f'the reset after step {self._step_count}')
                else:
                    self._restart(i, error, f'step {self._step_count}')
                    self._clear_step(i)
                    infos.setdefault(BROKEN, np.zeros(self.num_envs, dtype=bool))[i] = True
                result = None
                is_complete = False

    def _clear_step(self, i: int) -> None:
        """Marks that env i did no step: no reward, and no end of an episode."""
        self._rewards[i] = 0.0
        self._terminations[i] = False
        self._truncations[i] = False

    def _reset_env(self, i: int, **kwargs: Any) -> None:
        calls = CALLS[get_ident()]
        self.failed_index = calls.index = i
        calls.count += 1
        kwargs |= own_copy(self._reset_kwargs)
        self._seen[i], _ = checked_call('reset', self.single_observation_space, self.envs[i].reset, **kwargs)
        self.failed_index = None

    def _restart(self, i: int, cause: BaseException, when: str) -> None:
        """Recreates env i, again and again if that fails; its observation is then the first of a new episode."""
        assert self._restarts is not None
        where = f'env {self._name!r}, index {i}'
        while True:
            self._restarts.note(f'{where}, {when}', cause)
            with env_call(where, CONSTRUCTION_CALLS):
                close_in_time({where: self.envs[i].close}, self._timeout)
            try:
                when = CONSTRUCTION
                with locate(made_at(self._name, i)):
                    env = with_quick_actions(self.env_fns[i]())  # type: ignore[index]
                if self._copies:
                    env = CopiedObservations(env)
                self.envs[i] = env
                for command in self.commands.values():
                    apply(self.envs[i], command)
                when = RESET
                self._reset_env(i, seed=restart_seed(self._seeds[i], self._restarts.count))
                return
            except STOPS:
                raise
            except BaseException as error:
                cause = error

    def _gathered(self) -> Any:
        """The observations of all envs as one batch; copies arrays of a Box itself, since `concatenate` takes longer."""
        if self._castable:
            shape = self.single_observation_space.shape
            out = self._observations
            for i, obs in enumerate(self._seen):
                if type(obs) is not np.ndarray or obs.shape != shape or obs.dtype not in self._castable:
                    break
                out[i] = obs
            else:
                return out
        try:
            self._observations = concatenate(self.single_observation_space, self._seen, self._observations)
        except RAW_ERRORS:
            for i, obs in enumerate(self._seen):
                self.failed_index = i
                check_obs(obs, self.single_observation_space)
            self.failed_index = None
            raise
        return self._observations


def _castable_dtypes(space: gymnasium.Space) -> set[np.dtype]:
    """The dtypes of observations that can be copied into those of a Box; none for other spaces."""
    if type(space) is not gymnasium.spaces.Box:
        return set()
    dtypes = map(np.dtype, '?bBhHiIlLqQefd')
    return {dtype for dtype in dtypes if np.can_cast(dtype, space.dtype, 'same_kind')}


class SingleEnvs(VectorEnv):
    """Envs that zoo makes one by one and steps in turn or in processes: they take commands and limit the time to close."""

    drops_entries = True
    env: Any
    _options: dict[str, Any] | None = None

    def request_infos(self, keys: Sequence[str]) -> None:
        super().request_infos(keys)
        self.env.request(self.requested_infos, self._options, 'info entries')

    def command(self, command: EnvCommand) -> list[Any]:
        outcomes: list[Any] = self.env.command(command)
        if command.kind == 'set':
            keep_setting(self.env.commands, command)
        return outcomes

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        if options is not None and not self.env.takes_options:
            raise UnsupportedEnvError(
                f'env.reset_options is set but the reset of {self.name!r} has no argument options; give it one, or leave '
                'env.reset_options out.'
            )
        self._options = options
        self.env.request(self.requested_infos, options, 'reset options')

    def close(self) -> None:
        self.env.close()
