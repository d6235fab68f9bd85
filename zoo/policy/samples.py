"""Samples from rollouts: scaled rewards, values, advantages, returns; and the columns that a gradient step reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.backend.step import forward_rows
from zoo.config.components import make_component
from zoo.core.data import (
    PASS_CELLS,
    Columns,
    Obs,
    Rollout,
    Sample,
    State,
    Transition,
    as_tensors,
    first_leaf,
    leaves,
    map_tensors,
    split_rows,
    valid_weight,
)
from zoo.core.ranks import ALONE, Ranks
from zoo.core.registry import ESTIMATOR_REGISTRY, Component
from zoo.policy.options import Estimated, UpdateOption
from zoo.policy.slots import Entries, Units
from zoo.rl_utils.gae import gae_data, gae_estimate, normalize_advantage

TRANSITION_ONLY = frozenset(
    ('reward', 'done', 'traj_flag', 'value', 'is_reset', 'is_open', 'env_index', 'state', 'is_first')
)
"""Columns of a transition that are not copied to the samples; all others are, including a policy's own."""
Critic = Callable[..., Tensor]


def rollout_values(rollout: Rollout, critic: Critic) -> tuple[Tensor, Tensor]:
    """Values of all rows and of their true successors, [T, B] each; the critic runs only where acting gave no value.

    Args: critic: (obs [N, *O], state [N, ...] or None) -> values [N]; a column 'value' of the rollout must have the same
      unit. With a recurrent state, acting has computed the values of all rows.
    """
    data = rollout.data
    has_state = 'state' in data
    has_value = 'value' in data
    n_step, n_env = data['done'].shape
    if rollout.successor is not None:
        rows = rollout.successor
        if not has_value:
            rows = map_tensors(lambda *x: torch.cat(x), data['obs'], rows)
        if not has_state:
            value = critic(_flat(rows), None).view(-1, n_env)
        elif rollout.recorder is None:
            value = critic(_flat(rows), _flat(data['state'])).view(-1, n_env)
        else:
            value = _row_by_row(rollout, critic)
        if has_value:
            return data['value'], value
        return value[:n_step], value[n_step:]
    missing = [rollout.last_obs, rollout.final_obs]
    if not has_value:
        missing.insert(0, _flat(data['obs']))
    obs = map_tensors(lambda *x: torch.cat(x), *missing)
    index = rollout.final_index
    state = None
    if has_state:  # the state after the row that comes before each observation
        envs = torch.arange(n_env, device=index.device)
        t = torch.cat((torch.full_like(envs, n_step - 1), index[:, 0]))
        state = rollout.states_after(t, torch.cat((envs, index[:, 1])))
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


def _row_by_row(rollout: Rollout, critic: Critic) -> Tensor:
    """Values of the true successors of all rows, [T, B], with the states of one row at a time in memory."""
    n_step, n_env = rollout.data['done'].shape
    envs = torch.arange(n_env, device=rollout.data['done'].device)
    values = []
    for t in range(n_step):
        obs = map_tensors(lambda x: x[t], rollout.successor)  # noqa: B023
        values.append(critic(obs, rollout.states_after(torch.full_like(envs, t), envs)))
    return torch.stack(values)


def _flat(tree: Obs) -> Obs:
    return map_tensors(lambda x: x.flatten(0, 1), tree)  # [T, B] -> [N]


def in_pieces(critic: Critic, obs: Obs, state: State = None) -> Tensor:
    """Runs the critic on observations [N, *O]; on images in several calls, since memory may not hold the features of all."""
    if state is None:
        trees = [obs]
    else:
        trees = [obs, state]
    n = len(first_leaf(obs))
    if n:
        n_cell = sum(x[0].numel() for _, x in leaves(obs))
    else:
        n_cell = 1
    n_row = max(PASS_CELLS // max(n_cell, 1), 1)
    if n <= n_row:
        return critic(*trees)
    parts = zip(*(split_rows(tree, n_row) for tree in trees), strict=True)
    return torch.cat([critic(*part) for part in parts])


NO_INPUT = frozenset('reward done traj_flag next_obs staleness age is_repeat is_step intrinsic_adv cost_adv'.split())
"""Columns of samples that no gradient step reads."""


class ReturnUnits:
    """Units of a critic that predicts returns without normalisation."""

    def restore(self, output: Tensor) -> Tensor:
        """Converts outputs of the critic to returns."""
        return output

    def standardize(self, return_: Tensor) -> Tensor:
        """Converts returns to outputs of the critic."""
        return return_


def as_rows(columns: dict[str, Any], rollout: Rollout) -> Sample:
    """[T, B, ...] -> [N, ...], t-major."""
    return map_tensors(lambda x: x.flatten(0, 1), columns)


def as_they_are(batch: Columns) -> tuple[Columns, Tensor | None]:
    """Returns a batch of rows unmodified, and its weights."""
    return batch, batch.get('weight', None)


ROWS = Entries(as_rows, as_they_are, forward_rows)


def given_reward(data: Transition, weight: Tensor | None) -> Tensor:
    """Returns the rewards of a rollout unmodified."""
    return data['reward']


def estimator_of(
    spec: str | Mapping[str, Any] | Callable[..., tuple[Tensor, Tensor]],
) -> tuple[Callable[..., tuple[Tensor, Tensor]], bool]:
    """The estimator (gae_data, gamma, lambda (, log_ratio)) -> (advantages, returns), [T, B] each; whether it takes log_ratio.

    Args: spec: a name of ESTIMATOR_REGISTRY, {type: name, its options}, or such a function, without log_ratio.
    """
    if callable(spec):
        return spec, False
    component = make_component(ESTIMATOR_REGISTRY, spec)
    if isinstance(component, Component) and component.function is gae_estimate:
        return partial(gae_estimate, **dict(component.options)), False
    from zoo.rl_utils.estimators import checked

    return partial(checked, component), component.name == 'vtrace'


class Samples:
    """Makes samples from rollouts, and from samples the columns that a gradient step reads.

    Args: gamma, lam: of the estimator; ranks: the ranks over whose samples weights have mean 1; options: the update options,
      in order, which add columns and change advantages; the others: see `zoo.policy.slots.UpdateSlots`.
    Attributes: rows_once, entry_len: see `Entries`; inputs: of `zoo.policy.slots.UpdateSlots`; by_ratios: whether the
      estimator weighs rows by log p_now - log p_behaviour.
    """

    def __init__(
        self,
        gamma: float,
        lam: float,
        ranks: Ranks = ALONE,
        options: Sequence[UpdateOption] = (),
        *,
        units: Units,
        baseline: Callable[[Tensor], Tensor],
        reward_scale: Callable[[Transition, Tensor | None], Tensor],
        estimator: str | Mapping[str, Any] | Callable[..., tuple[Tensor, Tensor]],
        entries: Entries = ROWS,
        inputs: Iterable[Callable[[dict[str, Any]], dict[str, Any]]] = (),
    ) -> None:
        self._discount = gamma, lam
        self._ranks = ranks
        self.options = options
        self.units = units
        self._baseline = baseline
        self._scaled_reward = reward_scale
        self._cut = entries.cut
        self.rows_once = entries.rows_once
        self.entry_len = entries.length
        self.inputs = list(inputs)
        self._estimator, self.by_ratios = estimator_of(estimator)

    @torch.no_grad()
    def of_rollout(self, rollout: Rollout, critic: Critic) -> Sample:
        """Turns a rollout into samples: rows [N], t-major, or for a recurrent model sequences [S].

        Args: critic: see `rollout_values`.
        """
        data = rollout.data
        weight = None
        if 'is_reset' in data:
            weight = valid_weight(data['is_reset'], self._ranks)
        reward = self._scaled_reward(data, weight)
        outputs = rollout_values(rollout, critic)
        kept = {name: x for name, x in data.items() if name not in TRANSITION_ONLY}
        columns: dict[str, Any] = as_tensors(kept, 'the column')
        columns |= self.estimate(outputs, reward, data['done'], data['traj_flag'])
        if weight is not None:
            columns['weight'] = weight
        for option in self.options:
            columns |= option.add_columns(rollout, Estimated(reward, outputs[0], weight))
            columns['adv'] = option.advantage(columns)
        return self._cut(columns, rollout)

    def estimate(
        self, outputs: tuple[Tensor, Tensor], reward: Tensor, done: Tensor, traj_flag: Tensor, *log_ratio: Tensor
    ) -> dict[str, Tensor]:
        """value, adv and return_, [T, B] each, in return units.

        Args: outputs: of the critic for rows and their true successors; log_ratio: for estimators that weigh rows by it.
        """
        value, next_value = (self._baseline(self.units.restore(x)) for x in outputs)
        data = gae_data(value, next_value, reward, done, traj_flag)
        # In a row that only reset an env, adv and return_ mean nothing: its weight 0 keeps them out of the losses, and the
        # traj_flag of the row before cuts the trace.
        adv, return_ = self._estimator(data, *self._discount, *log_ratio)
        return {'value': value, 'adv': adv, 'return_': return_}

    def estimate_again(self, batch: Columns, outputs: tuple[Tensor, Tensor], *log_ratio: Tensor) -> dict[str, Any]:
        """Returns a batch of a whole rollout with value, adv and return_ by other outputs of the critic, [T, B] each.

        Args: batch: rows [N] with reward, done and traj_flag; outputs, log_ratio: as in `estimate`.
        """
        rewards_and_ends = [batch[name].view_as(outputs[0]) for name in ('reward', 'done', 'traj_flag')]
        estimated = self.estimate(outputs, *rewards_and_ends, *log_ratio)
        if 'value_output' in batch:
            estimated['value_output'] = outputs[0]
        columns = {**batch, **{name: x.flatten() for name, x in estimated.items()}}
        for option in self.options:
            columns['adv'] = option.advantage(columns)
        return columns

    @torch.no_grad()
    def read_by_steps(self, batch: Columns) -> dict[str, Any]:
        """Returns the columns of a batch that a step reads; value and return_ are in the unit of the critic's output."""
        columns = {name: x for name, x in batch.items() if name not in NO_INPUT}
        for change in self.inputs:
            columns = change(columns)
        if 'value_output' in columns:
            columns['value'] = columns.pop('value_output')
        return columns


def normalized(columns: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Normalises advantages over the whole batch, of all ranks."""
    adv = columns['adv']
    weight = columns.get('weight')
    if weight is not None:
        weight = weight.flatten()
    return {**columns, 'adv': normalize_advantage(adv.flatten(), weight, ranks).view_as(adv)}
