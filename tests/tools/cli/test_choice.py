"""Arguments that choose a config: words are sorted into config, env and overrides, and short keys become whole keys."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from zoo.core.errors import UserError
from zoo.tools.cli.choice import chosen, take_override, with_whole_keys, words_of


def arguments(**changes: Any) -> argparse.Namespace:
    """The arguments of `zoo train` without words, with changes."""
    values: dict[str, Any] = dict(config=None, overrides=[], env=None, policy=None, seed=None, steps=None)
    return argparse.Namespace(**values | dict(command='train', import_words=[], owns_process=False) | changes)


def test_first_word_that_is_an_override_is_no_config() -> None:
    args = arguments(config='seed=1', overrides=['max_env_step=64'])
    take_override(args)
    assert args.config is None and args.overrides == ['seed=1', 'max_env_step=64']


def test_short_forms_become_the_last_overrides() -> None:
    args = arguments(config='cartpole_ppo', overrides=['exp_name=a'], seed='3', steps='64')
    assert chosen(args) == 'cartpole_ppo'
    assert args.overrides == ['exp_name=a', 'seed=3', 'max_env_step=64']


def test_short_key_of_one_section_becomes_the_whole_key_and_others_stay() -> None:
    texts = ['learning_rate=1e-3', 'seed=1', 'type=ppg']  # several sections have a type
    whole = ['policy.learn.learning_rate=1e-3', 'seed=1', 'type=ppg']
    assert list(with_whole_keys(texts, 'cartpole_ppo')) == whole


def test_words_name_the_same_choice_again() -> None:
    assert words_of(arguments(config='cartpole_ppo', import_words=['--import', 'mine'])) == [
        'cartpole_ppo',
        '--import',
        'mine',
    ]
    assert words_of(arguments(env='CartPole-v1', policy='ppg')) == ['--env', 'CartPole-v1', '--policy', 'ppg']


def test_no_config_is_refused_only_with_a_message() -> None:
    assert chosen(arguments()) is None
    with pytest.raises(UserError, match='name a config'):
        chosen(arguments(), 'name a config')
