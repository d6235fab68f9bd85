"""Which library a config is of, and what is said where that is not clear."""

from __future__ import annotations

import pytest

from tests.tools.importers.published import CARTPOLE_PPO, RL_ZOO3_PPO
from zoo.config.section import ConfigError
from zoo.config.yaml_io import save_yaml
from zoo.run.config import resolve_config
from zoo.tools.importers import convert


def test_source_is_guessed_and_said(tmp_path):
    path = tmp_path / 'ppo.yml'
    path.write_text(RL_ZOO3_PPO)
    assert convert(path, name='CartPole-v1').text().startswith('read as settings of stable-baselines3')
    assert 'recognised by' in convert(path, name='CartPole-v1').source
    assert 'recognised by' not in convert(path, 'sb3', name='CartPole-v1').source


def test_file_of_di_engine_is_converted(tmp_path):
    path = tmp_path / 'cartpole_pair.py'
    path.write_text(f'import ding\nmain_config, create_config = {CARTPOLE_PPO!r}\n')
    assert convert(path, 'di-engine').config == convert(CARTPOLE_PPO).config


def test_converted_config_is_the_same_after_a_file_of_yaml(tmp_path):
    config = convert(CARTPOLE_PPO).config
    save_yaml(config, tmp_path / 'config.yaml')
    assert resolve_config(tmp_path / 'config.yaml') == resolve_config(config)


def test_file_of_many_configs_asks_for_one(tmp_path):
    path = tmp_path / 'ppo.yml'
    path.write_text(RL_ZOO3_PPO)
    with pytest.raises(ConfigError, match=r'holds 8 configs: Pendulum-v1, CartPole-v1.*choose one with --name'):
        convert(path)
    with pytest.raises(ConfigError, match=r"unknown config 'CartPole-v9': did you mean 'CartPole-v1'"):
        convert(path, name='CartPole-v9')


def test_folder_and_config_of_zoo_are_refused(tmp_path):
    with pytest.raises(ConfigError, match='is a folder; name a file in it'):
        convert(tmp_path)
    path = tmp_path / 'mine.yaml'
    path.write_text('env: {id: CartPole-v1}\npolicy: {type: ppo}\n')
    with pytest.raises(ConfigError, match='is already a config of zoo; train it with zoo train'):
        convert(path)


def test_file_of_another_algorithm_of_rl_zoo3_is_refused(tmp_path):
    path = tmp_path / 'a2c.yml'
    path.write_text('CartPole-v1:\n  n_envs: 8\n  n_timesteps: 1000\n')
    with pytest.raises(ConfigError, match='only those of PPO are translated'):
        convert(path)


@pytest.mark.parametrize(
    'name, text, sentence',
    [
        ('a.py', 'x = 1', 'is not recognised'),
        ('a.py', 'x = (', 'cannot be read as Python'),
        ('a.yaml', '', 'is empty'),
        ('a.yaml', '{}', 'is empty'),
        ('a.yaml', '{a: 1', 'cannot be read as YAML'),
        ('a.yaml', '- 1', 'holds list, not the keys of a config'),
        ('a.yaml', 'a: 1', 'is not recognised as settings of rl-zoo3 or RLlib'),
        ('a.txt', '', r'is neither a .py nor a .yaml file'),
    ],
)
def test_file_that_is_no_config_is_refused(name, text, sentence, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        convert(path)


@pytest.mark.parametrize('thing, sentence', [(3, 'got int'), ({}, 'the dict is not recognised')])
def test_object_that_is_no_config_is_refused(thing, sentence):
    with pytest.raises(ConfigError, match=sentence):
        convert(thing)


def test_unknown_library_and_missing_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown library 'sb4': did you mean 'sb3'"):
        convert(CARTPOLE_PPO, 'sb4')
    with pytest.raises(ConfigError, match='there is no file'):
        convert(tmp_path / 'none.py')
