"""Envs with the interface of dm_env, such as those of dm_control and bsuite, as gymnasium envs; no package is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from zoo.core.spaces import Raw
from zoo.env.errors import BrokenContractError, UnsupportedEnvError

LAST = 2  # dm_env.StepType.LAST
Spec = Any  # of a package that zoo does not import: a spec, or a dict, list or tuple of specs


def is_dm_env(env: object) -> bool:
    """Whether an env has specs in place of spaces, as dm_env's have."""
    specs = (getattr(env, name, None) for name in ('observation_spec', 'action_spec', 'step', 'reset'))
    return not hasattr(env, 'observation_space') and all(callable(spec) for spec in specs)


class DmEnv(gymnasium.Env):
    """A dm_env as an env of gymnasium.

    The last step of an episode is terminated if its discount is 0, else truncated. A discount between 0 and 1 that is not at an
    end is refused: policy.collect.discount_factor is one for all steps.
    Numbers of an observation that have no bounds become float32 in a Box without bounds; an entry of shape () one of shape (1,).
    Actions that are integers with bounds are choices. The env gets actions in the shape and number type of its spec.
    """

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 25}  # noqa: RUF012

    def __init__(self, env: Any, name: str) -> None:
        self._env = env
        self._name = name
        self._action_spec = env.action_spec()
        self.observation_space = _space(env.observation_spec(), name, 'observation')
        self.action_space = _space(self._action_spec, name, 'action')
        self.render_mode = 'rgb_array'

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed(seed)
        return _cast(self.observation_space, self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        timestep = self._env.step(_as_specified(self._action_spec, action))
        obs = _cast(self.observation_space, timestep.observation)
        discount = 1.0
        if timestep.discount is not None:
            discount = float(timestep.discount)
        is_last = int(timestep.step_type) == LAST
        if not is_last and discount != 1.0:
            raise BrokenContractError(
                f'the discount of a step that is not the last one is {discount:g}',
                '1',
                'discount by policy.collect.discount_factor alone, or give the env another discount',
            )
        if timestep.reward is None:
            raise BrokenContractError('the reward of a step is None', 'a number', 'call reset before the first step')
        return obs, float(timestep.reward), is_last and discount == 0, is_last and discount != 0, {}

    def render(self) -> Any:
        """A picture of the present state, where the env has MuJoCo's physics. Raises: NotImplementedError elsewhere."""
        physics = getattr(self._env, 'physics', None)
        if physics is None:
            raise NotImplementedError(f'{type(self._env).__name__} has no physics to draw')
        return physics.render(height=240, width=320, camera_id=0)

    def close(self) -> None:
        if hasattr(self._env, 'close'):
            self._env.close()

    def _seed(self, seed: int) -> None:
        """Seeds every generator that the env or its task keeps; dm_env itself has no way to do so."""
        for owner in (self._env, getattr(self._env, 'task', None)):
            for attribute, value in list(getattr(owner, '__dict__', {}).items()):
                if isinstance(value, np.random.RandomState):
                    setattr(owner, attribute, np.random.RandomState(seed % (1 << 32)))
                elif isinstance(value, np.random.Generator):
                    setattr(owner, attribute, np.random.default_rng(seed))


def _space(spec: Spec, name: str, role: str) -> gymnasium.Space:
    """The space of a spec of dm_env, or of a dict, list or tuple of specs. Raises: UnsupportedEnvError."""
    if isinstance(spec, Mapping):
        return gymnasium.spaces.Dict({key: _space(part, name, role) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return gymnasium.spaces.Tuple([_space(part, name, role) for part in spec])
    if hasattr(spec, 'num_values'):
        return gymnasium.spaces.Discrete(int(spec.num_values))
    dtype = np.dtype(getattr(spec, 'dtype', object))
    if dtype.kind not in 'biuf':
        raise UnsupportedEnvError(
            f'env {name!r} has the {role} spec {spec}, but supported are arrays of numbers; leave it out by a wrapper.'
        )
    if role == 'action' and dtype.kind in 'iu' and hasattr(spec, 'minimum'):
        return _choices(spec)
    shape = tuple(spec.shape) or (1,)
    if dtype.kind == 'f' or not hasattr(spec, 'minimum'):
        dtype = np.dtype(np.float32)
    low, high = (
        np.broadcast_to(np.asarray(getattr(spec, bound, unbounded), dtype), shape).copy()
        for bound, unbounded in (('minimum', -np.inf), ('maximum', np.inf))
    )
    return gymnasium.spaces.Box(low, high, shape, dtype.type)


def _choices(spec: Spec) -> gymnasium.Space:
    """The space of integers with bounds: one choice for shape (), else as many as there are entries."""
    first = np.broadcast_to(np.asarray(spec.minimum, np.int64), spec.shape)
    n = np.broadcast_to(np.asarray(spec.maximum, np.int64), spec.shape) - first + 1
    if spec.shape == ():
        return gymnasium.spaces.Discrete(int(n), start=int(first))
    return gymnasium.spaces.MultiDiscrete(n, start=first)


def _as_specified(spec: Spec, action: Raw) -> Any:
    """An action in the form of its spec."""
    if isinstance(spec, Mapping):
        return {key: _as_specified(part, action[key]) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        return type(spec)([_as_specified(part, x) for part, x in zip(spec, action, strict=True)])
    return np.asarray(action, spec.dtype).reshape(spec.shape)[()]  # of shape () a number, as for keys of dicts


def _cast(space: gymnasium.Space, obs: Any) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _cast(part, obs[key]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_cast(part, x) for part, x in zip(space.spaces, obs, strict=True))
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(obs)
    return np.array(obs, space.dtype).reshape(space.shape)
