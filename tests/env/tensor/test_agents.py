"""The contract of tensor envs of several agents: what an env of a user's own may leave out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.agents.games import make_game
from zoo.config.section import ConfigError
from zoo.env import TENSOR_ENV_REGISTRY, AgentTensorEnv, Box, Discrete, make_vector_env
from zoo.env.config import env_config
from zoo.env.errors import EnvContractError, SeveralAgentsError


class Count(AgentTensorEnv):
    """Two agents see the number of steps, which is their reward."""

    agents = ('a', 'b')
    obs_space = Box(np.zeros(1), np.full(1, 9.0))
    action_space = Discrete(2)
    max_episode_steps = 5

    def reset(self, noise):
        return torch.zeros(len(noise))

    def step(self, state, action, noise):
        state = state + 1
        return state, state.unsqueeze(1).expand(-1, 2).clone(), torch.zeros(len(state), dtype=torch.bool)

    def observe(self, state):
        return state.view(-1, 1, 1).expand(-1, 2, 1)


@pytest.fixture
def count():
    TENSOR_ENV_REGISTRY.register('count-of-two')(Count)
    yield
    del TENSOR_ENV_REGISTRY.entries['count-of-two']


def test_agent_tensor_env_acts_by_default_are_those_of_all():
    assert Count().acts(torch.zeros(3)).tolist() == [[True, True]] * 3


def test_agent_tensor_env_without_a_world_says_so():
    with pytest.raises(NotImplementedError, match='Count has no state of the whole env'):
        Count().world(torch.zeros(3))


def test_agent_tensor_env_of_a_users_own_is_a_game(count):
    game = make_game(env_config({'id': 'torch', 'game': 'count-of-two'}))
    game.reset(seed=0)
    assert [game.step({'a': 0, 'b': 1}).rewards['b'] for _ in range(3)] == [1.0, 2.0, 3.0]


def test_agent_tensor_env_where_one_agent_is_wanted_is_refused(count):
    with pytest.raises(SeveralAgentsError, match='Count is an env of several agents'):
        make_vector_env({'id': 'torch', 'game': 'count-of-two'}, 2)


def test_agent_tensor_env_without_a_world_for_a_critic_is_refused(count):
    from zoo.agents.config import AgentsConfig
    from zoo.agents.stage import look_at_agents

    with pytest.raises(ConfigError, match='agents.state is env but torch/count-of-two has no state'):
        look_at_agents(env_config({'id': 'torch', 'game': 'count-of-two'}), AgentsConfig(state='env'))


def test_tensor_env_of_another_class_is_refused():
    TENSOR_ENV_REGISTRY.register('no-env')(dict)
    try:
        with pytest.raises(EnvContractError, match='made a dict, wanted a zoo.env.TensorEnv'):
            make_vector_env({'id': 'torch', 'game': 'no-env'}, 2)
    finally:
        del TENSOR_ENV_REGISTRY.entries['no-env']
