"""The building blocks of translators: tables of keys, readers of values, ids of envs."""

from __future__ import annotations

import gymnasium
import pytest

from zoo.config.section import ConfigError
from zoo.tools.importers.conversion import Draft, nearest_divisor, one_of, put_env, rows_of, translate

ROWS = rows_of(
    {
        'a.rate': {'to': 'policy.learn.learning_rate', 'value': 'float', 'note': 'a note'},
        'a.seed': {'part': 'seed', 'value': 'count'},
        'a.gone': {'out': 'it is not needed'},
        'a.flag': {'only': [False], 'why': 'leave it off'},
        'b.*': {'out': 'all of b'},
    },
    float=float,
)


def test_every_kind_of_row_is_told():
    draft = Draft()
    translate(draft, ROWS, {'a': {'rate': '1e-3', 'seed': 3.0, 'gone': 1, 'flag': False}, 'b': {'x': 1}}, 'a library')
    found = draft.finish('a test')
    assert found.config == {'policy': {'learn': {'learning_rate': 1e-3}}}
    assert draft.parts == {'a.seed': 3}
    assert found.text().splitlines() == [
        'read as a test',
        "a.rate='1e-3'  ->  policy.learn.learning_rate=0.001 (a note)",
        'a.gone=1  left out: it is not needed',
        'a.flag=False  left out: that is how it is here',
        'b.x=1  left out: all of b',
    ]


def test_every_problem_is_a_line_of_one_error():
    draft = Draft()
    translate(draft, ROWS, {'a': {'rate': 'fast', 'flag': True, 'other': 1, 'seed': True}}, 'a library')
    with pytest.raises(ConfigError) as caught:
        draft.finish('a test')
    assert len(caught.value.problems) == 4 and draft.unreadable
    assert 'a.flag is True, which has no counterpart here: leave it off.' in caught.value.problems


def test_key_that_the_table_of_names_knows_gets_its_sentence():
    draft = Draft()
    translate(draft, ROWS, {'a': {'ent_coef': 0.1}}, 'a library')
    assert draft.problems == ['a.ent_coef is 0.1: in zoo it is `policy.learn.entropy_weight`.']


@pytest.mark.parametrize('n, wanted, found', [(256, 64, 64), (200, 32, 40), (8, 256, 8), (7, 3, 7), (4000, 128, 125)])
def test_nearest_divisor_is_the_closest_by_ratio(n, wanted, found):
    assert nearest_divisor(n, wanted) == found  # divisors of 7: 7 / 3 = 2.33 is closer than 3 / 1 = 3


def test_nearest_divisor_of_a_large_number_is_quick():
    assert nearest_divisor(2**39, 1000) == 1024


def test_one_of_reads_names_classes_and_instances():
    class Tanh:
        pass

    read = one_of({'tanh': 'tanh'})
    assert [read(value) for value in ('tanh', 'nn.Tanh', Tanh, Tanh())] == ['tanh'] * 4
    with pytest.raises(ValueError, match='one of tanh'):
        read('relu')


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
        ('HalfCheetahBulletEnv-v0', {'id': 'pybullet_envs_gymnasium:HalfCheetahBulletEnv-v0'}),
        ('MiniGrid-Empty-8x8-v0', {'id': 'minigrid:MiniGrid-Empty-8x8-v0'}),
        ('PendulumNoVel-v1', {'id': 'rl_zoo3.import_envs:PendulumNoVel-v1'}),
        ('MyOwn-v0', {'id': 'MyOwn-v0'}),
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


@pytest.mark.parametrize(
    'name, said',
    [
        ('atari', 'name one with env.game, e.g. zoo train .. env.game=Pong'),  # a block for all games
        ('MyOwn-v0', 'import the package that registers it'),
    ],
)
def test_id_that_is_no_env_here_is_kept_with_a_word(name, said):
    draft = Draft()
    put_env(draft, name, 'env')
    assert draft.config == {'env': {'id': name}} and said in draft.became[0][1]
