"""Compaction: rows of agents that do not always act become rows of transitions, one after the other.

An agent acts at some steps of a rollout. The outcome of an action, its reward and whether the agent ended, is complete when
the agent acts next or ends. Compaction moves the complete transitions of each row to its front, in order; the places left
over are marked `is_reset`, so that they have weight 0. An action without a complete outcome is kept for the next rollout, whose
first transition of that row it becomes; until then its observation gives the value after the transition before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.core.data import State, Tree, map_tensors

NEVER = 1 << 30


class Steps(NamedTuple):
    """Actions of the R rows of a policy in T steps, and what they led to.

    obs: [T + 1, R, *O]; output: of acting, [T, R, ...] each; acts, begins: [T + 1, R] bool, the agent acts on the observation;
    its episode begins with it; reward [T, R], terminated, truncated [T, R] bool: what each step gave, also while idle;
    dropped: [T, R] bool, steps that are no data, or None; final_obs [K, *O], final_index [K, 2]: (t, r) of the ends whose last
    observation is not obs[t + 1]; state: the recurrent state before step 0, [R, ...], or None; initial: that of new episodes.
    """

    obs: Tree
    output: dict[str, Any]
    acts: Tensor
    begins: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    dropped: Tensor | None
    final_obs: Tree
    final_index: Tensor
    state: State = None
    initial: State = None


class Compacted(NamedTuple):
    """The transitions of R rows, at their fronts. All as in `Steps`, but: is_reset [T, R] bool: places without a transition;
    is_open: [T, R] bool, `truncated` is set there only since no place of the row has a transition after it;
    last_obs: [R, *O]; begins: [T, R], an episode begins with the next place."""

    obs: Tree
    output: dict[str, Any]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    is_reset: Tensor
    is_open: Tensor
    begins: Tensor
    last_obs: Tree
    final_obs: Tree
    final_index: Tensor
    state: State


class Pending(NamedTuple):
    """The last action of each row whose outcome is not complete: has [R] bool, whether there is one; the others [R, ...]."""

    has: Tensor
    obs: Tree
    output: dict[str, Any]
    reward: Tensor
    begins: Tensor
    dropped: Tensor
    state: State


def needs_compaction(steps: Steps, pending: Pending | None) -> bool:
    """Whether some row is idle in a step that is data, or has an action of the rollout before."""
    idle = ~steps.acts[:-1]
    if steps.dropped is not None:
        idle &= ~steps.dropped
    return bool(idle.any()) or (pending is not None and bool(pending.has.any()))


def compacted(steps: Steps, pending: Pending | None) -> tuple[Compacted, Pending]:
    """Compacts the rows of a rollout. Returns: the transitions; the actions without an outcome, for the next rollout.

    Args: pending: of the rollout before, None if there is none.
    """
    n_step = len(steps.reward)
    whole = _with_pending(steps, pending)
    places = _places(whole, n_step)

    def moved(x: Tensor) -> Tensor:
        return x[places.source, places.rows]

    at = places.last_step, places.rows
    terminated = places.ended & whole.terminated[at] & ~places.is_empty
    truncated = places.ended & ~whole.terminated[at] & ~places.is_empty
    is_open = _is_open(places)
    truncated = truncated | is_open
    k, final_r = (terminated | truncated).nonzero(as_tuple=True)
    is_reset = places.is_empty.clone()
    if whole.dropped is not None:
        is_reset |= moved(whole.dropped) | whole.dropped[at]
    begins_here = moved(whole.begins[:-1]) & ~places.is_empty
    done = Compacted(
        obs=map_tensors(moved, _without_last(whole.obs)),
        output=map_tensors(moved, whole.output),
        reward=_rewards(whole, places),
        terminated=terminated,
        truncated=truncated,
        is_reset=is_reset,
        is_open=is_open,
        begins=torch.cat((begins_here[1:], torch.zeros_like(begins_here[:1]))),
        last_obs=map_tensors(lambda x: x[-1], whole.obs),
        final_obs=_finals(whole, places, is_open, k, final_r),
        final_index=torch.stack((k, final_r), 1),
        state=_state_before(whole, begins_here[0]),
    )
    return done, _pending_of(whole, places.is_complete)


class _Places(NamedTuple):
    """Places of the transitions of R rows, T for each, of n steps: those of the rollout and maybe the action before it.

    source [T, R]: the step that the transition of a place comes from; is_empty [T, R]: there is none; ended [T, R]: its agent ended
    before it acted again; last_step [T, R]: the last one of its outcome; n_complete [R]: transitions of a row; next_act [n, R]:
    for each step the observation of the next action, from 1 to n; is_complete [n, R]: the outcome of an action is there;
    rows [R]: their indices.
    """

    source: Tensor
    is_empty: Tensor
    ended: Tensor
    last_step: Tensor
    n_complete: Tensor
    next_act: Tensor
    is_complete: Tensor
    rows: Tensor


def _places(whole: Steps, n_step: int) -> _Places:
    """Places of all complete transitions, at the fronts of their rows."""
    n = len(whole.reward)
    ends = whole.terminated | whole.truncated
    next_act = _next(whole.acts[1:], n)
    end_at = _next(ends, n, offset=0)
    is_ended = end_at < next_act
    is_complete = whole.acts[:-1] & (is_ended | (next_act <= n))
    rows = torch.arange(ends.shape[1], device=ends.device)
    place = is_complete.cumsum(0) - 1
    n_complete = is_complete.sum(0)
    source = torch.zeros((n_step, len(rows)), dtype=torch.int64, device=ends.device)
    t, r = is_complete.nonzero(as_tuple=True)
    source[place[t, r], r] = t
    is_empty = torch.arange(n_step, device=ends.device).unsqueeze(1) >= n_complete
    ended = is_ended[source, rows]
    last_step = torch.where(ended, end_at[source, rows], next_act[source, rows] - 1)
    last_step = last_step.clamp(max=n - 1)  # of empty places
    return _Places(source, is_empty, ended, last_step, n_complete, next_act, is_complete, rows)


def _rewards(whole: Steps, places: _Places) -> Tensor:
    """The reward of each transition, from its action to the last step of its outcome, [T, R]."""
    total = whole.reward.to(torch.float64).cumsum(0)
    source = places.source, places.rows
    reward = total[places.last_step, places.rows] - total[source] + whole.reward[source].to(torch.float64)
    return torch.where(places.is_empty, 0.0, reward).to(whole.reward.dtype)


def _is_open(places: _Places) -> Tensor:
    """Whether a place has the last transition of a row with empty places after it, and its agent has not ended, [T, R].

    The value of what the agent sees next counts for the rest.
    """
    n_step = len(places.source)
    index = torch.arange(n_step, device=places.source.device).unsqueeze(1)
    return (index == places.n_complete - 1) & ~places.ended & (places.n_complete < n_step)


def _next(flags: Tensor, n: int, offset: int = 1) -> Tensor:
    """For each step t the least u >= t with flags[u], plus `offset`; NEVER if there is none. [n, R]."""
    index = torch.arange(n, device=flags.device).unsqueeze(1) + offset
    marked = torch.where(flags, index, NEVER)
    return marked.flip(0).cummin(0).values.flip(0)


def _without_last(obs: Tree) -> Tree:
    return map_tensors(lambda x: x[:-1], obs)


def _with_pending(steps: Steps, pending: Pending | None) -> Steps:
    """The steps with the actions of the rollout before in front, if there are any."""
    if pending is None or not bool(pending.has.any()):
        return steps

    def front(before: Tensor, x: Tensor) -> Tensor:
        return torch.cat((before.unsqueeze(0).to(x.dtype), x))

    none = torch.zeros_like(pending.has)
    dropped = steps.dropped
    if dropped is not None or bool(pending.dropped.any()):
        if dropped is None:
            dropped = torch.zeros_like(steps.terminated)
        dropped = front(pending.dropped, dropped)
    state = steps.state
    if state is not None:
        state = map_tensors(
            lambda a, b: torch.where(pending.has.view(-1, *[1] * (b.dim() - 1)).to(b.device), a, b),
            pending.state,
            state,
        )
    return steps._replace(
        obs=map_tensors(front, pending.obs, steps.obs),
        output=map_tensors(front, pending.output, steps.output),
        acts=front(pending.has, steps.acts),
        begins=front(pending.begins, steps.begins),
        reward=front(pending.reward, steps.reward),
        terminated=front(none, steps.terminated),
        truncated=front(none, steps.truncated),
        dropped=dropped,
        final_index=steps.final_index + torch.tensor([1, 0], device=steps.final_index.device),
        state=state,
    )


def _finals(whole: Steps, places: _Places, is_open: Tensor, k: Tensor, r: Tensor) -> Tree:
    """The observations after the transitions at the places (k, r), which are ends or the last ones of their rows."""
    open_at = is_open[k, r]
    last_step = places.last_step[k, r]
    step = torch.where(
        open_at, places.next_act[places.source[k, r], r], last_step + 1
    )  # of the observation in the block
    # of ends whose last observation is not in the block: their index among `final_obs`
    device = whole.terminated.device
    final_index = whole.final_index.to(device)
    where = torch.full(whole.terminated.shape, -1, dtype=torch.int64, device=device)
    where[final_index[:, 0], final_index[:, 1]] = torch.arange(len(final_index), device=device)
    elsewhere = where[last_step, r]
    from_finals = (elsewhere >= 0) & ~open_at

    def taken(x: Tensor, final: Tensor) -> Tensor:
        rows = x[step, r]
        if len(final):
            rows[from_finals] = final[elsewhere[from_finals]]
        return rows

    return map_tensors(taken, whole.obs, whole.final_obs)


def _state_before(whole: Steps, begins: Tensor) -> State:
    """The recurrent state before the first transition of each row: that of a new episode where one begins with it."""
    if whole.state is None:
        return None
    return map_tensors(
        lambda new, old: torch.where(begins.view(-1, *[1] * (old.dim() - 1)).to(old.device), new, old),
        whole.initial,
        whole.state,
    )


def _pending_of(whole: Steps, is_complete: Tensor) -> Pending:
    """The last action of each row, where its outcome is not complete."""
    n = len(is_complete)
    index = torch.arange(n, device=is_complete.device).unsqueeze(1)
    last = torch.where(whole.acts[:-1], index, -1).amax(0)
    rows = torch.arange(is_complete.shape[1], device=is_complete.device)
    at = last.clamp(min=0)
    has = (last >= 0) & ~is_complete[at, rows]
    total = whole.reward.cumsum(0, dtype=torch.float64)
    reward = (total[-1] - total[at, rows]).to(whole.reward.dtype) + whole.reward[at, rows]
    if whole.dropped is None:
        dropped = torch.zeros_like(has)
    else:
        dropped = whole.dropped[at, rows]
    state = whole.state
    if state is not None:
        before = map_tensors(lambda first, x: torch.cat((first.unsqueeze(0), x)), state, whole.output['state'])
        begins = whole.begins[at, rows]
        state = map_tensors(
            lambda x, new: torch.where(begins.view(-1, *[1] * (new.dim() - 1)).to(new.device), new, x[at, rows]),
            before,
            whole.initial,
        )
    return Pending(
        has=has,
        obs=map_tensors(lambda x: x[at, rows].clone(), whole.obs),
        output=map_tensors(lambda x: x[at, rows].clone(), whole.output),
        reward=reward,
        begins=whole.begins[at, rows],
        dropped=dropped,
        state=state,
    )


def drop_pending(pending: Pending | None, rows: slice) -> None:
    """Forgets the actions of rows whose episodes are lost."""
    if pending is not None:
        pending.has[rows] = False
