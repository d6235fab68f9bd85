"""Games of PettingZoo's two interfaces, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.agents.envs import CartPoleParallel, CartPoleTurns, Clockwork
from zoo.agents.games import game_of

tictactoe_v3 = pytest.importorskip('pettingzoo.classic.tictactoe_v3', reason='the extra agents')


def test_tictactoe_won_by_the_first_player():
    """Moves 0 3 1 4 2 complete the first column for player_1: its outcome is +1, that of the last move of player_2 is -1."""
    game = game_of(tictactoe_v3.env(), 'tictactoe')
    turn = game.reset(seed=0)
    rewards = []
    for move, player in zip((0, 3, 1, 4, 2), ('player_1', 'player_2') * 3, strict=False):
        assert list(turn.acts) == [player]
        assert turn.acts[player]['action_mask'][move] == 1
        turn = game.step({player: np.int64(move)})
        rewards.append((turn.rewards['player_1'], turn.rewards['player_2']))
    assert rewards == [(0, 0)] * 4 + [(1, -1)]
    assert turn.acts == {}
    assert {name: end.terminated for name, end in turn.ended.items()} == {'player_1': True, 'player_2': True}
    assert list(game.reset(seed=0).acts) == ['player_1']


def test_deaths_and_births_of_a_parallel_env():
    game = game_of(Clockwork(), 'clockwork')
    turn = game.reset()
    seen = [list(turn.acts)]
    ends = []
    while turn.acts:
        turn = game.step(dict.fromkeys(turn.acts, 0))
        seen.append(list(turn.acts))
        ends.append({name: end.terminated for name, end in turn.ended.items()})
    assert seen == [['a', 'b'], ['a', 'b'], ['b', 'c'], ['b', 'c'], ['c'], []]
    assert ends == [{}, {'a': True}, {}, {'b': False}, {'c': True}]


@pytest.mark.parametrize('make', [CartPoleParallel, CartPoleTurns])
def test_one_agent_is_an_env_of_agents_too(make):
    game = game_of(make(), 'cartpole')
    assert game.agents == ('one',)
    turn = game.reset(seed=3)
    assert turn.acts['one'].shape == (4,)
    assert game.step({'one': 1}).rewards == {'one': 1.0}


def test_env_of_one_agent_is_no_game():
    import gymnasium

    assert game_of(gymnasium.make('CartPole-v1'), 'CartPole-v1') is None
