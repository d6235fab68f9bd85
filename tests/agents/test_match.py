"""Matches: who has which seat, results by seat, what players see."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.agents.match import FIRST, SECOND, Contestant, Pairing, Seat, Seating, look_at_match, seats_of, seen_by
from zoo.agents.scores import GameScore
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete
from zoo.env.config import env_config
from zoo.run.config import resolve_policy
from zoo.worker.evaluator import Evaluation

CLOCKWORK = 'tests.agents.envs:Clockwork'  # vectors of 2 numbers, 2 choices, agents a, b, c


def test_seating_of_two_agents_swaps_them_by_copy():
    seating = Seating(['x', 'y'], 4)
    for copy in range(4):
        for episode in range(3):  # a copy has games of one kind
            owners = [seating(agent, episode, copy) for agent in 'xy']
            assert owners == ([FIRST, SECOND] if copy % 2 == 0 else [SECOND, FIRST])
    assert [seating.name(kind) for kind in range(2)] == ['x', 'y']


def test_seating_of_one_copy_swaps_by_episode():
    seating = Seating(['x', 'y'], 1)
    assert [seating('x', episode, 0) for episode in range(4)] == [FIRST, SECOND, FIRST, SECOND]


def test_seating_of_three_agents_gives_each_seat_alone_to_both_players():
    seating = Seating(['x', 'y', 'z'], 6)
    owners = [''.join(seating(agent, 0, copy)[0] for agent in 'xyz') for copy in range(6)]
    assert owners == ['fss', 'sff', 'sfs', 'fsf', 'ssf', 'ffs']
    assert [seating.name(kind) for kind in range(6)] == ['x', 'all but x', 'y', 'all but y', 'z', 'all but z']


def test_seats_of_counts_by_hand():
    # 2 copies, 3 episodes: copy 0 has two games in which the first player is x, copy 1 one in which it is y
    evaluation = Evaluation([0.0] * 3, [5] * 3, agents={'x': [1.0, -1.0, 0.5], 'y': [-1.0, 1.0, 0.5]})
    seats = seats_of(evaluation, Seating(['x', 'y'], 2), 2)
    # returns 1 and -1: a variance of 2, a standard error of sqrt(2 / 2)
    assert seats == {'x': Seat(GameScore(1, 0, 1), 0.0, 0.0, 1.0), 'y': Seat(GameScore(0, 1, 0), 0.5, 0.5)}
    assert Pairing(('p', 'q'), seats).return_interval is None  # a single game says nothing of its spread
    assert Pairing(('p', 'q'), seats).score == GameScore(1, 1, 1)


def test_return_is_the_mean_over_seats_with_its_interval_by_hand():
    seats = {'x': Seat(GameScore(9, 0, 1), 2.0, -2.0, 0.3), 'y': Seat(GameScore(1, 0, 9), 1.0, -1.0, 0.4)}
    pairing = Pairing(('p', 'q'), seats)
    assert pairing.return_mean == 1.5
    # the errors of both means are independent: sqrt(.3^2 + .4^2) / 2 = .25
    assert pairing.return_interval == pytest.approx((1.5 - 1.959964 * 0.25, 1.5 + 1.959964 * 0.25))


def test_seats_of_compare_the_mean_returns_of_several_agents():
    # 6 games, one of each kind; returns 9, 1, 4 of x, y, z: alone x wins (9 > 2.5), y loses (1 < 6.5), z loses (4 < 5)
    evaluation = Evaluation([0.0] * 6, [1] * 6, agents={'x': [9.0] * 6, 'y': [1.0] * 6, 'z': [4.0] * 6})
    seats = seats_of(evaluation, Seating(['x', 'y', 'z'], 6), 6)
    wins = {name: seat.score.wins for name, seat in seats.items()}
    assert wins == {'x': 1, 'all but x': 0, 'y': 0, 'all but y': 1, 'z': 0, 'all but z': 1}
    assert (seats['all but z'].return_, seats['all but z'].other_return) == (5.0, 4.0)


def box(n):
    return Box(np.full(n, -np.inf, np.float32), np.full(n, np.inf, np.float32))


def policy(obs_space):
    cfg = resolve_policy({'type': 'ppo', 'model': {'hidden_sizes': [4]}, 'device': 'cpu'})
    return POLICY_REGISTRY.get('ppo')(cfg, obs_space, Discrete(2), enable_field=['eval'])


def test_players_see_what_they_were_trained_with():
    layout = look_at_match(env_config({'id': CLOCKWORK}), [Contestant('random')])
    group = layout.groups[0]
    rows = torch.tensor([[1.0, 2.0, 0.0, 1.0, 0.0]])  # the observation, then which agent it is
    for space, seen in (
        (box(2), [[1.0, 2.0]]),
        (box(5), rows.tolist()),
    ):
        assert seen_by(policy(space), group)(rows).tolist() == seen
    entries = seen_by(policy(Dict({'agent': box(3), 'obs': box(2)})), group)(rows)
    assert {name: part.tolist() for name, part in entries.items()} == {'agent': [[0, 1, 0]], 'obs': [[1, 2]]}
    assert seen_by(policy(box(3)), group) is None
    assert seen_by(policy(Dict({'obs': box(2), 'map': box(4)})), group) is None


def test_player_of_other_spaces_is_refused_with_its_name_and_both_spaces():
    with pytest.raises(
        UserError, match=r'old takes observations Box \(3,\) .* but the agents of .*Clockwork have Box \(2,\)'
    ):
        look_at_match(env_config({'id': CLOCKWORK}), [Contestant('random'), Contestant('old', policy(box(3)))])


@pytest.mark.parametrize('env', ['CartPole-v1', 'tests.agents.envs:CartPoleParallel'])
def test_env_of_one_agent_is_refused(env):
    with pytest.raises(UserError, match='a match is between the agents of an env; name a game'):
        look_at_match(env_config({'id': env}), [Contestant('random'), Contestant('random')])
