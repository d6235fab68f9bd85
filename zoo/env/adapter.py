"""Adapts spaces and envs of other libraries, recognised by their attributes and not by their class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from zoo.core.action_map import Action
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, n_values
from zoo.env.entry_names import check_names, name_of, renaming, with_keys, with_names
from zoo.env.errors import BrokenContractError, EnvContractError, UnsupportedEnvError
from zoo.env.validation import as_flag

ROLES = ('observation', 'action')
SUPPORTED = 'Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these'
WAY_OUT = {
    'Text': 'encode the text as a MultiDiscrete with one entry for each character',
    'Sequence': "pad it by env.wrappers=[{type: 'zoo.env.padded_sets:PaddedSets', n_max: 16}], where 16 is the most entries",
    'Graph': "give its nodes as a Sequence, with what edges say of them, which 'zoo.env.padded_sets:PaddedSets' pads for the encoder "
    "'entities'; or nodes and edges as Box arrays of a fixed size",
    'OneOf': 'use a Dict that holds a Discrete choice and all alternatives',
}
WAY_OUT_OF_ACTIONS = {
    **WAY_OUT,
    'Sequence': 'pad the sequence to a fixed length',
    'Graph': 'give nodes and edges as Box arrays of a fixed size',
}
OLD_METADATA = {'render.modes': 'render_modes', 'video.frames_per_second': 'render_fps'}
"""Entries of the metadata of envs of old gym, and their names in gymnasium."""
_METHODS = {
    'reset': '`def reset(self, *, seed=None, options=None)` that returns `obs, info`',
    'step': '`def step(self, action)` that returns `obs, reward, terminated, truncated, info`',
}


def convert_space(space: object, role: str, name: str, path: str = '', droppable: str | None = None) -> Space:
    """The zoo space of a gymnasium or old gym space.

    Args:
      role: 'observation' or 'action';  name: of the env;  path: of this space in the env's. All are for error messages.
      droppable: path of the entry with this space that env.drop_obs can leave out, '' if there is none; None: as `path`.
    Raises: UnsupportedEnvError that names a leaf of another kind, an empty leaf, or one with bounds that are no numbers.
    """
    kinds = [kind.__name__ for kind in type(space).__mro__]
    parts = getattr(space, 'spaces', None)
    if isinstance(parts, Mapping):
        return Dict(_convert_parts(parts, role, name, path, droppable))
    dropped_path = path
    if droppable is not None:
        dropped_path = droppable
    if isinstance(parts, (tuple, list)) and 'OneOf' not in kinds:
        numbered = {str(i): part for i, part in enumerate(parts)}
        # entries of a Tuple have no names, so all of it is left out
        return Dict(_convert_parts(numbered, role, name, path, dropped_path), is_tuple=True)
    leaf = _convert_leaf(space)
    if leaf is None:
        has = f'the {role} space {space}'
        if path:
            has = f'in the entry {path!r} of its {role} space {space}'
        do = _way_out(space, role, dropped_path)
        raise UnsupportedEnvError(f'env {name!r} has {has}, but supported are {SUPPORTED}; {do}.')
    fault = space_fault(leaf)
    if fault:
        where = f'the {role} space'
        if path:
            where = f'the {role} space, in the entry {path!r},'
        raise UnsupportedEnvError(f'env {name!r}: {where} {fault}.')
    return leaf


def _way_out(space: object, role: str, droppable: str) -> str:
    """The remedies for a leaf of a kind that is not supported. Args: droppable: as of `convert_space`."""
    kinds = [kind.__name__ for kind in type(space).__mro__]
    forms = WAY_OUT
    if role == 'action':
        forms = WAY_OUT_OF_ACTIONS
    form = next((forms[kind] for kind in kinds if kind in forms), 'give it as arrays of numbers of a fixed shape')
    if role != 'observation' or not droppable:
        return f'wrap the env: {form}'
    ways = [f'leave the entry out by env.drop_obs=[{droppable}]']
    if type(space).__module__.startswith('minigrid.'):
        ways.append('see the image alone by env.wrappers=[minigrid.wrappers:ImgObsWrapper]')
    return f'{", ".join(ways)}, or wrap the env: {form}'


def _convert_parts(
    parts: Mapping[Any, Any], role: str, name: str, path: str, droppable: str | None
) -> dict[str, Space]:
    check_names(parts, role, name)
    if not parts:
        where = ''
        if path:
            where = f' at {path!r}'
        raise UnsupportedEnvError(
            f'env {name!r}: the {role} space has no entries{where}, wanted one or more; leave empty ones out.'
        )
    prefix = ''
    if path:
        prefix = f'{path}.'
    return {
        name_of(key): convert_space(part, role, name, prefix + name_of(key), droppable) for key, part in parts.items()
    }


def _convert_leaf(space: Any) -> Discrete | MultiDiscrete | MultiBinary | Box | None:
    """The zoo space of a leaf; None if its kind is not supported."""
    shape: tuple[int, ...] | None = getattr(space, 'shape', None)
    if hasattr(space, 'nvec'):
        nvec = np.asarray(space.nvec)
        start = np.broadcast_to(getattr(space, 'start', 0), nvec.shape)
        dtype = _integer_type(space, MultiDiscrete.dtype)
        return MultiDiscrete(tuple(map(int, nvec.ravel())), tuple(map(int, start.ravel())), nvec.shape, dtype)
    if hasattr(space, 'n'):  # MultiBinary has it too, and a shape
        if shape:
            return MultiBinary(tuple(map(int, shape)), _integer_type(space, MultiBinary.dtype))
        return Discrete(int(space.n), int(getattr(space, 'start', 0)), _integer_type(space, Discrete.dtype))
    if hasattr(space, 'low') and hasattr(space, 'high') and shape is not None and np.dtype(space.dtype).kind in 'biuf':
        low = np.broadcast_to(np.asarray(space.low, dtype=np.float64), shape)
        high = np.broadcast_to(np.asarray(space.high, dtype=np.float64), shape)
        return Box(low.copy(), high.copy(), np.dtype(space.dtype).name)
    return None


def _integer_type(space: object, usual: str) -> str:
    """The name of a space's number type; the usual one where the space has none that numpy knows as integers or bools."""
    dtype_of_space = getattr(space, 'dtype', None)
    if dtype_of_space is None:
        return usual
    try:
        dtype = np.dtype(dtype_of_space)
    except TypeError:
        return usual
    if dtype.kind in 'biu':
        return dtype.name
    return usual


def space_fault(leaf: Discrete | MultiDiscrete | MultiBinary | Box) -> str | None:
    """The fault of a space of a supported kind, with the wanted value and the remedy; None if it has no fault."""
    if 0 in leaf.shape:
        return f'has the shape {leaf.shape}, wanted 1 or more in each dimension; leave out what is empty'
    fewest = min(n_values(leaf), default=1)
    if fewest < 1:
        return f'has {fewest} values, wanted 1 or more; correct its n or nvec'
    if isinstance(leaf, Box) and not (leaf.low <= leaf.high).all():  # a comparison with nan is false
        at = np.argwhere(~(leaf.low <= leaf.high))[0]
        bounds = f'{leaf.low[tuple(at)]:g} to {leaf.high[tuple(at)]:g} at {at.tolist()}'
        return f'has the bounds {bounds}, wanted numbers (or -inf and inf), the lower one first; correct the space'
    return None


def env_spaces(env: object, name: str) -> tuple[Space, Space]:
    """The zoo spaces of an env's observations and actions. Raises: EnvError if one is missing or not supported."""
    if env is None or isinstance(env, type):
        raise EnvContractError(f'env {name!r}: what makes it returned {env}; return the env.')
    for role in ROLES:
        if not hasattr(env, f'{role}_space'):
            kind = type(getattr(env, 'unwrapped', env)).__name__
            raise EnvContractError(
                f'env {name!r}: the {kind} that was made has no {role}_space; '
                'give it one, e.g. gymnasium.spaces.Box or Discrete.'
            )
    obs_space, action_space = (convert_space(getattr(env, f'{role}_space'), role, name) for role in ROLES)
    return obs_space, action_space


def check_methods(env: object, name: str) -> None:
    """Checks that the env defines `reset` and `step`. Raises: EnvContractError."""
    while isinstance(env, gymnasium.Wrapper) and type(env).__module__.startswith('gymnasium.'):
        env = env.env  # only gymnasium's wrappers: a user's wrapper may define both without its env
    for name_of_method, wanted in _METHODS.items():
        method = getattr(env, name_of_method, None)
        if not callable(method) or getattr(method, '__func__', None) is getattr(gymnasium.Env, name_of_method):
            raise EnvContractError(
                f'env {name!r}: its class {type(env).__name__} has no method `{name_of_method}`; write {wanted}.'
            )


class OldGymEnv(gymnasium.Env):
    """Wraps an env of another library, such as old gym, as a gymnasium.Env.

    Its step may return (obs, reward, done, info), where info['TimeLimit.truncated'] marks time limits, or five values.
    Its reset may return obs or (obs, info), and may take a seed; otherwise its method `seed` is called.
    """

    def __init__(self, env: Any, name: str, obs_space: Space | None = None) -> None:
        """Args: obs_space: what of the env's observation space is seen; None: all of it."""
        self._env = env
        self._name = name
        if obs_space is None:
            obs_space, action_space = env_spaces(env, name)
        else:
            action_space = convert_space(env.action_space, 'action', name)
        check_methods(env, name)
        self.observation_space = gymnasium_space(obs_space)
        self.action_space = gymnasium_space(action_space)
        self._obs_names = renaming(env.observation_space)
        self._action_names = renaming(env.action_space)
        self.action_masks = getattr(env, 'action_masks', None)
        # an old env may also return a tuple of two as its observation
        self._is_pair = isinstance(obs_space, Dict) and obs_space.is_tuple and len(obs_space.spaces) == 2
        self.metadata = _metadata(env)
        # wrappers of old gym pass on any keyword, even to an env that does not take it
        inner_reset = getattr(getattr(env, 'unwrapped', env), 'reset', env.reset)
        self._reset_takes_seed = takes_keyword(env.reset, 'seed') and takes_keyword(inner_reset, 'seed')
        self.takes_options = takes_keyword(env.reset, 'options') and takes_keyword(inner_reset, 'options')

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and not self._reset_takes_seed and callable(getattr(self._env, 'seed', None)):
            self._env.seed(seed)
        kwargs: dict[str, Any] = {}
        if self._reset_takes_seed:
            kwargs['seed'] = seed
        if options and self.takes_options:
            kwargs['options'] = options
        result = self._env.reset(**kwargs)
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        if self._is_pair and has_info:
            has_info = isinstance(result[0], tuple)
        if has_info:
            obs, info = result
            return self._seen(obs), info
        return self._seen(result), {}

    def _seen(self, obs: Any) -> Any:
        """An observation under the names and in the number types of the space."""
        return _cast(self.observation_space, with_names(self._obs_names, obs))

    def step(self, action: Action) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self._env.step(with_keys(self._action_names, action))
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
            terminated = as_flag('terminated', terminated)
            truncated = as_flag('truncated', truncated)
        elif len(result) == 4:
            obs, reward, done, info = result
            done = as_flag('done', done)
            truncated = done and bool(info.get('TimeLimit.truncated', False))
            terminated = done and not truncated
        else:
            raise EnvContractError(
                f'env {self._name!r}: step returned {len(result)} values, wanted obs, reward, '
                'terminated, truncated, info (or obs, reward, done, info); return these.'
            )
        return self._seen(obs), reward, terminated, truncated, info

    def render(self) -> Any:
        """The picture of the present state, of an env that draws. Raises: NotImplementedError if it has no render()."""
        render = getattr(self._env, 'render', None)
        if not callable(render):
            raise NotImplementedError(f'{type(self._env).__name__} has no render()')
        # wrappers of old gym pass on any keyword, see above
        if takes_keyword(render, 'mode') and takes_keyword(_innermost(self._env).render, 'mode'):
            return render(mode='rgb_array')
        return render()

    def close(self) -> None:
        if hasattr(self._env, 'close'):
            self._env.close()


def _metadata(env: object) -> dict[str, Any]:
    metadata = dict(getattr(env, 'metadata', None) or {})
    for old, new in OLD_METADATA.items():
        if old in metadata:
            metadata.setdefault(new, metadata[old])
    return metadata


def _innermost(env: Any) -> Any:
    inner = getattr(env, 'unwrapped', env)
    if hasattr(inner, 'render'):
        return inner
    return env


def takes_options(env: gymnasium.Env) -> bool:
    """Whether the reset of an env reads its options: that of its outermost wrapper which does not only pass them on."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper) and _passes_on(layer):
        layer = layer.env
    if isinstance(layer, OldGymEnv):
        return layer.takes_options
    return takes_keyword(layer.reset, 'options')


def _passes_on(wrapper: gymnasium.Wrapper) -> bool:
    """Whether the reset of a wrapper gives the env inside all arguments: those of gymnasium, and reset(self, **kwargs)."""
    reset = type(wrapper).reset
    kinds = [p.kind for name, p in inspect.signature(reset).parameters.items() if name != 'self']
    return reset.__module__.startswith('gymnasium.') or kinds == [inspect.Parameter.VAR_KEYWORD]


def takes_keyword(function: Callable[..., object], keyword: str) -> bool:
    """Whether `function` can be called with this keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or (p.name == keyword and p.kind is not p.POSITIONAL_ONLY) for p in parameters)


def takes_optional_seed(creator: Any) -> bool:
    """Whether a function or class has an argument `seed` whose default is None."""
    try:
        seed = inspect.signature(creator).parameters.get('seed')
    except (TypeError, ValueError):  # no callable, or one in C
        return False
    return seed is not None and seed.default is None and seed.kind is not seed.POSITIONAL_ONLY


def creator_of(entry_point: object) -> Callable[..., Any]:
    """The class or function of a gymnasium entry point, which may be text. Raises: ImportError, AttributeError."""
    if isinstance(entry_point, str):
        return load_env_creator(entry_point)
    return entry_point  # type: ignore[return-value]


def restore_seed_methods(space: gymnasium.Space) -> None:
    """Deletes a number that an env wrote in the place of the method `seed` of a space, which gymnasium calls later."""
    if not callable(getattr(space, 'seed', None)):
        vars(space).pop('seed', None)
    parts = getattr(space, 'spaces', ())
    if isinstance(parts, Mapping):
        parts = parts.values()
    for part in parts:
        restore_seed_methods(part)


def mask_method(env: gymnasium.Env) -> Callable[[], Any] | None:
    """The method action_masks (as sb3-contrib calls it) of an env or of one of its wrappers."""
    if not env.has_wrapper_attr('action_masks'):
        return None
    method = env.get_wrapper_attr('action_masks')
    if callable(method):
        return method
    return None


def check_limits(env: object, n_env: int, n_step: int | None, training: bool, name: str) -> None:
    """Checks the numbers against the limits of an env or its class, the attributes max_num_envs and max_horizon.

    Args: n_step: env.max_episode_steps.
    Raises: UnsupportedEnvError if n_env envs, or episodes of n_step steps, are more than it supports.
    """
    most = limit_of(env, 'max_num_envs')
    if most is not None and n_env > most:
        key = 'env.evaluator_env_num'
        if training:
            key = 'env.collector_env_num'
        raise UnsupportedEnvError(
            f'{key} is {n_env} but {name!r} supports {most} envs at most, its max_num_envs; use {most} or fewer.'
        )
    most = limit_of(env, 'max_horizon')
    if most is not None and n_step is not None and n_step > most:
        raise UnsupportedEnvError(
            f'env.max_episode_steps is {n_step} but {name!r} supports episodes of {most} steps at most, '
            f'its max_horizon; use {most} or fewer, or leave it out.'
        )


def limit_of(env: object, attribute: str) -> int | None:
    """A limit that an env or its class gives, None if it gives none."""
    inner = env
    if not isinstance(env, type):
        inner = getattr(env, 'unwrapped', env)
    value = getattr(inner, attribute, None)
    if isinstance(value, int) and value > 0:
        return value
    return None


def gymnasium_space(space: Space) -> gymnasium.Space:
    """The gymnasium space of a zoo space."""
    if isinstance(space, Dict):
        parts = {key: gymnasium_space(part) for key, part in space.spaces.items()}
        if space.is_tuple:
            return gymnasium.spaces.Tuple(parts.values())
        return gymnasium.spaces.Dict(parts)
    return _GYMNASIUM[type(space)](space)


_GYMNASIUM: dict[type, Callable[[Any], gymnasium.Space]] = {
    Discrete: lambda space: gymnasium.spaces.Discrete(space.n, start=space.start, **_dtype_argument(space)),
    MultiDiscrete: lambda space: gymnasium.spaces.MultiDiscrete(
        np.reshape(space.nvec, space.shape), start=np.reshape(space.start, space.shape), dtype=np.dtype(space.dtype)
    ),
    MultiBinary: lambda space: _multi_binary(space.shape),
    Box: lambda space: gymnasium.spaces.Box(
        _as_bound(space.low, space.dtype), _as_bound(space.high, space.dtype), dtype=np.dtype(space.dtype).type
    ),
}


def _multi_binary(shape: tuple[int, ...]) -> gymnasium.spaces.MultiBinary:
    if len(shape) == 1:
        return gymnasium.spaces.MultiBinary(shape[0])
    return gymnasium.spaces.MultiBinary(shape)


def _dtype_argument(space: Discrete) -> dict[str, Any]:
    """The argument dtype of a Discrete, which the first versions of gymnasium 1 do not know."""
    if space.dtype == Discrete.dtype:
        return {}
    return {'dtype': np.dtype(space.dtype)}


def _as_bound(bound: np.ndarray, name: str) -> np.ndarray:
    dtype = np.dtype(name)
    if dtype.kind not in 'iu' or dtype.itemsize < 8:
        return bound.astype(dtype)
    low = np.iinfo(dtype).min
    high = np.iinfo(dtype).max
    # float(high) is larger than high: clip again as int
    exact = [min(max(int(x), low), high) for x in np.clip(bound, float(low), float(high)).ravel()]
    return np.array(exact, dtype=dtype).reshape(bound.shape)


def _cast(space: gymnasium.Space, obs: object) -> object:
    """A copy in the dtypes of the space: old envs often give float64 for a float32 space, and some reuse one array."""
    if isinstance(space, gymnasium.spaces.Dict) and isinstance(obs, Mapping):
        entries = dict(obs)
        for key in space.spaces.keys() & entries.keys():
            entries[key] = _cast(space.spaces[key], entries[key])
        return entries
    if isinstance(space, gymnasium.spaces.Tuple) and isinstance(obs, tuple):
        return tuple(_cast(part, x) for part, x in zip(space.spaces, obs, strict=False))
    if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return obs
    array = np.asarray(obs)
    dtype = np.dtype(space.dtype)
    cast = array.astype(dtype)
    if dtype.kind != 'f' and not np.can_cast(array.dtype, dtype) and not np.array_equal(cast, array):
        at = np.argwhere(cast != array)[0]
        got = f'the observation has {array[tuple(at)]} ({array.dtype})'
        wanted = f'{dtype} as in observation_space'
        raise BrokenContractError(got, wanted, 'scale it to what the space says, or correct the space')
    return cast
