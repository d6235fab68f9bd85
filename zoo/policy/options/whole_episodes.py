"""Options `policy.collect.batch_mode: episode` and `policy.learn.baseline: none`: learning from whole episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.config.components import name_of
from zoo.core.data import Rollout, Transition
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks, weight_scale
from zoo.policy.options.base import Estimated, Owner, UpdateOption

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

NEEDS_CRITIC = ('gae', 'n_step', 'vtrace')
"""Estimators that use a value of the critic for the rewards after a step."""


class NoBaseline(UpdateOption):
    """Uses returns as advantages. Steps of unfinished episodes have weight 0, since no critic estimates later rewards."""

    key = 'policy.learn.baseline'

    def problems(self, policy: Owner) -> Iterator[str]:
        estimator = name_of(policy.cfg.collect.estimator)
        if estimator in NEEDS_CRITIC:
            yield (
                f"policy.learn.baseline is 'none' but policy.collect.estimator is {estimator!r}, which takes the critic's "
                "values for what follows a step; use estimator 'returns', or baseline 'critic'"
            )

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._ranks = policy.run.ranks
        update.baseline.fill(self, torch.zeros_like)
        update.has_critic.fill(self, False)

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        weight = whole_episodes(ends_of_episodes(rollout.data), estimated.weight, self._ranks)
        return {'weight': weight, 'is_step': steps_of(rollout)}


class WholeEpisodes(UpdateOption):
    """Gives weight 0 to steps whose episode continues after the rollout."""

    key = 'policy.collect.batch_mode'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        self._ranks = policy.run.ranks

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        weight = whole_episodes(ends_of_episodes(rollout.data), estimated.weight, self._ranks)
        if not any(self._ranks.gather(bool(weight.any()))):
            raise UserError(
                f"policy.collect.batch_mode is 'episode' but no episode ended within a rollout of {weight.shape[0]} steps in each "
                f'of {weight.shape[1]} envs, so there is nothing to learn from; raise policy.collect.n_step above the length of '
                'the episodes, limit that by env.max_episode_steps, or use fragment'
            )
        return {'weight': weight, 'is_step': steps_of(rollout)}


def ends_of_episodes(data: Transition) -> Tensor:
    """The rows with which an episode ends, [T, B] bool, also if agents wait for turns."""
    if 'is_open' in data:
        return data['traj_flag'] & ~data['is_open']
    return data['traj_flag']


def steps_of(rollout: Rollout) -> Tensor:
    """The rows that are env steps, [T, B] bool: statistics of observations count them, also those that have weight 0."""
    is_reset = rollout.data.get('is_reset', None)
    if is_reset is None:
        return torch.ones_like(rollout.data['traj_flag'])
    return ~is_reset


def whole_episodes(traj_flag: Tensor, weight: Tensor | None, ranks: Ranks = ALONE) -> Tensor:
    """Weights [T, B] that are 0 for steps whose episode continues after the rollout; their mean over all ranks is 1.

    An episode that a time limit ends counts with the return that it has then.
    Args: traj_flag: [T, B], the episode ends with the step; weight: [T, B], weights before this call; None: 1.
    """
    known = (traj_flag.flip(0).to(torch.int32).cumsum(0).flip(0) > 0).to(torch.float32)
    if weight is None:
        kept = known
    else:
        kept = known * weight
    return kept * weight_scale(kept, ranks)


class IgnoreDone(UpdateOption):
    """Bootstraps through terminal states too (`policy.learn.ignore_done`)."""

    def process_transition(self, transition: Transition) -> Transition:
        return {**transition, 'done': torch.zeros_like(transition['done'])}
