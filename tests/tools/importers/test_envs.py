"""Env ids of other libraries."""

from __future__ import annotations

import gymnasium
import pytest

from zoo.tools.importers.conversion import Draft, put_env


@pytest.mark.parametrize(
    'name, env',
    [
        ('CartPole-v1', {'id': 'CartPole-v1'}),
        ('LunarLander-v2', {'id': 'LunarLander-v3'}),
        ('PongNoFrameskip-v4', {'id': 'atari', 'game': 'Pong'}),
        ('ALE/SpaceInvaders-v5', {'id': 'atari', 'game': 'SpaceInvaders'}),
        ('bigfish', {'id': 'procgen', 'game': 'bigfish'}),
        ('procgen-coinrun-v0', {'id': 'procgen', 'game': 'coinrun'}),
        ('Pong-v4', {'id': 'atari', 'game': 'Pong'}),
        ('ALE/MsPacman-v5', {'id': 'atari', 'game': 'MsPacman'}),
        ('procgen_bigfish', {'id': 'procgen', 'game': 'bigfish'}),
        ('procgen:procgen-maze-v0', {'id': 'procgen', 'game': 'maze'}),
        ('Ant-v2', {'id': 'Ant-v5'}),
        ('Ant-v4', {'id': 'Ant-v4'}),
        ('my_module:make', {'id': 'my_module:make'}),
        ('HalfCheetahBulletEnv-v0', {'id': 'HalfCheetahBulletEnv-v0'}),
    ],
)
def test_id_becomes_the_env_that_zoo_makes(name, env):
    draft = Draft()
    put_env(draft, name, 'env')
    assert draft.config == {'env': env}


@pytest.mark.parametrize('name', ['Pong-ram-v4', 'Pong-ramNoFrameskip-v4', 'ALE/Pong-ram-v5'])
def test_game_whose_observations_are_memory_is_refused_with_the_id_that_gives_them(name):
    draft = Draft()
    put_env(draft, name, f'env_id={name}')
    (problem,) = draft.problems
    assert problem.startswith(f'env_id={name}: its observations are the memory of the console')
    assert problem.endswith("write env.id='ale_py:ALE/Pong-v5' env.kwargs.obs_type=ram.") and draft.config == {}


def test_id_that_the_user_registered_is_no_game(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, 'Skiing-v0', gymnasium.envs.registration.EnvSpec('Skiing-v0', 'my_envs:Ski')
    )
    draft = Draft()
    put_env(draft, 'Skiing-v0', 'env')
    assert draft.config == {'env': {'id': 'Skiing-v0'}}


def test_block_for_all_games_of_a_family_asks_for_one():
    draft = Draft()
    put_env(draft, 'atari', 'env')
    ((_, became),) = draft.became
    assert (
        draft.config == {'env': {'id': 'atari'}} and 'name one with env.game, e.g. zoo train .. env.game=Pong' in became
    )


def test_id_that_is_not_registered_is_said():
    draft = Draft()
    put_env(draft, 'HalfCheetahBulletEnv-v0', 'env')
    assert 'import the package that registers it' in draft.became[0][1]
