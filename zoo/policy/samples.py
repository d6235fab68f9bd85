"""Samples from rollouts: scaled rewards, values, advantages, returns; and the columns that a gradient step reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.config.components import make_component
from zoo.core.data import (
    PASS_CELLS,
    Columns,
    Obs,
    Rollout,
    Sample,
    State,
    Transition,
    first_leaf,
    leaves,
    map_tensors,
    split_rows,
    valid_weight,
)
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import ESTIMATOR_REGISTRY, Component
from zoo.policy.config import ActorCriticPolicyConfig
from zoo.policy.options import Estimated, UpdateOption
from zoo.rl_utils.gae import gae_data, gae_estimate, normalize_advantage

TRANSITION_ONLY = frozenset(('reward', 'done', 'traj_flag', 'value', 'is_reset', 'state', 'is_first'))
"""Columns of a transition that are not copied to the samples; all others are, including a policy's own."""
Critic = Callable[..., Tensor]


def rollout_values(rollout: Rollout, critic: Critic) -> tuple[Tensor, Tensor]:
    """Values of all rows and of their true successors, [T, B] each; the critic runs only where acting gave no value.

    Args: critic: (obs [N, *O], state [N, ...] or None) -> values [N]; a column 'value' of the rollout must have the same
      unit. With a recurrent state, acting has computed the values of all rows.
    """
    data, successor, state_after = rollout.data, rollout.successor, rollout.data.get('state')
    (n_step, n_env), has_value, index = data['done'].shape, 'value' in data, rollout.final_index
    if successor is not None:
        rows = successor if has_value else map_tensors(lambda *x: torch.cat(x), data['obs'], successor)
        value = critic(_flat(rows), None if state_after is None else _flat(state_after)).view(-1, n_env)
        return (data['value'], value) if has_value else (value[:n_step], value[n_step:])
    missing = [*([] if has_value else [_flat(data['obs'])]), rollout.last_obs, rollout.final_obs]
    obs = map_tensors(lambda *x: torch.cat(x), *missing)
    state = None
    if state_after is not None:  # the state after the row that comes before each observation
        state = map_tensors(lambda x: torch.cat((x[-1], x[index[:, 0], index[:, 1]])), state_after)
    value = critic(obs, state)
    if has_value:
        value = torch.cat((data['value'].flatten(), value))
    n = (n_step + 1) * n_env
    block = value[:n].view(n_step + 1, n_env)
    # next_step: the row after an end shows the final observation, so at a time limit this already is the bootstrap
    next_value = block[1:].clone()
    # same_step, disabled: that row shows the next episode's first observation; V of the true final one replaces it
    next_value[index[:, 0], index[:, 1]] = value[n:]
    return block[:-1], next_value


def _flat(tree: Obs) -> Obs:
    return map_tensors(lambda x: x.flatten(0, 1), tree)  # [T, B] -> [N]


def in_pieces(critic: Critic, obs: Obs, state: State = None) -> Tensor:
    """Runs the critic on observations [N, *O]; on images in several calls, since memory may not hold the features of all."""
    trees = [obs] if state is None else [obs, state]
    n = len(first_leaf(obs))
    n_cell = sum(x[0].numel() for _, x in leaves(obs)) if n else 1
    n_row = max(PASS_CELLS // max(n_cell, 1), 1)
    if n <= n_row:
        return critic(*trees)
    parts = zip(*(split_rows(tree, n_row) for tree in trees), strict=True)
    return torch.cat([critic(*part) for part in parts])


NO_INPUT = frozenset(('reward', 'done', 'traj_flag', 'next_obs', 'staleness', 'is_repeat', 'is_step', 'intrinsic_adv'))
"""Columns of samples that no gradient step reads."""


class ReturnUnits:
    """Units of a critic that predicts returns without normalisation."""

    def restore(self, output: Tensor) -> Tensor:
        """Converts outputs of the critic to returns."""
        return output

    def standardize(self, return_: Tensor) -> Tensor:
        """Converts returns to outputs of the critic."""
        return return_


class Samples:
    """Makes samples from rollouts, and from samples the columns that a gradient step reads.

    Args: cfg: the resolved section `policy`; ranks: the ranks over whose samples weights have mean 1.
    Attributes, which options may replace:
      options: the update options, in order; they add columns and change advantages.
      units: converts between the critic's output and returns; `units.restore` gives returns.
      reference: the critic's values, [T, B] in return units -> the values with which advantages compare returns, [T, B].
      scaled_reward: (transition, weight [T, B] or None) -> rewards [T, B], as advantages use them.
      estimator: (gae_data, gamma, lambda (, log_ratio)) -> (advantages, returns), [T, B] each; by_ratios: whether it
        weighs rows by log p_now - log p_behaviour.
      entries: (columns [T, B, ...], rollout) -> rows [N, ...], or sequences.
      entry_len: steps in an entry, 1 for rows.
      rows_once: batch -> its rows, and weights [N] with which statistics count every row once; None: all equal.
      inputs: functions of the columns that a step reads, each called on the result of the one before; adv_norm
        'minibatch' normalises advantages after them, in the executor.
    """

    def __init__(
        self, cfg: ActorCriticPolicyConfig, ranks: Ranks = ALONE, options: Sequence[UpdateOption] = ()
    ) -> None:
        self._discount, self._ranks = (cfg.collect.discount_factor, cfg.collect.gae_lambda), ranks
        self.options = options
        self.units: Any = ReturnUnits()
        self.reference: Callable[[Tensor], Tensor] = ReturnUnits().restore
        self.scaled_reward: Callable[[Transition, Tensor | None], Tensor] = given_reward
        self.estimate_by(cfg.collect.estimator)
        self.entries: Callable[[dict[str, Any], Rollout], Sample] = as_rows
        self.entry_len = 1
        self.rows_once: Callable[[Columns], tuple[Columns, Tensor | None]] = as_they_are
        self.inputs: list[Callable[[dict[str, Any]], dict[str, Any]]] = []
        if cfg.learn.adv_norm == 'batch':
            self.inputs.append(self._normalized)

    def estimate_by(self, spec: str | Mapping[str, Any]) -> None:
        """Uses another estimator of advantages from now on. Args: spec: a name, or {type: name, its options}."""
        component = make_component(ESTIMATOR_REGISTRY, spec)
        self.by_ratios = component.name == 'vtrace'
        if isinstance(component, Component) and component.function is gae_estimate:
            self.estimator: Callable[..., tuple[Tensor, Tensor]] = partial(gae_estimate, **dict(component.options))
        else:
            from zoo.rl_utils.estimators import checked

            self.estimator = partial(checked, component)

    @torch.no_grad()
    def of_rollout(self, rollout: Rollout, critic: Critic) -> Sample:
        """Turns a rollout into samples: rows [N], t-major, or for a recurrent model sequences [S].

        Args: critic: see `rollout_values`.
        """
        data = rollout.data
        weight = valid_weight(data['is_reset'], self._ranks) if 'is_reset' in data else None
        reward = self.scaled_reward(data, weight)
        outputs = rollout_values(rollout, critic)
        columns: dict[str, Any] = {name: x for name, x in data.items() if name not in TRANSITION_ONLY}
        columns |= self.estimate(outputs, reward, data['done'], data['traj_flag'])
        if weight is not None:
            columns['weight'] = weight
        for option in self.options:
            columns |= option.add_columns(rollout, Estimated(reward, outputs[0], weight))
            columns['adv'] = option.advantage(columns)
        return self.entries(columns, rollout)

    def estimate(
        self, outputs: tuple[Tensor, Tensor], reward: Tensor, done: Tensor, traj_flag: Tensor, *log_ratio: Tensor
    ) -> dict[str, Tensor]:
        """value, adv and return_, [T, B] each, in return units.

        Args: outputs: of the critic for rows and their true successors; log_ratio: for estimators that weigh rows by it.
        """
        value, next_value = (self.reference(self.units.restore(x)) for x in outputs)
        data = gae_data(value, next_value, reward, done, traj_flag)
        # In a row that only reset an env, adv and return_ mean nothing: its weight 0 keeps them out of the losses, and the
        # traj_flag of the row before cuts the trace.
        found = self.estimator(data, *self._discount, *log_ratio)
        return {'value': value, 'adv': found[0], 'return_': found[1]}

    @torch.no_grad()
    def read_by_steps(self, batch: Columns) -> dict[str, Any]:
        """Returns the columns of a batch that a step reads; value and return_ are in the unit of the critic's output."""
        columns = {name: x for name, x in batch.items() if name not in NO_INPUT}
        for change in self.inputs:
            columns = change(columns)
        if 'value_output' in columns:
            columns['value'] = columns.pop('value_output')
        return columns

    def _normalized(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Normalises advantages over the whole batch."""
        adv, weight = columns['adv'], columns.get('weight')
        weight = None if weight is None else weight.flatten()
        return {**columns, 'adv': normalize_advantage(adv.flatten(), weight, self._ranks).view_as(adv)}


def given_reward(data: Transition, weight: Tensor | None) -> Tensor:
    """Returns the rewards of a rollout unmodified."""
    return data['reward']


def as_rows(columns: dict[str, Any], rollout: Rollout) -> Sample:
    """[T, B, ...] -> [N, ...], t-major."""
    return map_tensors(lambda x: x.flatten(0, 1), columns)


def as_they_are(batch: Columns) -> tuple[Columns, Tensor | None]:
    """Returns a batch of rows unmodified, and its weights."""
    return batch, batch.get('weight', None)
