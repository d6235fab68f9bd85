"""Rendering of envs: their render arguments, the forms of their pictures, and errors of envs that cannot render."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.envs import LimitEnv
from zoo.core.errors import missing_extra
from zoo.env import EnvConfig, MissingExtraError, UnsupportedEnvError
from zoo.tools.media import film as film_module
from zoo.tools.media.film import Camera, draw_without_display, make_filmed_env

RED = np.zeros((2, 3, 3), np.uint8)
RED[..., 0] = 255
EXTRA = missing_extra("drawing env 'x'", 'video', 'pygame')


def camera_of(render: Callable[[], Any]) -> Camera:
    camera, env = Camera('x'), gymnasium.vector.VectorEnv()
    env.render = render  # type: ignore[method-assign]
    camera.attach(env)
    return camera


@pytest.mark.parametrize(
    'answer',
    [RED, [RED], (RED,), RED[None], np.dstack([RED, np.full((2, 3, 1), 7, np.uint8)])],
    ids=['image', 'list', 'tuple', 'batch', 'alpha'],
)
def test_picture_of_one_env_in_any_usual_form(answer: Any) -> None:
    assert np.array_equal(camera_of(lambda: answer).now(), RED)


def test_grey_picture_becomes_three_equal_colours() -> None:
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(camera_of(lambda: grey).now(), np.dstack([grey, grey, grey]))


@pytest.mark.parametrize('answer', [None, 'text', RED / 255, RED[..., :2], np.zeros((0, 3, 3), np.uint8), [RED, RED]])
def test_other_answers_are_refused(answer: Any) -> None:
    with pytest.raises(UnsupportedEnvError, match=r"env 'x' shows no picture: its render\(\) returned"):
        camera_of(lambda: answer).now()


@pytest.mark.parametrize(
    ('error', 'kind', 'words'),
    [
        (gymnasium.error.DependencyNotInstalled('pygame is not installed'), MissingExtraError, EXTRA),
        (ModuleNotFoundError("No module named 'pygame'"), MissingExtraError, EXTRA),
        (NotImplementedError(), UnsupportedEnvError, 'it has no render()'),
        (RuntimeError('an OpenGL platform library has not been loaded'), UnsupportedEnvError, 'libegl1'),
        (ImportError('Cannot initialize a EGL device display'), UnsupportedEnvError, 'MUJOCO_GL to egl or osmesa'),
        (AttributeError("'NoneType' object has no attribute 'glGetError'"), UnsupportedEnvError, 'libosmesa6'),
        (ValueError('no brush'), ValueError, 'no brush'),
        (ModuleNotFoundError("No module named 'brush'"), ModuleNotFoundError, 'brush'),
    ],
)
def test_what_drawing_lacks_is_named_and_errors_of_the_env_pass_through(
    error: Exception, kind: type[Exception], words: str
) -> None:
    def render() -> None:
        raise error

    with pytest.raises(kind) as caught:
        camera_of(render).now()
    assert words in str(caught.value) and type(caught.value) is kind


def test_without_a_display_it_is_drawn_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('sys.platform', 'linux')
    for name in ('DISPLAY', 'WAYLAND_DISPLAY', 'SDL_VIDEODRIVER', 'MUJOCO_GL'):
        monkeypatch.delenv(name, raising=False)
    for there, want in (({'EGL', 'OSMesa'}, 'egl'), ({'OSMesa'}, 'osmesa'), (set(), None)):
        with monkeypatch.context() as patch:
            patch.setattr(film_module.ctypes.util, 'find_library', dict.fromkeys(there, 'found').get)
            draw_without_display()
            assert os.environ.get('MUJOCO_GL') == want and os.environ['SDL_VIDEODRIVER'] == 'dummy'
        for name in ('SDL_VIDEODRIVER', 'MUJOCO_GL'):
            os.environ.pop(name, None)
    monkeypatch.setenv('MUJOCO_GL', 'osmesa')  # the user's value is kept
    draw_without_display()
    assert os.environ['MUJOCO_GL'] == 'osmesa'
    os.environ.pop('SDL_VIDEODRIVER')
    monkeypatch.setenv('DISPLAY', ':0')
    draw_without_display()
    assert 'SDL_VIDEODRIVER' not in os.environ


def test_camera_of_mujoco_follows_unless_the_config_names_one() -> None:
    made: list[Any] = []

    class MujocoEnv(LimitEnv):
        metadata = {'render_modes': ['human', 'rgb_array']}  # noqa: RUF012

        def __init__(self, **kwargs: Any) -> None:
            super().__init__()
            made.append(kwargs)

    class Robot(MujocoEnv): ...

    for kwargs in ({}, {'camera_id': 0}):
        make_filmed_env(EnvConfig(id=Robot, kwargs=kwargs), Camera('x'))
    assert made == [{'render_mode': 'rgb_array', 'camera_name': 'track'}, {'render_mode': 'rgb_array', 'camera_id': 0}]


def test_function_that_takes_no_render_mode_gets_none() -> None:
    camera = Camera('line')
    env = make_filmed_env(EnvConfig(id='tests.film_envs:line_env'), camera)
    env.reset(0)
    assert camera.now().shape == (3, 11, 3) and camera.fps == 12
    env.close()


@pytest.mark.parametrize(
    ('env_id', 'shape'),
    [('tiny_bricks', (10, 10, 3)), ('remember_cue', (1, 3, 3)), ('cartpole_no_velocity', (400, 600, 3))],
)
def test_envs_of_zoo_that_show_something_are_drawn(env_id: str, shape: tuple[int, ...]) -> None:
    pytest.importorskip('pygame', reason='the extra video is not installed')
    camera = Camera(env_id)
    env = make_filmed_env(EnvConfig(id=env_id), camera)
    env.reset(0)
    assert camera.now().shape == shape and camera.now().any() and camera.fps
    env.step(torch.zeros(1, dtype=torch.long))
    assert camera.reached().shape == shape
    env.close()


def test_only_one_env_of_a_vector_that_exists_is_drawn() -> None:
    from tests.film_envs import line_vector
    from zoo.env.given import GivenVectorEnv

    given = GivenVectorEnv(line_vector(2, render_mode='rgb_array'))
    with pytest.raises(UnsupportedEnvError, match='is a vector of 2 envs that exists already'):
        make_filmed_env(EnvConfig(id=given), Camera('x'))
    given.env.close()


def test_envpool_without_render_is_refused_at_the_first_picture() -> None:
    pytest.importorskip('envpool')
    camera = Camera('frozen')
    env = make_filmed_env(EnvConfig(id='envpool', game='FrozenLake-v1'), camera)
    env.reset(0)
    with pytest.raises(UnsupportedEnvError, match='envpool says render not implemented'):
        camera.now()
    env.close()
