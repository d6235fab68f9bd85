"""`zoo match`: what it prints, and what it says of mistakes."""

from __future__ import annotations

import json

import pytest

from zoo.tools.cli.command import main

pytest.importorskip('pettingzoo', reason='the extra agents')
GAME = ['--env', 'pettingzoo:classic/tictactoe-v3']
BOTS = ['tests.agents.opening_env:first', 'tests.agents.opening_env:last']


def test_match_prints_results_by_seat(capsys):
    assert main(['match', *BOTS, *GAME, '-n', '4']) == 0
    out = capsys.readouterr().out
    # cells are numbered column by column: 0, 8, 1, 7, 2 of the first player is a whole column; the last one wins by 8, 7, 6
    assert 'tests.agents.opening_env:first against tests.agents.opening_env:last: win rate 0.500' in out
    assert [line.split() for line in out.splitlines() if line.startswith('  player_')] == [
        ['player_1', '2', '0', '0', '1.000', '1.000', '-1.000'],
        ['player_2', '0', '0', '2', '0.000', '-1.000', '1.000'],
    ]


def test_match_json_has_all_numbers_and_overrides_may_stand_anywhere(capsys):
    assert main(['match', 'env.max_episode_steps=2', *BOTS, 'random', *GAME, '--episodes', '4', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    assert data['players'] == [*BOTS, 'random']
    assert data['anchor'] == BOTS[0]
    pairing = data['pairings'][0]
    assert (pairing['wins'], pairing['draws'], pairing['losses']) == (0, 4, 0)  # cut off after two moves
    assert (pairing['return_mean'], pairing['return_interval']) == (0.0, [0.0, 0.0])
    assert pairing['interval'][0] < 0.5 < pairing['interval'][1]
    assert list(pairing['seats']) == ['player_1', 'player_2']


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['random', 'random'], 'no player is a run'),
        (['random', *GAME], 'a match has two players or more but got 1'),
        (['random', 'random', '--env', 'CartPole-v1'], 'CartPole-v1 (CartPoleEnv) is an env of one agent'),
        (['random', 'random', *GAME, '-n', '0'], '--episodes is 0 but must be 1 or more'),
        (['random', 'nowhere@3', *GAME], 'nowhere@3 is no player'),
    ],
)
def test_mistake_is_one_sentence(words, message, capsys):
    assert main(['match', *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith('zoo: error: ')
    assert message in err
    assert len(err.splitlines()) == 1
