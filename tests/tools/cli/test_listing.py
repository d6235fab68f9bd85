"""`zoo list`: names with a line each."""

from __future__ import annotations

import json

import pytest

from tests.tools.cli.processes import run_in
from zoo.tools.cli.command import main
from zoo.tools.cli.listing import KINDS


def test_without_a_kind_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS) and all(len(line.split()) > 2 for line in lines)
    assert main(['list', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['kinds'] == KINDS


@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind != 'parts'])
def test_json_has_the_names_of_the_lines(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', kind, '--json']) == 0
    names = json.loads(capsys.readouterr().out)[kind]
    assert main(['list', kind]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names


@pytest.mark.long
@pytest.mark.parametrize('kind', ['policies', 'models', 'buffers', 'encoders', 'distributions'])
def test_every_registered_name_is_described(kind: str) -> None:
    lines = run_in('list', kind).stdout.splitlines()  # in a process of its own: other tests register names too
    assert lines and not [line for line in lines if len(line.split()) < 4]


def test_configs_show_env_policy_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'configs']) == 0
    lines = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines['cartpole_ppo'] == 'CartPole-v1 ppo 100,000 env steps'
    assert lines['pong_ppo'].startswith('atari/Pong ppo')


def test_envs_show_the_extra_that_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'envs']) == 0
    lines = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    assert lines['HalfCheetah-v5'] == 'extra mujoco' and lines['LunarLander-v3'] == 'extra box2d'
    assert lines['CartPole-v1'] == '' and 'bricks' in lines['tiny_bricks']


def test_families_and_encoders_say_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['list', 'envs']) == 0
    said = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    families = [said[name] for name in ('atari', 'envpool', 'procgen', 'torch')]
    assert len(set(families)) == 4 and all('env.game' in words for words in families)
    assert main(['list', 'encoders']) == 0
    said = {line.split()[0]: ' '.join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}
    built_in = ('cnn', 'impala', 'mlp', 'multi', 'nature', 'simba')
    assert all(said[name].startswith('For ') for name in built_in)
