"""Converting configs: the guess of the library, errors if it is unclear, and loading DI-engine's pairs as configs."""

from __future__ import annotations

import importlib
import logging

import pytest

from tests.tools.importers.published import (
    CARTPOLE_PPO,
    CLEANRL_ARGS,
    CLEANRL_PPG_ARGS,
    PAIRS,
    RL_ZOO3_PPO,
    RLLIB_CARTPOLE,
)
from zoo.config.section import ConfigError
from zoo.config.source import load_config
from zoo.config.yaml_io import save_yaml
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.convert import how_to_convert


def test_source_is_guessed_and_said(tmp_path):
    path = tmp_path / 'ppo.yml'
    path.write_text(RL_ZOO3_PPO)
    assert convert(path, name='CartPole-v1').text().startswith('read as settings of stable-baselines3')
    assert 'recognised by' in convert(path, name='CartPole-v1').source
    assert 'recognised by' not in convert(path, 'sb3', name='CartPole-v1').source


def test_file_of_di_engine_is_converted_and_is_the_same_after_a_file_of_yaml(tmp_path):
    path = tmp_path / 'cartpole_pair.py'
    path.write_text(f'import ding\nmain_config, create_config = {CARTPOLE_PPO!r}\n')
    config = convert(CARTPOLE_PPO).config
    assert convert(path, 'di-engine').config == config
    save_yaml(config, tmp_path / 'config.yaml')
    assert resolve_config(tmp_path / 'config.yaml') == resolve_config(config)


ZOO = 'env: {id: CartPole-v1}\npolicy: {type: ppo}\n'
A2C = 'CartPole-v1:\n  n_envs: 8\n  n_timesteps: 1000\n'


@pytest.mark.parametrize(
    'name, text, options, sentence',
    [
        ('.', None, {}, 'is a folder; name a file in it'),
        ('none.py', None, {}, 'there is no file'),
        ('a.py', 'x = 1', {}, 'is not recognised'),
        ('a.py', 'x = (', {}, 'cannot be read as Python'),
        ('a.yaml', '', {}, 'is empty'),
        ('a.yaml', '{}', {}, 'is empty'),
        ('a.yaml', '{a: 1', {}, 'cannot be read as YAML'),
        ('a.yaml', '- 1', {}, 'holds list, not the keys of a config'),
        ('a.yaml', 'a: 1', {}, 'is not recognised as settings of rl-zoo3 or RLlib'),
        ('a.yaml', ZOO, {}, 'is already a config of zoo; train it with zoo train'),
        ('dqn.yml', A2C, {}, 'only those of ppo, ppo_lstm, a2c, trpo are translated'),
        ('a.yml', RL_ZOO3_PPO, {}, r'holds 8 configs: Pendulum-v1, CartPole-v1.*choose one with --name'),
        ('a.yml', RL_ZOO3_PPO, {'name': 'CartPole-v9'}, r"unknown config 'CartPole-v9': did you mean 'CartPole-v1'"),
        ('a.yml', RL_ZOO3_PPO, {'source': 'sb4'}, "unknown library 'sb4': did you mean 'sb3'"),
        ('a.txt', '', {}, r'is neither a .py nor a .yaml file'),
    ],
)
def test_file_that_is_no_config_is_refused(name, text, options, sentence, tmp_path):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        convert(path, **options)


@pytest.mark.parametrize('thing, sentence', [(3, 'got int'), ({}, 'the dict is not recognised')])
def test_object_that_is_no_config_is_refused(thing, sentence):
    with pytest.raises(ConfigError, match=sentence):
        convert(thing)


SCRIPT = 'import no_such_module\n@dataclass\nclass Args:\n' + '\n'.join(
    f'    {k} = {v}' for k, v in CLEANRL_ARGS.items()
)
PARSER = 'def parse_args():\n' + '\n'.join(
    f'    p.add_argument("{k}", default={v})' for k, v in CLEANRL_PPG_ARGS.items()
)
CHAIN = 'from no_such_ray import PPOConfig\nconfig = PPOConfig().environment("CartPole-v1")\n'


@pytest.mark.parametrize(
    'name, text, what, option',
    [
        ('zoo_case_script.py', SCRIPT, 'a script of CleanRL', ''),
        ('zoo_case_parser.py', PARSER, 'a script of CleanRL', ''),
        ('zoo_case_chain.py', CHAIN, 'code for RLlib', ''),
        ('ppo.yml', 'atari:\n  n_steps: 8\n  n_envs: 2\n' + RL_ZOO3_PPO, "a file of rl-zoo3's settings", 'Pendulum-v1'),
        ('flat.yaml', 'env: CartPole-v1\nn_steps: 32\nn_envs: !!python/name:int 8\n', '', ''),
        ('flat.yaml', 'env: CartPole-v1\nn_steps: 32\nn_envs: 8\n', "a file of rl-zoo3's settings", ''),
        ('ppo.yaml', RLLIB_CARTPOLE, 'a file of RLlib', ''),
    ],
)
def test_file_of_another_library_given_as_a_config_of_zoo_is_told_to_be_converted(name, text, what, option, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    named = f' --name {option}' if option else ''
    wanted = f'{path} is {what}, not a config of zoo: translate it with zoo convert {path}{named} -o config.yaml, '
    assert str(caught.value).startswith(wanted) == bool(what)


def test_command_that_converts_a_file_is_quoted_for_a_shell(tmp_path):
    path = tmp_path / 'my ppo.yml'
    path.write_text('my block: {n_steps: 8, n_envs: 2}\nother: {n_steps: 8, n_envs: 2}\n')
    assert "zoo convert 'my ppo.yml' --name 'my block' -o config.yaml" in how_to_convert(path, 'my ppo.yml')
    path.write_text(ZOO)
    with pytest.raises(ConfigError, match=f"train it with zoo train '{path}'"):
        convert(path)


@pytest.mark.parametrize('text', ['env: {id: CartPole-v1}\nn_steps: 1\nn_envs: 2', 'policy: {}\nseed: 1', 'seed: 1'])
def test_config_of_zoo_is_of_no_other_library(text, tmp_path):
    (tmp_path / 'config.yaml').write_text(text)
    assert how_to_convert(tmp_path / 'config.yaml', 'config.yaml') == ''


# -- pairs of DI-engine that are loaded ------------------------------------------------------------------------------------


def written(path, main, create, before=''):
    path.write_text(f'{before}\nmain_config = {main!r}\ncreate_config = {create!r}\n')
    return path


def test_file_with_both_configs_trains_what_create_config_says(tmp_path):
    main = dict(env=dict(id='CartPole-v1'), policy=dict(learn=dict(learning_rate=1e-3)))
    path = written(tmp_path / 'pair_a.py', main, dict(policy=dict(type='ppg')))
    assert resolve_config(path).policy.type == 'ppg'


@pytest.mark.parametrize('name', PAIRS)
def test_published_file_is_the_same_as_its_pair(name, tmp_path):
    path = written(tmp_path / f'{name}_file.py', *PAIRS[name])
    assert load_config(path)[0] == load_config(PAIRS[name])[0]


def test_file_that_imports_di_engine_is_read_without_it_unless_it_needs_it(tmp_path):
    before = 'from ding.entry import serial_pipeline\nimport dizoo.atari.envs\n'
    path = written(tmp_path / 'imports_ding.py', *CARTPOLE_PPO, before)
    assert resolve_config(path).policy.type == 'ppo'
    path = written(tmp_path / 'needs_ding.py', *CARTPOLE_PPO, 'from ding.model import PPG\nmodel = PPG(4, 2)\n')
    with pytest.raises(ConfigError, match=r"needs_ding.py failed in line 2 with NameError: name 'PPG' is not defined"):
        load_config(path)


def test_config_of_zoo_in_a_file_is_not_translated(tmp_path):
    path = tmp_path / 'plain_config.py'
    path.write_text("config = dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo'))\n")
    assert load_config(path)[0] == dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo'))


@pytest.mark.parametrize('source, got', [((1, 2), 'int, int'), (({},), 'dict'), ([{}, {}, {}], 'dict, dict, dict')])
def test_another_tuple_than_a_pair_is_refused(source, got):
    with pytest.raises(ConfigError, match=rf'two dicts, got \({got}\)'):
        load_config(source)


def test_what_became_what_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(importlib.import_module('zoo.tools.importers.convert'), '_told', set())
    with caplog.at_level(logging.INFO, logger='zoo.tools.importers.convert'):
        load_config(CARTPOLE_PPO)
        load_config(CARTPOLE_PPO)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("env.type=cartpole  ->  env.id='CartPole-v0'") == 1
    assert all('\n' not in line for line in lines)
