"""Real Procgen games, which need Qt 5 of the system or of the PyQt5 wheel."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.envs import play
from zoo.config.section import ConfigError
from zoo.env import EnvConfig, EnvKwargsError, MissingExtraError, UnsupportedEnvError, VectorEnv, make_vector_env
from zoo.env.families import envpool as qt_module
from zoo.env.families.envpool import load_qt
from zoo.env.ids import PROCGEN_GAMES

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ('envpool', 'PyQt5')),
    reason='the extra procgen is not installed',
)


def make(game: str, n_env: int = 2, training: bool = False, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id='procgen', game=game, **fields), n_env, training=training)


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('game', 'difficulty'), [(game, ('easy', 'hard')[i % 2]) for i, game in enumerate(sorted(PROCGEN_GAMES))]
)
def test_make_vector_env_every_game_shows_bytes_and_takes_15_actions(game: str, difficulty: str) -> None:
    env = make(game, 1, kwargs={'difficulty': difficulty})
    obs = env.reset(0)
    assert obs.shape == (1, 3, 64, 64) == (1, *env.obs_space.shape) and obs.dtype == torch.uint8
    assert env.action_space.n == 15 and len(obs.unique()) > 10  # a picture, not a blank
    assert env.step(torch.tensor([14])).obs.dtype == torch.uint8


@pytest.mark.slow
def test_make_vector_env_hard_is_another_maze_than_easy() -> None:
    easy, hard = make('maze').reset(0), make('maze', kwargs={'difficulty': 'hard'}).reset(0)
    assert not torch.equal(easy, hard)
    assert torch.equal(hard, make_vector_env(EnvConfig(id='envpool', game='MazeHard-v0'), 2).reset(0))


def levels(env: VectorEnv) -> set[int]:
    """The levels of the first episodes of all envs."""
    env.reset(0)
    return {int(level) for level in env.step(torch.zeros(env.n_env, dtype=torch.int64)).info['level_seed']}


@pytest.mark.parametrize(
    ('kwargs', 'training', 'evaluation'),
    [
        ({}, None, None),
        ({'num_levels': 2}, {0, 1}, None),
        ({'num_levels': 1, 'start_level': 7}, {7}, None),
        ({'num_levels': 1, 'eval_num_levels': 1, 'eval_start_level': 5}, {0}, {5}),
    ],
)
def test_step_levels_are_those_of_training_or_of_evaluation(
    kwargs: dict, training: set | None, evaluation: set | None
) -> None:
    for is_training, want in ((True, training), (False, evaluation)):
        got = levels(make('leaper', 12, is_training, kwargs=kwargs))
        if want is None:  # of all 2^31 levels
            assert len(got) == 12 and max(got) > 10**6
        else:
            assert got == want


@pytest.mark.slow
def test_step_time_limit_is_truncated_and_the_next_row_only_resets() -> None:
    """A maze has 500 steps; an agent that stands still sees the same image until the reset, then another maze."""
    env = make('maze', 3)
    last = env.reset(0)
    for t in range(1, 503):
        step = env.step(torch.full((3,), 4))
        assert step.truncated.tolist() == [t == 500] * 3 and not step.terminated.any()
        assert step.is_reset.tolist() == [t == 501] * 3 and step.final_obs is None
        assert (step.obs == last).flatten(1).all(1).tolist() == [t != 501] * 3
        last = step.obs


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (dict(id='procgen', game='maze'), 'env.max_episode_steps is 3 but procgen/maze has a fixed time limit'),
        (
            dict(id='envpool', game='MazeEasy-v0'),
            'env.max_episode_steps is 3 but an episode of envpool/MazeEasy-v0 continues: this task has no limit that can',
        ),
    ],
)
def test_max_episode_steps_that_envpool_would_ignore_raises(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedEnvError) as raised:
        play(make_vector_env(EnvConfig(**fields, max_episode_steps=3), 1), *[[4]] * 4)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ('kwargs', 'error', 'message'),
    [
        (
            {'difficulty': 'memory'},
            EnvKwargsError,
            "env.kwargs.difficulty is 'memory' but procgen/starpilot takes easy, hard, extreme; use one of these.",
        ),
        ({'num_level': 3}, ConfigError, 'unknown key env.kwargs.num_level: did you mean env.kwargs.num_levels'),
        ({'difficulty': 'esay'}, ConfigError, "env.kwargs.difficulty is 'esay' (string) but must be one of 'eas"),
        ({'num_levels': '3'}, ConfigError, "env.kwargs.num_levels is '3' (string) but must be an integer >= 0"),
    ],
)
def test_make_vector_env_what_is_not_there_is_said_with_what_is(kwargs: dict, error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        make('starpilot', 1, training=True, kwargs=kwargs)
    assert message in str(raised.value)


# --- Qt and the extra


def test_load_qt_without_the_wheel_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'PyQt5', None)
    with pytest.raises(MissingExtraError, match=r"'procgen/maze' needs the procgen extra, .*'\.\[procgen\]'"):
        load_qt('procgen/maze')


def test_load_qt_library_that_does_not_load_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qt_module, 'QT_LIBRARIES', ('libQt5NotThere.so.5',))
    with pytest.raises(MissingExtraError) as raised:
        load_qt('procgen/maze')
    assert "env 'procgen/maze' draws with Qt 5, whose libQt5NotThere.so.5 does not load here (" in str(raised.value)
    assert 'cannot open shared object file' in str(raised.value) and 'apt-get install libgl1' in str(raised.value)


@pytest.mark.long
def test_make_vector_env_after_envpool_was_imported_without_qt_still_works() -> None:
    """envpool looks for Qt once, when it is imported; a program may have imported it for another env before."""
    code = (
        'import envpool; from zoo.env import EnvConfig, make_vector_env; '
        "env = make_vector_env(EnvConfig(id='envpool', game='CartPole-v1'), 1); env.reset(0); "
        "print(tuple(make_vector_env(EnvConfig(id='procgen', game='maze'), 2).reset(0).shape))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == '(2, 3, 64, 64)', done.stderr
