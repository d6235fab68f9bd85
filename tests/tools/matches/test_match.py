"""`match`: its counts are those of a loop by hand, its ratings, what it refuses."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
import pytest

from zoo import MatchResult, load_policy, match, serial_pipeline
from zoo.agents.scores import GameScore
from zoo.core.errors import UserError
from zoo.tools.matches.match import match_text

pytest.importorskip('pettingzoo', reason='the extra agents')
from tests.agents.opening_env import RandomOpening  # noqa: E402

OPENING = 'tests.agents.opening_env:RandomOpening'
FIRST = 'tests.agents.opening_env:first'


def trained(root, seed, env=OPENING, **changes):
    config = dict(
        exp_name='game',
        seed=seed,
        max_env_step=256,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=2),
        policy=dict(
            model=dict(hidden_sizes=[16]),
            learn=dict(batch_size=64),
            collect=dict(n_step=32),
            eval=dict(eval_freq=256, n_episode=2),
        ),
        logger=dict(root=str(root), console='off', tensorboard=False),
        **changes,
    )
    return serial_pipeline(config).run_dir


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp('runs')
    return [str(trained(root / str(seed), seed)) for seed in (0, 1)]


def games_by_hand(policies, seeds, n_game):
    """[wins, draws, losses] of the first policy, by its seat. Copy i has a seed and every game of seat i % 2."""
    counts = {'player_1': [0, 0, 0], 'player_2': [0, 0, 0]}
    agents = list(counts)
    for i, seed in enumerate(seeds):
        env = RandomOpening()
        seat = agents[i % 2]
        for game in range(n_game // len(seeds)):
            env.reset(seed if game == 0 else None)
            returns = dict.fromkeys(agents, 0.0)
            while not any(env.terminations.values()):
                agent = env.agent_selection
                obs = env.observe(agent)
                which = np.array([agent == name for name in agents], np.float32)
                seen = {'observation': obs['observation'], 'action_mask': obs['action_mask'], 'agent': which}
                env.step(int(policies[agent != seat].act(seen)))
                for name in agents:
                    returns[name] += env.rewards[name]
            (other,) = {*agents} - {seat}
            counts[seat][1 - int(np.sign(returns[seat] - returns[other]))] += 1
    return counts


@pytest.mark.long
def test_match_of_two_saved_runs_has_the_counts_of_a_loop_by_hand(runs):
    RandomOpening.seeds.clear()
    result = match(*runs, n_episode=200, greedy=True, overrides=['env.evaluator_env_num=4'])
    seeds = RandomOpening.seeds[-4:]  # of the copies; those before are of looks at the env
    counts = games_by_hand([load_policy(run) for run in runs], seeds, 200)
    found = {name: list(seat.score) for name, seat in result.pairings[0].seats.items()}
    assert found == counts
    assert [sum(seat) for seat in counts.values()] == [100, 100]
    assert all(all(x > 0 for x in (seat[0], seat[2])) for seat in counts.values())  # games differ


@pytest.mark.long
def test_match_depends_on_its_seed_alone_and_on_no_other_player(runs):
    first = match(*runs, n_episode=20, seed=3)
    again = match(*runs, 'random', n_episode=20, seed=3)
    assert again.pairings[0] == first.pairings[0]
    assert match(*runs, n_episode=20, seed=4).pairings[0].seats != first.pairings[0].seats


def test_match_of_policies_is_that_of_their_runs(runs):
    policies = [load_policy(run) for run in runs]
    from_files = match(*runs, n_episode=20)
    from_memory = match(*policies, n_episode=20, env=dict(id=OPENING, evaluator_env_num=2))
    assert from_memory.pairings[0].seats == from_files.pairings[0].seats
    assert from_memory.players == ('ppo', 'ppo (2)')


@pytest.mark.long
def test_policy_has_half_of_the_points_against_itself(runs):
    result = match(runs[0], runs[0], n_episode=400)
    one, other = result.pairings[0].seats.values()
    low, high = result.interval
    assert low < 0.5 < high
    assert one.score.n_game == other.score.n_game == 200
    assert one.score.win_rate + other.score.win_rate == pytest.approx(2 * result.win_rate)


def test_returns_are_of_the_seats_and_a_draw_is_half_a_point():
    result = match('random', 'random', env='tests.agents.envs:Clockwork', n_episode=6)
    # agents a, b, c earn 9, 1170, 18688 whatever they do; alone against the mean of the others c wins, a and b lose
    seats = result.pairings[0].seats
    assert {name: seat.return_ for name, seat in seats.items()} == {
        'a': 9, 'all but a': 9929, 'b': 1170, 'all but b': 9348.5, 'c': 18688, 'all but c': 589.5,
    }  # fmt: skip
    assert result.score == GameScore(3, 0, 3)


ROCK_PAPER_SCISSORS = 'pettingzoo:classic/rps-v2'


def always(choice):
    def play(obs, mask):
        return np.full(len(obs['agent']), choice)

    play.__name__ = ['rock', 'paper', 'scissors'][choice]
    return play


def test_ratings_of_scripted_players_by_hand(caplog):
    with caplog.at_level(logging.WARNING):
        result = match(*map(always, range(3)), env=ROCK_PAPER_SCISSORS, n_episode=4)
    assert [pairing.score for pairing in result.pairings] == [
        GameScore(0, 0, 4),
        GameScore(4, 0, 0),
        GameScore(0, 0, 4),
    ]
    assert result.ratings == pytest.approx({'rock': 1000, 'paper': 1000, 'scissors': 1000})
    assert result.anchor == 'rock'
    assert 'all games of a seat had the same end' in caplog.text


def test_rating_of_two_scripted_players_by_hand():
    result = match(always(0), always(1), env=ROCK_PAPER_SCISSORS, n_episode=10)
    # 0 of 10 points, and half a game with a quarter point: odds of .25 / 10.25 = 1 / 41
    assert result.ratings == pytest.approx({'rock': 1000, 'paper': 1000 + 400 * np.log10(41)})
    text = match_text(result)
    assert 'rock against paper: win rate 0.000 [0.000, 0.' in text
    assert 'Elo -645' in text


def test_first_heuristic_or_random_player_is_the_anchor(runs):
    result = match(runs[0], 'random', FIRST, n_episode=4)
    assert isinstance(result, MatchResult)
    assert (result.anchor, result.ratings['random']) == ('random', 1000)
    text = match_text(result)
    assert 'random fixed, and half a draw added to each pair' in text
    assert len(result.as_data()['pairings']) == 3
    assert result.pairing('random', FIRST).score.n_game == 4
    with pytest.raises(UserError, match='have no games in this order'):
        result.pairing(FIRST, 'random')


def test_runs_of_different_games_are_refused_with_both_names(runs, tmp_path):
    other = str(trained(tmp_path, 0, ROCK_PAPER_SCISSORS))
    with pytest.raises(
        UserError, match=rf'plays {OPENING} and .* plays {ROCK_PAPER_SCISSORS}; a match is of players of one game'
    ):
        match(runs[0], other)
    with pytest.raises(
        UserError, match=r'takes observations .* but the agents of pettingzoo:classic/rps-v2 have Discrete\(4\)'
    ):
        match(runs[0], other, env=ROCK_PAPER_SCISSORS)


@cache
def points_of_looking_ahead(mine: frozenset[int], theirs: frozenset[int], is_on_move: bool) -> float:
    """The expected points against random play in tic-tac-toe, over all games from a position. mine: of the player on move."""
    lines = (
        [{3 * i, 3 * i + 1, 3 * i + 2} for i in range(3)]
        + [{i, i + 3, i + 6} for i in range(3)]
        + [{0, 4, 8}, {2, 4, 6}]
    )

    def completing(marks: frozenset[int]) -> list[int]:
        return [square for square in free if any(line <= marks | {square} for line in lines)]

    free = sorted(set(range(9)) - mine - theirs)
    if any(line <= theirs for line in lines):
        return float(not is_on_move)
    if not free:
        return 0.5
    moves = free
    if is_on_move:
        moves = completing(mine) or completing(theirs) or free
    return float(np.mean([points_of_looking_ahead(theirs, mine | {move}, not is_on_move) for move in moves]))


def test_player_that_looks_one_move_ahead_has_its_expected_points_against_random_play():
    none = frozenset[int]()
    expected = (points_of_looking_ahead(none, none, True) + points_of_looking_ahead(none, none, False)) / 2
    assert expected == pytest.approx(0.880, abs=1e-3)
    result = match('one_move_ahead', 'random', env='torch', overrides=['env.game=tictactoe'], n_episode=100)
    assert result.win_rate == pytest.approx(expected, abs=4 * 0.033)  # (.88 * .12 / 100)^.5 is the error of 100 games


def test_cut_off_games_are_counted_with_their_returns_until_then():
    result = match('random', 'random', env='tests.agents.envs:Clockwork', n_episode=6, max_step=1)
    assert result.pairings[0].n_cut == 6
    assert result.pairings[0].seats['b'].return_ == 2  # b earns 2 in the first step
    assert '6 games were cut off' in match_text(result)
