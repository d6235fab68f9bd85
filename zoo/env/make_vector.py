"""Makes vector envs from the config section `env`: one vector, or groups for double-buffered sampling."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any, Literal

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode

from zoo.env.batched_space import quicken
from zoo.env.config import EnvConfig, env_config, own_copy
from zoo.env.errors import EnvContractError, UnsupportedEnvError, locate, made_at
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.make import EnvMaker, env_name, find_env, raise_bad_kwargs, raise_missing_extra
from zoo.env.own_vector import OwnVector, takes_one_seed
from zoo.env.restarts import Restarts
from zoo.env.serial import SerialVectorEnv
from zoo.env.steering import EnvSettings
from zoo.env.tensor.base import TensorEnv
from zoo.env.tensor.vector import TensorVectorEnv
from zoo.env.vector import VectorEnv, autoreset_name
from zoo.env.workers import WorkerVectorEnv
from zoo.env.wrappers import wrapper_fields

AnyVectorEnv = VectorEnv | TensorVectorEnv


def make_vector_env(
    cfg: EnvConfig | Mapping[str, Any],
    n_env: int,
    training: bool = False,
    device: str = 'cpu',
    first: int | None = None,
    restarts: Restarts | None = None,
    camera: Any = None,
) -> AnyVectorEnv:
    """`n_env` envs of the config, vectorized as it says.

    Args:
      training: the envs are for training; a family may then clip rewards or end episodes early.
      device: of tensor envs (env.id=torch) and their Timesteps; all others run on the CPU.
      first: index of the first env, if they are one of several groups; messages then show it.
      restarts: counts the envs made anew (env.on_error=restart), of other vectors too; None: of these alone.
      camera: a `zoo.env.film.Camera` that is to see this one env.
    Raises: UnknownEnvError, MissingExtraError, EnvKwargsError or ConfigError; UnsupportedEnvError if the env lacks the
      vectorization or the autoreset mode, or has spaces that zoo does not support.
    """
    cfg = env_config(cfg)
    name = env_name(cfg) if first is None else f'{env_name(cfg)}[{first}:{first + n_env}]'
    source = find_env(cfg.id, cfg.game)
    how = _vectorization(cfg, source)
    env: gymnasium.vector.VectorEnv | TensorEnv
    if isinstance(source, EnvFamily):
        is_filmed = camera is not None
        request = EnvRequest(name, cfg.game or '', n_env, training, cfg.max_episode_steps, device, is_filmed)
        with locate(made_at(name)):
            env = _make_family(cfg, source, request)
    elif how == 'batched':
        assert isinstance(source, EnvSpec)
        with locate(made_at(name)):
            env = _make_batched(cfg, source, n_env)
    else:
        mode = AutoresetMode[('same_step' if cfg.autoreset == 'auto' else cfg.autoreset).upper()]
        n_all = n_env if first is None else cfg.collector_env_num
        env_fns = [EnvMaker(cfg, None if how == 'sync' else cfg.step_timeout, n_all, training)] * n_env
        if cfg.on_error == 'raise':
            restarts = None
        elif restarts is None:
            restarts = Restarts(cfg.max_restarts)
        env = (
            SerialVectorEnv(env_fns, mode, name, restarts, cfg.step_timeout)
            if how == 'sync'
            else WorkerVectorEnv(env_fns, mode, cfg.step_timeout, name, restarts)
        )
    one_seed = _one_seed(source, env, how)
    if camera is not None:
        with ExitStack() as undo:
            undo.callback(getattr(env, 'close', lambda: None))
            env = camera.attach(env)
            undo.pop_all()
    vector = (
        TensorVectorEnv(env, cfg, name, n_env, device, first or 0)
        if isinstance(env, TensorEnv)
        else VectorEnv(
            env, cfg, name, one_seed, torch.device(device) if device.startswith('cuda') else None, first or 0
        )
    )
    is_copy = isinstance(source, OwnVector) and source.is_given and not training
    if vector.n_env != n_env and not is_copy:
        vector.close()
        raise EnvContractError(
            f'env {name!r}: {vector.n_env} envs were made, wanted {n_env}; make as many as '
            'are asked for (EnvRequest.n_env, or num_envs).'
        )
    if cfg.autoreset not in ('auto', vector.autoreset):
        vector.close()
        sync = '' if isinstance(source, EnvFamily) else ", or env.vectorization 'sync'"
        raise UnsupportedEnvError(
            f"env.autoreset is {cfg.autoreset!r} but the batched {name!r} does {vector.autoreset!r}; use 'auto'{sync}."
        )
    settings = EnvSettings(cfg)
    if settings.changes:
        with ExitStack() as undo:
            undo.callback(vector.close)
            settings.apply([vector], 0)
            undo.pop_all()
    return vector


def make_env_groups(
    cfg: EnvConfig | Mapping[str, Any],
    device: str = 'cpu',
    restarts: Restarts | None = None,
    first: int | None = None,
) -> list[AnyVectorEnv]:
    """The training envs of a config, in groups of equal size: see env.collector_group_num.

    Args: device: of the policy; restarts: as of `make_vector_env`, by default one for all groups; first: index of their
      first env, where other processes have others; None: these are all.
    Raises: as `make_vector_env`; UnsupportedEnvError for more than one group of tensor envs.
    """
    cfg = env_config(cfg)
    n_env, n_group = cfg.collector_env_num, cfg.collector_group_num
    if n_group is None:
        has_two_places = device.startswith('cuda') or cfg.vectorization == 'async'
        n_group = 2 if has_two_places and n_env % 2 == 0 else 1
    if n_group == 1:
        return [make_vector_env(cfg, n_env, training=True, device=device, first=first, restarts=restarts)]
    restarts = Restarts(cfg.max_restarts) if restarts is None else restarts
    groups: list[AnyVectorEnv] = []
    with ExitStack() as undo:
        for start in range(first or 0, (first or 0) + n_env, n_env // n_group):
            group = make_vector_env(cfg, n_env // n_group, training=True, device=device, first=start, restarts=restarts)
            if isinstance(group, TensorVectorEnv):  # then all of them are
                return _one_group(cfg, device, first)
            groups.append(undo.enter_context(closing(group)))
        undo.pop_all()
    return groups


def _one_seed(source: Any, env: Any, how: str) -> bool:
    """Whether a reset of the vector takes one int rather than one for each env."""
    if isinstance(source, OwnVector):
        return takes_one_seed(env)
    return source.one_seed if isinstance(source, EnvFamily) else how == 'batched'


def _one_group(cfg: EnvConfig, device: str, first: int | None) -> list[AnyVectorEnv]:
    """The group of tensor envs."""
    if cfg.collector_group_num is not None:
        raise UnsupportedEnvError(
            f'env.collector_group_num is {cfg.collector_group_num} but {env_name(cfg)!r} is a tensor program on the '
            'device of the policy, which gains nothing from groups; leave it out.'
        )
    return [make_vector_env(cfg, cfg.collector_env_num, training=True, device=device, first=first)]


def vectorization_of(cfg: EnvConfig) -> Literal['sync', 'async', 'batched']:
    """How the envs of a config step. Raises: UnsupportedEnvError, UnknownEnvError, as `make_vector_env`."""
    return _vectorization(cfg, find_env(cfg.id, cfg.game))


def _vectorization(cfg: EnvConfig, source: Any) -> Literal['sync', 'async', 'batched']:
    wrapped = wrapper_fields(cfg)
    if cfg.on_error == 'restart' and (isinstance(source, EnvFamily) or cfg.vectorization == 'batched'):
        raise UnsupportedEnvError(
            f"env.on_error is 'restart' but {env_name(cfg)!r} steps all its envs at once, of which none can be made anew "
            "alone; use 'raise', or env.vectorization 'sync' or 'async' where there is such."
        )
    if isinstance(source, EnvFamily):
        if cfg.vectorization in ('sync', 'async'):
            raise UnsupportedEnvError(
                f'env.vectorization is {cfg.vectorization!r} but {env_name(cfg)!r} steps all its '
                "envs at once; use 'auto'."
            )
        if wrapped:
            raise UnsupportedEnvError(
                f'{wrapped[0]} is set but {env_name(cfg)!r} steps all its envs at once, and the wrapper that it needs '
                'is one of single envs; leave it out.'
            )
        return 'batched'
    has_batched = isinstance(source, EnvSpec) and source.vector_entry_point is not None
    if cfg.vectorization == 'batched' and not has_batched:
        raise UnsupportedEnvError(
            f"env.vectorization is 'batched' but {env_name(cfg)!r} registers no batched version; "
            "use 'auto', 'sync' or 'async'."
        )
    if cfg.vectorization == 'batched' and wrapped:
        raise UnsupportedEnvError(
            f"{wrapped[0]} is set but env.vectorization is 'batched', and the wrapper that it needs is one of single "
            'envs; use env.vectorization=sync.'
        )
    if cfg.vectorization != 'auto':
        return cfg.vectorization
    single = bool(wrapped) or cfg.on_error == 'restart' or cfg.reset_options != {}
    return 'batched' if has_batched and not single and _batched_fits(cfg, source) else 'sync'


def _batched_fits(cfg: EnvConfig, spec: EnvSpec) -> bool:
    """Whether the batched version fits the config; used for 'auto', which falls back to sync."""
    entry: Any = spec.vector_entry_point
    if isinstance(entry, str):
        try:
            entry = load_env_creator(entry)
        except ImportError:
            return False
    mode = getattr(entry, 'metadata', {}).get('autoreset_mode')
    if spec.additional_wrappers or mode is None or cfg.autoreset not in ('auto', autoreset_name(mode)):
        return False
    try:
        inspect.signature(entry).bind(num_envs=1, **_batched_kwargs(cfg, spec))
    except TypeError:
        return False
    return True


def _make_family(
    cfg: EnvConfig,
    family: EnvFamily,
    request: EnvRequest,
) -> gymnasium.vector.VectorEnv | TensorEnv:
    options = family.read_options(cfg.kwargs)
    if options is not None:
        return family.make(request, options)
    try:
        return family.make(request, **own_copy(cfg.kwargs))
    except TypeError as error:
        raise_bad_kwargs(family.make, dict.fromkeys(list(inspect.signature(family.make).parameters)[:1]), cfg, error)
        raise


def _batched_kwargs(cfg: EnvConfig, spec: EnvSpec) -> dict[str, Any]:
    limit = spec.max_episode_steps if cfg.max_episode_steps is None else cfg.max_episode_steps
    return {**spec.kwargs, **({} if limit is None else {'max_episode_steps': limit}), **own_copy(cfg.kwargs)}


def _make_batched(cfg: EnvConfig, spec: EnvSpec, n_env: int) -> gymnasium.vector.VectorEnv:
    kwargs = _batched_kwargs(cfg, spec)
    try:
        env = gymnasium.make_vec(spec, n_env, vectorization_mode='vector_entry_point', **kwargs)
    except TypeError as error:
        given = {'num_envs': n_env, **{key: value for key, value in kwargs.items() if key not in cfg.kwargs}}
        raise_bad_kwargs(spec.vector_entry_point, given, cfg, error)
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise_missing_extra(spec, error)
        raise
    quicken(env.unwrapped)
    return env
