"""Which policy acts for which agent, and what its rows show."""

from __future__ import annotations

import gymnasium
import pytest

from tests.agents.envs import CartPoleParallel, Clockwork, Rota
from zoo.agents.config import AgentsConfig
from zoo.agents.games import game_of
from zoo.agents.layout import layout_of, policy_of_agents, trained_policies
from zoo.config.section import ConfigError
from zoo.env.errors import UnsupportedEnvError

AGENTS = ('adversary_0', 'adversary_1', 'agent_0')


def test_first_pattern_that_fits_counts():
    cfg = AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'adversary_1': 'q', 'adversary_*': 'p', '*': 'q'})
    assert policy_of_agents(cfg, AGENTS) == {'adversary_0': 'p', 'adversary_1': 'q', 'agent_0': 'q'}


def test_own_name_comes_before_patterns():
    """So that a key which an override adds at the end counts."""
    cfg = AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'*': 'q', 'adversary_1': 'p'})
    assert policy_of_agents(cfg, AGENTS) == {'adversary_0': 'q', 'adversary_1': 'p', 'agent_0': 'q'}


def test_pattern_for_all_may_have_no_agent_left():
    cfg = AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'adversary_*': 'p', 'agent_0': 'q', '*': 'p'})
    assert set(policy_of_agents(cfg, AGENTS).values()) == {'p', 'q'}


def test_random_needs_no_name_and_the_only_network_has_the_other_agents():
    cfg = AgentsConfig(mapping={'agent_0': 'random'})
    assert cfg.policies == {'shared': {}, 'random': 'random'}
    assert policy_of_agents(cfg, AGENTS) == {'adversary_0': 'shared', 'adversary_1': 'shared', 'agent_0': 'random'}


def test_policies_named_as_agents_need_no_mapping():
    cfg = AgentsConfig(policies={name: {} for name in AGENTS})
    assert policy_of_agents(cfg, AGENTS) == {name: name for name in AGENTS}


@pytest.mark.parametrize(
    ('mapping', 'sentence'),
    [
        (None, 'agents.mapping does not say whose they are'),
        ({'adversary_*': 'p'}, "no pattern that fits agent 'agent_0'"),
        ({'*': 'p', 'adversary_*': 'q'}, "'adversary_\\*', but patterns before it, such as '\\*', take all agents"),
        ({'*': 'p', 'adversary_*': 'q', 'agent_0': 'q'}, "'adversary_\\*', but patterns before it"),
        ({'*': 'p'}, "gives no agent to the policy 'q'; .*agents.policies.q=random alone"),
        (
            {'*': 'r'},
            "the policy 'r', which agents.policies lacks; the policies are p, q, random, one_move_ahead: name",
        ),
        ({'*': 'p', 'wolf_*': 'q'}, "'wolf_\\*', which fits none of the agents .*; correct the pattern"),
        ({'*': 'p', 'agent0': 'q'}, "'agent0', which fits none of the agents .*; did you mean 'agent_0'"),
    ],
)
def test_wrong_mappings_are_refused(mapping, sentence):
    with pytest.raises(ConfigError, match=sentence):
        policy_of_agents(AgentsConfig(policies={'p': {}, 'q': {}}, mapping=mapping), AGENTS)


def test_shared_policy_sees_which_agent_it_is():
    layout = layout_of(game_of(Clockwork(), 'x'), AgentsConfig(), 'x', ['shared'])
    assert layout.groups[0].obs_space.shape == (5,)  # 2 numbers, and one of 3 agents
    assert layout.score == (0, 1, 2)
    assert not layout.score_sums
    off = layout_of(game_of(Clockwork(), 'x'), AgentsConfig(id='off'), 'x', ['shared'])
    assert off.groups[0].obs_space.shape == (2,)


def test_one_agent_has_no_id():
    layout = layout_of(game_of(CartPoleParallel(), 'x'), AgentsConfig(), 'x', ['shared'])
    assert layout.groups[0].obs_space.shape == (4,)


def test_concat_is_all_observations():
    layout = layout_of(game_of(Clockwork(), 'x'), AgentsConfig(state='concat'), 'x', ['shared'])
    assert layout.state_space.shape == (6,)
    assert list(layout.groups[0].obs_space.spaces) == ['obs', 'agent', 'state']


@pytest.mark.parametrize(
    ('cfg', 'sentence'),
    [
        (AgentsConfig(state='env'), 'has no state\\(\\)'),
        (
            AgentsConfig(score='d'),
            "agents.score is 'd' but must be a policy \\(shared\\), an agent \\(a, b, c\\) or 'team'",
        ),
    ],
)
def test_what_the_env_lacks_is_refused(cfg, sentence):
    with pytest.raises(ConfigError, match=sentence):
        layout_of(game_of(Clockwork(), 'x'), cfg, 'x', ['shared'])


@pytest.mark.parametrize(
    ('cfg', 'words'),
    [
        (AgentsConfig(), 'mean over 3 agents'),
        (AgentsConfig(score='team'), 'team, sum over 3 agents'),
        (AgentsConfig(score='b'), 'agent b'),
        (AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'a': 'p', '*': 'q'}), 'team, sum over 3 agents'),
        (AgentsConfig(policies={'p': {}, 'q': 'random'}, mapping={'a': 'p', '*': 'q'}), 'policy p'),
        (AgentsConfig(policies={'p': 'random', 'q': {}}, mapping={'a': 'p', '*': 'q'}), 'policy q, mean over 2 agents'),
        (AgentsConfig(policies={'p': 'random', 'q': {}}, mapping=lambda *_: 'q'), 'policy q, mean over its agents'),
    ],
)
def test_return_of_an_episode_in_words(cfg, words):
    assert layout_of(game_of(Clockwork(), 'x'), cfg, 'x', trained_policies(cfg)).return_of == words


def test_return_of_one_agent_needs_no_words():
    assert layout_of(game_of(CartPoleParallel(), 'x'), AgentsConfig(), 'x', ['shared']).return_of == ''


class Unlike(Clockwork):
    """b moves by two numbers, the others by choices."""

    def action_space(self, agent):
        if agent == 'b':
            return gymnasium.spaces.Box(-1.0, 1.0, (2,))
        return super().action_space(agent)


class Longer(Clockwork):
    """b has more choices than the others."""

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2 + (agent == 'b'))


def test_padding_is_named_only_where_it_helps():
    for kind, words in ((Unlike, 'use a policy for each kind'), (Longer, 'use agents.pad=true, or a policy for each')):
        with pytest.raises(UnsupportedEnvError, match=words):
            layout_of(game_of(kind(), 'x'), AgentsConfig(), 'x', ['shared'])


class Masked(Rota):
    """An env of turns with masks in its infos; those of agents that do not act are missing."""

    def reset(self, seed=None, options=None):
        super().reset(seed)
        self.infos = {'a': {'action_mask': [1, 0]}}


def test_policy_of_an_agent_that_acts_later_has_masks_as_well():
    cfg = AgentsConfig(policies={'p': {}, 'q': {}}, mapping={'a': 'p', '*': 'q'})
    layout = layout_of(game_of(Masked(), 'x'), cfg, 'x', ['p', 'q'])
    assert [group.mask_of for group in layout.groups] == ['turn', 'turn']


class OwnEntries(Clockwork):
    """Clockwork whose observations have entries of the names that zoo gives."""

    def observation_space(self, agent):
        box = super().observation_space(agent)
        return gymnasium.spaces.Dict({'state': box, 'agent': box})

    def observed(self, agent):
        obs = super().observed(agent)
        return {'state': obs, 'agent': obs}


def test_own_entries_of_those_names_stay():
    cfg = AgentsConfig(id='off')
    layout = layout_of(game_of(OwnEntries(), 'x'), cfg, 'x', ['shared'])
    assert sorted(layout.groups[0].own_space.spaces) == ['agent', 'state']
    with pytest.raises(UnsupportedEnvError, match="have an entry 'agent' of their own"):
        layout_of(game_of(OwnEntries(), 'x'), AgentsConfig(), 'x', ['shared'])
