"""Games of OpenSpiel: chance, turns, moves at the same time, returns."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pyspiel = pytest.importorskip('pyspiel', reason='the extra agents')

from zoo.agents.games import game_of, make_game  # noqa: E402
from zoo.core.errors import UserError  # noqa: E402
from zoo.env.config import env_config  # noqa: E402
from zoo.env.errors import EnvKwargsError, UnsupportedEnvError  # noqa: E402


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


@pytest.mark.parametrize(
    'name', ['leduc_poker', 'leduc_poker(players=3)', 'goofspiel(num_cards=4,imp_info=True)', 'liars_dice']
)
def test_returns_are_those_of_the_game_and_sum_to_zero(name):
    """The sums of rewards by step, which are differences of returns, are the returns of OpenSpiel at the end."""
    for seed in range(30):
        game = game_of(pyspiel.load_game(name), name)
        rng = np.random.default_rng(seed)
        turn = game.reset(seed=seed)
        returns = Counter()
        while turn.acts:
            actions = {agent: int(rng.choice(np.flatnonzero(mask))) for agent, mask in turn.masks.items()}
            turn = game.step(actions)
            returns.update(turn.rewards)
        assert [returns[agent] for agent in game.agents] == pytest.approx(game.position.returns())
        assert sum(returns.values()) == pytest.approx(0)


def test_moves_are_those_that_the_game_allows():
    """On the first turn of Kuhn poker a player passes or bets, by hand; in Leduc none folds before a bet, which is choice 0."""
    assert game_of(pyspiel.load_game('kuhn_poker'), '').reset(seed=0).masks['player_0'].tolist() == [True, True]
    assert game_of(pyspiel.load_game('leduc_poker'), '').reset(seed=0).masks['player_0'].tolist() == [False, True, True]


def test_a_player_that_waits_is_observed_where_its_episode_is_cut():
    """Its card is the only entry that the two observations of an unplayed hand of Kuhn poker may have beside the player's."""
    game = game_of(pyspiel.load_game('kuhn_poker'), 'kuhn_poker')
    game.reset(seed=0)
    obs = game.observe('player_1')
    assert obs[:2].tolist() == [0, 1]
    assert obs[2:5].sum() == 1
    assert obs[5:].sum() == 0


def test_mean_field_games_are_refused():
    with pytest.raises(UnsupportedEnvError, match='it is a mean-field game'):
        game_of(pyspiel.load_game('mfg_crowd_modelling'), 'mfg')


@pytest.mark.parametrize(
    ('env_id', 'kwargs'),
    [
        ('pyspiel:leduc_poker(players=3)', {}),
        ('pyspiel:leduc_poker', {'players': 3}),
        ('pyspiel:python_liars_poker', {}),
    ],
)
def test_games_with_parameters_and_games_in_python_are_made(env_id, kwargs):
    game = make_game(env_config({'id': env_id, 'kwargs': kwargs}))
    assert len(game.agents) == (3 if 'leduc' in env_id else 2)


@pytest.mark.parametrize(
    ('env_id', 'kwargs', 'said'),
    [
        ('pyspiel:leduc_poker', {'playrs': 3}, "Unknown parameter 'playrs'"),
        ('pyspiel:leduc_poker(players=3', {}, 'Missing closing bracket'),
        ('pyspiel:leduc_poker(players=99)', {}, 'num_players_ = 99'),
    ],
)
def test_wrong_parameters_are_refused_in_a_sentence(env_id, kwargs, said):
    with pytest.raises(EnvKwargsError, match=f'OpenSpiel does not take its parameters .*{said}'):
        make_game(env_config({'id': env_id, 'kwargs': kwargs}))


@pytest.mark.parametrize(('game', 'action'), [('leduc_poker', 0), ('leduc_poker', 3), ('leduc_poker', -1)])
def test_illegal_action_is_refused_with_the_legal_ones(game, action):
    env = make_game(env_config({'id': f'pyspiel:{game}'}))
    turn = env.reset(seed=0)
    (agent,) = turn.acts
    # nobody has bet: there is nothing to fold (0) to; 1 calls, 2 raises
    with pytest.raises(UserError, match=rf'{agent} took action {action} of {game}, where \[1, 2\] are legal'):
        env.step({agent: action})
