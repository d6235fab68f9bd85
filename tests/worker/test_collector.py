"""Contents of a rollout. The env observes the number of steps taken, gives reward 1 per step and ends after 5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.envs import LimitEnv
from tests.policy_envs import HandModel
from tests.worker.collectors import BATCHED, NEXT_STEP, SAME_STEP, make_collector
from zoo.core.seeding import stream
from zoo.env import make_env_groups
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_config
from zoo.worker.collector import Collector, EpisodeTracker


def test_rollout_in_same_step_mode_has_final_observations_next_to_the_block() -> None:
    rollout = make_collector(SAME_STEP, 12).collect()
    want = torch.tensor([0.0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    assert torch.equal(rollout.data['obs'], want[:, None, None].expand(12, 2, 1))
    assert torch.equal(rollout.last_obs, torch.full((2, 1), 2.0))
    assert rollout.final_index.tolist() == [[4, 0], [4, 1], [9, 0], [9, 1]]
    assert rollout.final_obs.tolist() == [[5.0]] * 4
    assert rollout.data['traj_flag'][:, 0].nonzero().flatten().tolist() == [4, 9]
    assert not rollout.data['done'].any() and 'is_reset' not in rollout.data.keys()


@pytest.mark.parametrize('env', [NEXT_STEP, BATCHED], ids=['sync', 'batched'])
def test_rollout_in_next_step_mode_has_reset_rows_in_the_block(env: dict[str, Any]) -> None:
    rollout = make_collector(env, 12).collect()
    want = torch.tensor([0.0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5])
    assert torch.equal(rollout.data['obs'], want[:, None, None].expand(12, 2, 1))
    assert rollout.data['is_reset'][:, 0].nonzero().flatten().tolist() == [5, 11]
    assert torch.equal(rollout.last_obs, torch.zeros(2, 1))
    assert len(rollout.final_index) == len(rollout.final_obs) == 0


def test_terminal_ends_are_done_and_end_the_trace() -> None:
    rollout = make_collector({**SAME_STEP, 'kwargs': {'end': 'terminated'}}, 7).collect()
    for name in ('done', 'traj_flag'):
        assert rollout.data[name][:, 0].nonzero().flatten().tolist() == [4]


class Staggered(gymnasium.Wrapper):
    """The k-th env made, from 0, has episodes of 2 + k steps; its observation is 100 k + the number of steps."""

    n_made = 0

    def __init__(self) -> None:
        self.k = Staggered.n_made
        Staggered.n_made += 1
        super().__init__(LimitEnv(2 + self.k))

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs + np.float32(100 * self.k), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return obs + np.float32(100 * self.k), *rest


def test_final_index_says_which_env_ended_when() -> None:
    Staggered.n_made = 0
    rollout = make_collector({**SAME_STEP, 'id': Staggered}, 4, n_env=3).collect()
    # episodes of 2, 3 and 4 steps: ends at t = 1 and 3, at t = 2, at t = 3
    assert dict(zip(map(tuple, rollout.final_index.tolist()), rollout.final_obs.flatten().tolist(), strict=True)) == {
        (1, 0): 2.0,
        (3, 0): 2.0,
        (2, 1): 103.0,
        (3, 2): 204.0,
    }
    assert rollout.next_obs()[..., 0].tolist() == [
        [1.0, 101.0, 201.0],
        [2.0, 102.0, 202.0],
        [1.0, 103.0, 203.0],
        [2.0, 101.0, 204.0],
    ]


@pytest.mark.parametrize('env', [SAME_STEP, NEXT_STEP, BATCHED], ids=['same', 'next', 'batched'])
def test_second_rollout_continues_where_the_first_ended(env: dict[str, Any]) -> None:
    once, twice = make_collector(env, 14), make_collector(env, 7)
    whole = once.collect()
    halves = []
    for _ in range(2):
        rollout = twice.collect()
        halves.append((rollout.data['obs'].clone(), rollout.data['traj_flag'].clone(), rollout.last_obs.clone()))
    assert torch.equal(torch.cat([h[0] for h in halves]), whole.data['obs'])
    assert torch.equal(torch.cat([h[1] for h in halves]), whole.data['traj_flag'])
    assert torch.equal(halves[0][2], halves[1][0][0]) and torch.equal(halves[1][2], whole.last_obs)
    assert once.env_step == twice.env_step and list(once.episodes.returns) == list(twice.episodes.returns)


@pytest.mark.parametrize(('env', 'n'), [(SAME_STEP, 6), (NEXT_STEP, 5), (BATCHED, 5)], ids=['same', 'next', 'batched'])
def test_episodes_that_span_rollouts_are_counted_whole_and_reset_rows_are_no_steps(env: dict[str, Any], n: int) -> None:
    """Each of 2 envs has 30 rows: 6 episodes of 5 steps, or 5 episodes that are each followed by a reset row."""
    collector = make_collector(env, 3)
    for _ in range(10):
        collector.collect()
    assert list(collector.episodes.lengths) == [5] * (2 * n) and list(collector.episodes.returns) == [5.0] * (2 * n)
    assert (collector.env_step, collector.collect_iter, collector.episodes.n_episode) == (2 * 5 * n, 10, 2 * n)


def test_episode_returns_ignore_rewards_of_reset_rows() -> None:
    collector = make_collector(dict(id='tests.policy_envs:Garbage-v0', vectorization='batched'), 13)
    collector.collect()
    assert set(collector.episodes.returns) == {5.0}  # the reset rows have reward 1000
    assert collector.env_step == collector.n_env * 11  # 13 rows: 5 steps, a reset, 5 steps, a reset, 1 step


def test_tracker_distinguishes_envs() -> None:
    tracker = EpisodeTracker(2)
    rewards = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    ends = torch.tensor([[False, True], [True, False], [False, False], [True, True]])
    tracker.record(rewards, ends, None)
    # in order of time, then env
    assert list(tracker.returns) == [10.0, 3.0, 7.0, 90.0] and list(tracker.lengths) == [1, 2, 2, 3]


def test_tracker_has_the_returns_of_all_envs_that_end_in_a_rollout() -> None:
    """Env i of 256 gets i a step for 8 steps: the mean return is 8 (0 + 255) / 2 = 1020."""
    tracker, end = EpisodeTracker(256), torch.zeros(8, 256, dtype=torch.bool)
    end[-1] = True
    tracker.record(torch.arange(256.0).expand(8, 256), end, None)
    assert len(tracker.returns) == 256 and sum(tracker.returns) / 256 == 1020.0 and set(tracker.lengths) == {8}


@pytest.mark.parametrize('with_resets', [False, True])
def test_tracker_counts_as_a_loop_over_steps_does(with_resets: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tracker, n_env = EpisodeTracker(7), 7
    returns, lengths, sums, counts = [], [], [0.0] * n_env, [0] * n_env
    for n_step in (1, 9, 4):
        reward = torch.randn(n_step, n_env, generator=generator)
        end, is_reset = (torch.rand(n_step, n_env, generator=generator) < p for p in (0.3, 0.2 * with_resets))
        for t in range(n_step):
            for b in range(n_env):
                sums[b] += float(reward[t, b])
                counts[b] += not is_reset[t, b]
                if end[t, b]:
                    returns.append(sums[b])
                    lengths.append(counts[b])
                    sums[b], counts[b] = 0.0, 0
        tracker.record(reward, end, is_reset if with_resets else None)
    assert list(tracker.returns) == pytest.approx(returns) and list(tracker.lengths) == lengths
    assert tracker.n_episode == len(returns) > 20


def test_tracker_keeps_the_newest_rollouts_that_have_a_hundred_in_order_of_time() -> None:
    tracker = EpisodeTracker(60)
    for first in (0.0, 60.0, 120.0):
        tracker.record(torch.arange(first, first + 60).view(1, 60), torch.ones(1, 60, dtype=torch.bool), None)
    assert list(tracker.returns) == list(range(60, 180)) and tracker.n_episode == 180


def test_reset_drops_the_episodes_that_were_under_way() -> None:
    collector = make_collector(SAME_STEP, 3)
    collector.collect()
    collector.reset(stream(0, 'again'))
    rollout = collector.collect()
    assert rollout.data['obs'][:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    collector.collect()
    assert set(collector.episodes.lengths) == {5}  # with the first three steps it would be 8


def test_rows_are_copies_of_what_the_env_returned() -> None:
    """The vector envs of gymnasium write every observation into one array."""
    for env in (SAME_STEP, BATCHED):
        collector = make_collector(env, 4)
        rollout = collector.collect()
        obs, last = rollout.data['obs'].clone(), rollout.last_obs.clone()
        collector.groups[0].env.step(torch.zeros(2, dtype=torch.int64))
        collector.groups[0].env.reset(3)
        assert torch.equal(rollout.data['obs'], obs) and torch.equal(rollout.last_obs, last)
        assert obs[:, 0, 0].tolist() == [0.0, 1.0, 2.0, 3.0] and last.tolist() == [[4.0], [4.0]]


def test_raw_action_is_kept_and_a_clipped_copy_is_sent() -> None:
    collector = make_collector({**SAME_STEP, 'kwargs': {'action': 'box'}}, 40, model=dict(log_std_init=1.0))
    rollout = collector.collect()
    assert rollout.data['action'].abs().max() > 1.5  # the bounds are +-1
    sent = np.concatenate([env.unwrapped.last_action for env in collector.groups[0].env.env.envs])
    np.testing.assert_array_equal(sent, rollout.data['action'][-1].flatten().clamp(-1, 1).numpy())
    mu, sigma = rollout.data['logit'].chunk(2, -1)
    z = (rollout.data['action'] - mu) / sigma
    assert 0.7 < z.std() < 1.3


def test_block_is_allocated_once() -> None:
    collector = make_collector(SAME_STEP, 4)
    first = collector.collect().data['obs'].data_ptr()
    assert collector.collect().data['obs'].data_ptr() == first


def test_model_whose_logit_is_a_view_of_a_parameter_collects() -> None:
    """For example a bandit, with the same logits for every observation."""

    class Bandit(HandModel):
        def compute_actor(self, obs: torch.Tensor) -> torch.Tensor:
            return self.zero.expand(*obs.shape[:-1], 2)

    rollout = make_collector(SAME_STEP, 4, network=Bandit(torch.zeros_like)).collect()
    assert torch.equal(rollout.data['logit'], torch.zeros(4, 2, 2)) and not rollout.data['logit'].requires_grad


def test_second_reset_leaves_no_old_observations_in_what_a_policy_is_shown() -> None:
    collector, seen = make_collector(SAME_STEP, 3), []
    mode = collector.mode

    def process(obs: torch.Tensor, output: Any, timestep: Any) -> dict[str, Any]:
        seen.append((obs[:, 0, 0].tolist(), timestep.obs[:, 0, 0].tolist()))
        return mode.process_transition(obs, output, timestep)

    collector.mode = mode._replace(process_transition=process)
    collector.collect()
    collector.collect()
    collector.reset(stream(1, 'test'))
    collector.collect()
    assert seen == [([0.0, 1, 2], [1.0, 2, 3]), ([3.0, 4, 0], [4.0, 0, 1]), ([0.0, 1, 2], [1.0, 2, 3])]


def test_acting_begins_a_rollout_when_its_first_row_is_there() -> None:
    collector = make_collector(SAME_STEP, 3)
    group, seen = collector.groups[0], []
    begin = group.acting.begin
    group.acting.begin = lambda: (seen.append(group.block.obs[0, 0].item()), begin())  # type: ignore[method-assign]
    collector.collect()
    collector.collect()
    assert seen == [0.0, 3.0]  # the observation is the number of steps


# --- what a rollout is told and what is told of it ---


ENV = {'id': 'CartPole-v1', 'collector_env_num': 4, 'collector_group_num': 2, 'vectorization': 'sync'}


@pytest.fixture(name='made')
def _made() -> Iterator[tuple[Collector, list[Any]]]:
    cfg = resolve_config(
        {'env': ENV, 'policy': {'type': 'ppo', 'collect': {'n_sample': 128}, 'learn': {'batch_size': 128}}}
    )
    envs = make_env_groups(cfg.env)
    policy = PPOPolicy(cfg.policy, envs[0].obs_space, envs[0].action_space)
    told: list[Any] = []
    own = policy.collect_mode
    mode = own._replace(
        begin=lambda *args: (told.append(args), own.begin(*args))[1],
        start=lambda obs, first=0: (told.append(first), own.start(obs, first))[1],
        forget=told.append,
    )
    yield Collector(envs, mode, first=8), told
    for env in envs:
        env.close()


def test_acting_is_told_the_first_env_of_each_group_and_which_rollout_begins(made: Any) -> None:
    collector, told = made
    collector.reset(stream(0, 'collect', 0))
    collector.collect_iter, collector.env_step = 5, 640
    collector.fill_block()
    assert told == [8, 10, (5, 640)]


def test_finals_of_groups_are_counted_over_all_envs(made: Any) -> None:
    collector, _ = made
    collector.reset(stream(0, 'collect', 0))
    finals, steps = collector.fill_block().finals, collector.block.steps
    ended = (steps.terminated | steps.truncated).nonzero().tolist()
    assert ended and sorted([t, b] for t, envs, _ in finals for b in envs.tolist()) == ended
    assert {b for _, b in ended} & {2, 3}  # some are of the second group


def test_envs_whose_episodes_were_lost_are_forgotten(made: Any) -> None:
    collector, told = made
    collector.reset(stream(0, 'collect', 0))
    inner, episodes = collector.fill_block, collector.episodes
    collector.fill_block = lambda: inner()._replace(fresh=[slice(0, 2)])
    collector.collect()
    assert told[-1] == slice(0, 2) and episodes.n_reset == 4 + 2 + episodes.n_episode


def test_episodes_that_were_lost_leave_the_statistics() -> None:
    episodes, end = EpisodeTracker(4), torch.zeros(3, 4, dtype=torch.bool)
    episodes.record(torch.ones(3, 4), end, None)
    episodes.drop(slice(2, 4))
    end[1] = True
    episodes.record(torch.ones(3, 4), end, None)
    assert list(episodes.returns) == list(episodes.lengths) == [3 + 2, 3 + 2, 2, 2]
