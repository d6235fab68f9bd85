"""Envs that render known pictures: a position on a line of 11 places as a white pixel, red in the first state.

'tests.film_envs:LineEnv'       a gymnasium env; `SEEN` lists the positions of all its states, the newest last
'tests.film_envs:line_env'      a function that makes a LineEnv and takes no render_mode
'tests.film_envs:line_vector'   makes a vector env, see `LineVectorEnv`
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

SEEN: list[int] = []


class LineEnv(gymnasium.Env):
    """A walk that starts at -2..2 and moves by 1; 30% of the moves are random. Ends at -5, at 5 or after 30 steps."""

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 12}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, size: int = 1, what: str = 'uint8') -> None:
        self.render_mode, self._size, self.what = render_mode, size, what
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._x, self._n_step = int(self.np_random.integers(-2, 3)), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.np_random.random() < 0.3:
            action = self.np_random.integers(2)
        self._x, self._n_step = self._x + 2 * int(action) - 1, self._n_step + 1
        return self._seen(), float(self._x), abs(self._x) == 5, self._n_step == 30, {}

    def render(self) -> Any:
        if self.what == 'error':
            raise KeyError('no brush')
        picture = np.zeros((3 * self._size, 11 * self._size, 3), np.uint8)
        at = slice((self._x + 5) * self._size, (self._x + 6) * self._size)
        picture[:, at] = 255 if self._n_step else (255, 0, 0)
        return None if self.what == 'none' else picture.astype(self.what)

    def _seen(self) -> np.ndarray:
        SEEN.append(self._x)
        return np.array([self._x / 5], np.float32)


class TextEnv(LineEnv):
    """Renders text only."""

    metadata = {'render_modes': ['ansi']}  # noqa: RUF012


class RefusingEnv(LineEnv):
    """Draws nothing, and its constructor refuses a render mode."""

    metadata = {'render_modes': []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise ValueError('only supports render_mode=None')
        super().__init__()


if 'FilmRefusing-v0' not in gymnasium.registry:  # this file is also loaded by its path
    gymnasium.register('FilmRefusing-v0', entry_point=RefusingEnv)
    gymnasium.register('FilmLogs-v0', entry_point='tests.film_envs:LogsEnv')


class LogsEnv(LineEnv):
    """Has a render mode that makes no pictures."""

    metadata = {'render_modes': ['logs']}  # noqa: RUF012


class WarningEnv(LogsEnv):
    """Warns of a render mode that it does not know, and warnings are errors."""

    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode not in (None, 'logs'):
            raise UserWarning('the render mode is not known')
        super().__init__()


def refusing_env(render_mode: str | None = None) -> gymnasium.Env:
    return RefusingEnv(render_mode)


def logs_env(**kwargs: Any) -> gymnasium.Env:
    return gymnasium.make('FilmLogs-v0', **kwargs)  # with gymnasium's checker


def logs_without_picture(render_mode: str | None = None) -> gymnasium.Env:
    env = LogsEnv(render_mode)
    env.what = 'none'
    return env


def warning_env(render_mode: str | None = None) -> gymnasium.Env:
    return WarningEnv(render_mode)


def broken_env(render_mode: str | None = None) -> gymnasium.Env:
    raise ValueError('a fault of its own')


class OldLineEnv:
    """A LineEnv with the interface of old gym, whose render takes a mode."""

    metadata = {'render.modes': ['human', 'rgb_array'], 'video.frames_per_second': 7}  # noqa: RUF012

    def __init__(self) -> None:
        self._env = LineEnv('rgb_array')
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def seed(self, seed: int) -> None:
        self._env.reset(seed=seed)

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, reward, terminated or truncated, info

    def render(self, mode: str = 'human') -> Any:
        return self._env.render() if mode == 'rgb_array' else None


class OldPlainLineEnv(OldLineEnv):
    """Its render takes no mode."""

    metadata: dict[str, Any] = {}  # noqa: RUF012

    def render(self) -> Any:
        return self._env.render()


class OldTextEnv(OldLineEnv):
    """Renders text only."""

    metadata = {'render.modes': ['ansi']}  # noqa: RUF012

    def render(self, mode: str = 'ansi') -> Any:
        raise NotImplementedError(mode)


class OldBlindEnv(OldLineEnv):
    """Has no render()."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    render = None


class BlindEnv(LineEnv):
    """Has no render()."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    render = gymnasium.Env.render


def line_env(what: str = 'uint8') -> gymnasium.Env:
    return LineEnv(what=what)


class LineVectorEnv(SyncVectorEnv):
    """A batch of B LineEnvs; a SyncVectorEnv renders all its envs."""


def line_vector(num_envs: int, mode: str = 'NEXT_STEP', render_mode: str | None = None) -> gymnasium.vector.VectorEnv:
    return LineVectorEnv([lambda: LineEnv(render_mode)] * num_envs, autoreset_mode=AutoresetMode[mode])


def position(picture: np.ndarray) -> tuple[int, bool]:
    """The position that a picture shows, and whether it shows the first state of an episode."""
    size = picture.shape[1] // 11
    column = int(np.flatnonzero(picture[0, :, 0])[0]) // size
    return column - 5, not picture[0, column * size, 1]
