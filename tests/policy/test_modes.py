"""Modes of a policy: they can be built separately, and take the state of a policy with all of them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tests.policy_envs import TWO_ACTIONS, differing, make_policy
from zoo.core.spaces import Box
from zoo.env import EnvConfig, make_vector_env
from zoo.worker.evaluator import evaluate

OBS = Box(np.full(2, -np.inf), np.full(2, np.inf))

FIELDS = ('learn', 'collect', 'eval')


@pytest.mark.parametrize('fields', [list(c) for n in (1, 2) for c in combinations(FIELDS, n)], ids='+'.join)
def test_a_mode_that_was_not_built_says_what_to_do(fields: list[Any]) -> None:
    policy = make_policy(OBS, TWO_ACTIONS, enable_field=fields)
    for name in FIELDS:
        if name in fields:
            getattr(policy, f'{name}_mode')
        else:
            with pytest.raises(AttributeError, match=f"no {name} mode; add '{name}' to enable_field"):
                getattr(policy, f'{name}_mode')


def test_eval_only_policy_evaluates_and_acts() -> None:
    env = EnvConfig(id='tests.envs:limit_env')
    vector = make_vector_env(env, 1)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    assert evaluate(policy, env, 2).returns == [5.0, 5.0]
    assert policy.act(np.zeros(1, np.float32)) in (0, 1)


@pytest.mark.parametrize('fields', [['eval'], ['collect', 'eval'], ['learn', 'eval']], ids='+'.join)
def test_policy_of_some_modes_takes_the_state_of_a_full_one(fields: list[Any]) -> None:
    learn = dict(reward_norm=True, value_norm=True)
    full = make_policy(OBS, TWO_ACTIONS, seed=1, learn=learn, model=dict(obs_norm=True))
    part = make_policy(OBS, TWO_ACTIONS, seed=2, learn=learn, model=dict(obs_norm=True), enable_field=fields)
    part.load_state_dict(full.state_dict())
    want = full.state_dict()
    assert not differing(part.state_dict(), {key: want[key] for key in part.state_dict()})
