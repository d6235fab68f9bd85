"""Adapts spaces and envs of other libraries, recognised by their attributes and not by their class."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np

from zoo.core.spaces import Box, Discrete, Space
from zoo.env.errors import EnvContractError, UnsupportedEnvError


def convert_space(space: Any, role: str, name: str) -> Space:
    """The zoo space of a gymnasium or old gym space.

    Args:
      role: 'observation' or 'action';  name: of the env; both are for the error.
    Raises: UnsupportedEnvError if it is neither Discrete nor a Box of vectors or, for observations, of images.
    """
    shape = getattr(space, 'shape', None)
    if hasattr(space, 'n') and not shape:  # MultiBinary has an `n` too, and a shape
        return Discrete(int(space.n), int(getattr(space, 'start', 0)))
    is_observation = role == 'observation'
    if hasattr(space, 'low') and hasattr(space, 'high') and shape is not None:
        dtype = np.dtype(space.dtype)
        is_image = is_observation and len(shape) == 3 and (dtype == np.uint8 or dtype.kind == 'f')
        if is_image or (len(shape) == 1 and dtype.kind in 'iuf'):
            return Box(np.array(space.low, dtype=np.float64), np.array(space.high, dtype=np.float64), dtype.name)
    images = ', and images (three-dimensional Box spaces of uint8 or floats)' if is_observation else ''
    raise UnsupportedEnvError(
        f'env {name!r} has the {role} space {space}, but supported are Discrete and one-dimensional Box spaces'
        f'{images}; wrap the env so that it has one of these, e.g. flatten its {role}s.'
    )


def env_spaces(env: Any, name: str) -> tuple[Space, Space]:
    """The zoo spaces of an env's observations and actions. Raises: EnvError if one is missing or not supported."""
    for role in ('observation', 'action'):
        if not hasattr(env, f'{role}_space'):
            kind = type(getattr(env, 'unwrapped', env)).__name__
            raise EnvContractError(
                f'env {name!r}: the {kind} that was made has no {role}_space; '
                'give it one, e.g. gymnasium.spaces.Box or Discrete.'
            )
    return convert_space(env.observation_space, 'observation', name), convert_space(env.action_space, 'action', name)


class OldGymEnv(gymnasium.Env):
    """Wraps an env of another library, such as old gym, as a gymnasium.Env.

    Its step may return (obs, reward, done, info), where info['TimeLimit.truncated'] marks time limits, or five values.
    Its reset may return obs or (obs, info), and may take a seed; otherwise its method `seed` is called.
    """

    def __init__(self, env: Any, name: str) -> None:
        self._env = env
        self._name = name
        obs_space, action_space = env_spaces(env, name)
        self.observation_space = _gymnasium_space(obs_space)
        self.action_space = _gymnasium_space(action_space)
        self.metadata = dict(getattr(env, 'metadata', None) or {})
        inner = getattr(
            env, 'unwrapped', env
        )  # wrappers of old gym pass on any keyword, even to an env that does not take it
        self._reset_takes_seed = all(takes_keyword(e.reset, 'seed') for e in (env, inner))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and not self._reset_takes_seed and callable(getattr(self._env, 'seed', None)):
            self._env.seed(seed)
        result = self._env.reset(seed=seed) if self._reset_takes_seed else self._env.reset()
        obs, info = result if _is_obs_and_info(result) else (result, {})
        return self._cast(obs), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self._env.step(action)
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
            return self._cast(obs), reward, bool(terminated), bool(truncated), info
        if len(result) != 4:
            raise EnvContractError(
                f'env {self._name!r}: step returned {len(result)} values, wanted obs, reward, '
                'terminated, truncated, info (or obs, reward, done, info); return these.'
            )
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get('TimeLimit.truncated', False))
        return self._cast(obs), reward, bool(done) and not truncated, truncated, info

    def close(self) -> None:
        if hasattr(self._env, 'close'):
            self._env.close()

    def _cast(self, obs: Any) -> Any:
        # old envs often return float64 for a float32 space; copied, since some reuse their array
        return np.array(obs, dtype=self.observation_space.dtype) if self.observation_space.shape else obs


def takes_keyword(function: Any, keyword: str) -> bool:
    """Whether `function` can be called with this keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind is not p.POSITIONAL_ONLY) for p in parameters)


def _gymnasium_space(space: Space) -> gymnasium.Space:
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n, start=space.start)
    dtype: Any = np.dtype(space.dtype)
    return gymnasium.spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype)


def _is_obs_and_info(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
