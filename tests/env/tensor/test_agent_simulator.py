"""The base class of simulators of several agents."""

from __future__ import annotations

import pytest

from tests.agents.turns import Squares
from zoo.env.tensor.agent_simulator import AgentSimulator


def test_without_pictures_render_says_so_and_close_does_nothing() -> None:
    env = Squares(2)
    with pytest.raises(NotImplementedError, match='Squares has no pictures'):
        env.render()
    env.close()
    assert env.reset(0).acts.sum(1).tolist() == [1, 1]


def test_it_cannot_be_made_without_its_functions() -> None:
    with pytest.raises(TypeError, match='find_bad, reset, step|abstract'):
        AgentSimulator()  # type: ignore[abstract]
