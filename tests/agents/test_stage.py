"""The section from which envs of tables are made, and its refusals."""

from __future__ import annotations

import pytest

from tests.agents.envs import Clockwork
from zoo.agents.config import AgentsConfig
from zoo.agents.stage import look_at_agents, table_section
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.env import EnvConfig, EnvContractError, UnsupportedEnvError, make_env

ENV = 'tests.agents.envs:Clockwork'


def test_env_of_the_section_is_a_table_with_a_row_for_each_agent():
    section = EnvConfig(id=ENV, max_episode_steps=3)
    layout = look_at_agents(section, AgentsConfig())
    assert layout.agents == ('a', 'b', 'c')
    env = make_env(table_section(section, layout))
    obs, _ = env.reset(seed=0)
    assert obs['rows'].shape[0] == 3
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]  # the limit cuts off all agents


def test_keys_of_one_agent_are_refused():
    section = EnvConfig(id=ENV, window=2)
    layout = look_at_agents(section, AgentsConfig())
    with pytest.raises(ConfigError, match=r'env.window is 2 but .*Clockwork has several agents'):
        table_section(section, layout)


class NoInfos(Clockwork):
    def reset(self, seed=None, options=None):
        return super().reset()[0], None


class Fails(Clockwork):
    def reset(self, seed=None, options=None):
        raise ZeroDivisionError('mine')


def test_faults_of_the_first_reset_name_the_env():
    with pytest.raises(EnvContractError, match=r"env '.*NoInfos', index 0, step 0: reset returned .*; return both\."):
        look_at_agents(EnvConfig(id=NoInfos), AgentsConfig())
    with pytest.raises(ZeroDivisionError) as raised:
        look_at_agents(EnvConfig(id=Fails), AgentsConfig())
    assert 'Fails' in raised.value.env_place[0]
    assert raised.value.env_place[0].endswith('in a reset to look at its agents')


def test_env_of_one_agent_is_refused():
    with pytest.raises(UnsupportedEnvError, match='is an env of one agent; leave the section agents out'):
        look_at_agents(EnvConfig(id='CartPole-v1'), AgentsConfig())


@pytest.mark.parametrize(
    ('section', 'sentence'),
    [
        (dict(ends=dict(both='terminal')), r'env.ends.both is .terminal. but .* terminated wins'),
        (dict(action_mask='method'), r"env.action_mask is 'method' but .* has several agents"),
        (dict(action_mask='obs'), r"env.action_mask is 'obs' but agent a has no masks"),
        (dict(action_mask='info'), r"env.action_mask is 'info' but agent a has no masks"),
        (dict(info_columns=['x']), r'env.info_columns is .* has several agents'),
    ],
)
def test_keys_that_would_change_nothing_are_refused(section, sentence):
    section = EnvConfig(id=ENV, **section)
    with pytest.raises(UserError, match=sentence):
        table_section(section, look_at_agents(section, AgentsConfig()))


class Needy(Clockwork):
    """An env whose resets need an option."""

    def reset(self, seed=None, options=None):
        self.size = options['size']
        return super().reset(seed)


def test_reset_options_come_with_the_first_reset_too():
    layout = look_at_agents(EnvConfig(id=Needy, reset_options=dict(size=3)), AgentsConfig())
    assert layout.agents == ('a', 'b', 'c')
