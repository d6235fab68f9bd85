"""`zoo convert`: the config on stdout or in a file that trains; what became what on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from zoo.cli.command import main

RL_ZOO3 = """
CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  vf_coef: 0.5
  learning_rate: lin_0.001
  clip_range: lin_0.2
Pendulum-v1:
  n_envs: 4
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'ppo.yml').write_text(RL_ZOO3)
    return tmp_path


def test_config_goes_to_stdout_and_the_report_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', 'ppo.yml', '--name', 'CartPole-v1']) == 0
    out, err = capsys.readouterr()
    config = yaml.safe_load(out)
    assert config['env']['id'] == 'CartPole-v1' and config['max_env_step'] == 100_000
    assert config['policy']['learn']['value_weight'] == 1.0  # the squared error there is not halved
    assert 'vf_coef=0.5  ->  policy.learn.value_weight=1.0' in err
    assert main(['convert', 'ppo.yml', '--name', 'CartPole-v1', '--quiet']) == 0
    assert capsys.readouterr() == (out, '')
    assert main(['convert', 'ppo.yml', '--name', 'CartPole-v1', '--json', '--from', 'sb3']) == 0
    assert json.loads(capsys.readouterr().out)['config']['env'] == config['env']


@pytest.mark.slow
def test_file_that_it_writes_trains(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', 'ppo.yml', '--name', 'CartPole-v1', '-o', 'mine.yaml']) == 0
    assert capsys.readouterr().out == 'train it: zoo train mine.yaml\n'
    words = ['policy.eval.n_episode=2', 'logger.console=off', 'logger.tensorboard=false', '--json']
    assert main(['train', 'mine.yaml', '--steps', '2048', *words]) == 0
    assert json.loads(capsys.readouterr().out)['env_step'] > 0


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['nowhere.yml'], 'nowhere.yml'),
        (['ppo.yml'], '--name'),
        (['ppo.yml', '--name', 'CartPol-v1'], 'CartPole-v1'),
        (['ppo.yml', '--from', 'tianshou'], "invalid choice: 'tianshou'"),
        (['ppo.yml', '-o', 'mine.json'], 'name a .yaml file'),
        (['ppo.yml', '-o', 'ppo.yml'], 'ppo.yml exists'),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', *words]) == 2
    out, err = capsys.readouterr()
    assert out == '' and said in err and err.count('\n') == 1
