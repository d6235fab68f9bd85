"""Rollouts of served steps: cuts between clients, bootstraps, ages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from tests.policy_envs import make_policy
from tests.run.serving.clients import TicketEnv
from zoo.core.errors import UserError
from zoo.env import EnvConfig, make_vector_env
from zoo.run.serving.http_server import decoded
from zoo.run.serving.served_collector import ServedCollector


@pytest.fixture
def collector() -> Iterator[Any]:
    with closing(make_vector_env(EnvConfig(id=TicketEnv), 1)) as env:
        policy = make_policy(env.obs_space, env.action_space, collect=dict(n_step=8))
        yield ServedCollector([env], policy, 8, 600.0)


def act(collector: Any, name: str, number: int, reward: float = 1.0) -> int:
    obs = collector.read(np.array([ord(name), number], np.float32))
    return collector.ledger.action(name, number, obs, reward)['action']


def collected(collector: Any, play: Any) -> Any:
    with ThreadPoolExecutor() as pool:
        done = pool.submit(play)
        rollout = collector.collect()
        done.result()
    return rollout


def test_rows_are_cut_between_episodes_and_bootstrap_from_what_each_saw_next(collector: Any) -> None:
    actions = {}

    def play() -> None:
        for name in 'ab':
            collector.ledger.start(name)
        for number in range(4):
            actions['a', number] = act(collector, 'a', number)
            actions['b', number] = act(collector, 'b', number)
        last = torch.tensor([[float(ord('a')), 4.0]])
        collector.ledger.end('a', 4, last, 7.0, truncated=False)
        collector.ledger.end('b', 4, torch.tensor([[float(ord('b')), 4.0]]), 9.0, truncated=True)

    seen: list[dict[str, Any]] = []
    collector.watchers.append(seen.append)
    rollout = collected(collector, play)
    assert seen[0]['obs'][:, 0].tolist() == [[ord(name), number] for name in 'ab' for number in range(4)]
    assert seen[0]['truncated'][:, 0].tolist() == [False] * 7 + [True]  # ends alone, no cuts
    assert rollout.data['obs'][:, 0].tolist() == [[ord(name), number] for name in 'ab' for number in range(4)]
    assert rollout.data['action'][:, 0].tolist() == [actions[name, number] for name in 'ab' for number in range(4)]
    assert rollout.data['reward'][:, 0].tolist() == [1, 1, 1, 7, 1, 1, 1, 9]
    assert rollout.data['done'][:, 0].tolist() == [False] * 3 + [True] + [False] * 4
    assert rollout.data['traj_flag'][:, 0].tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    assert not rollout.data['is_open'].any()
    assert rollout.next_obs()[:, 0, 1].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert collector.episodes.newest.returns == [10.0, 12.0]
    assert collector.episodes.newest.lengths == [4, 4]


def test_action_of_a_rollout_before_has_its_age_and_its_episode_is_cut(collector: Any) -> None:
    def play() -> None:
        for name in 'ab':
            collector.ledger.start(name)
        act(collector, 'b', 0)
        for number in range(10):  # the action of number 8 fills the first rollout, and comes from the next policy
            act(collector, 'a', number)
        act(collector, 'b', 1)
        for number in range(10, 15):
            act(collector, 'a', number)
        collector.ledger.end('a', 15, torch.zeros(1, 2), 1.0, truncated=True)

    player = threading.Thread(target=play, daemon=True)
    player.start()
    first = collector.collect()
    second = collector.collect()
    # all rows are of 'a', which the last observation follows
    assert first.data['is_open'][:, 0].tolist() == [False] * 8
    assert first.last_obs[0, 1] == 8
    rows = [(chr(int(name)), int(number)) for name, number in second.data['obs'][:, 0].tolist()]
    assert rows == [*(('a', number) for number in range(8, 15)), ('b', 0)]
    assert second.data['age'][:, 0].tolist() == [0.0] * 7 + [1.0]
    assert second.data['traj_flag'][:, 0].tolist() == [False] * 6 + [True, False]
    assert second.next_obs()[:, 0, 1].tolist() == [*range(9, 15), 0, 1]
    player.join()
    assert collector.metrics() == {'collect/age_mean': 1 / 16, 'collect/age_max': 1.0}


def test_batch_of_observations_is_refused(collector: Any) -> None:
    with pytest.raises(UserError, match='send that of one env'):
        collector.read(np.zeros((3, 2), np.float32))


class PairEnv(TicketEnv):
    observation_space = gymnasium.spaces.Tuple((Discrete(5), Discrete(3)))


def test_list_of_numbers_is_read_as_a_tuple_where_the_env_has_tuples() -> None:
    with closing(make_vector_env(EnvConfig(id=PairEnv), 1)) as env:
        collector = ServedCollector([env], make_policy(env.obs_space, env.action_space), 8, 600.0)
        found = collector.read(decoded([4, 2]))
        assert found['0'].tolist() == [4] and found['1'].tolist() == [2]
