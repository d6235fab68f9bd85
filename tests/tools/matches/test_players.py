"""Players of matches: what names them, and the code that checkpoints may not load by themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from zoo import CheckpointError, load_policy, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.tools.matches.players import env_of_match, read_players

ROOT = Path(__file__).parents[3]
ENV = 'tests.agents.envs:Clockwork'


def trained(root, **agents):
    config = dict(
        exp_name='clock',
        max_env_step=64,
        env=dict(id=ENV, collector_env_num=2, evaluator_env_num=2),
        policy=dict(
            model=dict(hidden_sizes=[4]),
            learn=dict(batch_size=16),
            collect=dict(n_step=16),
            eval=dict(eval_freq=32, n_episode=2),
        ),
        checkpoint=dict(freq=32),
        agents=agents,
        logger=dict(root=str(root), console='off', tensorboard=False),
    )
    return serial_pipeline(config).run_dir


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('league'), self_play=dict(snapshot=dict(every=32)))


@pytest.fixture(scope='module')
def two(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('two'), policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'})


def parameters(policy):
    return torch.cat([x.flatten() for x in policy.state_dict()['model'].values()])


def player(word, **options):
    return read_players([str(word), 'random'], **options)[0].contestant


def test_run_its_file_and_its_newest_step_are_the_same_player(run):
    newest = parameters(load_policy(run))
    file = max((run / 'checkpoints').glob('step_*.safetensors'))
    for word in (run, file, f'{run}@64'):
        assert torch.equal(parameters(player(word).policy), newest)


def test_step_names_a_snapshot_of_the_league(run):
    first = parameters(load_policy(run / 'league' / '0.safetensors'))
    assert torch.equal(parameters(player(f'{run}@0').policy), first)
    assert not torch.equal(parameters(player(run).policy), first)


def test_step_names_a_checkpoint_where_no_snapshot_is(run, tmp_path):
    copy = tmp_path / 'run'
    shutil.copytree(run, copy)
    (copy / 'league' / '32.safetensors').unlink()
    assert torch.equal(parameters(player(f'{copy}@32').policy), parameters(player(f'{run}@32').policy))


def test_unknown_step_is_refused_with_those_that_are_there(run):
    with pytest.raises(
        UserError, match=rf'{run} has no snapshot of env step 33: its league has 0, 32, 64, .*; e.g. {run}@32'
    ):
        player(f'{run}@33')


def test_best_is_the_best_checkpoint(run, tmp_path):
    best = parameters(load_policy(run / 'checkpoints' / 'best.safetensors'))
    assert torch.equal(parameters(player(run, best=True).policy), best)
    copy = tmp_path / 'run'
    shutil.copytree(run, copy)
    (copy / 'checkpoints' / 'best.safetensors').unlink()
    with pytest.raises(UserError, match='has no best checkpoint; leave --best out'):
        player(copy, best=True)


def test_policy_of_a_run_with_several_is_named(two):
    for word, options in ((f'{two}:q', {}), (two, {'policy': 'q'})):
        assert torch.equal(parameters(player(word, **options).policy), parameters(load_policy(two, policy='q')))
    with pytest.raises(UserError, match='has the policies p, q, and one of them plays in a match; say which: .*:p'):
        player(two)
    with pytest.raises(UserError, match="has no policy 'x': it has p, q"):
        player(f'{two}:x')


def test_policy_option_is_for_runs_with_several_alone(run, two):
    first, second = (entrant.contestant for entrant in read_players([str(run), str(two)], policy='p'))
    assert torch.equal(parameters(first.policy), parameters(load_policy(run)))
    assert torch.equal(parameters(second.policy), parameters(load_policy(two, policy='p')))


def test_function_and_random_have_no_policy():
    named, given, random = read_players(['tests.tools.matches.test_players:act', act, 'random'])
    assert [each.contestant.act for each in (named, given, random)] == [named.contestant.act, act, None]
    assert named.contestant.act.__name__ == 'act'
    assert [each.contestant.policy for each in (named, given, random)] == [None] * 3


def act(obs, mask):
    return [0] * len(obs)


def test_players_of_one_name_get_numbers():
    names = [entrant.contestant.name for entrant in read_players(['random', act, 'random', 'random'])]
    assert names == ['random', 'act', 'random (2)', 'random (3)']


@pytest.mark.parametrize(
    ('players', 'message'),
    [
        (['random'], 'a match has two players or more but got 1'),
        (['random', 'runs/none'], 'runs/none is no player: there is no such run or file'),
        (['random', 3], 'a player is 3 but must be'),
        (['random', 'tests.tools.matches.test_players:ROOT'], 'but a player is a function of'),
    ],
)
def test_what_is_no_player_is_refused(players, message):
    with pytest.raises(UserError, match=message):
        read_players(players)


def test_function_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="a player of the match names the module 'no_such_bots', which is not found"):
        read_players(['random', 'no_such_bots:greedy'])


def test_env_is_that_of_the_runs_and_an_override_wins(run):
    entrants = read_players([str(run), 'random'])
    assert env_of_match(entrants, None, (), ()).id == ENV
    assert env_of_match(entrants, None, (), ['env.max_episode_steps=3']).max_episode_steps == 3
    assert env_of_match(entrants, 'pettingzoo:classic/rps-v2', (), ()).id == 'pettingzoo:classic/rps-v2'


def test_env_must_be_named_where_no_player_is_a_run():
    with pytest.raises(
        UserError, match='no player is a run, so that nothing says what is played; name the game: --env ENV'
    ):
        env_of_match(read_players(['random', act]), None, (), ())


CODE = """
import sys
from zoo import CheckpointError, match
from zoo.core.errors import UserError

word, trust = sys.argv[1:]
try:
    print(match(word, 'random', n_episode=6, trust=[trust] if trust else ()).score.n_game)
except CheckpointError as error:
    print(error)
"""


@pytest.mark.long
@pytest.mark.parametrize('part', ['', 'league/0.safetensors'])
def test_code_that_a_run_or_its_snapshot_names_needs_consent(run, part):
    def said(trust):
        words = [sys.executable, '-c', CODE, str(run / part), trust]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert f"names code of module 'tests.agents.envs' (env.id is '{ENV}')" in said('')
    assert said('tests.agents.envs') == '6\n'


def test_checkpoint_that_is_broken_is_refused(run, tmp_path):
    file = tmp_path / 'broken.safetensors'
    file.write_bytes((run / 'league' / '0.safetensors').read_bytes()[:1000])
    with pytest.raises(CheckpointError):
        player(file)
