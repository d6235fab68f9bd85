"""The section agents."""

from __future__ import annotations

import pytest

from zoo.agents.config import AgentsConfig
from zoo.config.section import ConfigError
from zoo.run.config import frozen_config, resolve_config


def test_defaults_are_those_of_an_env_of_one_agent():
    assert frozen_config(resolve_config({'env': {'id': 'CartPole-v1'}})).agents == AgentsConfig()


def test_overrides_are_typed():
    texts = ['agents.state=env', "agents.mapping={'a_*': one, b: two}", 'agents.train=[one]', 'agents.pad=true']
    cfg = frozen_config(resolve_config({'env': {'id': 'CartPole-v1'}}, texts)).agents
    assert (cfg.state, cfg.train, cfg.pad) == ('env', ['one'], True)
    assert dict(cfg.mapping) == {'a_*': 'one', 'b': 'two'}


@pytest.mark.parametrize(
    ('text', 'sentence'),
    [
        ('agents.state=all', 'agents.state is .all.'),
        ('agents.trains=[a]', 'unknown key agents.trains'),
        ('agents.id=3', 'agents.id'),
    ],
)
def test_wrong_values_are_refused(text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve_config({'env': {'id': 'CartPole-v1'}}, [text])


@pytest.mark.parametrize(
    ('policies', 'sentence'),
    [
        ({'p q': {}}, "the name 'p q' must begin with a letter"),
        ({'rank_1': {}}, "the name 'rank_1' must begin with a letter"),
        ({'p': 5}, 'p is 5, wanted a dict'),
        ({'p': {'type': 'past'}}, "the type 'past', which only agents.self_play has"),
    ],
)
def test_wrong_policies_are_refused(policies, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve_config({'env': {'id': 'CartPole-v1'}, 'agents': {'policies': policies}})
