"""Exploitability of runs: of their policies, of their leagues, as commands print it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip('pyspiel', reason='OpenSpiel')

from tests.agents.kuhn import NASH, NETWORK, write
from zoo import exploitability, load_policies, load_policy, match, serial_pipeline
from zoo.agents.exploitability import joint_play, play_of, tree_of
from zoo.agents.match import Contestant
from zoo.core.errors import UserError
from zoo.env.config import env_config
from zoo.tools.cli.command import main
from zoo.tools.matches.exact import LEAGUE_AVERAGE, exact_of_run, exact_text

KUHN = 'pyspiel:kuhn_poker'


def trained(root, env=KUHN, model=None, **agents):
    config = dict(
        exp_name='poker',
        max_env_step=128,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=2),
        policy=dict(
            model=model or NETWORK,
            learn=dict(batch_size=64, learning_rate=0.01),
            collect=dict(n_step=16),
            eval=dict(eval_freq=128, n_episode=2),
        ),
        agents=agents,
        logger=dict(root=str(root), console='off', tensorboard=False),
    )
    return serial_pipeline(config).run_dir


@pytest.fixture(scope='module')
def kuhn(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('kuhn'), self_play=dict(snapshot=dict(every=64)))


def uniform(run, path):
    """A file with the policy of a run whose actions all have the same probability."""
    policy = load_policy(run)
    state = policy.model.state_dict()
    for name in ('policy_head.weight', 'policy_head.bias'):
        state[name] = torch.zeros_like(state[name])
    policy.model.load_state_dict(state)
    return policy.save(path)


@pytest.mark.long
def test_exploitability_of_uniform_runs(kuhn, tmp_path):
    leduc = trained(tmp_path, 'pyspiel:leduc_poker', dict(hidden_sizes=[4]))
    assert exploitability(uniform(kuhn, tmp_path / 'k.safetensors')).exploitability == pytest.approx(0.458333, abs=1e-6)
    assert exploitability(uniform(leduc, tmp_path / 'l.safetensors')).exploitability == pytest.approx(
        2.373611, abs=1e-6
    )


def test_exploitability_of_a_run_that_plays_the_equilibrium_by_hand(kuhn, tmp_path):
    policy = load_policy(kuhn)
    write(policy, tree_of(env_config({'id': KUHN})), NASH)
    found = exploitability(policy.save(tmp_path / 'nash.safetensors'))
    assert found.exploitability == pytest.approx(0, abs=1e-6)  # the network computes in f32
    assert found.value == pytest.approx(-1 / 18, abs=1e-6)


def test_average_of_a_league_is_that_of_the_plays_of_its_snapshots(kuhn):
    section = env_config({'id': KUHN})
    tree = tree_of(section)
    files = [kuhn / 'league' / f'{step}.safetensors' for step in (0, 64, 128)]
    plays = [play_of(Contestant('x', load_policy(file)), section, tree) for file in files]
    assert not np.allclose(plays[0], plays[2], atol=1e-3)
    wanted = tree.measure(tree.average(plays))
    assert exploitability(kuhn, average=True) == wanted
    found = exact_of_run(load_policy(kuhn), section, kuhn, ())
    assert list(found) == ['policy', LEAGUE_AVERAGE]
    assert found[LEAGUE_AVERAGE] == wanted
    assert found['policy'] == exploitability(kuhn)


def test_average_without_snapshots_is_refused(kuhn):
    with pytest.raises(
        UserError, match='has no snapshots of a league, so that they have no average; leave average out'
    ):
        exploitability(f'{kuhn}@0', average=True)


def test_policies_of_a_run_are_measured_together(tmp_path):
    run = trained(tmp_path, policies=dict(p={}, q={}), mapping=dict(player_0='p', player_1='q'))
    section = env_config({'id': KUHN})
    tree = tree_of(section)
    plays = {i: play_of(Contestant(name, load_policy(run, policy=name)), section, tree) for i, name in enumerate('pq')}
    assert exact_of_run(load_policies(run), section, run, ()) == {'policy': tree.measure(joint_play(plays, tree))}


def test_match_has_the_exploitability_of_each_player_and_of_the_league(kuhn):
    result = match(str(kuhn), f'{kuhn}@0', 'random', n_episode=2)
    assert list(result.exploitability) == [str(kuhn), f'{kuhn}, {LEAGUE_AVERAGE}', f'{kuhn}@0', 'random']
    assert result.exploitability['random'].exploitability == pytest.approx(0.458333, abs=1e-6)
    assert 'random' in str(result).splitlines()[-1]
    assert result.as_data()['exploitability']['random']['nash_conv'] == pytest.approx(0.916667, abs=1e-6)


@pytest.mark.long
def test_function_and_large_game_have_none():
    assert list(match('random', first_legal, env=KUHN, n_episode=2).exploitability) == ['random']
    assert match('random', 'random', env='pyspiel:liars_dice', n_episode=2).exploitability == {}
    of_tensors = match('random', 'random', env={'id': 'torch', 'game': 'kuhn_poker'}, n_episode=2).exploitability
    assert of_tensors['random'].exploitability == pytest.approx(0.458333, abs=1e-6)
    assert match('random', 'random', env={'id': 'torch', 'game': 'tictactoe'}, n_episode=2).exploitability == {}


def first_legal(obs, mask):
    return mask.argmax(1)


def test_eval_prints_the_exploitability_of_small_games(kuhn, capsys):
    assert main(['eval', str(kuhn), '--episodes', '2', '--json']) == 0
    data = json.loads(capsys.readouterr().out)
    assert data['exploitability']['policy']['exploitability'] == pytest.approx(exploitability(kuhn).exploitability)
    assert main(['eval', str(kuhn), '--episodes', '2']) == 0
    out = capsys.readouterr().out
    assert exact_text(exact_of_run(load_policy(kuhn), env_config({'id': KUHN}), kuhn, ())) in out


def test_eval_of_other_opponents_prints_none(kuhn, capsys):
    assert main(['eval', str(kuhn), '--episodes', '2', '--json', 'agents.mapping.player_1=random']) == 0
    assert 'exploitability' not in json.loads(capsys.readouterr().out)
