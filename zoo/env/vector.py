"""The public vector env: a gymnasium vector env with the reader and rules that its config needs; resets, settings, closing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs, map_tensors
from zoo.core.seeding import child_seeds
from zoo.core.spaces import ACTION_MASK, Dict, Discrete, Leaf, Space, map_spaces, mask_size, mask_space, obs_dtype
from zoo.env.adapter import convert_space
from zoo.env.calls import CALLS
from zoo.env.closing import close_in_time
from zoo.env.config import EndsConfig, EnvConfig
from zoo.env.entry_names import NamedVectorEnv, has_other_keys
from zoo.env.errors import STOPS, Place, UnsupportedEnvError
from zoo.env.infos import RAW
from zoo.env.interface import AnyVectorEnv, EnvCommand, StepBlock, autoreset_of
from zoo.env.obs_bounds import BoundsWatch
from zoo.env.readers import ArrayReader, obs_reader
from zoo.env.rules import AUTORESET_RULES, BrokenEpisodes, Ends, Masks, RawRewards, RowRule
from zoo.env.validation import flag_array, lost_mask_error, n_action, not_finite_error, raise_if_contract, shapes_error

BOOL = np.dtype(bool)


class VectorEnv(AnyVectorEnv):
    """B envs of any library on the CPU; every observation and reward is checked to be finite.

    Attributes: env: the gymnasium vector env. reader: of the observations. sent: the last actions, as the envs got them.
      to_env: copies the policy's actions into the form that the envs take.
      drops_entries: whether the envs themselves leave out the entries of env.drop_obs.
    """

    drops_entries = False
    sent: Any
    _bounds: BoundsWatch | None = None
    _called: Callable[[int | None], str] | None  # the place for the watch on calls; None: not watched

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
          env: any gymnasium vector env with its autoreset mode in its metadata. If its class sets `steps_async`,
            `step_async` begins a step that continues asynchronously, and `step_wait` ends it. If it sets `has_deadlines`, no
            call of it lasts for ever, and the watch on calls (EnvWatch) leaves it alone.
          one_seed: its reset takes one int rather than one for each env.   reader: the GPU that reads its rows, if one does.
          first: index of its first env, if it is one of several groups.
        """
        if has_other_keys(env):
            env = NamedVectorEnv(env, name)
        self.env = env
        self.name = name
        self.n_env = env.num_envs
        raw_space = self._kept_space(cfg)
        self.action_space = convert_space(env.single_action_space, 'action', name)
        self.obs_space = seen_space(raw_space, self.action_space, cfg.action_mask, name)
        self.autoreset = autoreset_of(env, cfg.autoreset)
        self._place = Place(name, restarts=cfg.on_error == 'restart')
        has_masks = mask_space(self.obs_space) is not None
        self.reader = self._make_reader(raw_space)
        self._rules = self._make_rules(cfg, has_masks)
        self._on_write = [rule.on_write for rule in self._rules if type(rule).on_write is not RowRule.on_write]
        self._on_step = [rule.on_step for rule in self._rules if type(rule).on_step is not RowRule.on_step]
        self.to_env = _to_env(self.action_space, cfg)
        self._one_seed = one_seed
        self._device = reader
        self._first = first
        self._timeout = cfg.step_timeout
        self._refuses_masks = cfg.action_mask == 'auto' and not has_masks and mask_size(self.action_space) > 0
        self.steps_async = vars(type(env)).get('steps_async', False)  # not inherited: a subclass may change step
        self._called = self._place.of
        if vars(type(env)).get('has_deadlines', False):
            self._called = None
        self.info_columns = tuple(cfg.info_columns)
        if cfg.check:
            self._bounds = BoundsWatch(self.obs_space, name, warns=first == 0)  # one group speaks for all
        self.request_infos(self.info_columns)

    def _kept_space(self, cfg: EnvConfig) -> Space:
        """The space of the observations that are read: without the entries of env.drop_obs."""
        space = self.env.single_observation_space
        if not cfg.drop_obs or self.drops_entries:
            return convert_space(space, 'observation', self.name)
        from zoo.env.entries import kept_space

        return kept_space(space, cfg.drop_obs, self.name)

    def _make_reader(self, raw_space: Space) -> ArrayReader:
        raw_mask = None
        if isinstance(raw_space, Dict):
            raw_mask = raw_space.spaces.get(ACTION_MASK)
        return obs_reader(self.obs_space, self.n_env, self._place, getattr(raw_mask, 'shape', ()))

    def _make_rules(self, cfg: EnvConfig, has_masks: bool) -> list[RowRule]:
        """The rules in the order in which they process a row: ends, autoreset, raw rewards, masks, broken-off episodes."""
        rules: list[RowRule] = []
        if cfg.ends != EndsConfig():
            rules.append(Ends(cfg.ends, self.name, self.autoreset))
        rules.append(AUTORESET_RULES[self.autoreset]())
        if self.env.metadata.get(RAW):
            rules.append(RawRewards())
        is_next = self.autoreset == 'next_step'
        if has_masks:
            rules.append(Masks(self.action_space, self._place, shows_ends=is_next))
        if cfg.on_error == 'restart':
            rules.append(BrokenEpisodes(resets_are_marked=is_next))
        return rules

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Starts new episodes; returns their first observations.

        Args: seed: its i-th child seeds env i (counted over all groups), with the same seed in every call. A batched env that
          draws for all its envs together is seeded from the child of its first env.
        """
        seeds = child_seeds(seed, self._first, self.n_env)
        self._place.step = 0
        try:
            if self._one_seed:
                obs, info = self.reset_envs('reset', seed=seeds[0])
            else:
                obs, info = self.reset_envs('reset', seed=seeds)
            if self._refuses_masks and ACTION_MASK in info:
                raise lost_mask_error(self.name, 'reset')
        except STOPS:
            raise
        except BaseException as error:
            raise_if_contract(error, self.env, self._place)
            raise
        self.reader.check(obs)
        for rule in self._rules:
            rule.on_reset(obs)
        return map_tensors(torch.tensor, obs)  # a copy: the envs may write into theirs with the next step

    def send(self, action: Tensor) -> None:
        self._place.step += 1
        self.sent = self.to_env(action)
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
        for on_write in self._on_write:
            on_write(row)
        self.reader.check(row.obs, self.sent)
        if np.count_nonzero(np.isfinite(row.reward)) != self.n_env:
            raise not_finite_error(self._place, 'reward', row.reward, self.sent)
        for on_step in self._on_step:
            on_step(self, block, t, info)
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
            calls.count += 1

    def _explain(self, error: BaseException) -> None:
        if n_action(self.sent) == self.n_env:  # else the caller is to blame
            raise_if_contract(error, self.env, self._place)

    def check(self, block: StepBlock | None = None) -> None:
        """Compares the observations of a rollout with their bounds; every step has checked all else."""
        if block is not None and self._bounds is not None:
            self._bounds.see(block.steps.obs)

    def block(self, n_step: int, n_env: int | None = None) -> StepBlock:
        def like(leaf: Leaf) -> Tensor:
            return torch.empty((n_env or self.n_env, *leaf.shape), dtype=obs_dtype(leaf))

        also = [name for rule in self._rules for name in rule.columns]
        return StepBlock(n_step, map_spaces(like, self.obs_space), also, arrays=True, reader=self._device)

    def request_infos(self, keys: Sequence[str]) -> None:
        # batched envs gather all entries anyway
        self.requested_infos = tuple(dict.fromkeys([*self.requested_infos, *keys]))

    def command(self, command: EnvCommand) -> list[Any]:
        from zoo.env.settings import apply

        return [apply(self.env, command)]

    def set_reset_options(self, options: dict[str, Any] | None) -> None:
        raise UnsupportedEnvError(
            f'env.reset_options is set but {self.name!r} steps all its envs at once and resets them itself; use '
            'env.vectorization=sync where that env can be made alone, or env.kwargs.'
        )

    def close(self) -> None:
        close_in_time({f'env {self.name!r}': self.env.close}, self._timeout)


def seen_space(obs_space: Space, action_space: Space, action_mask: str, name: str) -> Space:
    """The observation space with its mask in the form of zoo, see `masked_space`; only a Dict may have a mask."""
    if not isinstance(obs_space, Dict) and action_mask != 'obs':
        return obs_space
    from zoo.env.masks import masked_space

    return masked_space(obs_space, action_space, action_mask, name)


def _to_env(action_space: Space, cfg: EnvConfig) -> Callable[[Tensor], Any]:
    """A function that copies the policy's actions into the form that the envs take."""
    if isinstance(action_space, Discrete) and not action_space.start and action_space.dtype == 'int64':
        return copied_index
    from zoo.core.action_map import ActionMap

    return ActionMap(action_space, cfg.action_mode)


def copied_index(action: Tensor) -> np.ndarray:
    """Copies actions [B] of a Discrete space of int64 that starts at 0; a copy, since the policy overwrites them in the next step."""
    array = action.numpy(force=True)
    if array.dtype.kind == 'f':  # an env may refuse them
        return array.copy()
    return array.astype(np.int64)


class QuickDiscrete(gymnasium.spaces.Discrete):
    """A Discrete of int64 whose `contains` takes a quarter of the time for an int64 of numpy; all else is the same."""

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        vars(self).update(vars(space))  # its random stream too
        self._first = int(self.start)
        self._stop = int(self.start + self.n)

    def contains(self, x: object) -> bool:
        """Whether x is an action in the space."""
        if type(x) is np.int64:
            return self._first <= int(x) < self._stop
        return super().contains(x)


class QuickMultiDiscrete(gymnasium.spaces.MultiDiscrete):
    """A MultiDiscrete whose `contains` is faster for arrays of its own dtype; all else is the same."""

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        vars(self).update(vars(space))  # its random stream too
        self._last = self.start + (self.nvec - 1)
        self._array_shape = tuple(self.shape)
        self._bounds: tuple[int, int] | None = None  # the first and last option, if all choices have the same ones
        if self.nvec.size and np.ptp(self.start) == 0 and np.ptp(self._last) == 0:
            self._bounds = int(self.start.flat[0]), int(self._last.flat[0])

    def contains(self, x: object) -> bool:
        """Whether x is an array of actions in the space."""
        if type(x) is not np.ndarray or x.dtype != self.dtype or x.shape != self._array_shape:
            return super().contains(x)
        if self._bounds is None:
            return not np.count_nonzero((x < self.start) | (x > self._last))
        first, last = self._bounds
        return first <= x.item(x.argmin()) and x.item(x.argmax()) <= last


def use_fast_action_space(env: gymnasium.Env | gymnasium.vector.VectorEnv) -> None:
    """Replaces the action space of an env, or of a batched one, by one that checks actions faster."""
    space = vars(env).get('action_space')  # not a property of a user's own class, which stays unmodified
    if type(space) is gymnasium.spaces.MultiDiscrete:
        env.action_space = QuickMultiDiscrete(space)
    elif type(space) is gymnasium.spaces.Discrete and space.dtype == np.int64:
        env.action_space = QuickDiscrete(space)
