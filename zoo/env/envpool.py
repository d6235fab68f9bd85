"""The env family 'envpool': every task of envpool that shows vectors, images or MiniGrid's grids."""
from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from zoo.env.errors import EnvKwargsError, UnsupportedEnvError
from zoo.env.family import RAW, RAW_END, RAW_REWARD, ActionCheck, EnvRequest, env_family, need
from zoo.env.make import raise_kwargs_error
from zoo.env.minigrid import KEYS, MiniGridEncoder
from zoo.env.qt import load_qt
from zoo.registry import ENV_REGISTRY

EXTRA = 'envpool'
# options of a pool that the config gives elsewhere, or that would make it another kind of thing
NOT_KWARGS = {'num_envs', 'batch_size', 'max_num_players', 'seed', 'env_seed', 'base_path', 'gym_reset_return_info',
              'max_episode_steps'}
TRAINING_ONLY = ('episodic_life', 'reward_clip')  # options of Atari games


class EnvpoolVectorEnv(gymnasium.vector.VectorEnv):
    """A pool of envpool with the interface of gymnasium's vector envs.

    The pool is seeded when it is made and by nothing later, so every reset with a seed makes a new one: milliseconds,
    but for the first of its kind. It looks at no action (a batch too short ends the process, a float is cut to an
    integer, one out of range is anything); all of these are refused here, before the call.
    """

    def __init__(self, request: EnvRequest, make: Callable[..., Any], spec: Any, has_raw: bool = False) -> None:
        """
        Args:
          make: takes seed, a list of one int for each env, and returns the pool.   spec: its envpool spec.
          has_raw: it changes rewards or ends, and tells those of the game in its info.
        """
        name = self._name = request.name
        self._limit = request.max_episode_steps
        self._make = make
        self._pool: Any = None
        self._has_raw = has_raw
        self.metadata = {'render_modes': [], 'autoreset_mode': AutoresetMode.NEXT_STEP, RAW: has_raw}
        self.num_envs: int = spec.config.num_envs
        space, action_space = _quietly(lambda: (spec.observation_space, spec.action_space))
        self.single_observation_space, self._encode = _encoding(space, name)
        self.single_action_space = action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._check = ActionCheck(name, action_space, self.num_envs)
        self._n_step = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None or self._pool is None:
            self._pool = None  # ends its threads before others start
            self._pool = self._make(seed=[0] * self.num_envs if seed is None else seed)
        self._n_step = 0
        obs, info = _quietly(self._pool.reset)  # it makes its spaces when it is first asked for something
        if isinstance(self._encode, MiniGridEncoder):
            self._encode.warn_of_missions(obs)
        return self._encode(obs), info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._pool is None:
            raise gymnasium.error.ResetNeeded('step was called before the first reset; call reset first')
        self._n_step += 1
        self._check(actions, self._n_step)
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        if self._limit is not None and np.max(info['elapsed_step']) > self._limit:
            raise UnsupportedEnvError(f'env.max_episode_steps is {self._limit} but an episode of {self._name} goes on: '
                                      'this task has no limit that can be set; leave env.max_episode_steps out.')
        if self._has_raw:
            info = {**info, RAW_REWARD: info['reward'], RAW_END: (info['terminated'] != 0) | truncated}
        return self._encode(obs), reward, terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None


def envpool_tasks() -> list[str]:
    """What envpool calls its task ids."""
    return list(need('envpool', EXTRA, 'envpool').list_all_envs())


@ENV_REGISTRY.register('envpool')
@env_family(games=envpool_tasks)
def make_envpool(request: EnvRequest, **options: Any) -> EnvpoolVectorEnv:
    """`request.n_env` envs of an envpool task. `options` are envpool's own, different for every task.

    Two of Atari's, episodic_life and reward_clip, hold in training only; evaluation sees the raw game. (envpool then
    presses FIRE after a lost life in training alone; the family 'atari' does in both.)
    """
    return make_pool(request, request.game, EXTRA, options)


def make_pool(request: EnvRequest, task: str, extra: str, options: Mapping[str, Any]) -> EnvpoolVectorEnv:
    """The pool of a task.

    Args: extra: that the family is part of.
    Raises: EnvKwargsError if `options` do not fit the task; MissingExtraError.
    """
    envpool = need('envpool', extra, request.name)
    defaults = _make_spec(envpool, request.name, task).config
    _check_options(request.name, options, defaults._asdict())
    wanted = {**options, 'num_envs': request.n_env}
    if request.max_episode_steps is not None:
        wanted['max_episode_steps'] = request.max_episode_steps
    training_only = {key: request.training for key in TRAINING_ONLY if options.get(key)}
    wanted |= training_only
    spec = _make_spec(envpool, request.name, task, **wanted)
    make = partial(envpool.make_gymnasium, task, **wanted)
    return EnvpoolVectorEnv(request, make, spec, has_raw=any(training_only.values()))


def _make_spec(envpool: Any, name: str, task: str, **options: Any) -> Any:
    try:
        return envpool.make_spec(task, **options)
    except ImportError as error:
        if 'Qt' not in str(error):
            raise
    load_qt(name)
    importlib.reload(importlib.import_module('envpool.procgen'))  # which keeps in mind that it found no Qt
    return envpool.make_spec(task, **options)


def _check_options(name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    takes = [key for key in defaults if key not in NOT_KWARGS]
    raise_kwargs_error(name, [key for key in options if key not in takes], [], takes)
    for key, value in options.items():
        kind = type(defaults[key])
        if type(value) is not kind and not (kind is float and type(value) is int) and kind in (bool, int, float, str):
            raise EnvKwargsError(f'env.kwargs.{key} is {value!r} but {name} takes {kind.__name__}, such as '
                                 f'{defaults[key]!r}; correct it.')


def _encoding(space: gymnasium.Space, name: str) -> tuple[gymnasium.Space, Callable[[Any], np.ndarray]]:
    """The space of what zoo is shown of these observations, and what turns them into it."""
    if isinstance(space, gymnasium.spaces.Dict) and set(space) == KEYS:
        encoder = MiniGridEncoder(space, name)
        return encoder.space, encoder
    if isinstance(space, gymnasium.spaces.Dict) and all(_is_vector(part) for part in space.values()):
        size = sum(int(np.prod(part.shape or ())) for part in space.values())
        keys = list(space)
        return _unbounded(size), lambda obs: np.concatenate([obs[key].reshape(len(obs[key]), -1) for key in keys], 1)
    if _is_vector(space) and np.any(space.low == np.finfo(str(space.dtype)).tiny):
        return _unbounded(len(space.low)), np.asarray  # the least float was meant, the smallest above 0 was written
    return space, np.asarray


def _is_vector(space: gymnasium.Space) -> TypeGuard[gymnasium.spaces.Box]:
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) < 2 and np.dtype(space.dtype).kind == 'f'


def _unbounded(size: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _quietly(call: Callable[[], Any]) -> Any:
    """What `call` returns, without gymnasium's warning that a bound of a float32 Box was given as float64."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        return call()
