"""Games of OpenSpiel: chance, turns, moves at the same time, returns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pyspiel = pytest.importorskip('pyspiel', reason='the extra agents')

from zoo.agents.games import game_of  # noqa: E402


def play(name, seed, choose=None):
    """Random legal play. Returns: the acting players, the observations of the first turn, the returns."""
    game = game_of(pyspiel.load_game(name), name)
    rng = np.random.default_rng(seed)
    turn = game.reset(seed=seed)
    first = {agent: obs.tolist() for agent, obs in turn.acts.items()}
    players = []
    returns = Counter()
    while turn.acts:
        actions = {agent: int(rng.choice(np.flatnonzero(mask))) for agent, mask in turn.masks.items()}
        players.append(tuple(actions))
        turn = game.step(actions)
        returns.update(turn.rewards)
    assert set(turn.ended) == set(game.agents)
    assert all(end.terminated for end in turn.ended.values())
    return players, first, dict(returns)


def test_kuhn_poker_goes_past_chance():
    """An adapter to PettingZoo ends it after one action; here a hand has two or three."""
    hands = [play('kuhn_poker', seed) for seed in range(200)]
    assert {len(players) for players, *_ in hands} == {2, 3}
    assert {tuple(first['player_0']) for _, first, _ in hands} == {
        tuple(np.eye(11)[[0, 2 + card]].sum(0).tolist()) for card in range(3)
    }
    assert all(sum(returns.values()) == 0 for *_, returns in hands)
    assert {abs(returns['player_0']) for *_, returns in hands} == {1.0, 2.0}


def test_same_seed_is_the_same_hand():
    assert play('leduc_poker', 3) == play('leduc_poker', 3)
    assert len({str(play('leduc_poker', seed)[1]) for seed in range(20)}) > 1


def test_players_may_move_at_the_same_time():
    game = game_of(pyspiel.load_game('matrix_pd'), 'matrix_pd')
    turn = game.reset(seed=0)
    assert sorted(turn.acts) == ['player_0', 'player_1']
    assert game.step({'player_0': 1, 'player_1': 0}).rewards == {'player_0': 10.0, 'player_1': 0.0}


def test_state_is_what_all_players_see():
    game = game_of(pyspiel.load_game('kuhn_poker'), 'kuhn_poker')
    turn = game.reset(seed=0)
    assert game.state().shape == (22,)
    assert game.state()[:11].tolist() == turn.acts['player_0'].tolist()
