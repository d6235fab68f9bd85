"""What every game has beside its own turns."""

from __future__ import annotations

import pytest

from tests.agents.envs import Clockwork
from zoo.agents.games import game_of


def test_state_is_that_of_the_env():
    env = Clockwork()
    game = game_of(env, 'clockwork')
    with pytest.raises(AttributeError):
        game.state()
    env.state = lambda: [1.0, 2.0]
    assert game.state() == [1.0, 2.0]
