"""RolloutExtras of a collector: arguments passed to acting, final observations of groups, and lost episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from zoo.core.seeding import stream
from zoo.env import make_env_groups
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_config
from zoo.worker.collector import Collector, EpisodeTracker

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
    collector.fill_block()
    steps = collector.block.steps
    ended = (steps.terminated | steps.truncated).nonzero().tolist()
    assert ended and sorted([t, b] for t, envs, _ in collector.block.all_finals() for b in envs.tolist()) == ended
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
