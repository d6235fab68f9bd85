"""The public vector env: a gymnasium vector env with the reader and rules that its config needs; resets, settings, closing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs, map_tensors
from zoo.core.seeding import child_seeds
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Leaf, Space, map_spaces, mask_size, mask_space, obs_dtype
from zoo.env.adapter import convert_space
from zoo.env.config import EndsConfig, EnvConfig
from zoo.env.entry_names import NamedVectorEnv, has_other_keys
from zoo.env.errors import RAW, STOPS, Place, UnsupportedEnvError, close_in_time, lost_mask_error, raise_if_contract
from zoo.env.interface import EnvCommand, StepBlock, autoreset_of
from zoo.env.obs_bounds import BoundsWatch
from zoo.env.stepping import ArrayReader, NextStep, QuickMultiDiscrete, RowRule, RowVectorEnv, copied_index


class VectorEnv(RowVectorEnv):
    """B envs of any library on the CPU; every observation and reward is checked to be finite.

    Attributes: drops_entries: whether the envs themselves leave out the entries of env.drop_obs.
    """

    drops_entries = False

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
        self.reader, self._rules = self._reader_and_rules(cfg, raw_space, has_masks)
        self._to_env = _to_env(self.action_space, cfg)
        self._one_seed = one_seed
        self._device = reader
        self._first = first
        self._timeout = cfg.step_timeout
        self._refuses_masks = cfg.action_mask == 'auto' and not has_masks and mask_size(self.action_space) > 0
        self.steps_async = vars(type(env)).get('steps_async', False)  # not inherited: a subclass may change step
        if vars(type(env)).get('has_deadlines', False):
            self._called = None
        else:
            self._called = self._place.of
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

    def _reader_and_rules(
        self, cfg: EnvConfig, raw_space: Space, has_masks: bool
    ) -> tuple[ArrayReader, Sequence[RowRule]]:
        """The rules are in the order in which they process a row: ends, autoreset, raw rewards, masks, broken-off episodes."""
        space = self.obs_space
        place = self._place
        is_next = self.autoreset == 'next_step'
        has_raw = bool(self.env.metadata.get(RAW))
        restarts = cfg.on_error == 'restart'
        changes_ends = cfg.ends != EndsConfig()
        if (
            isinstance(space, Box)
            and obs_dtype(space) == torch.float32
            and is_next
            and not (has_raw or has_masks or restarts or changes_ends)
        ):
            return ArrayReader(space, self.n_env, '', place), [NextStep()]
        from zoo.env import rows  # few batched envs need them

        raw_mask = None
        if isinstance(raw_space, Dict):
            raw_mask = raw_space.spaces.get(ACTION_MASK)
        reader = rows.obs_reader(space, self.n_env, place, getattr(raw_mask, 'shape', ()))
        resets: dict[str, Callable[[], RowRule]] = {
            'next_step': NextStep,
            'same_step': lambda: rows.SameStep(reader),
            'disabled': rows.Disabled,
        }
        optional: list[tuple[bool, Callable[[], RowRule]]] = [
            (has_raw, rows.RawRewards),
            (has_masks, lambda: rows.Masks(self.action_space, place, is_next)),
            (restarts, lambda: rows.BrokenEpisodes(is_next)),
        ]
        first = []
        if changes_ends:
            first = [rows.Ends(cfg.ends, self.name, self.autoreset)]
        return reader, [*first, resets[self.autoreset](), *(make() for is_on, make in optional if is_on)]

    def reset(self, seed: np.random.SeedSequence | int) -> Obs:
        """Starts new episodes; returns their first observations.

        Args: seed: its i-th child seeds env i (counted over all groups), with the same seed in every call. A batched env that
          draws for all its envs together is seeded from the child of its first env.
        """
        seeds = child_seeds(seed, self._first, self.n_env)
        self._place.step = 0
        try:
            obs, info = self.reset_envs('reset', seed=seeds[0] if self._one_seed else seeds)
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


def use_fast_action_space(env: gymnasium.Env | gymnasium.vector.VectorEnv) -> None:
    """Replaces the action space of an env, or of a batched one, by one that checks actions faster."""
    space = vars(env).get('action_space')  # not a property of a user's own class, which stays unmodified
    if type(space) is gymnasium.spaces.MultiDiscrete:
        env.action_space = QuickMultiDiscrete(space)
    elif type(space) is gymnasium.spaces.Discrete and space.dtype == np.int64:
        env.action_space = QuickDiscrete(space)
