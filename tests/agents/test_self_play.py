"""The league of a policy that plays against itself: ratings by hand, draws, snapshots, its state."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from zoo.agents.self_play import MAIN, League, SelfPlayConfig, expected_score, fixed_name, slot_name
from zoo.policy.modes import EvalMode

AGENTS = ['first', 'second']


def league(tmp_path, **section):
    found = League(SelfPlayConfig(**section), AGENTS, 0, lambda path: EvalMode(lambda obs, state: {'path': path}))
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
    found = league(tmp_path, keep=3)
    take(found, 0, 100, 200, 300, 400)
    assert list(found.snapshots) == [0, 300, 400]
    assert sorted(path.stem for path in tmp_path.iterdir()) == ['0', '300', '400']


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


def test_hard_opponents_are_drawn_more_often(tmp_path):
    """Win rates .9, .5, .1 give weights .01, .25, .81 in the limit of many games."""
    found = league(tmp_path, sample='pfsp', slots=1)
    take(found, 0, 1, 2)
    for snapshot, wins in zip(found.snapshots.values(), (90, 50, 10), strict=True):
        snapshot.games.extend([1.0] * wins + [0.0] * (100 - wins))
    counts = Counter()
    for step in range(2000):
        found.begin_rollout(step, ())
        counts[found.slot_mode(0).forward(None, None)['path'].stem] += 1
    weights = np.array([(1 - x.win_rate) ** 2 + 1e-3 for x in found.snapshots.values()])
    p = weights / weights.sum()
    for name, share in zip(('0', '1', '2'), p, strict=True):
        assert abs(counts[name] - 2000 * share) < 4 * (2000 * share * (1 - share)) ** 0.5


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
