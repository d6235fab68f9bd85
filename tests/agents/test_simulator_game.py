"""A simulator of several agents as a game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tests.agents.turns  # noqa: F401  # registers test_squares
from tests.env.tensor.vmas_fake import vmas as fake
from zoo.agents.games import make_game
from zoo.agents.simulator_game import SimulatorGame
from zoo.core.spaces import ACTION_MASK
from zoo.env.config import env_config
from zoo.env.families.family import EnvRequest
from zoo.env.tensor.vmas_scenarios import make_vmas


def squares(**env: Any) -> Any:
    return make_game(env_config({'id': 'test_squares', **env}))


def begun_by_first(game: Any) -> int:
    """A seed with which the first player begins."""
    return next(seed for seed in range(10) if 'first' in game.reset(seed=seed).acts)


def test_who_is_on_turn_acts_and_both_end() -> None:
    game = squares()
    turn = game.reset(seed=begun_by_first(game))
    assert list(turn.acts) == ['first'] and turn.acts['first'][ACTION_MASK].all()
    turn = game.step({'first': np.int64(2)})
    assert list(turn.acts) == ['second'] and turn.rewards == {'first': 0.0, 'second': 0.0}
    assert turn.acts['second'][ACTION_MASK].tolist() == [True, True, False, True]
    assert game.observe('first')['board'].tolist() == [0.0, 0.0, 0.5, 0.0]
    turn = game.step({'second': np.int64(0)})
    assert turn.rewards == {'first': -1.0, 'second': 1.0} and not turn.acts
    assert all(end.terminated for end in turn.ended.values())
    assert turn.ended['first'].obs['board'].tolist() == [1.0, 0.0, 0.5, 0.0]


def test_its_limit_cuts_both_off() -> None:
    game = squares(max_episode_steps=1)
    turn = game.reset(seed=begun_by_first(game))
    turn = game.step({'first': np.int64(2)})
    assert not turn.acts and not any(end.terminated for end in turn.ended.values())


def test_same_seed_is_the_same_episode_and_the_next_ones_differ() -> None:
    game = SimulatorGame(make_vmas(fake, 'line', EnvRequest('vmas:line', '', 1, False, 5), {}))

    def starts(seed: int) -> list[float]:
        return [float(game.reset(seed=s).acts['near'][0]) for s in (seed, None, None)]

    assert starts(3) == starts(3) != starts(4)
    assert len(set(starts(3))) == 3


def test_state_is_not_there_and_pictures_are_the_simulators() -> None:
    game = SimulatorGame(make_vmas(fake, 'line', EnvRequest('vmas:line', '', 1, False, None), {}))
    assert game.render().shape == (4, 5, 3)
    with pytest.raises(NotImplementedError, match='no state of the whole env'):
        game.state()
    with pytest.raises(NotImplementedError, match='no pictures'):
        squares().render()
    game.close()
