"""Options `policy.collect.batch_mode: episode` and `policy.learn.baseline: none`: learning from returns that were seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.config.components import name_of
from zoo.core.data import Rollout, Transition
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks, weight_scale
from zoo.policy.options.base import Estimated, Owner, UpdateOption
from zoo.rl_utils.gae import linear_scan

NEEDS_CRITIC = ('gae', 'n_step', 'vtrace')
"""Estimators that use a value of the critic for the rewards after a step."""


class NoBaseline(UpdateOption):
    """Uses returns as advantages. No critic estimates later rewards, so steps whose return was not seen have weight 0.

    With max_unseen a step trains if at most this share of its return, gamma^k, lies beyond a time limit or the rollout, k
    steps later; without, if its episode ends within the rollout, and a time limit then counts as a terminal state. That is
    biased: steps shortly before the limit seem bad (Pardo et al. 2018, arXiv:1712.00378).
    """

    def problems(self, policy: Owner) -> Iterator[str]:
        collect, limit = policy.cfg.collect, policy.cfg.learn.max_unseen
        if policy.cfg.learn.baseline != 'none':
            yield (
                f"policy.learn.max_unseen is {limit:g} but baseline is 'critic', whose values stand for what was not seen; use "
                "max_unseen null, or baseline 'none'"
            )
            return
        if limit is not None and collect.batch_mode == 'episode':
            yield (
                f"policy.learn.max_unseen is {limit:g} but policy.collect.batch_mode is 'episode', which drops all of an "
                'unfinished episode; use fragment, or max_unseen null'
            )
        if limit is not None and collect.discount_factor == 1:
            yield (
                f'policy.learn.max_unseen is {limit:g} but policy.collect.discount_factor is 1, so that no step before a time '
                'limit would train; use a discount below 1, or max_unseen null'
            )
        estimator = name_of(collect.estimator)
        if estimator in NEEDS_CRITIC:
            yield (
                f"policy.learn.baseline is 'none' but policy.collect.estimator is {estimator!r}, which takes the critic's "
                "values for what follows a step; use estimator 'returns', or baseline 'critic'"
            )

    def attach(self, policy: Owner) -> None:
        self._ranks, self._discount = policy.run.ranks, policy.cfg.collect.discount_factor
        self._max_unseen = policy.cfg.learn.max_unseen
        policy.samples.reference = torch.zeros_like
        policy.has_critic = False

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        done, traj_flag = rollout.data['done'], rollout.data['traj_flag']
        if self._max_unseen is None:
            return {'weight': whole_episodes(traj_flag, estimated.weight, self._ranks)}
        is_seen = unseen_share(done, traj_flag, self._discount) <= self._max_unseen
        return {'weight': weight_of(is_seen, estimated.weight, self._ranks)}


class WholeEpisodes(UpdateOption):
    """Gives weight 0 to steps whose episode continues after the rollout."""

    def attach(self, policy: Owner) -> None:
        self._ranks = policy.run.ranks

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> Mapping[str, Any]:
        weight = whole_episodes(rollout.data['traj_flag'], estimated.weight, self._ranks)
        if not any(self._ranks.gather(bool(weight.any()))):
            raise UserError(
                f"policy.collect.batch_mode is 'episode' but no episode ended within a rollout of {weight.shape[0]} steps in each "
                f'of {weight.shape[1]} envs, so there is nothing to learn from; raise policy.collect.n_step above the length of '
                'the episodes, limit that by env.max_episode_steps, or use fragment'
            )
        return {'weight': weight}


def whole_episodes(traj_flag: Tensor, weight: Tensor | None, ranks: Ranks = ALONE) -> Tensor:
    """Weights [T, B] that are 0 for steps whose episode continues after the rollout; their mean over all ranks is 1.

    An episode that a time limit ends counts with the return that it has then.
    Args: traj_flag: [T, B], the episode ends with the step; weight: [T, B], weights before this call; None: 1.
    """
    return weight_of(traj_flag.flip(0).to(torch.int32).cumsum(0).flip(0) > 0, weight, ranks)


def weight_of(is_seen: Tensor, weight: Tensor | None, ranks: Ranks) -> Tensor:
    """Weights [T, B] that are 0 where `is_seen` is false; their mean over all ranks is 1."""
    kept = is_seen.float() if weight is None else is_seen * weight
    return kept * weight_scale(kept, ranks)


def unseen_share(done: Tensor, traj_flag: Tensor, discount: float) -> Tensor:
    """Weight gamma^k [T, B] in a step's return of what follows a time limit or the rollout; 0 before a terminal state.

    Args: done, traj_flag: [T, B], a terminal state, and any end of the episode, follow the step.
    """
    ends = traj_flag.bool().clone()
    ends[-1] = True
    cut = ends & ~done.bool()
    return linear_scan(discount * cut, discount * ~ends)


class IgnoreDone(UpdateOption):
    """Bootstraps through terminal states too (`policy.learn.ignore_done`)."""

    def process_transition(self, transition: Transition) -> Transition:
        return {**transition, 'done': torch.zeros_like(transition['done'])}
