"""Readers of other libraries' configs: what each translates, runs without its library, or only names a command for."""

import pytest

from tests.tools.importers.published import CARTPOLE_PPO
from zoo.config.section import ConfigError
from zoo.config.source import load_config
from zoo.core.registry import CONFIG_READER_REGISTRY
from zoo.tools.importers import convert
from zoo.tools.importers.readers import ConvertibleFiles, DIEngineReader

ZOO = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo'}}
TRANSLATED = convert(CARTPOLE_PPO).config
PAIR_FILE = f'import ding\nfrom ding.entry import serial_pipeline\nmain_config, create_config = {CARTPOLE_PPO!r}\n'


def test_both_readers_are_registered_by_their_names():
    assert type(CONFIG_READER_REGISTRY.build('di_engine')) is DIEngineReader
    assert type(CONFIG_READER_REGISTRY.build('convertible_files')) is ConvertibleFiles


@pytest.mark.parametrize('pair', [CARTPOLE_PPO, list(CARTPOLE_PPO)], ids=['tuple', 'list'])
def test_a_pair_of_di_engine_is_translated(pair):
    assert DIEngineReader().of_object(pair) == TRANSLATED
    assert load_config(pair)[0] == TRANSLATED


def test_a_dict_is_translated_if_it_is_a_main_config():
    main = CARTPOLE_PPO[0]
    named = {**main, 'policy': {**main['policy'], 'type': 'ppo'}, 'env': {**main['env'], 'env_id': 'CartPole-v1'}}
    config = DIEngineReader().of_object(named)
    assert (config['policy']['type'], config['env']['id']) == ('ppo', 'CartPole-v1')
    with pytest.raises(ConfigError, match="is DI-engine's main_config, which does not say what to train"):
        DIEngineReader().of_object(main)
    assert DIEngineReader().of_object(ZOO) is None
    assert DIEngineReader().of_object({}) is None


@pytest.mark.parametrize('pair', [(), (1, 2), CARTPOLE_PPO[:1] * 3])
def test_a_sequence_that_is_no_pair_is_refused(pair):
    with pytest.raises(ConfigError):
        DIEngineReader().of_object(pair)


def test_the_variables_of_a_file_are_translated_if_they_are_a_pair():
    main, create = CARTPOLE_PPO
    assert DIEngineReader().of_module({'main_config': main, 'create_config': create, 'x': 1}) == TRANSLATED
    assert DIEngineReader().of_module({'config': ZOO}) is None
    assert DIEngineReader().of_module({'main_config': 1, 'create_config': create}) is None


def test_only_packages_of_di_engine_are_missing_libraries():
    reader = DIEngineReader()
    assert reader.is_missing(ModuleNotFoundError("No module named 'ding'", name='ding.entry'))
    assert not reader.is_missing(ModuleNotFoundError("No module named 'dingo'", name='dingo'))
    assert not reader.is_missing(ImportError('ding', name='ding'))
    assert not reader.is_missing(None)


def test_a_file_of_di_engine_is_read_without_its_library(tmp_path):
    path = tmp_path / 'pair.py'
    path.write_text(PAIR_FILE)
    module = DIEngineReader().run_without_library(path)
    assert (module.main_config, module.create_config) == CARTPOLE_PPO
    assert load_config(str(path))[0] == TRANSLATED


def test_a_file_that_must_be_converted_is_named_with_its_command(tmp_path):
    path = tmp_path / 'dqn.yml'
    path.write_text('CartPole-v1:\n  n_envs: 8\n  n_timesteps: 1000\n  policy: MlpPolicy\n')
    told = ConvertibleFiles().how_to_convert(path, 'my dqn.yml')
    assert told.startswith("my dqn.yml is a file of rl-zoo3's settings, not a config of zoo: translate it with ")
    assert "zoo convert 'my dqn.yml' -o config.yaml" in told
    path.write_text('env: {id: CartPole-v1}\npolicy: {type: ppo}\n')
    assert ConvertibleFiles().how_to_convert(path, 'dqn.yml') == ''
    assert DIEngineReader().how_to_convert(path, 'dqn.yml') == ''
