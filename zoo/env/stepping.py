"""B envs of one gymnasium vector env, stepped on the CPU: what they return is read, checked, and written to a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete
from torch import Tensor

from zoo.core.data import BlockField, Obs, StepBlock, StepRow, map_tensors
from zoo.core.errors import of_entry
from zoo.core.seeding import child_seeds
from zoo.core.spaces import ACTION_MASK, Leaf, Raw, Space, map_spaces, obs_dtype
from zoo.env.errors import (
    CALLS,
    Place,
    UnsupportedEnvError,
    bad_obs,
    close_in_time,
    flag_array,
    lost_mask_error,
    n_action,
    not_finite_error,
    raise_if_contract,
)
from zoo.env.interface import AnyVectorEnv, autoreset_of

if TYPE_CHECKING:
    from zoo.env.attributes import EnvCommand

BOOL = np.dtype(bool)


class RowRule:
    """Something that envs or the config add to the rows of a block, such as an autoreset mode; see `zoo.env.rows`.

    Attributes: columns: the optional fields of Timestep that it writes.
    """

    columns: tuple[BlockField, ...] = ()

    def on_reset(self, obs: Any) -> None:
        """Called with the first observations of all envs."""

    def on_write(self, row: StepRow) -> None:
        """Called when a row was written, before its values are checked."""

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        """Called when row t was written and checked; info: of the vector env."""


class NextStep(RowRule):
    """Autoreset as of most batched envs: an ended episode is reset by the next step, whose row is no transition."""

    columns = ('is_reset',)
    _ended: np.ndarray | bool = False

    def on_reset(self, obs: Any) -> None:
        self._ended = False

    def on_write(self, row: StepRow) -> None:
        row.is_reset[:] = self._ended
        if np.count_nonzero(self._ended):  # nothing was earned or ended in such a row
            row.reward[self._ended], row.terminated[self._ended], row.truncated[self._ended] = 0.0, False, False

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        self._ended = block.rows[t].terminated | block.rows[t].truncated


class ArrayReader:
    """Reads observations of one leaf as float32; the readers of other kinds, and of Dict spaces, are subclasses."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        self._shape = n_env, *space.shape
        self._raw_shape: tuple[int, ...] = space.shape  # of one env, as the env gives it
        self._path, self._place = path, place

    def read(self, raw: Raw) -> Obs:
        """What the envs returned, or what some of them did, in zoo's dtype; without a copy where it has it already."""
        return np.asarray(raw, dtype=np.float32)

    def fit(self, obs: Obs, call: str) -> None:
        """Raises: EnvContractError if the observations of all envs, which `call` returned, have a wrong shape."""
        if obs.shape != self._shape:
            got = f'{call} returned observations{of_entry(self._path)} of shape {obs.shape}'
            raise self._place.error(None, got, str(self._shape), 'make them fit its single_observation_space')

    def write(self, row: Obs, obs: Obs) -> None:
        """Copies the observations of all envs to a row of a block."""
        row[...] = obs

    def check(self, obs: Obs, sent: Raw = None, index: np.ndarray | None = None) -> None:
        """Raises: EnvError that names the first env whose values cannot be.

        Args: sent: the actions that led to them; index: which envs they are of, None: all.
        """
        if np.count_nonzero(np.isfinite(obs)) != obs.size:
            raise not_finite_error(self._place, f'observation{of_entry(self._path)}', obs, sent, index)

    def take(self, row: Obs, index: np.ndarray) -> Obs:
        """A copy of the observations of some envs."""
        return row[index]

    def final(self, raw: Raw, index: np.ndarray) -> Obs:
        """The last observations of some envs: raw is one array for all, or an array of objects (gymnasium)."""
        rows = raw[index]
        return self.stack(list(rows), index) if rows.dtype == object else self.read(rows)

    def stack(self, rows: Sequence[Raw], index: np.ndarray) -> Obs:
        """The same of one array for each of some envs, which nothing has looked at yet."""
        for i, row in zip(index, rows, strict=True):
            if row is None or np.shape(row) != self._raw_shape:
                raise self._place.error(int(i), *bad_obs(row, self._raw_shape, self._path))
        return self.read(np.stack(rows))


class RowVectorEnv(AnyVectorEnv):
    """Steps envs and reads their rows with given readers and rules; `zoo.env.vector.VectorEnv` chooses them.

    Attributes: env: all envs in one. reader: of the observations. sent: the actions of the last step, as the envs got them.
      watches_calls: that a call does not return is for the watch on calls to see.
    """

    watches_calls: ClassVar[bool] = True

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        place: Place,
        spaces: tuple[Space, Space],
        reader: ArrayReader,
        to_env: Callable[[Tensor], Any],
        rules: Sequence[RowRule],
        one_seed: bool = False,
        device: torch.device | None = None,
        first: int = 0,
        timeout: float = 60.0,
        info_columns: Sequence[str] = (),
        refuses_masks: bool = False,
    ) -> None:
        """
        Args:
          place: its name and step, which the reader shares. spaces: of observations and actions. to_env: makes a copy of
            the policy's actions, as the envs take them. refuses_masks: that an info has masks is an error.
        """
        self.name, self._place = place.name, place
        self.n_env: int = env.num_envs
        self.obs_space, self.action_space = spaces
        self.autoreset = autoreset_of(env)
        self.reader, self._to_env, self._rules = reader, to_env, rules
        self.env, self._one_seed, self._device, self._first = env, one_seed, device, first
        self._refuses_masks = refuses_masks
        self.steps_async: bool = vars(type(env)).get('steps_async', False)  # a subclass may have a step of its own
        self._called = place.of if self.watches_calls else None
        self._timeout = timeout
        self.info_columns = tuple(info_columns)
        self.watch(self.info_columns)

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Start new episodes; returns their first observations.

        Args:
          seed: env i (counted over all groups) is seeded from the i-th child of this sequence, the same whenever it is
            called; a batched env, which draws for all its envs together, from the child of the first of them.
        """
        seeds = child_seeds(seed, self._first, self.n_env)
        self._place.step = 0
        try:
            obs, info = self.reset_envs('reset', seed=seeds[0] if self._one_seed else seeds)
            if self._refuses_masks and ACTION_MASK in info:
                raise lost_mask_error(self.name, 'reset')
        except (Exception, SystemExit) as error:
            raise_if_contract(error, self.env, self.name, self._place.step)
            raise
        self.reader.check(obs)
        for rule in self._rules:
            rule.on_reset(obs)
        return map_tensors(torch.tensor, obs)  # a copy: the envs may write into theirs with the next step

    def send(self, action: Tensor) -> None:
        self._place.step += 1
        self.sent = self._to_env(action)
        if self.steps_async:
            try:
                self.env.step_async(self.sent)  # type: ignore[attr-defined]
            except (Exception, SystemExit) as error:
                self._explain(error)
                raise

    def receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        try:
            return self._receive(block, t)
        except (Exception, SystemExit) as error:
            self._explain(error)
            raise

    def _receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        returned = self._call(self.env.step_wait) if self.steps_async else self._call(self.env.step, self.sent)  # type: ignore[attr-defined]
        raw, env_reward, terminated, truncated, info = returned
        row, obs, reward = block.rows[t], self.reader.read(raw), np.asarray(env_reward)
        self.reader.fit(obs, 'step')
        if not reward.shape == np.shape(terminated) == np.shape(truncated) == row.reward.shape:
            given = {'rewards': np.shape(reward), 'terminated': np.shape(terminated), 'truncated': np.shape(truncated)}
            what, shape = next(pair for pair in given.items() if pair[1] != row.reward.shape)
            do = f'return one {"float" if what == "rewards" else "bool"} for each env'
            raise self._place.error(None, f'step returned {what} of shape {shape}', str(row.reward.shape), do)
        if getattr(terminated, 'dtype', None) is not BOOL or getattr(truncated, 'dtype', None) is not BOOL:
            terminated = flag_array(self._place, 'terminated', terminated)
            truncated = flag_array(self._place, 'truncated', truncated)
        self.reader.write(row.obs, obs)
        row.reward[:], row.terminated[:], row.truncated[:] = reward, terminated, truncated
        for rule in self._rules:
            rule.on_write(row)
        self.reader.check(row.obs, self.sent)
        if np.count_nonzero(np.isfinite(row.reward)) != self.n_env:
            raise not_finite_error(self._place, 'reward', row.reward, self.sent)
        for rule in self._rules:
            rule.on_step(self, block, t, info)
        if self._refuses_masks and ACTION_MASK in info:
            raise lost_mask_error(self.name, 'step')
        return info

    def reset_envs(self, call: str, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The first observations of new episodes, and the info. call: who wants them, for errors."""
        raw, info = self._call(self.env.reset, **kwargs)
        obs = self.reader.read(raw)
        self.reader.fit(obs, call)
        return obs, info

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the code of the envs, in sight of the watch on calls."""
        calls = CALLS[get_ident()]
        calls.place = self._called
        try:
            return method(*args, **kwargs)
        finally:
            calls.place, calls.index, calls.count = None, None, calls.count + 1

    def _explain(self, error: BaseException) -> None:
        if n_action(self.sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self.env, self.name, self._place.step)

    def check(self) -> None:
        """Nothing to do: every step looks at its values."""

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        def like(leaf: Leaf) -> Tensor:
            return torch.empty((n_env or self.n_env, *leaf.shape), dtype=obs_dtype(leaf))

        also = [name for rule in self._rules for name in rule.columns]
        return StepBlock(n_step, map_spaces(like, self.obs_space), also, arrays=True, reader=self._device)

    def watch(self, keys: Sequence[str]) -> None:
        self.watched = tuple(dict.fromkeys([*self.watched, *keys]))  # batched envs gather all entries anyway

    def command(self, command: EnvCommand) -> list[Any]:
        from zoo.env.attributes import apply

        return [apply(self.env, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        raise UnsupportedEnvError(
            f'env.reset_options is set but {self.name!r} steps all its envs at once and resets them itself; use '
            'env.vectorization=sync where that env can be made alone, or env.kwargs.'
        )

    def close(self) -> None:
        close_in_time({f'env {self.name!r}': self.env.close}, self._timeout)


def copied_index(action: Tensor) -> np.ndarray:
    """Choices [B] as an env takes them where they count from 0: a copy, since the policy writes the next ones over them."""
    array = action.detach().cpu().numpy()
    return array.astype(array.dtype if array.dtype.kind == 'f' else np.int64)  # an env may refuse floats, if it is told


class QuickMultiDiscrete(MultiDiscrete):
    """A MultiDiscrete that looks at arrays of its own number type more quickly; all else is the same."""

    def __init__(self, space: MultiDiscrete) -> None:
        vars(self).update(vars(space))  # its random stream too
        self._last = self.start + (self.nvec - 1)

    def contains(self, x: object) -> bool:
        """Whether x is an array [B] of actions that the space has."""
        if type(x) is np.ndarray and x.dtype == self.dtype and x.shape == self.shape:
            return not np.count_nonzero((x < self.start) | (x > self._last))
        return super().contains(x)
