"""Compaction against a loop that keeps a list for each agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from zoo.agents.compaction import Pending, Steps, compacted, needs_compaction

N_STEP = 6
N_ROW = 4


class Entry(NamedTuple):
    """A transition of one agent: the step of its observation (counted over rollouts), its reward and end, and what follows."""

    t: int
    reward: float
    terminated: bool
    truncated: bool
    next_t: int  # the step whose observation follows; of an end, the negative number of the last observation
    begins: bool


class Pattern(NamedTuple):
    """What the rows do over several rollouts, [n, R]."""

    acts: Tensor
    begins: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    ends_copy: Tensor  # the last observation of an end is not in the block


def random_pattern(generator: torch.Generator, n: int) -> Pattern:
    """Agents that act by chance, end by chance, and come back by chance; rewards are powers of 2, also while idle."""

    def chance(p: float) -> bool:
        return bool(torch.rand((), generator=generator) < p)

    acts = torch.zeros(n + 1, N_ROW, dtype=torch.bool)
    begins = acts.clone()
    flags = torch.zeros(3, n, N_ROW, dtype=torch.bool)
    reward = 2.0 ** torch.randint(0, 12, (n, N_ROW), generator=generator)
    p_act = 0.2 + 0.8 * float(torch.rand((), generator=generator))
    for r in range(N_ROW):
        is_alive = False
        for t in range(n + 1):
            if not is_alive and chance(0.6):
                is_alive = acts[t, r] = begins[t, r] = True
            elif is_alive:
                acts[t, r] = chance(p_act)
            if t < n and is_alive and chance(0.15):
                flags[int(chance(0.5)), t, r] = True
                flags[2, t, r] = chance(0.5)
                is_alive = False
    return Pattern(acts, begins, reward, *flags.unbind(0))


def entries_of_loop(pattern: Pattern, r: int, n_round: int) -> list[list[Entry]]:
    """The transitions of a row, by the rollout in which each is complete."""
    found: list[list[Entry]] = [[] for _ in range(n_round)]
    now: list[Any] | None = None  # [t, reward, begins] of the action without an outcome
    for t in range(n_round * N_STEP + 1):
        if pattern.acts[t, r]:
            if now is not None:
                found[min((t - 1) // N_STEP, n_round - 1)].append(Entry(now[0], now[1], False, False, t, now[2]))
            now = [t, 0.0, bool(pattern.begins[t, r])]
        if t == n_round * N_STEP:
            break
        if now is not None:
            now[1] += float(pattern.reward[t, r])
            if pattern.terminated[t, r] or pattern.truncated[t, r]:
                is_terminal = bool(pattern.terminated[t, r])
                found[t // N_STEP].append(Entry(now[0], now[1], is_terminal, not is_terminal, -(t + 1), now[2]))
                now = None
    return found


def steps_of_round(pattern: Pattern, i: int) -> Steps:
    """The steps of rollout i. The observation of step t is t, the last one of an end in step t is -(t + 1)."""
    part = slice(i * N_STEP, (i + 1) * N_STEP)
    obs = torch.arange(i * N_STEP, (i + 1) * N_STEP + 1.0)[:, None].repeat(1, N_ROW)
    ends = pattern.terminated[part] | pattern.truncated[part]
    elsewhere = ends & pattern.ends_copy[part]
    index = elsewhere.nonzero()
    for t, r in (ends & ~elsewhere).nonzero().tolist():
        if not bool(pattern.acts[i * N_STEP + t + 1, r]):  # else its next episode's first observation is there
            obs[t + 1, r] = -(i * N_STEP + t + 1)
        else:
            index = torch.cat((index, torch.tensor([[t, r]])))
    return Steps(
        obs=obs,
        output={'action': obs[:-1].clone()},
        acts=pattern.acts[i * N_STEP : (i + 1) * N_STEP + 1],
        begins=pattern.begins[i * N_STEP : (i + 1) * N_STEP + 1],
        reward=pattern.reward[part],
        terminated=pattern.terminated[part],
        truncated=pattern.truncated[part],
        dropped=None,
        final_obs=-(index[:, 0] + i * N_STEP + 1.0),
        final_index=index,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ('seed', 'n_pattern'), [(0, 500), (1, 500), *(pytest.param(i, 1_000, marks=pytest.mark.soak) for i in range(10))]
)
def test_rows_equal_a_list_of_each_agent(seed, n_pattern):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_pattern):
        n_round = 3
        pattern = random_pattern(generator, n_round * N_STEP)
        expected = [entries_of_loop(pattern, r, n_round) for r in range(N_ROW)]
        pending: Pending | None = None
        for i in range(n_round):
            steps = steps_of_round(pattern, i)
            done, pending = compacted(steps, pending)
            follow = dict(zip(map(tuple, done.final_index.tolist()), done.final_obs.tolist(), strict=True))
            for r in range(N_ROW):
                entries = expected[r][i]
                n = len(entries)
                assert done.is_reset[:, r].tolist() == [k >= n for k in range(N_STEP)]
                for k, entry in enumerate(entries):
                    assert (done.obs[k, r], done.output['action'][k, r]) == (entry.t, entry.t)
                    assert done.reward[k, r] == entry.reward
                    assert bool(done.terminated[k, r]) == entry.terminated
                    is_last = k == n - 1 < N_STEP - 1
                    is_cut_here = is_last and not (entry.terminated or entry.truncated)
                    assert bool(done.truncated[k, r]) == (entry.truncated or is_cut_here)
                    if k + 1 < n:
                        assert bool(done.begins[k, r]) == entries[k + 1].begins
                    next_obs = follow.get((k, r))
                    if next_obs is None:
                        next_obs = float(done.obs[k + 1, r] if k + 1 < n else done.last_obs[r])
                    assert next_obs == entry.next_t
                assert not done.terminated[n:, r].any()
                assert not done.truncated[n:, r].any()
                assert not done.reward[n:, r].any()


def test_rows_that_always_act_need_none():
    acts = torch.ones(4, 2, dtype=torch.bool)
    flags = torch.zeros(3, 2, dtype=torch.bool)
    steps = Steps(
        torch.zeros(4, 2),
        {},
        acts,
        flags,
        torch.zeros(3, 2),
        flags,
        flags,
        None,
        torch.zeros(0),
        torch.zeros(0, 2, dtype=torch.int64),
    )
    assert not needs_compaction(steps, None)
    acts[1, 0] = False
    assert needs_compaction(steps, None)
    dropped = torch.zeros_like(flags)
    dropped[1, 0] = True  # the row only resets its env: as in envs of one agent, it stays where it is
    assert not needs_compaction(steps._replace(dropped=dropped), None)


def test_state_of_a_row_is_that_before_its_first_transition():
    """Row 0 begins an episode at step 1; row 1 waits for its turn with the action of the rollout before."""
    acts = torch.tensor([[False, False], [True, False], [True, True], [True, True]])
    begins = torch.tensor([[False, False], [True, False], [False, False], [False, False]])
    after = torch.tensor([[10.0, 20.0], [11.0, 21.0], [12.0, 22.0]])
    flags = torch.zeros(3, 2, dtype=torch.bool)
    steps = Steps(
        torch.arange(4.0)[:, None].repeat(1, 2),
        {'state': after},
        acts,
        begins,
        torch.ones(3, 2),
        flags,
        flags,
        None,
        torch.zeros(0),
        torch.zeros(0, 2, dtype=torch.int64),
        state=torch.tensor([5.0, 6.0]),
        initial=torch.zeros(2),
    )
    before = Pending(
        has=torch.tensor([False, True]),
        obs=torch.tensor([-9.0, -9.0]),
        output={'state': torch.tensor([6.0, 6.0])},
        reward=torch.tensor([0.0, 7.0]),
        begins=torch.tensor([False, False]),
        dropped=torch.tensor([False, False]),
        state=torch.tensor([3.0, 4.0]),
    )
    done, pending = compacted(steps, before)
    assert done.state.tolist() == [0.0, 4.0]  # of a new episode; before the action of the rollout before
    assert done.obs[:, 1].tolist()[:2] == [-9.0, 2.0]
    assert done.reward[:, 1].tolist() == [9.0, 1.0, 0.0]  # 7 before, 1 in each of the two steps until the turn
    assert done.output['state'][:, 0].tolist()[:2] == [11.0, 12.0]
    assert not pending.has.any()
