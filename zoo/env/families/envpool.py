"""The env family 'envpool': the tasks of envpool.

Dicts of vectors and MiniGrid's grids become one vector; all other observations, other Dicts included, are unmodified.
Actions that envpool has as a Box of integers (Jumanji's) become a MultiDiscrete, so that masks apply to them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from zoo.core.errors import missing_extra
from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvKwargsError, MissingExtraError, UnsupportedEnvError
from zoo.env.families.family import ActionCheck, EnvRequest, env_family, import_extra
from zoo.env.infos import RAW, RAW_END, RAW_REWARD
from zoo.env.make import raise_kwargs_error

EXTRA = 'envpool'
# options of a pool that other config keys set, or that would change the task or the interface
NOT_KWARGS = frozenset(
    'num_envs batch_size max_num_players seed env_seed base_path gym_reset_return_info max_episode_steps task env_name '
    'task_name hand_task adroit_task scenario distribution_mode'.split()
)
COMMON = ('num_threads', 'thread_affinity_offset')  # options of every task
# A task with this option is one of MiniGrid's. They take the common options only: the others belong to the id (sizes,
# rooms, objects), depend on each other, and end the process if they do not fit.
GRID_OPTION = 'mission_bytes'
BROKEN = {'Cig-v1', 'MultiDuel-v1'}  # Doom for several players: the first reset ends the process
NEEDED = {'VizdoomCustom-v1': ('cfg_path', 'wad_path')}  # options that a task requires
INT_MAX = 2**31 - 1  # envpool's integers have 32 bits
# Minimum and maximum. Values outside end the process (an image of height 0 in OpenCV, a draw from an empty range, too
# many threads), make it hang, use all of its memory, or are silently changed.
RANGES: dict[str, tuple[float, float]] = {
    'num_threads': (0, 1024),
    'stack_num': (1, 64),
    'frame_stack': (1, 64),
    'frame_skip': (1, 1000),
    'noop_max': (1, 1000),
    'img_height': (1, 1024),
    'img_width': (1, 1024),
    'repeat_action_probability': (0, 1),
    'num_levels': (0, INT_MAX),
    'start_level': (0, INT_MAX),
}
RANGE_OF_TYPE: dict[type, tuple[float, float]] = {int: (-INT_MAX - 1, INT_MAX), float: (-math.inf, math.inf)}
TRAINING_ONLY = ('episodic_life', 'reward_clip')  # options of Atari games
# Categories of a cell of the view: object (unseen, empty, wall, floor, door, key, ball, box, goal, lava, agent),
# its colour (red, green, blue, purple, yellow, grey), its state (open, closed, locked).
N_KIND = (11, 6, 3)
N_DIRECTION = 4
GRID_KEYS = {'image', 'direction', 'mission'}
PROCGEN_EXTRA = 'procgen'
QT_LIBRARIES = ('libQt5Core.so.5', 'libQt5Gui.so.5')  # in the order of their dependence
logger = logging.getLogger(__name__)


class EnvpoolVectorEnv(gymnasium.vector.VectorEnv):
    """A pool of envpool with the interface of gymnasium's vector envs.

    A pool is seeded only when it is made, so every reset with a seed makes a new pool, which takes milliseconds except
    for the first. envpool does not check actions (a short batch ends the process, a float is cut to an integer, one out
    of range is undefined); they are checked here before the call.
    """

    steps_async = True

    def __init__(self, request: EnvRequest, make: Callable[..., Any], spec: Any, has_raw: bool = False) -> None:
        """
        Args:
          make: takes seed, a list of one int for each env, and returns the pool.   spec: its envpool spec.
          has_raw: whether it changes rewards or ends, and has those of the game in its info.
        """
        name = self._name = request.name
        self._limit = request.max_episode_steps
        self._make = make
        self._pool: Any = None
        self._has_raw = has_raw
        self.metadata = {
            'render_modes': ['rgb_array'],
            'render_fps': _fps(spec.config),
            'autoreset_mode': gymnasium.vector.AutoresetMode.NEXT_STEP,
            RAW: has_raw,
        }
        self.num_envs: int = spec.config.num_envs
        space, action_space = _quietly(lambda: (spec.observation_space, spec.action_space))
        self.single_observation_space, self._encode = _encoding(space, name)
        self._action_dtype = action_space.dtype
        self.single_action_space = action_space = _choices(action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._check = ActionCheck(name, action_space, self.num_envs)
        self._n_step = 0

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None or self._pool is None:
            self._pool = None  # ends its threads before new ones start
            if seed is None:
                seed = [0] * self.num_envs
            self._pool = self._make(seed=seed)
        self._n_step = 0
        obs, info = _quietly(self._pool.reset)  # the first call makes its spaces
        if isinstance(self._encode, MiniGridEncoder):
            self._encode.warn_of_missions(obs)
        return self._encode(obs), info

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: np.ndarray) -> None:
        """Begins a step in the threads of the pool."""
        if self._pool is None:
            raise gymnasium.error.ResetNeeded('step was called before the first reset; call reset first')
        self._n_step += 1
        self._check(actions, self._n_step)
        is_choice = isinstance(self.single_action_space, gymnasium.spaces.MultiDiscrete)
        if is_choice:
            actions = actions.astype(self._action_dtype)
        self._pool.send(actions)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._pool.recv()
        if self._limit is not None and np.max(info['elapsed_step']) > self._limit:
            raise UnsupportedEnvError(
                f'env.max_episode_steps is {self._limit} but an episode of {self._name} continues: '
                'this task has no limit that can be set; leave env.max_episode_steps out.'
            )
        if self._has_raw:
            info = {**info, RAW_REWARD: info['reward'], RAW_END: (info['terminated'] != 0) | truncated}
        return self._encode(obs), reward, terminated, truncated, info

    def render(self) -> Any:
        """The pictures of the envs, [B, H, W, 3], if the request has `render`. Raises: UnsupportedEnvError."""
        try:
            return self._pool.render()
        except RuntimeError as error:
            raise UnsupportedEnvError(
                f'env {self._name!r} cannot be drawn: envpool says {" ".join(str(error).split())}; name an env of another '
                'library with the same observations by env.id.'
            ) from error

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None


def envpool_tasks() -> list[str]:
    """The ids of envpool's tasks, without those that do not run."""
    return [task for task in import_extra('envpool', EXTRA, 'envpool').list_all_envs() if task not in BROKEN]


@ENV_REGISTRY.register('envpool')
@env_family(
    games=envpool_tasks, summary='Envs of the package envpool, which step in threads of C++; env.game names one.'
)
def make_envpool(request: EnvRequest, /, **options: Any) -> EnvpoolVectorEnv:
    """`request.n_env` envs of an envpool task. `options` are envpool's own, different for every task.

    Options that would change the task named by env.game are refused, and so are MiniGrid's layouts, since most of them end
    the process. Two options of Atari, episodic_life and reward_clip, apply in training only; evaluation sees the raw game.
    (envpool then presses FIRE after a lost life in training only, the family 'atari' in both.)
    """
    return make_pool(request, request.game, EXTRA, options)


def make_pool(request: EnvRequest, task: str, extra: str, options: Mapping[str, Any]) -> EnvpoolVectorEnv:
    """Makes the pool of a task.

    Args: extra: the extra of zoo to which the family belongs.
    Raises: EnvKwargsError if `options` do not fit the task; MissingExtraError; UnsupportedEnvError.
    """
    envpool = import_extra('envpool', extra, request.name)
    if request.render and envpool.registration.registry.specs[task][0].startswith('envpool.mujoco'):
        raise UnsupportedEnvError(
            f'env {request.name!r} cannot be drawn safely: envpool ends the process where it finds no OpenGL; name the env of '
            f'gymnasium with the same observations, e.g. env.id={task.rpartition("-")[0]}-v5.'
        )
    needed = NEEDED.get(task, ())
    raise_kwargs_error(request.name, [], [key for key in needed if key not in options], [])
    with _blaming(request.name, options):
        defaults = _make_spec(envpool, request.name, task, **{key: options[key] for key in needed}).config
    _check_options(request.name, options, defaults._asdict())
    wanted = {**options, 'num_envs': request.n_env}
    if request.max_episode_steps is not None:
        if request.max_episode_steps > INT_MAX:
            raise UnsupportedEnvError(
                f'env.max_episode_steps is {request.max_episode_steps} but {request.name} counts '
                f'to {INT_MAX}; use {INT_MAX} or less.'
            )
        wanted['max_episode_steps'] = request.max_episode_steps
    training_only = {key: request.training for key in TRAINING_ONLY if options.get(key)}
    wanted |= training_only
    drawn = {}
    if request.render:
        drawn = {'render_mode': 'rgb_array'}

    def make(seed: list[int]) -> Any:
        with _blaming(request.name, options):
            return envpool.make_gymnasium(task, seed=seed, **wanted, **drawn)

    with _blaming(request.name, options):
        spec = _make_spec(envpool, request.name, task, **wanted)
    if spec.config.max_num_players > 1:
        raise UnsupportedEnvError(
            f'env {request.name!r} has {spec.config.max_num_players} players but zoo trains one; choose another game.'
        )
    return EnvpoolVectorEnv(request, make, spec, has_raw=any(training_only.values()))


def _make_spec(envpool: Any, name: str, task: str, /, **options: Any) -> Any:
    try:
        return envpool.make_spec(task, **options)
    except ImportError as error:
        if 'Qt' not in str(error):
            raise
    load_qt(name)
    importlib.reload(importlib.import_module('envpool.procgen'))  # which remembers that Qt was missing
    return envpool.make_spec(task, **options)


@contextlib.contextmanager
def _blaming(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Turns envpool's errors into EnvKwargsError if the pool was given options."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError) as error:
        if not options:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EnvKwargsError(
            f'env.kwargs is {dict(options)} but envpool cannot make {name} with it ({reason}); correct it, '
            'or leave out what envpool refuses.'
        ) from error


def _fps(config: object) -> float | None:
    """Env steps per second of play: of Atari, from 60 frames per second; of MiniGrid, as in minigrid; None for others."""
    if hasattr(config, 'gray_scale') and hasattr(config, 'frame_skip'):
        return 60.0 / config.frame_skip
    if hasattr(config, GRID_OPTION):
        return 10.0
    return None


def _check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    takes = [key for key in defaults if key not in NOT_KWARGS]
    if GRID_OPTION in defaults:
        takes = list(COMMON)
    raise_kwargs_error(name, [key for key in options if key not in takes], [], takes)
    for key, value in options.items():
        kind = type(defaults[key])
        if type(value) is not kind and not (kind is float and type(value) is int) and kind in (bool, int, float, str):
            raise EnvKwargsError(
                f'env.kwargs.{key} is {value!r} but {name} takes {kind.__name__}, such as '
                f'{defaults[key]!r}; correct it.'
            )
        if kind in RANGE_OF_TYPE:
            low, high = RANGES.get(key, RANGE_OF_TYPE[kind])
            if not low <= value <= high:  # a nan is in no range
                raise EnvKwargsError(
                    f'env.kwargs.{key} is {value!r} but {name} takes {low} to {high}; correct it, or '
                    f'leave it out for {defaults[key]!r}.'
                )


def _encoding(space: gymnasium.Space, name: str) -> tuple[gymnasium.Space, Callable[[Any], Any]]:
    """The observation space for zoo, and a function that converts observations to it."""
    if not isinstance(space, gymnasium.spaces.Dict):
        return _with_true_bounds(space), np.asarray
    if set(space.spaces) == GRID_KEYS:
        encoder = MiniGridEncoder(space, name)
        return encoder.space, encoder
    if not all(map(_is_vector, space.spaces.values())):
        return _with_true_bounds(space), _unchanged
    size = sum(int(np.prod(part.shape or ())) for part in space.spaces.values())
    return _unbounded((size,)), partial(_joined, tuple(space.spaces))


def _unchanged(obs: Any) -> Any:
    return obs


def _joined(keys: Sequence[str], obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The vectors of the entries in one array [B, n]."""
    return np.concatenate([obs[key].reshape(len(obs[key]), -1) for key in keys], 1)


def _with_true_bounds(space: gymnasium.Space) -> gymnasium.Space:
    """The space without wrong bounds: envpool has the smallest positive float where it means the lowest float."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({key: _with_true_bounds(part) for key, part in space.items()})
    is_wrong = _is_vector(space) and np.any(space.low == np.finfo(str(space.dtype)).tiny)
    if is_wrong:
        return _unbounded(space.shape or ())
    return space


def _choices(space: gymnasium.Space) -> gymnasium.Space:
    """A MultiDiscrete instead of a Box of integers."""
    if not isinstance(space, gymnasium.spaces.Box) or np.dtype(space.dtype).kind not in 'iu':
        return space
    low = space.low.astype(np.int64)
    high = space.high.astype(np.int64)
    return gymnasium.spaces.MultiDiscrete(high - low + 1, start=low)


def _is_vector(space: gymnasium.Space) -> TypeGuard[gymnasium.spaces.Box]:
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) < 2 and np.dtype(space.dtype).kind == 'f'


def _unbounded(shape: tuple[int, ...]) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)


def _quietly(call: Callable[[], Any]) -> Any:
    """Calls without gymnasium's warning that a bound of a float32 Box was given as float64."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        return call()


class MiniGridEncoder:
    """One-hot vectors of {'image': [B, H, W, 3] bytes, 'direction': [B]}: [B, H * W * 20 + 4] f32.

    For each cell of the image 11 numbers for its object, 6 for its colour, 3 for its state; then 4 for the direction
    that the agent faces (right, down, left, up). The 7x7 view makes 984 numbers. The mission is left out.
    """

    def __init__(self, space: gymnasium.spaces.Dict, name: str) -> None:
        self._name = name
        self._warned = False
        height, width, _ = space['image'].shape or ()
        self._size = height * width * sum(N_KIND) + N_DIRECTION
        self.space = gymnasium.spaces.Box(0.0, 1.0, (self._size,), np.float32)
        # index of value 0 of each byte: cell c at 20 c, 20 c + 11, 20 c + 17
        within = np.cumsum((0, *N_KIND[:-1]))
        self._start = (np.arange(height * width)[:, None] * sum(N_KIND) + within).ravel()  # [H * W * 3]

    def __call__(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        n_env = len(obs['direction'])
        vector = np.zeros((n_env, self._size), np.float32)
        row = np.arange(n_env)
        vector[row[:, None], self._start + obs['image'].reshape(n_env, -1)] = 1.0  # [B, H, W, 3] -> [B, H * W * 3]
        vector[row, self._size - N_DIRECTION + obs['direction']] = 1.0
        return vector

    def warn_of_missions(self, obs: Mapping[str, np.ndarray]) -> None:
        """Warns once if the envs have different missions, which the policy cannot see."""
        missions = {row.tobytes().rstrip(b'\0').decode() for row in obs['mission']}
        if len(missions) > 1 and not self._warned:
            self._warned = True
            logger.warning(
                'the missions of env %r differ (%s), but its observations leave them out: the policy cannot see its mission',
                self._name,
                ', '.join(map(repr, sorted(missions)[:2])),
            )


def load_qt(name: str) -> None:
    """Loads the libraries of the wheel PyQt5-Qt5 (LGPL-3), so that later loads by name find them.

    Raises: MissingExtraError if the wheel is not installed, or if a system library that it needs is missing.
    """
    spec = importlib.util.find_spec('PyQt5')
    places: Iterable[str] = ()
    if spec is not None and spec.submodule_search_locations is not None:
        places = spec.submodule_search_locations
    folders = [Path(place) / 'Qt5' / 'lib' for place in places]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise MissingExtraError(missing_extra(f'env {name!r}', PROCGEN_EXTRA))
    for library in QT_LIBRARIES:
        try:
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise MissingExtraError(
                f'env {name!r} draws with Qt 5, whose {library} does not load here ({error}); install what is missing, '
                'on Debian and Ubuntu: apt-get install libgl1 libglib2.0-0'
            ) from error
