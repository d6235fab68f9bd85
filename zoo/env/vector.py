"""A vector of envs that returns Timesteps, for any library, vectorization and autoreset mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from zoo.core.action_map import ActionMap, Actions
from zoo.core.data import BlockField, Obs, StepBlock, StepRow, Timestep, map_tensors
from zoo.core.spaces import ACTION_MASK, Dict, Leaf, Space, map_spaces, mask_space, obs_dtype
from zoo.env.adapter import convert_space
from zoo.env.attributes import EnvCommand, apply
from zoo.env.config import EnvConfig
from zoo.env.errors import (
    BROKEN,
    CALLS,
    EnvError,
    Place,
    UnsupportedEnvError,
    close_in_time,
    flag_array,
    n_action,
    not_finite_error,
    raise_if_contract,
    wrong_shape_error,
)
from zoo.env.families.family import RAW, RAW_END, RAW_REWARD
from zoo.env.masks import ChoiceCheck, mask_size, masked_space
from zoo.env.observations import obs_reader

BOOL = np.dtype(bool)
Autoreset = Literal['same_step', 'next_step', 'disabled']


class AnyVectorEnv(ABC):
    """B envs that step together: tensors in, Timesteps out.

    Attributes: n_env: B. steps_async: `send` begins a step that continues while other code runs. watched, info_columns:
      entries of single envs' infos, see `watch` and env.info_columns.
    """

    name: str
    n_env: int
    obs_space: Space
    action_space: Space
    autoreset: Autoreset
    is_tensor_program: ClassVar[bool] = False  # written in PyTorch: it has no infos, and steps on the policy's device
    steps_async: bool = False
    watched: tuple[str, ...] = ()
    info_columns: tuple[str, ...] = ()

    @abstractmethod
    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Start new episodes; returns their first observations [B, *O]. The same seed gives the same episodes."""

    @abstractmethod
    def step(self, action: Tensor) -> Timestep:
        """One step. action: as the policy made it, see `ActionMap`; the env is given a mapped copy.

        Raises: EnvContractError if an env returns what no step may, such as an observation of another shape; EnvError if a
          worker died or hung. What the env itself raises passes through, with a note.
        """

    @abstractmethod
    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        """Storage for n_step steps of `receive`, or for those of n_env envs, of which these are a part."""

    @abstractmethod
    def send(self, action: Tensor) -> None:
        """Begins a step, which `receive` ends. Takes and raises as `step`."""

    @abstractmethod
    def receive(self, block: StepBlock, t: int) -> dict[str, Any] | None:
        """Writes what the step returns into row t of a block; returns the info of the vector env, see `zoo.env.infos`."""

    @abstractmethod
    def watch(self, keys: Sequence[str]) -> None:
        """Entries of single envs' infos that the info of every step has from now on. Raises: UnsupportedEnvError."""

    @abstractmethod
    def command(self, command: EnvCommand) -> list[Any]:
        """What each env gives for a command; where all step as one batch, what that gives, one value.

        Raises: UserError, see `zoo.env.attributes.apply`.
        """

    @abstractmethod
    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        """The options of all resets from now on. Raises: UnsupportedEnvError if the envs take none."""

    def check(self) -> None:
        """Called once per rollout. Raises: EnvContractError for values that no step looked at when it was made."""

    def compile(self, compile: Callable[..., Any]) -> None:
        """Compiles the step of tensor programs into one program; of other envs there is nothing to compile."""

    def close(self) -> None:
        """End the envs and their processes; one that raises or hangs is a warning. May be called again."""


class VectorEnv(AnyVectorEnv):
    """B envs of any library on the CPU; every observation and reward is known to be finite."""

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        cfg: EnvConfig,
        name: str,
        one_seed: bool = False,
        reader: torch.device | None = None,
        first: int = 0,
    ) -> None:
        """
        Args:
          env: any gymnasium vector env that says its autoreset mode in its metadata. If its class says `steps_async`,
            `step_async` begins a step that continues asynchronously, and `step_wait` ends it.
          one_seed: its reset takes one int rather than one for each env.   reader: see `StepBlock`.
          first: index of its first env, where it is one of several groups.
        """
        self.name = name
        self.n_env: int = env.num_envs
        raw_space = convert_space(env.single_observation_space, 'observation', name)
        self.action_space = convert_space(env.single_action_space, 'action', name)
        self.obs_space = masked_space(raw_space, self.action_space, cfg.action_mask, name)
        self.autoreset = autoreset_name(env.metadata.get('autoreset_mode'))
        self._env = env
        self._one_seed = one_seed
        self._to_env = ActionMap(self.action_space, cfg.action_mode)
        self._place = Place(name)
        raw_mask = raw_space.spaces.get(ACTION_MASK) if isinstance(raw_space, Dict) else None
        raw_mask_shape = raw_mask.shape if raw_mask is not None and not isinstance(raw_mask, Dict) else ()
        self._reader: Any = obs_reader(self.obs_space, self.n_env, self._place, raw_mask_shape)
        self._choices = ChoiceCheck(self.action_space) if mask_space(self.obs_space) is not None else None
        self._finds_masks = cfg.action_mask == 'auto' and self._choices is None and mask_size(self.action_space) > 0
        self._has_raw = bool(env.metadata.get(RAW))
        self._device, self._first = reader, first
        self.steps_async: bool = vars(type(env)).get('steps_async', False)  # a subclass may have a step of its own
        self._called = None if getattr(env, 'keeps_deadlines', False) else self._place.of  # for the watch on calls
        self._closes_in_time, self._timeout = getattr(env, 'closes_in_time', False), cfg.step_timeout
        self._restarts = cfg.on_error == 'restart'
        self._ended = np.zeros(self.n_env, dtype=bool)
        self.info_columns = tuple(cfg.info_columns)
        self.watch(self.info_columns)

    def watch(self, keys: Sequence[str]) -> None:
        new = tuple(dict.fromkeys([*self.watched, *keys]))
        if new != self.watched and hasattr(self._env, 'watch'):  # batched envs gather all entries anyway
            self._env.watch(new)
        self.watched = new

    def command(self, command: EnvCommand) -> list[Any]:
        if hasattr(self._env, 'command'):
            found: list[Any] = self._env.command(command)
            return found
        return [apply(self._env, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        if not hasattr(self._env, 'set_reset_options'):
            raise UnsupportedEnvError(
                f'env.reset_options is set but {self.name!r} steps all its envs at once and resets them itself; use '
                'env.vectorization=sync where that env can be made alone, or env.kwargs.'
            )
        self._env.set_reset_options(options)

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Start new episodes; returns their first observations.

        Args:
          seed: env i (counted over all groups) is seeded from the i-th child of this sequence, the same whenever it is
            called; a batched env, which draws for all its envs together, from the child of the first of them.
        """
        seeds = _child_seeds(seed, self._first, self.n_env)
        self._ended = np.zeros(self.n_env, dtype=bool)
        self._place.step = 0
        try:
            raw, info = self._reset_envs(seed=seeds[0] if self._one_seed else seeds)
            obs = self._reader.read(raw)
            if ACTION_MASK in info:
                self._refuse_lost_mask('reset')
        except (Exception, SystemExit) as error:
            raise_if_contract(error, self._env, self.name, self._place.step)
            raise
        self._check_shape(obs, 'reset')
        self._reader.check(obs)
        if self._choices is not None:
            self._check_mask(obs[ACTION_MASK])
        return map_tensors(torch.from_numpy, obs)

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        def like(leaf: Leaf) -> Tensor:
            return torch.empty((n_env or self.n_env, *leaf.shape), dtype=obs_dtype(leaf))

        also: list[BlockField] = ['is_reset'] if self.autoreset == 'next_step' or self._restarts else []
        also += ['begins'] if self._restarts else []
        also += ['raw_reward', 'raw_end'] if self._has_raw else []
        return StepBlock(n_step, map_spaces(like, self.obs_space), also, arrays=True, reader=self._device)

    def step(self, action: Tensor) -> Timestep:
        """One step, in tensors of its own."""
        block = self.block(1)
        self.send(action)
        info = self.receive(block, 0)
        final_obs = final_index = None
        for _, index, obs in block.finals:
            final_obs, final_index = map_tensors(torch.from_numpy, obs), torch.from_numpy(index)
        row: dict[str, Any] = {name: map_tensors(lambda x: x[0], tree) for name, tree in block.columns().items()}
        return Timestep(**row, final_obs=final_obs, final_index=final_index, info=info)

    def send(self, action: Tensor) -> None:
        self._place.step += 1
        self._sent = self._to_env(action)
        if self.steps_async:
            try:
                self._env.step_async(self._sent)  # type: ignore[attr-defined]
            except (Exception, SystemExit) as error:
                self._explain(error)
                raise

    def receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        try:
            return self._write(block, t, self._sent)
        except (Exception, SystemExit) as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        if n_action(self._sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self._env, self.name, self._place.step)

    def close(self) -> None:
        if self._closes_in_time:
            self._env.close()
        else:
            close_in_time({f'env {self.name!r}': self._env.close}, self._timeout)

    def _reset_envs(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        CALLS.place = self._called
        try:
            return self._env.reset(**kwargs)
        finally:
            CALLS.place = CALLS.index = None
            CALLS.count += 1

    def _write(self, block: StepBlock, t: int, sent: Actions) -> dict[str, Any]:
        CALLS.place = self._called
        try:
            returned = self._env.step_wait() if self.steps_async else self._env.step(sent)  # type: ignore[attr-defined]
        finally:
            CALLS.place = CALLS.index = None
            CALLS.count += 1
        raw, env_reward, terminated, truncated, info = returned
        row, obs, reward = block.rows[t], self._reader.read(raw), np.asarray(env_reward)
        self._check_shape(obs, 'step')
        if not reward.shape == np.shape(terminated) == np.shape(truncated) == self._ended.shape:
            returned = {'rewards': reward, 'terminated': terminated, 'truncated': truncated}
            raise wrong_shape_error(self._place, self._ended.shape, returned)
        self._reader.write(row.obs, obs)
        row.reward[:] = reward
        if getattr(terminated, 'dtype', None) is not BOOL or getattr(truncated, 'dtype', None) is not BOOL:
            terminated, truncated = (
                flag_array(self._place, what, flags)
                for what, flags in (('terminated', terminated), ('truncated', truncated))
            )
        row.terminated[:], row.truncated[:] = terminated, truncated
        if row.is_reset is not None:
            row.is_reset[:] = self._ended
            if np.count_nonzero(self._ended):  # such a row is no transition: nothing was earned or ended in it
                row.reward[self._ended], row.terminated[self._ended], row.truncated[self._ended] = 0.0, False, False
        self._reader.check(row.obs, sent)
        if np.count_nonzero(np.isfinite(row.reward)) != self.n_env:
            raise not_finite_error(self._place, 'reward', row.reward, sent)
        if row.raw_reward is not None:
            self._write_raw(row, info)
        ended = row.terminated | row.truncated
        if self.autoreset == 'next_step':
            self._ended = ended
        elif np.count_nonzero(ended):
            index = ended.nonzero()[0]
            block.finals.append((t, index, self._begin_next(row, ended, index, info, sent)))
        if self._choices is not None:
            self._check_mask(row.obs[ACTION_MASK], ended if self.autoreset == 'next_step' else None)
        elif ACTION_MASK in info:
            self._refuse_lost_mask('step')
        if row.begins is not None:
            row.begins[:] = ended if self.autoreset != 'next_step' else row.is_reset
            if BROKEN in info:  # the row is no transition, and the trajectory ends with it
                broken = info[BROKEN]
                row.begins[broken] = row.is_reset[broken] = row.truncated[broken] = True
        return info

    def _begin_next(
        self, row: StepRow, ended: np.ndarray, index: np.ndarray, info: dict[str, Any], sent: Actions
    ) -> Any:
        """The true last observations [K, *O] of the episodes that ended, with the first of the next ones in the row."""
        if self.autoreset == 'same_step':
            final = self._reader.final(info['final_obs'], index)
            self._reader.check(final, sent, index)
        else:
            final = self._reader.take(row.obs, index)
            raw, _ = self._reset_envs(options={'reset_mask': ended})
            obs = self._reader.read(raw)
            self._check_shape(obs, 'step')
            self._reader.write(row.obs, obs)
            self._reader.check(row.obs, sent)
        if self._choices is not None:
            self._check_mask(final[ACTION_MASK], np.ones(len(index), dtype=bool))
        return final

    def _check_mask(self, mask: np.ndarray, ended: np.ndarray | None = None) -> None:
        """Raises if an env leaves nothing to choose. At the end of an episode, where nobody acts, all becomes true."""
        assert self._choices is not None
        empty = self._choices.empty(mask)
        if ended is not None and np.count_nonzero(empty):
            mask[empty & ended] = True
            empty &= ~ended
        if np.count_nonzero(empty):
            index = int(np.flatnonzero(empty)[0])
            raise self._place.error(index, *self._choices.fault(mask[index]))

    def _refuse_lost_mask(self, call: str) -> None:
        """Raises if masks that env.action_mask=auto should find are in an info; that of a whole vector is not read."""
        if self._finds_masks:
            raise UnsupportedEnvError(
                f'env {self.name!r}: the info of {call} has {ACTION_MASK!r}, but of envs that step as one batch only an '
                f'entry {ACTION_MASK!r} of the observations is read; give them one, or use env.vectorization=sync if '
                'that env can be made alone, or env.action_mask=off.'
            )

    def _write_raw(self, row: StepRow, info: dict[str, Any]) -> None:
        """The game's own rewards and ends, none of them in rows that are only a reset."""
        row.raw_reward[:], row.raw_end[:] = info[RAW_REWARD], info[RAW_END]
        if row.is_reset is not None:
            row.raw_reward[row.is_reset], row.raw_end[row.is_reset] = 0.0, False

    def _check_shape(self, obs: Any, call: str) -> None:
        fault = self._reader.misfit(obs)
        if fault is not None:
            got, wanted = fault
            do = 'make them fit its single_observation_space'
            raise self._place.error(None, f'{call} returned {got}', wanted, do)


AUTORESET_NAMES: dict[object, Autoreset] = {
    AutoresetMode.SAME_STEP: 'same_step',
    AutoresetMode.NEXT_STEP: 'next_step',
    AutoresetMode.DISABLED: 'disabled',
}


def autoreset_name(mode: object) -> Autoreset:
    """The config's name of gymnasium's autoreset mode. Raises: EnvError."""
    if mode not in AUTORESET_NAMES:
        raise EnvError(
            f"metadata['autoreset_mode'] of the vector env is {mode!r}; "
            'set it to one of gymnasium.vector.AutoresetMode.'
        )
    return AUTORESET_NAMES[mode]


def _child_seeds(seed: np.random.SeedSequence | int, first: int, n: int) -> list[int]:
    """One 31-bit int (some simulators take no more) for each of `n` children of a seed sequence, from `first` on."""
    parent = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    # spawn() would count up, and give other children the next time
    children = (
        np.random.SeedSequence(parent.entropy, spawn_key=(*parent.spawn_key, i), pool_size=parent.pool_size)
        for i in range(first, first + n)
    )
    return [int(child.generate_state(1)[0]) >> 1 for child in children]
