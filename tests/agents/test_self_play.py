"""The league of a policy that plays against itself: ratings by hand, draws, snapshots, its state."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from zoo.agents.self_play import MAIN, League, SelfPlayConfig, expected_score, fixed_name, slot_name
from zoo.core.seeding import stream
from zoo.policy.modes import EvalMode

AGENTS = ['first', 'second']


def mode_of(path, is_own):
    """A mode whose output is the path of the snapshot's file, which must be there."""
    assert path.exists()
    return EvalMode(lambda obs, state: {'path': path})


def league(tmp_path, **section):
    found = League(SelfPlayConfig(**section), AGENTS, 0, mode_of)
    found.folder = tmp_path
    return found


def take(found, *steps):
    for step in steps:
        found.take(lambda path: path.write_text('weights'), step)


def test_ratings_by_hand(tmp_path):
    """Six games; with k = 32, two equal players exchange 16 points, and the anchor stays."""
    found = league(tmp_path, opponents={'past': 1.0})
    take(found, 0, 100)
    first, second = found.snapshots.values()
    assert found.anchor is first
    found.rate(second, 1.0)
    assert (found.rating, second.rating) == (1016.0, 984.0)
    found.rate(first, 0.5)
    drawn = 32 * (0.5 - 1 / (1 + 10 ** (-16 / 400)))
    assert found.rating == pytest.approx(1016 + drawn)
    assert first.rating == 1000.0
    before = found.rating
    found.rate(second, 0.0)
    lost = 32 * (0 - 1 / (1 + 10 ** ((984 - before) / 400)))
    assert (found.rating, second.rating) == (pytest.approx(before + lost), pytest.approx(984 - lost))
    for score in (1.0, 1.0, 0.5):
        found.rate(second, score)
    assert second.n_game == 5
    assert list(second.games) == [1.0, 0.0, 1.0, 1.0, 0.5]
    assert second.win_rate == (3.5 + 0.5) / 6


def test_expected_score():
    assert expected_score(1000, 1000) == 0.5
    assert expected_score(1400, 1000) == pytest.approx(10 / 11)


def test_result_of_an_episode_is_that_of_the_returns(tmp_path):
    found = league(tmp_path, fixed=['random'], opponents={'fixed': 1.0})
    (random,) = found.fixed
    for owners, returns in (
        ([MAIN, fixed_name(0)], [1.0, -1.0]),
        ([fixed_name(0), MAIN], [1.0, -1.0]),
        ([fixed_name(0), MAIN], [0.0, 0.0]),
        ([MAIN, MAIN], [1.0, -1.0]),  # itself: no game
    ):
        found.record(owners, np.array(returns))
    assert list(random.games) == [1.0, 0.0, 0.5]
    assert random.rating == 1000.0


def test_shares_of_opponents_and_seats(tmp_path):
    """The number of each kind is within four deviations of its share; opponents take the seat that the policy has not."""
    found = league(tmp_path, fixed=['random', 'x:y'], opponents={'latest': 0.5, 'past': 0.3, 'fixed': 0.2}, slots=2)
    take(found, 0, 100, 200)
    found.begin_rollout(200, ())
    n = 4000
    counts = Counter()
    for i in range(n):
        episode, copy = divmod(i, 8)
        names = [found.policy_of(agent, episode, copy) for agent in AGENTS]
        assert names[copy % 2] == MAIN
        counts[names[1 - copy % 2]] += 1
    shares = {MAIN: 0.5, slot_name(0): 0.15, slot_name(1): 0.15, fixed_name(0): 0.1, fixed_name(1): 0.1}
    assert counts.keys() == shares.keys()
    for name, p in shares.items():
        assert abs(counts[name] - n * p) < 4 * (n * p * (1 - p)) ** 0.5


def test_draws_depend_on_seed_copy_and_episode_alone(tmp_path):
    def draws(reset_step, order):
        found = league(tmp_path, opponents={'latest': 1.0, 'past': 1.0})
        take(found, 0, 100, 200, 300, 400, 500)
        found.reset(reset_step)
        found.begin_rollout(reset_step, ())
        return {(e, c): found.policy_of(AGENTS[1 - c % 2], e, c) for e, c in order}

    keys = [(e, c) for e in range(20) for c in range(4)]
    assert draws(500, keys) == draws(500, keys[::-1])
    assert draws(500, keys) != draws(600, keys)


def test_opponents_are_those_of_a_generator_of_numpy_for_each_episode(tmp_path):
    found = league(
        tmp_path, opponents={'latest': 0.3, 'past': 0.4, 'fixed': 0.3}, fixed=['random', 'bots:one'], sample='pfsp'
    )
    take(found, 0, 100, 200)
    found.reset(300)
    found.begin_rollout(300, ())
    found.snapshots[100].games.extend([1.0] * 9)  # win rate .95; .5 without games
    weights = np.array([0.25, 0.05**2, 0.25]) + 1e-3
    for copy, episode in [(0, 0), (0, 1), (5, 63), (5, 64), (5, 1000), *((2, episode) for episode in range(60))]:
        rng = np.random.default_rng(stream(0, 'league', 300, copy, episode))
        kind = rng.choice(3, p=[0.3, 0.4, 0.3])
        wanted = MAIN
        if kind == 1:
            wanted = slot_name(rng.choice(3, p=weights / weights.sum()))
        elif kind == 2:
            wanted = fixed_name(rng.integers(2))
        assert found.policy_of(AGENTS[1 - copy % 2], episode, copy) == wanted


def test_running_episodes_keep_their_opponent(tmp_path):
    found = league(tmp_path, opponents={'past': 1.0}, slots=2)
    take(found, *range(0, 1000, 100))
    found.begin_rollout(0, ())
    path = found.slot_mode(1).forward(None, None)['path']
    others = set()
    for step in range(100):
        found.begin_rollout(step, {slot_name(1)})
        assert found.slot_mode(1).forward(None, None)['path'] == path
        others.add(found.slot_mode(0).forward(None, None)['path'])
    assert len(others) == 9  # every other snapshot


def test_oldest_snapshots_go_but_the_first_one_stays(tmp_path):
    """Their files stay: an older checkpoint names them."""
    found = league(tmp_path, keep=3)
    take(found, 0, 100, 200, 300, 400)
    assert list(found.snapshots) == [0, 300, 400]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ['0', '100', '200', '300', '400']


def test_newest_snapshot_stays_also_where_the_others_play(tmp_path):
    found = league(tmp_path, keep=2, slots=2, opponents={'past': 1.0})
    take(found, 0, 100)
    found.begin_rollout(100, ())  # both play
    take(found, 200)
    assert list(found.snapshots) == [0, 100, 200]
    assert not found.is_due(300)


def test_when_a_snapshot_is_due(tmp_path):
    found = league(tmp_path, snapshot={'every': 100, 'win_rate': 0.9})
    assert found.is_due(0)
    take(found, 0)
    assert [step for step in range(200) if found.is_due(step)] == list(range(100, 200))
    newest = found.snapshots[0]
    newest.games.extend([1.0] * 99)
    assert not found.is_due(50)
    newest.games.append(1.0)
    assert found.is_due(50)
    by_rate = league(tmp_path, snapshot={'every': None, 'win_rate': 0.9})
    take(by_rate, 0)
    assert not by_rate.is_due(10**6)


@pytest.mark.parametrize('sample', ['uniform', 'pfsp'])
@pytest.mark.parametrize('slots', [1, 3, 5, 8])
@pytest.mark.slow(ci=True)
def test_each_snapshot_plays_its_share_of_the_episodes(sample, slots, tmp_path):
    """Win rates .9, .7, .5, .3, .1 give weights .01, .09, .25, .49, .81 in the limit of many games; chi-square of 4 degrees.

    The episodes of a rollout share its slots, so only the first one is counted. P(chi-square > 18.5) = .001.
    """
    found = league(tmp_path, sample=sample, slots=slots, opponents={'latest': 0.0, 'past': 1.0})
    take(found, 0, 1, 2, 3, 4)
    for snapshot, wins in zip(found.snapshots.values(), (90, 70, 50, 30, 10), strict=True):
        snapshot.games.extend([1.0] * wins + [0.0] * (100 - wins))
    n = 4000
    counts = Counter()
    for step in range(n):
        found.begin_rollout(step, ())
        slot = found.policy_of(AGENTS[1], step, 0)
        counts[found.slot_mode(int(slot.removeprefix('past_'))).forward(None, None)['path'].stem] += 1
    weights = np.ones(5)
    if sample == 'pfsp':
        weights = np.array([(1 - (wins + 0.5) / 101) ** 2 + 1e-3 for wins in (90, 70, 50, 30, 10)])
    expected = n * weights / weights.sum()
    played = np.array([counts[str(i)] for i in range(5)])
    assert ((played - expected) ** 2 / expected).sum() < 18.5


def test_a_snapshot_that_plays_in_two_slots_has_its_own_share(tmp_path):
    """Snapshot 0, against which nothing was won, gets all slots; later it and another one, equally hard, share the episodes."""
    found = league(tmp_path, sample='pfsp', slots=4, opponents={'latest': 0.0, 'past': 1.0})
    take(found, 0, 1, 2, 3, 4)
    for step, snapshot in found.snapshots.items():
        snapshot.games.extend([float(step > 0)] * 100)
    found.begin_rollout(0, ())
    assert [found.slot_mode(i).forward(None, None)['path'].stem for i in range(4)] == ['0'] * 4
    for step in (2, 3, 4):
        del found.snapshots[step]
    found.snapshots[0].games.extend([1.0] * 100)
    found.begin_rollout(1, {slot_name(0), slot_name(1)})  # two of its episodes run
    n = 2000
    counts = Counter()
    for episode in range(n):
        slot = found.policy_of(AGENTS[1], episode, 0)
        counts[found.slot_mode(int(slot.removeprefix('past_'))).forward(None, None)['path'].stem] += 1
    assert abs(counts['0'] - n / 2) < 4 * (n / 4) ** 0.5


def test_copies_of_an_evaluation_take_the_seats_in_turn(tmp_path):
    found = league(tmp_path)
    seats = [
        [agent for agent in AGENTS if found.evaluation_policy_of(agent, episode, copy) == MAIN]
        for copy, episode in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    ]
    assert seats == [['first'], ['second'], ['first'], ['second'], ['first']]


def test_returns_that_are_no_numbers_are_no_game(tmp_path):
    found = league(tmp_path, opponents={'fixed': 1.0})
    found.record([MAIN, fixed_name(0)], np.array([np.nan, 1.0]))
    assert (found.rating, found.fixed[0].n_game) == (1000.0, 0)


def test_opponents_in_folders_of_one_name_have_a_metric_each(tmp_path):
    found = league(tmp_path, fixed=['one/run', 'two/run'])
    found.fixed[0].games.append(1.0)
    found.fixed[1].games.append(0.0)
    assert {name: x for name, x in found.metrics().items() if 'win_rate' in name} == {
        'league/win_rate/run': 1.0,
        'league/win_rate/run_1': 0.0,
    }


CRAFTED = {
    'a path': ('snapshots', ['../../elsewhere', 1000.0, 0, []], 'invalid literal'),
    'a number in another form': ('snapshots', ['+7', 1000.0, 0, []], "the name '[+]7', wanted the env step"),
    'a negative number': ('snapshots', ['-7', 1000.0, 0, []], "the name '-7'"),
    'a rating that is none': ('snapshots', ['7', float('nan'), 0, []], 'finite'),
    'a result beyond a win': ('fixed', ['random', 1000.0, 1, [2.0]], 'less than or equal to 1'),
    'no list': ('fixed', 'random', 'tuple'),
}


@pytest.mark.parametrize('case', CRAFTED)
def test_crafted_states_are_refused_before_any_file_is_read(case, tmp_path):
    key, opponent, words = CRAFTED[case]
    found = league(tmp_path)
    state = json.loads(found.state_dict()['json'])
    state[key] = [opponent]
    with pytest.raises(ValueError, match=words):
        found.load_state_dict({'json': json.dumps(state)}, tmp_path)


def test_state_is_restored(tmp_path):
    found = league(tmp_path, opponents={'past': 1.0})
    take(found, 0, 100)
    for score in (1.0, 0.5, 0.0):
        found.rate(found.snapshots[100], score)
    again = league(tmp_path, opponents={'past': 1.0})
    again.load_state_dict(found.state_dict(), tmp_path)
    assert again.state_dict() == found.state_dict()
    assert again.snapshots[100].mode.forward(None, None)['path'] == tmp_path / '100.safetensors'
    assert again.metrics() == found.metrics()
    names = [line.split()[0] for line in again.table().splitlines()]
    assert (names[0], names[-1]) == ('100', 'main')  # main lost a little: 16 - .7 - 17
