"""The two-step game of QMIX, with the payoffs of its paper."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.env.toy.two_step import TwoStepGame

# arXiv:1803.11485, table 1: state 2A pays 7 for all actions, 2B by the actions of both
SURE = np.full((2, 2), 7.0)
RISKY = np.array([[0.0, 1.0], [1.0, 8.0]])


@pytest.mark.parametrize('other', [0, 1])
@pytest.mark.parametrize(('first', 'payoff'), [(0, SURE), (1, RISKY)])
def test_both_agents_earn_the_payoff_of_the_state_that_agent_0_chose(first, other, payoff):
    for a in (0, 1):
        for b in (0, 1):
            env = TwoStepGame()
            obs, _ = env.reset(seed=0)
            assert obs['agent_0'].tolist() == obs['agent_1'].tolist() == [1, 0, 0]
            obs, rewards, terminated, _, _ = env.step({'agent_0': first, 'agent_1': other})
            assert rewards == {'agent_0': 0.0, 'agent_1': 0.0}
            assert not any(terminated.values())
            assert obs['agent_0'].tolist() == env.state().tolist() == [0, 1 - first, first]
            _, rewards, terminated, truncated, _ = env.step({'agent_0': a, 'agent_1': b})
            assert rewards == dict.fromkeys(('agent_0', 'agent_1'), payoff[a, b])
            assert all(terminated.values()) and not any(truncated.values())
            assert env.agents == []


def test_picture_shows_the_state():
    env = TwoStepGame(render_mode='rgb_array')
    env.reset()
    env.step({'agent_0': 1, 'agent_1': 0})
    assert env.render()[30, [30, 90, 150], 0].tolist() == [200, 200, 60]  # CHOICE, SURE, RISKY
