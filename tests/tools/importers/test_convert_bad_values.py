"""Any value at any key of another library's config gives a config or a ConfigError, never another error."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import yaml

from tests.tools.importers.published import CLEANRL_ARGS, PAIRS, RL_ZOO3_PPO, RLLIB_CARTPOLE
from zoo.config.section import ConfigError
from zoo.tools.importers import convert

VALUES = [None, True, 'text', '', -1, 0, 2.5, math.nan, math.inf, [], [1, 'a'], {}, {'a': 1}, 10**400]


def _leaves(data: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all values, including sections."""
    found = []
    for key, value in data.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += _leaves(value, (*path, key))
    return found


def _with(data: Any, path: tuple[str, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def _tries(data: dict[str, Any], give: Any, tried: Any = ()) -> set[tuple[str, ...]]:
    """Converts the data with each odd value at each key. Asserts that only ConfigErrors occur, with one line per problem.

    Args: give: makes the argument of `convert` from the data.   tried: keys to skip.   Returns: `tried` and the data's keys.
    """
    n_refused, paths = 0, [path for path in _leaves(data) if path not in tried]
    for path in paths:
        for value in VALUES:
            try:
                convert(give(_with(data, path, value)))
            except ConfigError as error:
                n_refused += 1
                assert error.problems and not any('\n' in problem for problem in error.problems)
    assert n_refused > 0 or not paths
    return {*tried, *paths}


@pytest.mark.long
def test_pairs_of_di_engine():
    tried, tried_create = set(), set()
    for main, create in PAIRS.values():  # only the keys that no earlier pair has
        tried = _tries(main, lambda changed, create=create: (changed, create), tried)
        tried_create = _tries(create, lambda changed, main=main: (main, changed), tried_create)
    assert len(tried) > 40 and len(tried_create) >= 6


def test_blocks_of_rl_zoo3():
    tried = set()
    for name in ('CartPole-v1', 'HalfCheetah-v4', 'CarRacing-v2'):
        block = {**yaml.safe_load(RL_ZOO3_PPO)[name], 'env': name, 'target_kl': 0.1, 'clip_range_vf': 0.2}
        tried = _tries(block, lambda changed: changed, tried)
    assert {('n_steps',), ('policy_kwargs',), ('target_kl',)} <= tried


def test_settings_of_rllib():
    block = yaml.safe_load(RLLIB_CARTPOLE.replace('linear', 'tanh'))['cartpole-ppo']
    more = dict(train_batch_size=800, sgd_minibatch_size=100, kl_coeff=0.1, grad_clip=1.0, evaluation_interval=2)
    block['config'] = {
        **block['config'],
        **more,
        'model': {**block['config']['model'], 'use_lstm': True, 'max_seq_len': 20},
    }
    tried = _tries(block, lambda changed: changed)
    assert {('config', 'kl_coeff'), ('config', 'model', 'max_seq_len')} <= tried


@pytest.mark.long
def test_arguments_of_cleanrl(tmp_path):
    path = tmp_path / 'script.py'

    def file_with(arguments: dict[str, Any]) -> Any:
        fields = '\n'.join(f'    {name} = {value}' for name, value in arguments.items())
        path.write_text(f'class Args:\n{fields}\n')
        return path

    assert _tries(CLEANRL_ARGS, file_with) == {(name,) for name in CLEANRL_ARGS}
