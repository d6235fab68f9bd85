"""The sections of a run: names and folders that cannot be."""

from __future__ import annotations

import os
from typing import Any

import pytest

from zoo.config.section import ConfigError, validate
from zoo.run.base_config import CheckpointConfig, LoggerConfig
from zoo.run.config import resolve_config


@pytest.mark.parametrize('name', ['a', 'cartpole_ppo', 'x' * 100, 'ä' * 100, 'a b', 'a.b'])
def test_name_of_a_folder_is_taken(name: str) -> None:
    assert resolve_config({'env': {'id': 'CartPole-v1'}, 'exp_name': name}).exp_name == name


@pytest.mark.parametrize('name', ['', ' ', 'x' * 101, '本' * 67, '.hidden', 'a/b', 'a\\b', 'a:b', 'a\nb'])
def test_path_or_text_that_names_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match='exp_name is .* it must name a folder, not a path'):
        resolve_config({'env': {'id': 'CartPole-v1'}, 'exp_name': name})


def test_home_of_the_user_is_expanded_in_the_root() -> None:
    logger: Any = validate(LoggerConfig, {'root': '~/runs'})
    assert logger.root == os.path.expanduser('~/runs') and not logger.root.startswith('~')
    assert validate(LoggerConfig, {'root': 'runs/~x'}).root == 'runs/~x'


@pytest.mark.parametrize(
    ('section', 'values', 'said'),
    [
        (LoggerConfig, {'root': ''}, 'root'),
        (LoggerConfig, {'root': 'a\0b'}, 'NUL'),
        (LoggerConfig, {'freq': 0}, 'freq is 0'),
        (LoggerConfig, {'console': 'loud'}, 'console'),
        (CheckpointConfig, {'keep_last': 0}, 'keep_last is 0'),
        (CheckpointConfig, {'freq': 0}, 'freq is 0'),
    ],
)
def test_values_out_of_range_are_refused_by_their_key(section: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate(section, values)
