"""What every game has beside its own turns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.agents.envs import Clockwork
from zoo.agents.game import number
from zoo.agents.games import game_of
from zoo.env.errors import BrokenContractError


def test_state_is_that_of_the_env():
    env = Clockwork()
    game = game_of(env, 'clockwork')
    with pytest.raises(AttributeError):
        game.state()
    env.state = lambda: [1.0, 2.0]
    assert game.state() == [1.0, 2.0]


def test_weights_are_for_rewards_of_as_many_numbers():
    assert number(np.array([1.0, 2.0]), 'a', [1.0, 10.0]) == 21.0
    assert number(0, 'a', [1.0, 10.0]) == 0.0
    assert number(np.array([3.0]), 'a') == 3.0
    for reward in (1.0, np.array([3.0]), np.array(3)):
        with pytest.raises(BrokenContractError, match='has 1 numbers, env.reward_weights 2'):
            number(reward, 'a', [1.0, 10.0])
