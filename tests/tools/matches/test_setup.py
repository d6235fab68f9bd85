"""Setup of matches: numbers of games, limits, what is refused before anything is played."""

from __future__ import annotations

import logging

import pytest

from zoo import match
from zoo.core.errors import UserError
from zoo.policy.config import MAX_EPISODE_STEPS
from zoo.tools.matches.setup import set_up

pytest.importorskip('pettingzoo', reason='the extra agents')
ROCK_PAPER_SCISSORS = 'pettingzoo:classic/rps-v2'


@pytest.mark.parametrize(('given', 'agents', 'played'), [(7, 2, 8), (8, 2, 8), (1, 3, 6), (13, 3, 18)])
def test_number_of_games_is_rounded_up_to_whole_rounds_of_seats_which_is_logged(given, agents, played, caplog):
    env = ROCK_PAPER_SCISSORS
    if agents == 3:
        env = 'tests.agents.envs:Clockwork'
    with caplog.at_level(logging.INFO):
        assert match('random', 'random', env=env, n_episode=given).score.n_game == played
    said = f'{played} games are played in place of {given}: each of the'
    assert (said in caplog.text) == (given != played)


@pytest.mark.parametrize('arguments', [{'n_episode': 0}, {'n_episode': 2.5}, {'seed': -1}, {'max_step': 0}])
def test_numbers_out_of_range_are_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(UserError, match=f'{name} is {value} but must be an integer'):
        match('random', 'random', env=ROCK_PAPER_SCISSORS, **arguments)


def test_limit_of_a_game_is_that_of_policies_unless_it_is_given():
    options = dict(env=ROCK_PAPER_SCISSORS, n_episode=2, seed=0, greedy=False, policy=None, best=False, trust=())
    for given, limit in ((None, MAX_EPISODE_STEPS), (3, 3)):
        assert set_up(['random', 'random'], max_step=given, overrides=(), **options).limit == limit
