"""Envs that step one after the other in this process.

Of the infos that they return only the last observations and numbers of ended episodes are kept, and what `watch` names: to
merge all of them takes longer than a step of a small env.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy, deepcopy
from functools import partial
from threading import get_ident
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import concatenate, iterate

from zoo.config.section import own_copy
from zoo.core.action_map import Actions
from zoo.env.adapter import takes_options
from zoo.env.attributes import EnvCommand, apply
from zoo.env.errors import (
    BROKEN,
    CALLS,
    CONSTRUCTION,
    CONSTRUCTION_CALLS,
    FLAGS,
    RAW_ERRORS,
    RESET,
    BrokenContractError,
    Place,
    Restarts,
    Seeds,
    UnsupportedEnvError,
    as_flag,
    check_n_action,
    check_obs,
    check_result,
    check_spaces,
    checked_call,
    close_in_time,
    env_call,
    locate,
    made_at,
    raise_if_broken,
    restart_seed,
    seeds_of,
)
from zoo.env.infos import FINAL_INFO, FINAL_OBS, add_watched, numbers_of, watched_of
from zoo.env.vector import VectorEnv


class SerialVectorEnv(SyncVectorEnv):
    """A SyncVectorEnv with a shorter loop, without copies: the overhead of gymnasium's is half a step of Pendulum.

    Args: restarts: counts envs that raise and are made anew; None: what they raise passes through.
      timeout: seconds that the envs may take to close.
    Attributes: failed_index: the env whose reset or step raised, or returned what no env may. commands: those that an env
      that is made anew gets, by the attributes that they set.
    """

    failed_index: int | None = None
    closed = True  # until its envs are made: gymnasium 1.1 closes what is forgotten

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        autoreset_mode: AutoresetMode,
        name: str,
        restarts: Restarts | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._name, self._restarts, self._timeout = name, restarts, timeout
        made = self.envs = []  # so that those are closed that were made before one that cannot be
        try:
            for i, env_fn in enumerate(env_fns):
                with locate(made_at(name, i)):
                    made.append(env_fn())
                check_spaces(made[i], (made[0].observation_space, made[0].action_space))
            give = [partial(made.__getitem__, i) for i in range(len(made))]
            super().__init__(give, copy=False, autoreset_mode=autoreset_mode)
        except BaseException as error:
            self.close_extras()
            if isinstance(error, BrokenContractError):
                raise Place(name).error(len(made) - 1, *error.args) from error
            raise
        self.closed, self.env_fns = False, env_fns
        self.metadata = {**self.metadata, 'autoreset_mode': autoreset_mode}
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._next_step = autoreset_mode == AutoresetMode.NEXT_STEP
        nested = gymnasium.spaces.Dict | gymnasium.spaces.Tuple
        self._has_nested_actions = isinstance(self.single_action_space, nested)
        self._copy = deepcopy if isinstance(self.single_observation_space, nested) else copy
        self._seen: list[Any] = [None] * self.num_envs  # the observations
        # of which number types observations may be copied into those of a Box; none for other spaces
        space: Any = self.single_observation_space
        dtypes = map(np.dtype, '?bBhHiIlLqQefd') if type(space) is gymnasium.spaces.Box else ()
        self._castable = {dtype for dtype in dtypes if np.can_cast(dtype, space.dtype, 'same_kind')}
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._step_count = 0
        self._watched: tuple[str, ...] = ()
        self._reset_kwargs: dict[str, Any] = {}  # options
        self.commands: dict[str, EnvCommand] = {}

    @property
    def takes_options(self) -> bool:
        """Whether their resets read options."""
        return takes_options(self.envs[0])

    def want(self, watched: tuple[str, ...], options: dict[str, Any] | None, what: str) -> None:
        """Entries of the infos that every step gives, and the options of all resets, from now on. what: is new."""
        self._watched, self._reset_kwargs = watched, {} if options is None else {'options': options}

    def command(self, command: EnvCommand) -> list[Any]:
        return [apply(env, command) for env in self.envs]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """options: {'reset_mask': [B] bool}, the envs to reset; None: all."""
        self.failed_index = None
        mask = (options or {}).get('reset_mask', np.ones(self.num_envs, dtype=bool))
        seeds = seeds_of(seed, self.num_envs)
        self._seeds = self._seeds if seed is None else seeds
        for i in np.flatnonzero(mask).tolist():
            try:
                self._reset_env(i, seed=seeds[i])
            except (Exception, SystemExit) as error:
                if self._restarts is None:
                    raise
                self._restart(i, error, f'the reset after step {self._step_count}')
        self._ended = self._ended & ~mask
        self._step_count = self._step_count if options else 0
        return self._gathered(), {}

    def step(self, actions: Actions) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        check_n_action(actions, self.num_envs)
        each = list(iterate(self.action_space, actions)) if self._has_nested_actions else actions
        self._step_count += 1
        infos: dict[str, Any] = {}
        self._step_envs(each, infos)
        self._ended = self._terminations | self._truncations
        return self._gathered(), self._rewards, self._terminations, self._truncations, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all envs; one that raises or hangs is a warning."""
        places = {f'env {self._name!r}, index {i}': env.close for i, env in enumerate(self.envs)}
        close_in_time(places, self._timeout)

    def _step_envs(self, each: Iterable[Any], infos: dict[str, Any]) -> None:
        """Steps all envs. The episode of one that raises and is made anew broke off, unless it is complete."""
        seen, rewards, terminated, truncated = self._seen, self._rewards, self._terminations, self._truncations
        result: tuple[Any, ...] | None = None
        calls, is_complete = CALLS[get_ident()], False  # complete: its env is being reset
        for i, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            calls.index = i
            try:
                if self._next_step and self._ended[i]:
                    self._reset_env(i)
                    rewards[i], terminated[i], truncated[i] = 0.0, False, False
                    continue
                result = seen[i], rewards[i], is_over, is_cut, info = env.step(action)
                if type(is_over) not in FLAGS or type(is_cut) not in FLAGS:
                    is_over, is_cut = as_flag('terminated', is_over), as_flag('truncated', is_cut)
                if not isinstance(info, dict):
                    check_result(result, self.single_observation_space)
                terminated[i], truncated[i] = is_over, is_cut
                if self._watched:
                    add_watched(infos, watched_of(self._watched, info), i, self.num_envs)
                if (is_over or is_cut) and info:
                    infos.setdefault(FINAL_INFO, np.full(self.num_envs, None, dtype=object))[i] = numbers_of(info)
                if self._same_step and (is_over or is_cut):
                    finals = infos.setdefault(FINAL_OBS, np.full(self.num_envs, None, dtype=object))
                    finals[i] = self._copy(seen[i])  # the reset may write into it
                    is_complete = True
                    self._reset_env(i)
                    is_complete = False
            except (Exception, SystemExit) as error:
                self.failed_index = i
                raise_if_broken(error, 'step', result, self.single_observation_space)
                if self._restarts is None:
                    raise
                step = f'step {self._step_count}'
                self._restart(i, error, f'the reset after {step}' if is_complete else step)
                if not is_complete:
                    rewards[i], terminated[i], truncated[i] = 0.0, False, False
                    infos.setdefault(BROKEN, np.zeros(self.num_envs, dtype=bool))[i] = True
                result, is_complete = None, False

    def _reset_env(self, i: int, **kwargs: Any) -> None:
        calls = CALLS[get_ident()]
        self.failed_index = calls.index = i
        calls.count += 1
        kwargs |= own_copy(self._reset_kwargs)
        self._seen[i], _ = checked_call('reset', self.single_observation_space, self.envs[i].reset, **kwargs)
        self.failed_index = None

    def _restart(self, i: int, cause: BaseException, when: str) -> None:
        """Make env i anew, and again if that fails; its observation is then the first of a new episode."""
        assert self._restarts is not None
        where = f'env {self._name!r}, index {i}'
        while True:
            self._restarts.note(f'{where}, {when}', cause)
            with env_call(where, CONSTRUCTION_CALLS):
                close_in_time({where: self.envs[i].close}, self._timeout)
            try:
                when = CONSTRUCTION
                with locate(made_at(self._name, i)):
                    self.envs[i] = self.env_fns[i]()  # type: ignore[index]
                for command in self.commands.values():
                    apply(self.envs[i], command)
                when = RESET
                self._reset_env(i, seed=restart_seed(self._seeds[i], self._restarts.count))
                return
            except (Exception, SystemExit) as error:
                cause = error

    def _gathered(self) -> Any:
        """The observations of all envs as one; arrays of a Box are copied here, `concatenate` takes longer."""
        if self._castable:
            shape, out = self.single_observation_space.shape, self._observations
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


class SingleEnvs(VectorEnv):
    """Envs that zoo makes one by one and steps in turn or in processes: they take commands, and close in time."""

    env: Any
    _options: dict[str, Any] | None = None

    def watch(self, keys: Sequence[str]) -> None:
        super().watch(keys)
        self.env.want(self.watched, self._options, 'info entries')

    def command(self, command: EnvCommand) -> list[Any]:
        found: list[Any] = self.env.command(command)
        if command.kind == 'set':
            self.env.commands[command.name] = command
        return found

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        if options is not None and not self.env.takes_options:
            raise UnsupportedEnvError(
                f'env.reset_options is set but the reset of {self.name!r} has no argument options; give it one, or leave '
                'env.reset_options out.'
            )
        self._options = options
        self.env.want(self.watched, options, 'reset options')

    def close(self) -> None:
        self.env.close()
