"""The public vector env: a gymnasium vector env with the readers and rules that its spaces and its config need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from torch import Tensor

from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Space, mask_size, mask_space, obs_dtype
from zoo.env.adapter import convert_space
from zoo.env.config import EnvConfig
from zoo.env.errors import RAW, Place
from zoo.env.interface import autoreset_of
from zoo.env.stepping import ArrayReader, NextStep, RowRule, RowVectorEnv, copied_index


class VectorEnv(RowVectorEnv):
    """B envs of any library on the CPU; every observation and reward is checked to be finite."""

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
            `step_async` begins a step that continues asynchronously, and `step_wait` ends it.
          one_seed: its reset takes one int rather than one for each env.   reader: the GPU that reads its rows, if one does.
          first: index of its first env, if it is one of several groups.
        """
        raw_space = convert_space(env.single_observation_space, 'observation', name)
        action_space = convert_space(env.single_action_space, 'action', name)
        obs_space = seen_space(raw_space, action_space, cfg.action_mask, name)
        place, has_masks = Place(name), mask_space(obs_space) is not None
        super().__init__(
            env,
            place,
            (obs_space, action_space),
            _obs_reader(raw_space, obs_space, env.num_envs, place),
            _to_env(action_space, cfg),
            _row_rules(env, cfg, place, action_space, has_masks),
            one_seed=one_seed,
            device=reader,
            first=first,
            timeout=cfg.step_timeout,
            info_columns=cfg.info_columns,
            refuses_masks=cfg.action_mask == 'auto' and not has_masks and mask_size(action_space) > 0,
        )


def seen_space(obs_space: Space, action_space: Space, action_mask: str, name: str) -> Space:
    """The observation space with its mask in the form of zoo, see `masked_space`; only a Dict may have a mask."""
    if not isinstance(obs_space, Dict) and action_mask != 'obs':
        return obs_space
    from zoo.env.masks import masked_space

    return masked_space(obs_space, action_space, action_mask, name)


def _obs_reader(raw_space: Space, obs_space: Space, n_env: int, place: Place) -> ArrayReader:
    if isinstance(obs_space, Box) and obs_dtype(obs_space) == torch.float32:
        return ArrayReader(obs_space, n_env, '', place)
    from zoo.env.rows import obs_reader

    raw_mask = raw_space.spaces.get(ACTION_MASK) if isinstance(raw_space, Dict) else None
    raw_mask_shape = raw_mask.shape if raw_mask is not None and not isinstance(raw_mask, Dict) else ()
    return obs_reader(obs_space, n_env, place, raw_mask_shape)


def _to_env(action_space: Space, cfg: EnvConfig) -> Callable[[Tensor], Any]:
    """A function that copies the policy's actions into the form that the envs take."""
    if isinstance(action_space, Discrete) and not action_space.start:
        return copied_index
    from zoo.core.action_map import ActionMap

    return ActionMap(action_space, cfg.action_mode)


def _row_rules(
    env: gymnasium.vector.VectorEnv, cfg: EnvConfig, place: Place, action_space: Space, has_masks: bool
) -> list[RowRule]:
    """The rules in the order in which they process a row: autoreset, raw rewards, masks, episodes that broke off."""
    mode = autoreset_of(env)
    is_next, has_raw, restarts = mode == 'next_step', bool(env.metadata.get(RAW)), cfg.on_error == 'restart'
    if is_next and not (has_raw or has_masks or restarts):
        return [NextStep()]
    from zoo.env import rows  # few batched envs need them

    resets: dict[str, type[RowRule]] = {'next_step': NextStep, 'same_step': rows.SameStep, 'disabled': rows.Disabled}
    optional: list[tuple[bool, Callable[[], RowRule]]] = [
        (has_raw, rows.RawRewards),
        (has_masks, lambda: rows.Masks(action_space, place, is_next)),
        (restarts, lambda: rows.BrokenEpisodes(is_next)),
    ]
    return [resets[mode](), *(make() for is_on, make in optional if is_on)]
