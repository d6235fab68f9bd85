"""How a rollout becomes samples with advantages and returns, and samples what a gradient step reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from zoo.config.parts import make_part
from zoo.core.data import Columns, Rollout, Sample, map_tensors
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import ESTIMATOR_REGISTRY
from zoo.policy.correction import estimator_of
from zoo.policy.objective import Objective
from zoo.policy.samples import (
    TRANSITION_ONLY,
    Critic,
    refuse_no_episode,
    rollout_values,
    scaled_reward,
    valid_weight,
    whole_episodes,
)
from zoo.policy.sequences import cut, once, rows_of, states_before
from zoo.rl_utils.estimators import check_estimate
from zoo.rl_utils.gae import gae_data, normalize_advantage
from zoo.rl_utils.normalizer import RunningMeanStd

NO_INPUT = frozenset(
    ('reward', 'done', 'traj_flag', 'next_obs', 'staleness', 'is_repeat', 'intrinsic_adv')
)  # columns that no step reads


class Advantages:
    """Values, advantages and returns in their units: rewards scaled, values normalised, an intrinsic reward added.

    Args: cfg: the resolved section `policy`; normalizers: 'reward' and 'value', where cfg.learn has these options;
      ranks: over whose rows moments and weights are taken.
    Attributes: intrinsic: of INTRINSIC_REGISTRY, or None.
    """

    def __init__(
        self, cfg: Any, normalizers: Mapping[str, RunningMeanStd], objective: Objective, ranks: Ranks = ALONE
    ) -> None:
        self._cfg, self._normalizers, self._objective, self._ranks = cfg, normalizers, objective, ranks
        self._estimator = make_part(ESTIMATOR_REGISTRY, estimator_of(cfg))
        self._reward_sum: Tensor | None = None
        self.intrinsic: Any = None

    def reset(self) -> None:
        """All envs begin new episodes."""
        self._reward_sum = None

    def forget(self, envs: slice) -> None:
        """These of the envs begin new episodes."""
        if self._reward_sum is not None:
            self._reward_sum[envs] = 0
        if hasattr(self.intrinsic, 'forget'):  # one of your own need not have it
            self.intrinsic.forget(envs)

    @torch.no_grad()
    def samples(self, rollout: Rollout, critic: Critic, keeps_transitions: bool) -> Sample:
        """A rollout as rows [N], t-major, or for a model with a recurrent state as sequences [S].

        Args: critic: see `rollout_values`; keeps_transitions: the samples also hold what `recomputed` needs.
        """
        cfg, data = self._cfg, rollout.data
        weight = valid_weight(data['is_reset'], self._ranks) if 'is_reset' in data else None
        reward = self._scaled(data, weight)
        outputs = rollout_values(rollout, critic)
        if cfg.learn.baseline == 'none' or cfg.collect.batch_mode == 'episode':
            weight = whole_episodes(data['traj_flag'], weight, self._ranks)
        if cfg.collect.batch_mode == 'episode':
            refuse_no_episode(weight, self._ranks)
        ends = data['done'], data['traj_flag']
        found = self._estimate(outputs, reward, *ends)
        kept = {name: x for name, x in data.items() if name not in TRANSITION_ONLY}
        samples: dict[str, Any] = {**kept, **found, **self._clip_centre(outputs[0])}
        if self.intrinsic is not None:
            samples['intrinsic_adv'] = self.intrinsic.advantage(rollout)
            samples['adv'] = samples['adv'] + samples['intrinsic_adv']
        if weight is not None:
            samples['weight'] = weight
        if 'state' in data:
            before = states_before(data['state'], rollout.state)
            return cut(samples, before, data['is_first'], cfg.learn.sequence)
        if keeps_transitions:
            samples |= {'reward': reward, 'done': ends[0], 'traj_flag': ends[1], 'next_obs': rollout.next_obs()}
        return map_tensors(lambda x: x.flatten(0, 1), samples)  # [T, B] -> [N]

    @torch.no_grad()
    def recomputed(self, batch: Columns, critic: Critic, log_ratio: Tensor | None = None) -> dict[str, Any]:
        """A batch with values, advantages and returns of the critic as it is now (arXiv:2006.05990, sec. 3.5).

        Args: log_ratio: [N], log p_now - log p_behaviour, for estimators that weigh samples by it.
        """
        n_step = self._cfg.collect.n_step
        outputs = critic(batch['obs']).view(n_step, -1), critic(batch['next_obs']).view(n_step, -1)
        reward, done, traj_flag = (batch[key].view(n_step, -1) for key in ('reward', 'done', 'traj_flag'))
        ratio = None if log_ratio is None else log_ratio.view(n_step, -1)
        found = self._estimate(outputs, reward, done, traj_flag, ratio)
        found |= self._clip_centre(outputs[0])
        if 'intrinsic_adv' in batch:
            found['adv'] = found['adv'] + batch['intrinsic_adv'].view(n_step, -1)
        return {**batch, **{name: x.flatten() for name, x in found.items()}}

    @torch.no_grad()
    def targets(self, batch: Columns) -> dict[str, Tensor]:
        """What a step reads: values in the unit of the critic's output, advantages of the batch normalised.

        'value' is the critic's output before the first step where a loss reads it, see `_clip_centre`.
        """
        cfg = self._cfg.learn
        columns = {name: x for name, x in batch.items() if name not in NO_INPUT}
        if cfg.value_norm:
            for key in ('value', 'return_'):
                columns[key] = self._normalizers['value'].standardize(columns[key])
        if 'value_output' in columns:
            columns['value'] = columns.pop('value_output')
        if cfg.adv_norm == 'batch':
            adv, weight = columns['adv'], columns.get('weight')
            weight = None if weight is None else weight.flatten()
            columns['adv'] = normalize_advantage(adv.flatten(), weight, self._ranks).view_as(adv)
        return columns

    def in_return_units(self, value: Tensor) -> Tensor:
        """Outputs of the critic as returns."""
        return self._normalizers['value'].restore(value) if self._cfg.learn.value_norm else value

    def update_statistics(self, batch: Columns) -> None:
        """Takes the returns of a batch into the statistics of value_norm, where that is on."""
        if self._cfg.learn.value_norm:
            rows = rows_of(batch)
            self._normalizers['value'].update(rows['return_'], once(rows))

    def _scaled(self, data: Any, weight: Tensor | None) -> Tensor:
        cfg = self._cfg
        if not cfg.learn.reward_norm:
            return data['reward']
        gamma = cfg.learn.reward_norm_discount
        gamma = cfg.collect.discount_factor if gamma is None else gamma
        statistics = self._normalizers['reward']
        reward, self._reward_sum = scaled_reward(data, weight, self._reward_sum, gamma, statistics)
        return reward

    def _estimate(
        self,
        outputs: tuple[Tensor, Tensor],
        reward: Tensor,
        done: Tensor,
        traj_flag: Tensor,
        log_ratio: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """value, adv and return_, [T, B] each, in return units. outputs: of the critic for rows and their successors."""
        collect = self._cfg.collect
        value, next_value = map(self.in_return_units, outputs)
        if self._cfg.learn.baseline == 'none':
            value, next_value = torch.zeros_like(value), torch.zeros_like(value)
        data = gae_data(value, next_value, reward, done, traj_flag)
        numbers = collect.discount_factor, collect.gae_lambda
        found = self._estimator(data, *numbers) if log_ratio is None else self._estimator(data, *numbers, log_ratio)
        check_estimate(found, value)
        return {'value': value, 'adv': found[0], 'return_': found[1]}

    def _clip_centre(self, output: Tensor) -> dict[str, Tensor]:
        """The column 'value_output' of the samples, where a loss needs it: what the critic put out, in its own unit.

        A value clip limits how far gradient steps move the critic's output, so its centre is the output that was there
        before the first of them, also in later draws from a buffer. The column 'value' cannot give it back: it is in
        return units, and the statistics that lead back move with the samples' own returns before the first step.
        (They do so before it, so that the critic's new outputs are read by the statistics that it learned them in.)
        Without a baseline that column is 0.
        """
        learn = self._cfg.learn
        is_apart = learn.value_norm or learn.baseline == 'none'
        return {'value_output': output} if is_apart and self._objective.reads_old_value else {}
