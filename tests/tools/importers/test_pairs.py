"""DI-engine's configs where configs are loaded: files, lists, and what is logged."""

from __future__ import annotations

import importlib
import logging

import pytest

from tests.tools.importers.published import CARTPOLE_PPO, PAIRS
from zoo.config.section import ConfigError
from zoo.config.source import load_config
from zoo.run.config import resolve_config


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


def test_file_that_imports_di_engine_is_read_without_it(tmp_path):
    before = 'from ding.entry import serial_pipeline\nimport dizoo.atari.envs\n'
    path = written(tmp_path / 'imports_ding.py', *CARTPOLE_PPO, before)
    assert resolve_config(path).policy.type == 'ppo'


def test_file_that_needs_di_engine_is_refused_with_the_line(tmp_path):
    before = 'from ding.model import PPG\nmodel = PPG(4, 2)\n'
    with pytest.raises(ConfigError, match=r"needs_ding.py failed in line 2 with NameError: name 'PPG' is not defined"):
        load_config(written(tmp_path / 'needs_ding.py', *CARTPOLE_PPO, before))


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
