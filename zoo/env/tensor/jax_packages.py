"""Envs of packages written in JAX, by `package:id`: gymnax, brax, mujoco_playground, jumanji and pgx.

Each is taken below its package's own wrappers, which begin the next episode within the step: gymnax's then hides the last
observation, and brax's begins every episode of a copy where its first one began.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.core.errors import did_you_mean
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Raw, Space, mask_size
from zoo.env.adapter import convert_space
from zoo.env.errors import EnvKwargsError, SeveralAgentsError, UnknownEnvError, UnsupportedEnvError
from zoo.env.families.family import EnvRequest
from zoo.env.tensor.jax_program import JaxSimulator, JaxStep, JaxTask
from zoo.env.tensor.program import State

OfPackage = Any  # an object of a package that zoo does not import
STEPS_OF_BRAX = 1000  # of an episode, as brax.envs.create has it; its envs themselves have no limit
OBS = 'obs'  # the entry with the observation, next to a mask


class GymnaxTask(JaxTask):
    """An env with the interface of gymnax 1.0: `step_env` has real ends, `is_truncated` the limit of steps."""

    def __init__(self, env: OfPackage, params: OfPackage, name: str) -> None:
        self._env = env
        self._params = params
        self.source = env
        self.obs_space = convert_space(env.observation_space(params), 'observation', name)
        self.action_space = _leaf(convert_space(env.action_space(params), 'action', name), name)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        obs, state = self._env.reset_env(key, self._params)
        return state, _as_dict(self.obs_space, obs)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        obs = _as_dict(self.obs_space, obs)
        return JaxStep(state, obs, jnp.asarray(reward), terminated, self._env.is_truncated(state, self._params))


class BraxTask(JaxTask):
    """An env with the interface of brax or mujoco_playground: actions in [-1, 1], `done` is a real end."""

    def __init__(self, env: OfPackage, limit: int | None) -> None:
        self._env = env
        self.source = env
        self.max_episode_steps = limit
        self.action_space = _box((env.action_size,), 1.0)
        self.obs_space = _space_of_sizes(env.observation_size)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self._env.reset(key)
        return state, state.obs

    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        state = self._env.step(state, action)
        return JaxStep(state, state.obs, jnp.asarray(state.reward), jnp.asarray(state.done).astype(bool))


class JumanjiTask(JaxTask):
    """An env of jumanji. Args: limit: its time limit, which the env itself no longer has.

    A MultiDiscrete whose mask has an entry for each pair of choices is one Discrete of all pairs. Choices of several agents
    are one action, and their rewards a sum.
    """

    def __init__(self, env: OfPackage, limit: int | None, name: str) -> None:
        from jumanji import specs

        self._env = env
        self.source = env
        self.max_episode_steps = limit
        spec = env.action_spec
        space = convert_space(specs.jumanji_specs_to_gym_spaces(env.observation_spec), 'observation', name)
        self._nvec: tuple[int, ...] | None = None
        if isinstance(spec, specs.DiscreteArray):
            self.action_space = Discrete(int(spec.num_values))
        elif isinstance(spec, specs.MultiDiscreteArray):
            nvec = tuple(int(n) for n in np.ravel(spec.num_values))
            self.action_space = MultiDiscrete(nvec, (0,) * len(nvec), np.shape(spec.num_values))
            if _mask_shape(space) == nvec and len(nvec) > 1:
                self._nvec = nvec
                self.action_space = Discrete(int(np.prod(nvec)))
        elif isinstance(spec, specs.BoundedArray):
            low, high = (
                np.broadcast_to(bound, spec.shape).astype(np.float32) for bound in (spec.minimum, spec.maximum)
            )
            self.action_space = Box(low.copy(), high.copy())
        else:
            raise UnsupportedEnvError(
                f'env {name!r} has the action_spec {spec}, but supported are DiscreteArray, MultiDiscreteArray and BoundedArray.'
            )
        self.obs_space, self._has_mask = _with_mask(space, self.action_space)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, timestep = self._env.reset(key)
        return state, self._seen(timestep.observation)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        if self._nvec is not None:
            action = jnp.stack(jnp.unravel_index(action, self._nvec)).astype(jnp.int32)
        state, timestep = self._env.step(state, action)
        is_terminal = (timestep.discount == 0).all()
        is_last = timestep.last()
        obs = self._seen(timestep.observation)
        return JaxStep(state, obs, timestep.reward.sum(), is_last & is_terminal, is_last & ~is_terminal)

    def _seen(self, obs: Raw) -> Any:
        obs = _as_dict(self.obs_space, obs)
        if self._has_mask:
            obs[ACTION_MASK] = obs[ACTION_MASK].reshape(-1)
        return obs


class PgxTask(JaxTask):
    """A game of pgx with one player; a forbidden action ends it, as its mask says."""

    def __init__(self, env: OfPackage) -> None:
        self._env = env
        self.source = env
        self.action_space = Discrete(env.num_actions)
        self.obs_space = Dict({OBS: pgx_obs_space(env), ACTION_MASK: MultiBinary((env.num_actions,))})

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self._env.init(key)
        return state, self._seen(state)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> JaxStep:
        state = self._env.step(state, action, key)
        return JaxStep(state, self._seen(state), state.rewards[0], state.terminated, state.truncated)

    def _seen(self, state: State) -> dict[str, Any]:
        return {OBS: state.observation, ACTION_MASK: state.legal_action_mask}


def pgx_obs_space(env: OfPackage) -> Box:
    """The observations of a game of pgx: planes of bits, or real numbers."""
    obs = jax.eval_shape(env.init, jax.random.PRNGKey(0)).observation
    if len(obs.shape) == 3 and obs.dtype == bool:
        return Box(np.zeros(obs.shape), np.ones(obs.shape))
    return _box(obs.shape, np.inf)


def make_jax_envs(package: ModuleType, env_id: str, request: EnvRequest, /, **kwargs: Any) -> JaxSimulator:
    """The envs that a request asks for. Args: package: that names them, a key of TASKS. Raises: EnvKwargsError."""
    task = TASKS[package.__name__](package, env_id, request, kwargs)
    return JaxSimulator.of_request(task, request)


def check_id(package: ModuleType, env_id: str, name: str) -> None:
    """Raises: UnknownEnvError if a package has no env of that id."""
    known = list(IDS[package.__name__](package))
    if env_id not in known:
        hint = did_you_mean(env_id, known, f'it has {", ".join(known)}.')
        raise UnknownEnvError(f'env {name!r}: {package.__name__} has no {env_id!r}; {hint}')


def _of_gymnax(gymnax: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> JaxTask:
    """env.kwargs are those of the env's class, or fields of its params."""
    from gymnax.environments.environment import Environment

    if not hasattr(Environment, 'is_truncated'):
        raise UnsupportedEnvError(
            f'env {request.name!r}: this gymnax does not tell a limit from an end; install gymnax>=1.0.'
        )
    _, params = gymnax.make(env_id)
    fields = {key: value for key, value in kwargs.items() if hasattr(params, key)}
    env, params = _made(partial(gymnax.make, env_id), _without(kwargs, fields), request.name, takes=[*vars(params)])
    if request.max_episode_steps is not None:
        fields['max_steps_in_episode'] = request.max_episode_steps
    return GymnaxTask(env, params.replace(**fields), request.name)


def _of_brax(brax: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> JaxTask:
    from brax import envs

    env = _made(partial(envs.get_environment, env_id), kwargs, request.name)
    return BraxTask(env, STEPS_OF_BRAX)


def _of_playground(playground: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> JaxTask:
    """env.kwargs change entries of the env's config.

    Its physics is that of JAX, not the default of playground 0.2, Warp: this is for GPUs, and its contacts have no row for each env.
    """
    from mujoco_playground import registry

    config = registry.get_default_config(env_id)
    unknown = [key for key in kwargs if key not in config]
    if unknown:
        raise EnvKwargsError(
            f'env {request.name!r} does not take {unknown[0]!r} of env.kwargs: its config has {", ".join(config)}; correct the name.'
        )
    if kwargs.get('impl', 'jax') != 'jax':
        raise EnvKwargsError(
            f'env.kwargs.impl of env {request.name!r} is {kwargs["impl"]!r}, but only the physics of JAX has a state for each env; '
            'leave it out.'
        )
    if 'impl' in config:
        config.impl = 'jax'
    config.update(kwargs)
    return BraxTask(registry.load(env_id, config=config), int(config.episode_length))


def _of_jumanji(jumanji: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> JaxTask:
    """The env ends its time limit as it ends a lost game, so its own limit comes a step later than that of zoo."""
    make = partial(jumanji.make, env_id)
    env = _made(make, kwargs, request.name)
    limit = getattr(env, 'time_limit', None)
    if limit is None or 'time_limit' not in inspect.signature(type(env.unwrapped).__init__).parameters:
        return JumanjiTask(env, None, request.name)
    limit = int(request.max_episode_steps or limit)
    env = make(**{**kwargs, 'time_limit': limit + 1})
    return JumanjiTask(env, limit, request.name)


def _of_pgx(pgx: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> JaxTask:
    env = made_of_pgx(pgx, env_id, request, kwargs)
    if env.num_players > 1:
        raise SeveralAgentsError(
            f'env {request.name!r} is a game of {env.num_players} players, and this takes one of a single agent; train in it by '
            '`zoo train` or serial_pipeline, whose section agents says which policies act (docs/agents.md).'
        )
    return PgxTask(env)


def made_of_pgx(pgx: ModuleType, env_id: str, request: EnvRequest, kwargs: Mapping[str, Any]) -> OfPackage:
    """A game of pgx. Raises: EnvKwargsError for keywords that it does not take."""
    return _made(partial(pgx.make, env_id), kwargs, request.name)


TASKS: dict[str, Callable[[ModuleType, str, EnvRequest, Mapping[str, Any]], JaxTask]] = {
    'gymnax': _of_gymnax,
    'brax': _of_brax,
    'mujoco_playground': _of_playground,
    'jumanji': _of_jumanji,
    'pgx': _of_pgx,
}
IDS: dict[str, Callable[[ModuleType], Any]] = {
    'gymnax': lambda gymnax: gymnax.registered_envs,
    'brax': lambda _: importlib.import_module('brax.envs')._envs,
    'mujoco_playground': lambda playground: playground.registry.ALL_ENVS,
    'jumanji': lambda jumanji: jumanji.registered_environments(),
    'pgx': lambda pgx: pgx.available_envs(),
}


def _made(make: Callable[..., Any], kwargs: Mapping[str, Any], name: str, takes: list[str] | None = None) -> Any:
    """Makes an env. Args: takes: further keywords, for the message. Raises: EnvKwargsError for keywords that it does not take."""
    try:
        return make(**kwargs)
    except TypeError as error:
        if 'unexpected keyword' not in str(error):
            raise
        others = ''
        if takes:
            others = f' (its params have {", ".join(takes)})'
        raise EnvKwargsError(f'env {name!r} does not take env.kwargs: {error}{others}; correct the name.') from error


def _without(kwargs: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in keys}


def _leaf(space: Space, name: str) -> Leaf:
    if isinstance(space, Dict):
        raise UnsupportedEnvError(
            f'env {name!r} has a Dict or Tuple of actions, but supported are single spaces; wrap the env.'
        )
    return space


def _box(shape: tuple[int, ...], bound: float) -> Box:
    return Box(np.full(shape, -bound, np.float32), np.full(shape, bound, np.float32))


def _space_of_sizes(sizes: Raw) -> Space:
    """The space of observations of these sizes: a number, a shape, or a dict of these."""
    if isinstance(sizes, Mapping):
        return Dict({name: _space_of_sizes(each) for name, each in sizes.items()})
    if isinstance(sizes, int):
        return _box((sizes,), np.inf)
    return _box(tuple(sizes), np.inf)


def _as_dict(space: Space, obs: Raw) -> Any:
    """An observation under the names of its space: those of a NamedTuple, of a dataclass, or the places in a tuple."""
    if not isinstance(space, Dict):
        return obs
    names = list(space.spaces)
    if isinstance(obs, Mapping):
        parts = dict(obs)
    elif space.is_tuple:
        parts = dict(zip(names, obs, strict=True))
    else:
        parts = {name: getattr(obs, name) for name in names}
    return {name: _as_dict(each, parts[name]) for name, each in space.spaces.items()}


def _mask_shape(space: Space) -> tuple[int, ...] | None:
    if isinstance(space, Dict) and ACTION_MASK in space.spaces:
        return getattr(space.spaces[ACTION_MASK], 'shape', None)
    return None


def _with_mask(space: Space, actions: Leaf) -> tuple[Space, bool]:
    """The space with its entry 'action_mask' as a mask of zoo, and whether it has one. One of another size stays an entry."""
    shape = _mask_shape(space)
    n = mask_size(actions)
    if shape is None or not n or int(np.prod(shape)) != n:
        return space, False
    assert isinstance(space, Dict)
    return Dict({**space.spaces, ACTION_MASK: MultiBinary((n,))}), True
