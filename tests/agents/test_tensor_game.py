"""A tensor env of several agents as a game."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.agents.games import make_game
from zoo.env.config import env_config
from zoo.env.errors import UnsupportedEnvError


def test_tensor_game_shows_the_agent_on_move_its_observation_and_mask():
    game = make_game(env_config({'id': 'torch', 'game': 'kuhn_poker'}))
    turn = game.reset(seed=0)
    assert list(turn.acts) == ['player_0']
    assert turn.acts['player_0'].shape == (11,)
    assert turn.masks['player_0'].tolist() == [True, True]
    turn = game.step({'player_0': 0})
    assert list(turn.acts) == ['player_1']
    turn = game.step({'player_1': 1})
    turn = game.step({'player_0': 0})  # a pass after a bet loses 1
    assert turn.rewards == {'player_0': -1.0, 'player_1': 1.0}
    assert all(end.terminated for end in turn.ended.values()) and not turn.acts


def test_tensor_game_same_seed_is_the_same_episode():
    game = make_game(env_config({'id': 'torch', 'game': 'simple_spread'}))

    def first(seed):
        return np.stack(list(game.reset(seed=seed).acts.values())).tolist()

    assert first(3) == first(3) != first(4)


@pytest.mark.parametrize(('limit', 'n_step'), [(None, 25), (7, 7), (40, 40)])
def test_tensor_game_is_cut_off_by_its_limit(limit, n_step):
    game = make_game(env_config({'id': 'torch', 'game': 'simple_spread', 'max_episode_steps': limit}))
    turn = game.reset(seed=0)
    for step in range(n_step):
        assert len(turn.acts) == 3, step
        turn = game.step(dict.fromkeys(game.agents, 0))
    assert not turn.acts
    assert not any(end.terminated for end in turn.ended.values())


def test_tensor_game_of_one_agent_is_refused():
    with pytest.raises(UnsupportedEnvError, match='CartPole is an env of one agent; leave the section agents out'):
        make_game(env_config({'id': 'torch', 'game': 'CartPole-v1'}))


def test_tensor_game_with_keys_of_single_envs_is_refused():
    with pytest.raises(UnsupportedEnvError, match='env.ends is set'):
        make_game(env_config({'id': 'torch', 'game': 'kuhn_poker', 'ends': {'terminated': 'bootstrap'}}))
    with pytest.raises(UnsupportedEnvError, match="env.vectorization is 'async'"):
        make_game(env_config({'id': 'torch', 'game': 'kuhn_poker', 'vectorization': 'async'}))
