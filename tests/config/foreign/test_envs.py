"""Env ids of other libraries."""

from __future__ import annotations

import pytest

from zoo.config.foreign.conversion import Draft
from zoo.config.foreign.envs import put_env


@pytest.mark.parametrize(
    'name, env',
    [
        ('CartPole-v1', {'id': 'CartPole-v1'}),
        ('LunarLander-v2', {'id': 'LunarLander-v3'}),
        ('PongNoFrameskip-v4', {'id': 'atari', 'game': 'Pong'}),
        ('ALE/SpaceInvaders-v5', {'id': 'atari', 'game': 'SpaceInvaders'}),
        ('bigfish', {'id': 'procgen', 'game': 'bigfish'}),
        ('procgen-coinrun-v0', {'id': 'procgen', 'game': 'coinrun'}),
        ('my_module:make', {'id': 'my_module:make'}),
        ('HalfCheetahBulletEnv-v0', {'id': 'HalfCheetahBulletEnv-v0'}),
    ],
)
def test_id_becomes_the_env_that_zoo_makes(name, env):
    draft = Draft()
    put_env(draft, name, 'env')
    assert draft.config == {'env': env}


def test_id_that_is_not_registered_is_said():
    draft = Draft()
    put_env(draft, 'HalfCheetahBulletEnv-v0', 'env')
    assert 'import the package that registers it' in draft.became[0][1]
