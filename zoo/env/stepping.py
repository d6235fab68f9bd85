"""Steps the B envs of a gymnasium vector env on the CPU: reads and checks their results, and writes them to a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import MultiDiscrete
from torch import Tensor

from zoo.core.data import Obs
from zoo.core.errors import of_entry
from zoo.core.spaces import ACTION_MASK, Leaf, Raw
from zoo.env.errors import (
    CALLS,
    STOPS,
    Place,
    flag_array,
    lost_mask_error,
    n_action,
    not_finite_error,
    raise_if_contract,
    shapes_error,
)
from zoo.env.interface import AnyVectorEnv, BlockField, StepBlock, StepRow
from zoo.env.obs_bounds import BoundsWatch

BOOL = np.dtype(bool)


class RowRule:
    """Hooks for a property of the envs or the config that changes rows of a block, such as autoreset; see `zoo.env.rows`."""

    columns: tuple[BlockField, ...] = ()  # the optional fields of Timestep that it writes

    def on_reset(self, obs: Any) -> None:
        """Called with the first observations of all envs."""

    def on_write(self, row: StepRow) -> None:
        """Called after a row was written, before its values are checked."""

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        """Called after row t was written and checked; info: of the vector env."""


class NextStep(RowRule):
    """Rule for the autoreset of most batched envs: the next step only resets an ended env, and its row is no transition."""

    columns = ('is_reset',)
    _ended: np.ndarray | bool = False

    def on_reset(self, obs: Any) -> None:
        self._ended = False

    def on_write(self, row: StepRow) -> None:
        row.is_reset[:] = self._ended
        if np.count_nonzero(self._ended):  # such a row has no reward and no end
            row.reward[self._ended] = 0.0
            row.terminated[self._ended] = False
            row.truncated[self._ended] = False

    def on_step(self, env: RowVectorEnv, block: StepBlock, t: int, info: dict[str, Any]) -> None:
        self._ended = block.rows[t].terminated | block.rows[t].truncated


class ArrayReader:
    """Reads observations of one leaf as float32; the readers of other kinds, and of Dict spaces, are in `zoo.env.rows`."""

    def __init__(self, space: Leaf, n_env: int, path: str, place: Place) -> None:
        self._shape = n_env, *space.shape
        self._path = path
        self._place = place

    def read(self, raw: Raw) -> Obs:
        """Converts observations of all or some envs to zoo's dtype; no copy if they have it already."""
        return np.asarray(raw, dtype=np.float32)

    def fit(self, obs: Obs, call: str) -> None:
        """Checks the shape of the observations of all envs, which `call` returned. Raises: EnvContractError."""
        if obs.shape != self._shape:
            got = f'{call} returned observations{of_entry(self._path)} of shape {obs.shape}'
            raise self._place.error(None, got, str(self._shape), 'make them fit its single_observation_space')

    def write(self, row: Obs, obs: Obs) -> None:
        """Copies the observations of all envs to a row of a block."""
        row[...] = obs

    def check(self, obs: Obs, sent: Raw = None, index: np.ndarray | None = None) -> None:
        """Checks the values of observations. Raises: EnvError that names the first env with an invalid value.

        Args: sent: the actions that led to them; index: the env of each row, None: all envs.
        """
        if np.count_nonzero(np.isfinite(obs)) != obs.size:
            raise not_finite_error(self._place, f'observation{of_entry(self._path)}', obs, sent, index)


class RowVectorEnv(AnyVectorEnv):
    """The steps of a vector env, by given readers and rules; `zoo.env.vector.VectorEnv` chooses and resets them.

    Attributes: env: the gymnasium vector env. reader: of the observations. sent: the last actions, as the envs got them.
    """

    env: gymnasium.vector.VectorEnv
    reader: ArrayReader
    _place: Place  # its name and step, which the reader shares
    _rules: Sequence[RowRule]
    _to_env: Callable[[Tensor], Any]  # makes a copy of the policy's actions, as the envs take them
    _refuses_masks: bool  # masks in an info are an error
    _bounds: BoundsWatch | None = None
    _called: Callable[[int | None], str] | None  # the place for the watch on calls; None: not watched

    def send(self, action: Tensor) -> None:
        self._place.step += 1
        self.sent = self._to_env(action)
        if self.steps_async:
            try:
                self.env.step_async(self.sent)  # type: ignore[attr-defined]
            except STOPS:
                raise
            except BaseException as error:
                self._explain(error)
                raise

    def receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        try:
            return self._receive(block, t)
        except STOPS:
            raise
        except BaseException as error:
            self._explain(error)
            raise

    def _receive(self, block: StepBlock, t: int) -> dict[str, Any]:
        if self.steps_async:
            returned = self._call(self.env.step_wait)  # type: ignore[attr-defined]
        else:
            returned = self._call(self.env.step, self.sent)
        raw, env_reward, terminated, truncated, info = returned
        row = block.rows[t]
        obs = self.reader.read(raw)
        reward = np.asarray(env_reward)
        self.reader.fit(obs, 'step')
        if getattr(terminated, 'dtype', None) is not BOOL or getattr(truncated, 'dtype', None) is not BOOL:
            terminated = flag_array(self._place, 'terminated', terminated)
            truncated = flag_array(self._place, 'truncated', truncated)
        if not reward.shape == terminated.shape == truncated.shape == row.reward.shape:
            raise shapes_error(self._place, self.n_env, rewards=reward, terminated=terminated, truncated=truncated)
        self.reader.write(row.obs, obs)
        row.reward[:] = reward
        row.terminated[:] = terminated
        row.truncated[:] = truncated
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
        """Resets envs; returns the first observations and the info. call: 'reset' or 'step', for error messages."""
        raw, info = self._call(self.env.reset, **kwargs)
        obs = self.reader.read(raw)
        self.reader.fit(obs, call)
        return obs, info

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the code of the envs and records the call for the watch on calls."""
        calls = CALLS[get_ident()]
        calls.place = self._called
        try:
            return method(*args, **kwargs)
        finally:
            calls.place = None
            calls.index = None
            calls.count = calls.count + 1

    def _explain(self, error: BaseException) -> None:
        if n_action(self.sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self.env, self._place)

    def check(self, block: StepBlock | None = None) -> None:
        """Compares the observations of a rollout with their bounds; every step has checked all else."""
        if block is not None and self._bounds is not None:
            self._bounds.see(block.steps.obs)


def copied_index(action: Tensor) -> np.ndarray:
    """Copies actions [B] of a Discrete space of int64 that starts at 0; a copy, since the policy overwrites them in the next step."""
    array = action.numpy(force=True)
    return array.astype(array.dtype if array.dtype.kind == 'f' else np.int64)  # floats stay: an env may refuse them


class QuickMultiDiscrete(MultiDiscrete):
    """A MultiDiscrete whose `contains` is faster for arrays of its own dtype; all else is the same."""

    def __init__(self, space: MultiDiscrete) -> None:
        vars(self).update(vars(space))  # its random stream too
        self._last = self.start + (self.nvec - 1)

    def contains(self, x: object) -> bool:
        """Whether x is an array of actions in the space."""
        if type(x) is np.ndarray and x.dtype == self.dtype and x.shape == self.shape:
            return not np.count_nonzero((x < self.start) | (x > self._last))
        return super().contains(x)
