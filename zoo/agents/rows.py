"""Rows: the rows of each policy in blocks of tables, and the actions of all policies joined into tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.agents.compaction import Steps
from zoo.agents.layout import (
    ACTS,
    BEGINS,
    EPISODE,
    REWARD,
    ROWS,
    STATE,
    TERMINATED,
    TRUNCATED,
    Group,
    Layout,
)
from zoo.core.action_map import action_width
from zoo.core.data import Finals, State, Timestep, Tree, map_tensors
from zoo.core.spaces import Dict, Space, leaf_spaces


class PolicyRows:
    """The rows of one policy in a block of tables [T + 1, B, ...]: R = B * S rows, copy by copy.

    Attributes: obs: [T + 1, R, *O], views of the tables; the entry `state` is memory of its own, which `show` fills; slots: [S],
      the agents; columns: ROWS of the tables; group: of the policy.
    """

    def __init__(self, tables: Mapping[str, Any], group: Group) -> None:
        self.group = group
        self.slots = torch.tensor(group.slots)
        self.columns = tables[ROWS]
        self._tables = tables
        self.obs = rows_of_group(tables, group)
        self._state: Tensor | None = None
        if group.has_state:
            self._state = tables[STATE].repeat_interleave(len(group.slots), 1)
            self.obs = {**self.obs, STATE: self._state}

    def show(self, t: int | slice) -> None:
        """Fills what is not a view of the tables, in rows t."""
        if self._state is not None:
            state = self._tables[STATE][t]
            copies = 1  # their dimension
            if isinstance(t, int):
                copies = 0
            self._state[t] = state.repeat_interleave(len(self.slots), copies)

    def acts(self, t: int, owned: Tensor | None = None) -> Tensor:
        """Whether rows act on observation t, [R] bool. Args: owned: [R], whether the row's agent is the policy's; None: all."""
        acts = self.columns[t, :, self.slots, ACTS].flatten() > 0
        if owned is None:
            return acts
        return acts & owned.to(acts.device)

    def begins(self, t: int) -> Tensor:
        """Whether an episode of rows begins with observation t, [R] bool."""
        return self.columns[t, :, self.slots, BEGINS].flatten() > 0


def rows_of_group(tables: Mapping[str, Any], group: Group) -> Tree:
    """The observations of the agents of a group in tables [T, B, ...], as rows [T, B * S, *O], without the state."""
    return in_order(map_tensors(lambda x: x.flatten(1, 2), tables[group.entry]), group.obs_space)


def in_order(tree: Tree, space: Space) -> Tree:
    """A tree with its entries in the order of a space, as policies have them."""
    if not isinstance(space, Dict):
        return tree
    return {name: in_order(tree[name], part) for name, part in space.spaces.items() if name in tree}


class ActionJoin:
    """Joins the actions of the rows of all policies to the actions of tables, [B, D] f32, as `zoo.core.action_map` takes them.

    Args: space: of the tables' actions, as the vector env has it.
    """

    def __init__(self, layout: Layout, space: Space) -> None:
        assert isinstance(space, Dict)
        self._parts = []
        for entry, table in space.spaces.items():
            groups = [group for group in layout.groups if group.entry == entry]
            self._parts.append(
                (
                    [(layout.groups.index(group), group.policy) for group in groups],
                    len(groups[0].slots),
                    _columns(groups[0].action_space, table),
                )
            )

    def __call__(self, actions: Mapping[str, Tensor], owners: Tensor | None = None) -> Tensor:
        """Args: actions: of each policy, [R] or [R, K], in the policies' form; owners: [B, A], the policy of each agent."""
        parts = []
        device = next(iter(actions.values())).device  # those of other policies may be elsewhere
        for policies, n, columns in self._parts:
            flat = self._of_rows(actions[policies[0][1]], n).to(device)
            for index, policy in policies[1:]:
                assert owners is not None, 'agents change between policies'
                is_own = (owners == index).unsqueeze(-1).to(device)
                flat = torch.where(is_own, self._of_rows(actions[policy], n).to(device), flat)
            parts += [flat[..., part].flatten(1) for part in columns]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, 1)

    def _of_rows(self, action: Tensor, n: int) -> Tensor:
        """[R, ...] -> [B, S, K] f32."""
        return action.reshape(len(action) // n, n, -1).to(torch.float32)


class Owners:
    """The policy of each agent of B copies, where a function maps agents to policies; computed when an episode begins.

    Args: n_copy: B; first: index of the first copy.
    """

    def __init__(self, layout: Layout, n_copy: int, first: int) -> None:
        self._layout = layout
        self._first = first
        self._episode = torch.full((n_copy,), -1.0)
        self._now = torch.zeros((n_copy, len(layout.agents)), dtype=torch.int64)

    def see(self, columns: Tensor) -> Tensor:
        """Takes ROWS of a table, [B, A, N_COLUMN]; returns the policies, [B, A] int64, as indices of `Layout.groups`."""
        episode = columns[:, 0, EPISODE].cpu()
        for b in (episode != self._episode).nonzero().flatten().tolist():
            self._now[b] = torch.tensor(self._layout.owners(int(episode[b]), self._first + b))
        self._episode = episode.clone()
        return self._now

    def restart(self) -> None:
        """Called when all copies begin new episodes, whose numbers may be those of the present ones."""
        self._episode.fill_(-1.0)

    def now(self) -> list[int]:
        """The policies of the present episodes."""
        if bool((self._episode < 0).all()):  # no episode has begun
            return []
        return self._now.unique().tolist()


def _columns(space: Space, table: Space) -> list[slice]:
    """The columns of each leaf in an action of a policy, in the order of the leaves in actions of tables."""
    columns = {}
    start = 0
    for name, leaf in leaf_spaces(space):
        stop = start + action_width(leaf)
        columns[name] = slice(start, stop)
        start = stop
    return [columns[name] for name, _ in leaf_spaces(table)]


def outcomes(columns: Tensor, finals: Finals) -> Tensor:
    """The columns of agents after each step, [T, B, A, N_COLUMN]; after one that ended an episode those of its last table.

    Args: columns: ROWS of a block, [T + 1, B, A, N_COLUMN]; finals: last tables, by step.
    """
    if not finals:
        return columns[1:]
    steps = columns[1:].clone()
    for t, copies, table in finals:
        steps[t, _copied(copies)] = _copied(table[ROWS])
    return steps


class TableRollout(NamedTuple):
    """A rollout of tables, which the rows of all policies are parts of.

    gained: see `outcomes`; timestep: of the tables; finals: last tables, by step; team: see the section agents.
    """

    gained: Tensor
    timestep: Timestep
    finals: Finals
    team: str = 'none'


class Acted(NamedTuple):
    """The part of a policy in a rollout.

    output: of its acting; state: the recurrent state before step 0; initial: that of new episodes; owned: [T + 1, B, S], whether
    the agent is the policy's in that step; None: all are.
    """

    output: dict[str, Any]
    state: State = None
    initial: State = None
    owned: Tensor | None = None


def steps_of(rows: PolicyRows, rollout: TableRollout, acted: Acted) -> Steps:
    """The steps of the rows of a policy in a rollout."""
    timestep = rollout.timestep
    n = len(rows.slots)
    gained = rollout.gained[:, :, rows.slots]
    columns = rows.columns[:, :, rows.slots]
    reward = gained[..., REWARD]
    acts = columns[..., ACTS] > 0
    terminated, truncated = ends_of_agents(gained, timestep)
    owned = acted.owned
    if owned is not None:
        owned = owned.to(acts.device)
        acts = acts & owned
        reward = reward * owned[:-1]
        terminated = terminated & owned[:-1]
        truncated = truncated & owned[:-1]
    if rollout.team != 'none':
        reward = _team_rewards(reward, rollout.team, owned)
    dropped = None
    if timestep.is_reset is not None:
        dropped = timestep.is_reset.repeat_interleave(n, 1)
    truncated = truncated.flatten(1)
    if timestep.is_broken is not None:
        truncated |= timestep.is_broken.repeat_interleave(n, 1)
    final_obs, final_index = _final_rows(rows, rollout.finals)
    return Steps(
        obs=rows.obs,
        output=acted.output,
        acts=acts.flatten(1),
        begins=columns[..., BEGINS].flatten(1) > 0,
        reward=reward.flatten(1),
        terminated=terminated.flatten(1),
        truncated=truncated,
        dropped=dropped,
        final_obs=final_obs,
        final_index=final_index,
        state=acted.state,
        initial=acted.initial,
    )


def _team_rewards(reward: Tensor, team: str, owned: Tensor | None) -> Tensor:
    """The sum or mean of the rewards of a policy's agents, for each of them, [T, B, S]. Args: owned: see `Acted`."""
    total = reward.sum(-1, keepdim=True)
    if team == 'mean':
        if owned is None:
            total = total / reward.shape[-1]
        else:
            total = total / owned[:-1].sum(-1, keepdim=True).clamp(min=1)
    return total.expand_as(reward)


def ends_of_agents(gained: Tensor, timestep: Timestep) -> tuple[Tensor, Tensor]:
    """Whether agents were terminated, and truncated, in each step, [T, B, S] bool each. With its copy every agent ends.

    Args: gained: of `outcomes`, of these agents; timestep: of the tables.
    """
    terminated = gained[..., TERMINATED] > 0
    truncated = gained[..., TRUNCATED] > 0
    is_open = ~(terminated | truncated)  # the agent itself has not ended in this step
    terminated = terminated | (is_open & timestep.terminated.unsqueeze(-1))
    truncated = truncated | (is_open & timestep.truncated.unsqueeze(-1))
    return terminated, truncated


def _final_rows(rows: PolicyRows, finals: Finals) -> tuple[Tree, Tensor]:
    """The last observations of the agents of a policy, [K, *O], and their (t, r), [K, 2]."""
    if not finals:
        return map_tensors(lambda x: x[-1, :0], rows.obs), torch.empty((0, 2), dtype=torch.int64)
    n = len(rows.slots)
    parts = []
    index = []
    for t, copies, table in finals:
        tensors = map_tensors(_copied, table)
        obs = map_tensors(lambda x: x.flatten(0, 1), tensors[rows.group.entry])
        obs = in_order(obs, rows.group.obs_space)
        if rows.group.has_state:
            obs[STATE] = tensors[STATE].repeat_interleave(n, 0)
        parts.append(obs)
        r = (copies[:, None] * n + np.arange(n)).ravel()
        index.append(np.stack((np.full_like(r, t), r), 1))
    return map_tensors(lambda *x: torch.cat(x), *parts), torch.from_numpy(np.concatenate(index))


def _copied(x: np.ndarray) -> Tensor:
    """An array as a tensor; those of runners may be memory that is not to be written."""
    return torch.from_numpy(np.array(x))
