"""The section env: what its checks refuse, what forms they take, and which fields need a wrapper."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.config.section import ConfigError
from zoo.env import EnvConfig
from zoo.env.config import EndsConfig, env_config, wrapper_fields


def test_config_is_returned_itself_and_a_mapping_becomes_one() -> None:
    cfg = EnvConfig(id='CartPole-v1', collector_env_num=3)
    assert env_config(cfg) is cfg
    assert env_config({'id': 'CartPole-v1', 'collector_env_num': 3}) == cfg


def test_mapping_with_several_faults_is_one_error_with_a_sentence_for_each() -> None:
    with pytest.raises(ConfigError) as raised:
        env_config({'id': 'CartPole-v1', 'colector_env_num': 3, 'step_timeout': 0})
    assert len(raised.value.problems) == 2
    sentences = ' '.join(raised.value.problems)
    assert 'env.step_timeout is 0' in sentences
    assert 'did you mean' in sentences and 'collector_env_num' in sentences


@pytest.mark.parametrize(
    ('fields', 'sentence'),
    [
        (dict(collector_env_num=0), 'env.collector_env_num is 0'),
        (dict(collector_env_num=6, collector_group_num=4), 'must divide env.collector_env_num, which is 6'),
        (dict(action_bins=1), 'env.action_bins is 1'),
        (dict(window=0), 'env.window is 0'),
        (dict(reward_weights=[]), 'env.reward_weights'),
        (dict(reset_options='no_function'), "as 'module:function' or 'path/file.py:function'"),
        (dict(schedule={'wind': {'start': 0}}), 'wind'),
        (dict(max_restarts=-1), 'env.max_restarts is -1'),
        (dict(vectorization='threads'), 'env.vectorization'),
        (dict(ends={'terminated': 'no'}), 'env.ends.terminated'),
    ],
)
def test_value_outside_of_its_range_is_refused_by_name(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        env_config({'id': 'CartPole-v1', **fields})
    assert sentence in str(raised.value)


def test_groups_that_divide_the_envs_are_taken() -> None:
    assert env_config({'id': 'CartPole-v1', 'collector_env_num': 6, 'collector_group_num': 3}).collector_group_num == 3


@pytest.mark.parametrize('wrapper', ['gymnasium.wrappers:FlattenObservation', {'type': 'a:B', 'n': 2}, dict])
def test_single_wrapper_is_a_list_of_one(wrapper: Any) -> None:
    [taken] = env_config({'id': 'CartPole-v1', 'wrappers': wrapper}).wrappers
    assert taken == wrapper


def test_single_name_of_drop_obs_is_a_list_of_one() -> None:
    assert env_config({'id': 'CartPole-v1', 'drop_obs': 'mission'}).drop_obs == ['mission']


def test_env_kwargs_are_a_copy_that_later_changes_do_not_reach() -> None:
    kwargs: dict[str, Any] = {'sizes': [1, 2]}
    cfg = env_config({'id': 'CartPole-v1', 'kwargs': kwargs})
    kwargs['sizes'].append(3)
    assert cfg.kwargs == {'sizes': [1, 2]}


def test_fields_that_need_a_wrapper_are_named_and_no_others() -> None:
    plain = EnvConfig(id='CartPole-v1', drop_obs=['a'], ends=EndsConfig(truncated='terminal'), max_episode_steps=5)
    assert wrapper_fields(plain) == []
    wrapped = EnvConfig(
        id='CartPole-v1',
        action_mask='info',
        window=2,
        action_bins=3,
        prev_action=True,
        prev_reward=True,
        observe_info=['lean'],
        wrappers=[dict],
        reward_weights=[1.0],
    )
    names = 'action_mask window action_bins prev_action prev_reward observe_info wrappers reward_weights'.split()
    assert sorted(wrapper_fields(wrapped)) == sorted(f'env.{name}' for name in names)
    assert wrapper_fields(EnvConfig(id='CartPole-v1', action_mask='obs')) == []
