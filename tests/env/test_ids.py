"""Ids of envs: files, old gym, names of other libraries. The error for a wrong id says what to write instead."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.forked import run_python
from zoo import serial_pipeline
from zoo.core.errors import UserError
from zoo.env import EnvConfig, UnknownEnvError, UnsupportedEnvError, make_env
from zoo.env.ids import ATARI_GAMES, PROCGEN_GAMES, Game, faster_family, game_of, known_ids, offered_ids, versions_of
from zoo.run.checkpoint.file import CheckpointError

WALK = """
import gymnasium
import numpy as np

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=5):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.x += 1
        return np.full(1, self.x, np.float32), 1.0, self.x == self.size, False, {}

def make(size=5):
    return Walk(size)

made = Walk()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a file that has an env."""
    (tmp_path / 'walk_of_test.py').write_text(WALK)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.modules.pop('walk_of_test', None)
    sys.path[:] = path


@pytest.mark.parametrize('form', ['walk_of_test.py', './walk_of_test.py', '{folder}/walk_of_test.py'])
@pytest.mark.parametrize('attribute', ['make', 'Walk'])
def test_env_in_a_file_is_made_by_its_path(folder: Path, form: str, attribute: str) -> None:
    cfg = EnvConfig(id=f'{form.format(folder=folder)}:{attribute}', kwargs={'size': 3})
    assert cfg.id == f'{folder}/walk_of_test.py:{attribute}'  # found from any folder
    assert make_env(cfg).unwrapped.size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('walk_of_test.py:mkae', "env 'walk_of_test.py:mkae': walk_of_test.py has no 'mkae': did you mean 'make'?"),
        (
            'walk_of_test.py',
            'is a file: name the function or class in it that makes the env, e.g. ./walk_of_test.py:Walk',
        ),
        (
            'walk_of_test.py:made',
            'is an env of class Walk, and a run makes its envs itself; name the function or class',
        ),
        ('none.py:make', "env 'none.py:make' names the file '{folder}/none.py', which is not there; check the path"),
        ('none.py:make', 'give its new one, env.id=NEW.py:make; zoo init {folder}/none.py writes one to start from.'),
        ('none.py', "env './none.py' is no file that can be read; name one"),
    ],
)
def test_env_in_a_file_that_leads_nowhere_says_what_to_write(folder: Path, name: str, message: str) -> None:
    with pytest.raises(UnknownEnvError, match=re.escape(message.format(folder=folder))):
        make_env({'id': f'./{name}'})


@pytest.mark.parametrize(
    ('env_id', 'message'),
    [
        ('ALE/Pong-v5', "unknown env 'ALE/Pong-v5': here it is env.id=atari env.game=Pong."),
        ('SpaceInvadersNoFrameskip-v4', 'here it is env.id=atari env.game=SpaceInvaders.'),
        ('Pong-v4', 'here it is env.id=atari env.game=Pong.'),
        ('Pong-ramDeterministic-v0', "are images; write env.id='ale_py:ALE/Pong-v5' env.kwargs.obs_type=ram."),
        ('ALE/MsPacman-ram-v5', 'the memory of the console, and those of env.id=atari are images; write env.id='),
        ('procgen:procgen-coinrun-v0', 'here it is env.id=procgen env.game=coinrun.'),
        ('procgen-bigfish-v0', 'here it is env.id=procgen env.game=bigfish.'),
        ('procgen_bigfish', 'here it is env.id=procgen env.game=bigfish.'),
        ('bigfish', 'here it is env.id=procgen env.game=bigfish.'),
        ('ALE/Pong-v5', 'On the command line: zoo train --env atari env.game=Pong.'),
        ('Pong', 'here it is env.id=atari env.game=Pong. On the command line: zoo train --env atari env.game=Pong.'),
        ('breakout', 'here it is env.id=atari env.game=Breakout.'),
        ('ale/pong', 'here it is env.id=atari env.game=Pong.'),
        ('ALE/space_invaders', 'here it is env.id=atari env.game=SpaceInvaders.'),
        ('CoinRun', 'here it is env.id=procgen env.game=coinrun.'),
        ('Ant-v2', "use 'Ant-v5'."),
        ('Ant-v9', 'has Ant-v4, Ant-v5;'),
        ('FetchReach-v2', "write env.id='gymnasium_robotics:FetchReach-v2'."),
        ('CartPole-v2', "has CartPole-v0, CartPole-v1; use 'CartPole-v1'."),
    ],
)
def test_id_of_another_library_gets_its_name_here(env_id: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, spec in list(gymnasium.registry.items()):
        if 'ale_py' in str(spec.entry_point):  # another test may have imported ale_py, which registers its games
            monkeypatch.delitem(gymnasium.registry, name)
    with pytest.raises(UnknownEnvError, match=re.escape(message)):
        make_env({'id': env_id})


def test_id_of_atari_names_the_extra_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__('importlib.util').util.find_spec
    monkeypatch.setattr('importlib.util.find_spec', lambda name, *a: None if name == 'ale_py' else find(name, *a))
    monkeypatch.setitem(sys.modules, 'ale_py', None)
    for env_id in ('ALE/Breakout-v99', 'ale_py:ALE/Breakout-v99'):
        with pytest.raises(UnknownEnvError, match=r"game=Breakout.*atari extra.*pip install '\.\[atari\]'"):
            make_env({'id': env_id})


OLD_GYM = """
import gymnasium

__version__ = '0.26.2'

class error:
    class Error(Exception):
        pass

class OldCart:
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pole=1):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (pole,))

    def reset(self, seed=None):
        return self.observation_space.low, {}

    def step(self, action):
        return self.observation_space.low, 1.0, True, {}

class Spec:
    entry_point = OldCart

def spec(env_id):
    if env_id != 'CartPole-v1':
        raise error.Error('no such env')
    return Spec

def make(env_id, disable_env_checker=None, **kwargs):
    assert disable_env_checker is True
    return OldCart(**kwargs)
"""


@pytest.fixture
def old_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `gym` with the interface of gymnasium's predecessor, and a CartPole-v1 of its own."""
    (tmp_path / 'gym.py').write_text(OLD_GYM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'gym', raising=False)
    yield
    sys.modules.pop('gym', None)


def test_id_of_old_gym_makes_the_env_of_gym_and_not_gymnasium_s(old_gym: None) -> None:
    env = make_env({'id': 'gym:CartPole-v1', 'kwargs': {'pole': 2}})
    assert env.observation_space.shape == (2,)  # gymnasium's has 4


def test_id_that_old_gym_does_not_have_is_refused(old_gym: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnknownEnvError, match=r"gym 0.26.2 has no 'CartPole-v7' \(no such env\); check the id, or leave out"
    ):
        make_env({'id': 'gym:CartPole-v7'})
    with pytest.raises(UserError, match="env.kwargs has 'pol' but gym:CartPole-v1 takes pole"):
        make_env({'id': 'gym:CartPole-v1', 'kwargs': {'pol': 2}})
    monkeypatch.setitem(sys.modules, 'gym', None)
    with pytest.raises(UnknownEnvError, match="names the module 'gym', which is not found"):
        make_env({'id': 'gym:CartPole-v1'})


class Agents:
    """Has the attributes of a parallel env of PettingZoo."""

    possible_agents = ['a', 'b']

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    action_space = observation_space


class OtherVector:
    """Has the attributes of a vector env of stable-baselines3."""

    num_envs = 2
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def step_async(self, actions: Any) -> None: ...

    def step_wait(self) -> None: ...


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (Agents, 'is an env of several agents, and this takes one of a single agent'),
        (OtherVector, 'OtherVector is a vector env of another library (as of stable-baselines3); give what makes one'),
        (lambda: gymnasium.make_vec('CartPole-v1', 2), 'what was made is a vector of 2 envs (CartPoleVectorEnv)'),
    ],
)
def test_what_is_no_single_env_is_refused_by_what_it_is(make: Any, words: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=re.escape(words)):
        make_env({'id': make})


def config(**env: Any) -> dict[str, Any]:
    return dict(
        exp_name='walk',
        max_env_step=256,
        env={'collector_env_num': 4, **env},
        policy=dict(collect=dict(n_step=64), eval=dict(n_episode=2)),
        logger=dict(console='off', tensorboard=False),
    )


@pytest.mark.long
def test_run_of_an_env_in_a_file_is_resumed_from_another_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = serial_pipeline(config(id='./walk_of_test.py:make', kwargs={'size': 7}, vectorization='async'))
    assert result.last_return == 7
    run_dir = Path(result.run_dir).resolve()
    monkeypatch.chdir(tmp_path_factory.mktemp('other'))
    monkeypatch.setattr('zoo.run.checkpoint.consent.given', set())  # as in another process
    with pytest.raises(
        CheckpointError, match=rf'code of the file .*walk_of_test.py.*--import {folder}/walk_of_test.py'
    ):
        serial_pipeline(resume=run_dir, max_env_step=512)
    more = serial_pipeline(resume=run_dir, max_env_step=512, trust=[f'{folder}/walk_of_test.py'])
    assert more.env_step == 512 and more.last_return == 7


def test_consent_to_another_file_or_to_what_the_file_imports_is_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = serial_pipeline(config(id='./walk_of_test.py:make'))
    monkeypatch.setattr('zoo.run.checkpoint.consent.given', set())
    (folder / 'other.py').write_text('')
    for trust in ([], ['other.py'], ['walk'], ['os']):
        with pytest.raises(CheckpointError, match='only with your consent'):
            serial_pipeline(resume=result.run_dir, max_env_step=512, trust=trust)
    assert serial_pipeline(resume=result.run_dir, max_env_step=512, trust=['walk_of_test']).env_step == 512  # imported


@pytest.mark.long
def test_command_trains_an_env_in_a_file_and_evaluates_it_from_another_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    few = ['max_env_step=512', 'env.collector_env_num=8', 'policy.collect.n_step=32', 'logger.console=off']
    done = run_python('-m', 'zoo', 'train', 'env.id=./walk_of_test.py:make', *few, '--json', cwd=folder)
    assert done.returncode == 0, done.stderr
    run_dir = str((folder / json.loads(done.stdout)['run_dir']).resolve())
    evaluate, other = ('-m', 'zoo', 'eval', run_dir), tmp_path_factory.mktemp('other')
    refused = run_python(*evaluate, cwd=other)
    assert refused.returncode == 2 and f'--import {folder}/walk_of_test.py' in refused.stderr
    done = run_python(*evaluate, '--import', str(folder / 'walk_of_test.py'), '--json', cwd=other)
    assert done.returncode == 0 and json.loads(done.stdout)['return_mean'] == 5, done.stderr


# --- the game of an id


@pytest.mark.parametrize(
    ('env_id', 'game'),
    [
        ('ale_py:ALE/UpNDown-v5', Game('atari', 'UpNDown')),
        ('Pong-ram-v4', Game('atari', 'Pong', True)),
        ('Pong-ramNoFrameskip-v4', Game('atari', 'Pong', True)),
        ('ALE/MsPacman-ram-v5', Game('atari', 'MsPacman', True)),
        ('procgen/bigfish', Game('procgen', 'bigfish')),  # other forms are above
        ('CartPole-v1', None),
        ('ALE/Pong', None),
        ('fish', None),
        ('my_module:Pong', None),
    ],
)
def test_game_of_an_id_is_that_of_its_family(env_id: str, game: Game | None) -> None:
    assert game_of(env_id) == game


def test_game_of_every_form_of_an_atari_id() -> None:
    for name in (*ATARI_GAMES, 'Xyz'):
        assert game_of(f'{name}-v4') == (Game('atari', name) if name != 'Xyz' else None)
        for start, end in (('ALE/', '-v5'), ('', 'NoFrameskip-v4'), ('', 'Deterministic-v0')):
            assert game_of(f'{start}{name}{end}') == Game('atari', name)


def test_games_are_those_of_the_families() -> None:
    roms = pytest.importorskip('ale_py').roms.get_all_rom_ids()
    assert {''.join(part.capitalize() for part in rom.split('_')) for rom in roms} >= ATARI_GAMES
    assert len(PROCGEN_GAMES) == 16


def test_versions_of_an_env_are_those_that_can_be_made_oldest_first() -> None:
    ants = [spec.id for spec in versions_of('Ant-v2')]
    assert ants[-2:] == ['Ant-v4', 'Ant-v5']
    if 'raise' in str(gymnasium.registry['Ant-v2'].entry_point):  # in newer versions of gymnasium v2 and v3 raise
        assert len(ants) == 2
    assert [spec.id for spec in versions_of('CartPole-v7')] == ['CartPole-v0', 'CartPole-v1']
    assert versions_of('NoSuchEnv-v0') == []


def test_offered_ids_are_those_that_do_not_only_raise() -> None:
    hidden = set(known_ids()) - set(offered_ids())
    assert {'CartPole-v1', 'Ant-v5', 'Pendulum-v1', 'one_step', 'torch'} <= set(offered_ids())
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # gymnasium names newer versions
        for env_id in hidden:
            with pytest.raises(Exception, match='mujoco|shimmy'):
                gymnasium.make(env_id)
    if 'raise' in str(gymnasium.registry['Ant-v2'].entry_point):  # in newer versions of gymnasium
        assert {'Ant-v2', 'Hopper-v3', 'GymV21Environment-v0', 'GymV26Environment-v0'} <= hidden


@pytest.mark.parametrize(
    ('env_id', 'said'),
    [
        ('ale_py:ALE/MsPacman-v5', 'env.id=atari env.game=MsPacman is the game with the usual preprocessing'),
        ('ALE/Pong-v5', 'env.id=atari env.game=Pong is'),
        ('ale_py:ALE/Pong-ram-v5', ''),
        ('CartPole-v1', ''),
        ('my_env.py:make', ''),
    ],
)
def test_faster_family_is_named_for_ids_of_ale_py(env_id: str, said: str) -> None:
    hint = faster_family(env_id)
    assert (hint is not None and said in hint) if said else hint is None
