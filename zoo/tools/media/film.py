"""Pictures of one env while it steps, from its render() as 'rgb_array' or from the frames of an env family."""

from __future__ import annotations

import ctypes.util
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from zoo.agents.table import TableMaker
from zoo.core.errors import UserError, missing_extra
from zoo.core.registry import ENV_REGISTRY
from zoo.env.adapter import creator_of, takes_keyword
from zoo.env.calls import locate
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig
from zoo.env.errors import EnvError, MissingExtraError, UnsupportedEnvError, raised_at
from zoo.env.families.family import EnvFamily
from zoo.env.given import GivenVectorEnv
from zoo.env.interface import AnyVectorEnv
from zoo.env.make import env_name, find_source, make_env
from zoo.env.make_vector import make_vector_env, vectorization_of
from zoo.env.serial import SerialVectorEnv
from zoo.env.tensor.program import TensorEnv

MODE = 'rgb_array'
FINAL_FRAME = 'final_frame'  # in the info of a vector env that resets in the same step: [B, H, W, 3] of ended episodes
DO = "give it render_mode='rgb_array' and a method render() that returns an image [H, W, 3] of bytes"
OPENGL = re.compile(r'mujoco\.(egl|osmesa|gl_context|FatalError)|OpenGL|EGL|OSMesa|MUJOCO_GL|GLFW|\bgl[A-Z]\w+')


class Camera:
    """Takes the pictures of one env; `make_filmed_env` attaches it to the env.

    Attributes: fps: frames per second, from the env's metadata, or None. last: what the env drew after its last step.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._modes: list[Any] = []
        self.fps: float | None = None
        self._render: Any = None  # the present state's picture, as the env returns it
        self.last: Any = None

    def attach(self, env: Any) -> Any:
        """Returns the vector env to use in place of env. Raises: UnsupportedEnvError if it is a tensor program."""
        if isinstance(env, TensorEnv):
            game = self._name.partition('/')[2]
            if game not in gymnasium.registry:
                game = '..., an env of gymnasium with the same observations'
            raise UnsupportedEnvError(
                f'env {self._name!r} is a tensor program, which draws nothing; name an env that does: env.id={game}.'
            )
        metadata = env.metadata or {}
        self._modes = list(metadata.get('render_modes') or [])
        fps = metadata.get('render_fps')
        if isinstance(fps, int | float) and fps > 0:
            self.fps = float(fps)
        else:
            self.fps = None
        if not isinstance(env, SerialVectorEnv):
            self._render = env.render
            return _FilmedVectorEnv(env, self)
        self._render = env.envs[0].render
        env.envs = [_FilmedEnv(env.envs[0], self)]  # type: ignore[assignment]
        return env

    def now(self) -> np.ndarray:
        """Draws the current state, [H, W, 3]. Raises: UnsupportedEnvError if the env gives no picture."""
        with locate(f'env {self._name!r}, in render()'), _drawing(self._name, self._modes):
            return self._checked(self._render())

    def reached(self) -> np.ndarray | None:
        """Returns the picture of the state that the last step reached; None if the env was reset before it could be drawn."""
        if self.last is None:
            return None
        return self._checked(self.last)

    def draw(self) -> Any:
        """Returns the unchanged result of the env's render() for the current state."""
        with _drawing(self._name, self._modes):
            return self._render()

    def _checked(self, image: object) -> np.ndarray:
        """Returns the picture [H, W, 3] in a result of render(), of one env or a vector of one; grey gets three equal colours."""
        found: Any
        if isinstance(image, list | tuple) and len(image) == 1:
            found = image[0]
        else:
            found = image
        if isinstance(found, np.ndarray | list | tuple):
            found = np.asarray(found)
        else:
            found = None
        if found is not None and found.ndim == 4 and len(found) == 1:
            found = found[0]
        if found is not None and found.ndim == 3 and found.shape[2] == 4:
            found = found[:, :, :3]
        if found is not None and found.ndim == 2:
            found = np.repeat(found[:, :, None], 3, axis=2)
        if found is None or found.ndim != 3 or found.shape[2] != 3 or found.dtype != np.uint8 or not found.size:
            if self._modes and MODE not in self._modes:
                raise no_mode_error(self._name, self._modes)
            if found is None:
                got = type(image).__name__
            else:
                got = f'{found.dtype} {list(found.shape)}'
            raise UnsupportedEnvError(
                f'env {self._name!r} shows no picture: its render() returned {got}, wanted an image [H, W, 3] of bytes '
                f'(uint8); {DO}.'
            )
        return found


class _FilmedEnv(gymnasium.Wrapper):
    """Draws each state that a step reaches."""

    def __init__(self, env: gymnasium.Env, camera: Camera) -> None:
        super().__init__(env)
        self._camera = camera

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._camera.last = self._camera.draw()
        return result


class _FilmedVectorEnv(gymnasium.vector.VectorWrapper):
    """Draws each state that a step of a vector of one env reaches.

    If the env resets in the same step, the picture of the last state is in its info, or is left out.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, camera: Camera) -> None:
        super().__init__(env)
        self._camera = camera
        self._is_same_step = env.metadata.get('autoreset_mode') == AutoresetMode.SAME_STEP

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        is_lost = self._is_same_step and bool(np.any(terminated) or np.any(truncated))
        if is_lost:
            self._camera.last = info.get(FINAL_FRAME)
        else:
            self._camera.last = self._camera.draw()
        return obs, reward, terminated, truncated, info


def make_filmed_env(cfg: EnvConfig, camera: Camera, device: str = 'cpu') -> AnyVectorEnv:
    """Creates a vector of one env of a config, whose pictures `camera` takes.

    Raises: as `make_vector_env`; UnsupportedEnvError if it is known before a reset that the env cannot be drawn.
    """
    draw_without_display()
    name = env_name(cfg)
    with _needing_opengl(name):  # the import of an env's module may need OpenGL
        source = find_source(cfg.id)
        how = vectorization_of(cfg)
        if isinstance(source, GivenVectorEnv) and source.env.num_envs != 1:
            raise UnsupportedEnvError(
                f'env {name!r} is a vector of {source.env.num_envs} envs that exists already, and one env is drawn; give '
                'env.id a function of num_envs that makes it.'
            )
        changes: dict[str, Any] = {'on_error': 'raise'} | ({'vectorization': 'sync'} if how == 'async' else {})
        drawing: dict[str, Any] = {}
        if not isinstance(source, EnvFamily):
            drawing = _drawing_kwargs(_maker_of(source, how), cfg, name)
            changes['kwargs'] = {**cfg.kwargs, **drawing}
        try:
            return make_vector_env(cfg.model_copy(update=changes), 1, device=device, camera=camera)
        except REFUSALS as error:
            modes = None
            if drawing and not isinstance(error, UserError):
                modes = _modes_of(cfg)
            if modes is None or MODE in modes:
                raise
            raise no_mode_error(name, modes) from error


REFUSALS = (ValueError, TypeError, AssertionError, NotImplementedError, Warning)
"""Exceptions with which code refuses an argument, here the render mode."""


def _modes_of(cfg: EnvConfig) -> list[Any] | None:
    """The render modes of an env that is made without one; None if it cannot be made."""
    try:
        env = make_env(cfg)
    except Exception:  # of any code: the first error is raised again
        return None
    modes = list((env.metadata or {}).get('render_modes') or [])
    close_in_time({f'env {env_name(cfg)!r}': env.close}, cfg.step_timeout)
    return modes


def no_mode_error(name: str, modes: Sequence[Any], do: str = 'use one that has it') -> UnsupportedEnvError:
    """The error about an env whose render modes lack 'rgb_array'."""
    return UnsupportedEnvError(
        f'env {name!r} cannot be drawn: it has the render modes {", ".join(map(str, modes)) or "(none)"}, wanted {MODE}; {do}.'
    )


def draw_without_display() -> None:
    """Makes SDL and MuJoCo draw into memory if there is no display, unless the user has set their environment variables."""
    if has_display():
        return
    os.environ.setdefault('SDL_VIDEODRIVER', 'dummy')
    logging.getLogger('OpenGL').setLevel(logging.WARNING)  # hides its advice on speed
    found = next((library for library in ('EGL', 'OSMesa') if ctypes.util.find_library(library)), None)
    if found is not None:
        os.environ.setdefault('MUJOCO_GL', found.lower())


def has_display() -> bool:
    """Whether windows can be shown: on Linux, whether DISPLAY or WAYLAND_DISPLAY is set."""
    return not sys.platform.startswith('linux') or any(os.environ.get(x) for x in ('DISPLAY', 'WAYLAND_DISPLAY'))


def _maker_of(source: Any, how: str) -> Any:
    """Returns the class or function that creates the env."""
    if isinstance(source, TableMaker):
        return source.maker
    if not isinstance(source, EnvSpec):
        return source
    is_vector = how == 'batched' or source.entry_point is None
    return creator_of(source.vector_entry_point if is_vector else source.entry_point)


def _drawing_kwargs(maker: Any, cfg: EnvConfig, name: str) -> dict[str, Any]:
    """Returns arguments that make an env draw: render_mode if it takes it, and in MuJoCo the camera that follows the robot.

    Raises: UnsupportedEnvError if the env declares other render modes only.
    """
    if isinstance(maker, GivenVectorEnv):
        return {}
    modes = None
    if isinstance(maker, type):
        modes = getattr(maker, 'metadata', {}).get('render_modes')
    if modes and MODE not in modes:
        is_vector = issubclass(maker, gymnasium.vector.VectorEnv)
        if is_vector:
            do = 'use one that has it, or env.vectorization=sync'
        else:
            do = 'use one that has it'
        raise no_mode_error(name, modes, do)
    try:
        if not takes_keyword(maker, 'render_mode'):
            return {}
    except (TypeError, ValueError):  # a callable in C
        return {}
    is_mujoco = isinstance(maker, type) and any(kind.__name__ == 'MujocoEnv' for kind in maker.__mro__)
    follows = is_mujoco and not any(key.startswith('camera_') for key in cfg.kwargs)  # gymnasium's default stands still
    return {'render_mode': MODE, **({'camera_name': 'track'} if follows else {})}


@contextmanager
def _drawing(name: str, modes: Sequence[Any]) -> Iterator[None]:
    """Turns errors of missing packages, methods and render modes into messages with a remedy; others pass through.

    Args: modes: the render modes that the env declares.
    """
    try:
        with _needing_opengl(name):
            yield
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        if 'pygame' not in str(error):
            raise
        raise MissingExtraError(missing_extra(f'drawing env {name!r}', 'video', 'pygame')) from error
    except NotImplementedError as error:
        if modes and MODE not in modes:
            raise no_mode_error(name, modes) from error
        maker = None
        if name in ENV_REGISTRY:
            maker = ENV_REGISTRY.get(name)
        is_zoos = isinstance(maker, type) and maker.__module__.startswith('zoo.')  # users do not change zoo's code
        if is_zoos:
            do = 'zoo eval plays it without pictures'
        else:
            do = DO
        raise UnsupportedEnvError(f'env {name!r} cannot be drawn: it has no render(); {do}.') from error
    except REFUSALS as error:
        # an env that declares no modes may draw all the same, and then its error is one of its code
        is_of_gymnasium = os.path.dirname(gymnasium.__file__) in raised_at(error)
        if isinstance(error, UserError) or MODE in modes or not (modes or is_of_gymnasium):
            raise
        raise no_mode_error(name, modes) from error


@contextmanager
def _needing_opengl(name: str) -> Iterator[None]:
    """Turns an error of OpenGL into a message with a remedy."""
    try:
        yield
    except EnvError:
        raise
    except Exception as error:
        kind = f'{type(error).__module__}.{type(error).__name__}'
        if not OPENGL.search(f'{kind} {error}'):
            raise
        raise UnsupportedEnvError(
            f'env {name!r} draws with OpenGL, which does not work here (MUJOCO_GL={os.environ.get("MUJOCO_GL", "")}: '
            f'{" ".join(str(error).split())[:100]}); without a display set MUJOCO_GL to egl or osmesa and install its '
            'library, on Debian and Ubuntu: apt-get install libegl1 libgl1-mesa-dri, or libosmesa6.'
        ) from error
