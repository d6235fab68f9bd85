"""Envs of gymnasium with Tuples of spaces and lists of rewards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.agents.games import game_of
from zoo.env.errors import BrokenContractError, EnvContractError, SeveralAgentsError
from zoo.env.make import make_env
from zoo.env.make_vector import make_vector_env


class Pair(gymnasium.Env):
    """Two agents; the first observes a number, the second two; an episode has 3 steps."""

    n_agents = 2
    box = gymnasium.spaces.Box
    observation_space = gymnasium.spaces.Tuple([box(-1, 9, (1,)), box(-1, 9, (2,))])
    action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)])
    rewards: Any = [1.0, 2.0]  # noqa: RUF012

    def _obs(self) -> Any:
        return np.full(1, self._t, np.float32), np.full(2, self._t, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert len(action) == 2
        self._t += 1
        return self._obs(), self.rewards, False, self._t == 3, {}


class One(Pair):
    """One agent whose actions have two parts."""

    n_agents = 1


def test_agents_end_together():
    game = game_of(Pair(), 'pair')
    assert game.agents == ('agent_0', 'agent_1')
    assert game.action_space('agent_1').n == 3
    turn = game.reset(seed=0)
    for _ in range(3):
        assert list(turn.acts) == ['agent_0', 'agent_1']
        turn = game.step({'agent_0': 0, 'agent_1': 2})
        assert turn.rewards == {'agent_0': 1.0, 'agent_1': 2.0}
    assert turn.acts == {}
    assert [end.terminated for end in turn.ended.values()] == [False, False]
    assert turn.ended['agent_1'].obs.tolist() == [3, 3]


def test_tuple_actions_alone_are_those_of_one_agent():
    assert game_of(One(), 'one') is None


def test_rewards_must_be_one_for_each_agent():
    game = game_of(Pair(), 'pair')
    game.reset()
    game.env.rewards = [1.0]
    with pytest.raises(BrokenContractError, match=r'step returned rewards \[1.0\]'):
        game.step({'agent_0': 0, 'agent_1': 2})


def test_agents_may_end_one_by_termination_and_one_by_truncation():
    game = game_of(Pair(), 'pair')
    game.reset()
    game.env.step = lambda action: ((np.zeros(1), np.zeros(2)), [0.0, 0.0], [True, False], [False, True], {})
    assert game.step({'agent_0': 0, 'agent_1': 2}).acts == {}


def test_env_that_does_not_count_its_agents_is_told_to():
    class Uncounted(Pair):
        n_agents = None

    vector = make_vector_env({'id': Uncounted}, 1)
    vector.reset(seed=0)
    with pytest.raises(EnvContractError, match='give the env the attribute n_agents = 2'):
        vector.step(torch.zeros(1, 2))
    vector.close()


def test_it_is_no_single_env():
    with pytest.raises(SeveralAgentsError):
        make_env({'id': Pair})
