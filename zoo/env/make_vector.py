"""Makes the vector envs of a config: families, batched envs, and single envs that step in turn or in processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec

from zoo.config.section import own_copy
from zoo.core.seeding import child_seeds, stream
from zoo.core.spaces import ACTION_MASK, mask_size
from zoo.env.adapter import convert_space, creator_of
from zoo.env.calls import env_call, locate
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config, wrapper_fields
from zoo.env.errors import STOPS, EnvContractError, NoAnswerError, UnsupportedEnvError, made_at
from zoo.env.families.family import EnvFamily, EnvRequest, OwnVector
from zoo.env.interface import AnyVectorEnv, autoreset_name
from zoo.env.make import EnvMaker, Source, env_name, explaining, find_env, seeds_constructor
from zoo.env.restarts import Restarts
from zoo.env.seeded import SeededMaker
from zoo.env.vector import VectorEnv, use_fast_action_space

if TYPE_CHECKING:
    from zoo.env.ready import ReadyEnvs
    from zoo.env.tensor.vector import TensorEnv

    MadeEnv = gymnasium.vector.VectorEnv | TensorEnv


WITHOUT_MASKS = ('gymnasium.', 'ale_py')  # packages whose batched versions have no action masks
_LOSES_MASKS: dict[str, bool] = {}  # of batched versions, by id, class and arguments


class EnvCamera(Protocol):
    """Interface of `zoo.tools.media.film.Camera`: `attach` returns the env to use in place of one that it takes pictures of."""

    def attach(self, env: MadeEnv) -> MadeEnv: ...


class MadeVector(NamedTuple):
    """The result of a config's source. one_seed: its reset takes one seed for all envs; kind: the class around it."""

    env: MadeEnv
    one_seed: bool = False
    kind: type[VectorEnv] = VectorEnv


def make_vector_env(
    cfg: EnvConfig | Mapping[str, Any],
    n_env: int,
    training: bool = False,
    device: str = 'cpu',
    first: int | None = None,
    restarts: Restarts | None = None,
    camera: EnvCamera | None = None,
    seed: int = 0,
) -> AnyVectorEnv:
    """`n_env` envs of the config, vectorized as it says.

    Args:
      training: the envs are for training; a family may then clip rewards or end episodes early.
      device: of tensor envs (env.id=torch) and their Timesteps; all others run on the CPU.
      first: index of the first env, if they are one of several groups; messages then show it.
      restarts: counts recreated envs (env.on_error=restart), also of other vector envs; None: of this one alone.
      camera: takes pictures of the env; n_env must then be 1.
      seed: of the run, from which the constructors of single envs get seeds if they take one (`seeds_constructor`).
    Raises: UnknownEnvError, MissingExtraError, EnvKwargsError or ConfigError; UnsupportedEnvError if the env lacks the
      vectorization or the autoreset mode, or has spaces that zoo does not support.
    """
    cfg = env_config(cfg)
    name = env_name(cfg)
    n_all = n_env
    if first is not None:
        name = f'{name}[{first}:{first + n_env}]'
        n_all = cfg.collector_env_num
    source = find_env(cfg.id, cfg.game)
    seeds = constructor_seeds(seed, training, first or 0, n_env)
    request = EnvRequest(
        name=name,
        game=cfg.game or '',
        n_env=n_env,
        training=training,
        max_episode_steps=cfg.max_episode_steps,
        device=device,
        render=camera is not None,
        seed=seeds[0],
        first=first or 0,
    )
    made = _make(cfg, source, request, seeds, n_all, restarts)
    n_wanted: int | None = n_env
    if isinstance(source, OwnVector) and source.is_given and not training:
        n_wanted = None  # a copy of the vector env that the user gave has as many envs as that

    def close() -> None:
        close_in_time({f'env {name!r}': getattr(made.env, 'close', lambda: None)}, cfg.step_timeout)

    with ExitStack() as undo:
        undo.callback(close)
        if camera is not None:
            made = made._replace(env=camera.attach(made.env))
        vector = _as_any_vector(made, cfg, name, n_env, device, first or 0)
        _check_made(vector, cfg, n_wanted, isinstance(source, EnvFamily))
        if cfg.schedule or cfg.reset_options:
            from zoo.env.settings import EnvSettings

            EnvSettings(cfg).apply([vector], 0)
        undo.pop_all()
    return vector


def _make(
    cfg: EnvConfig, source: Source, request: EnvRequest, seeds: list[int], n_all: int, restarts: Restarts | None
) -> MadeVector:
    """The envs that the source makes, vectorized as the config says. Args: as of `_make_single_envs`."""
    how = vectorization_of(cfg, source)
    if isinstance(source, EnvFamily):
        return _make_family(cfg, source, request)
    if isinstance(source, EnvSpec) and how == 'batched':
        with locate(made_at(request.name)):
            return MadeVector(_make_batched(cfg, source, request.n_env), one_seed=True)
    return _make_single_envs(cfg, how, seeds, n_all, request.training, request.name, restarts)


def _as_any_vector(made: MadeVector, cfg: EnvConfig, name: str, n_env: int, device: str, first: int) -> AnyVectorEnv:
    """The vector env of zoo around what was made, or that itself. Args: as of `make_vector_env`."""
    if isinstance(made.env, AnyVectorEnv):
        return made.env
    if not isinstance(made.env, gymnasium.vector.VectorEnv):
        from zoo.env.tensor.simulator import Simulator, SimulatorVectorEnv
        from zoo.env.tensor.vector import TensorVectorEnv

        if isinstance(made.env, Simulator):
            return SimulatorVectorEnv(made.env, cfg, name, device)
        return TensorVectorEnv(made.env, cfg, name, n_env, device, first)
    reader = None
    if device.startswith('cuda'):
        reader = torch.device(device)
    return made.kind(made.env, cfg, name, made.one_seed, reader, first)


def _check_made(vector: AnyVectorEnv, cfg: EnvConfig, n_env: int | None, is_family: bool) -> None:
    """Checks a new vector env. Args: n_env: the number of envs that it must have; None: any.

    Raises: EnvContractError if it has another number of envs; UnsupportedEnvError if it has another autoreset mode.
    """
    if n_env is not None and vector.n_env != n_env:
        raise EnvContractError(
            f'env {vector.name!r}: {vector.n_env} envs were made, wanted {n_env}; make as many as '
            'are asked for (EnvRequest.n_env, or num_envs).'
        )
    if cfg.autoreset not in ('auto', vector.autoreset):
        sync = ", or env.vectorization 'sync'"
        if is_family:
            sync = ''
        raise UnsupportedEnvError(
            f"env.autoreset is {cfg.autoreset!r} but the batched {vector.name!r} does {vector.autoreset!r}; use 'auto'{sync}."
        )


class SingleMakers(NamedTuple):
    """Functions that make the single envs of a vector, with their autoreset mode, and the counter of restarts, if any."""

    makers: list[Callable[[], gymnasium.Env]]
    mode: gymnasium.vector.AutoresetMode
    restarts: Restarts | None


def _single_makers(
    cfg: EnvConfig, how: str, seeds: list[int], n_all: int, training: bool, restarts: Restarts | None
) -> SingleMakers:
    """Args: seeds: for the constructors, one for each env; n_all: envs in all groups together."""
    autoreset = cfg.autoreset
    if autoreset == 'auto':
        autoreset = 'same_step'
    mode = gymnasium.vector.AutoresetMode[autoreset.upper()]
    if cfg.on_error == 'raise':
        restarts = None
    elif restarts is None:
        restarts = Restarts(cfg.max_restarts)
    probe_timeout = None
    if how == 'async':
        probe_timeout = cfg.step_timeout
    maker = EnvMaker(cfg, probe_timeout, n_all, training)
    makers: list[Callable[[], gymnasium.Env]] = [maker] * len(seeds)
    if seeds_constructor(cfg):
        makers = [SeededMaker(maker, seed) for seed in seeds]
    return SingleMakers(makers, mode, restarts)


def _make_single_envs(
    cfg: EnvConfig, how: str, seeds: list[int], n_all: int, training: bool, name: str, restarts: Restarts | None
) -> MadeVector:
    """A vector of single envs that step in turn or in processes. Args: as of `_single_makers`."""
    made = _single_makers(cfg, how, seeds, n_all, training, restarts)
    from zoo.env.serial import SerialVectorEnv, SingleEnvs  # a batched env needs neither these nor processes

    if how == 'sync':
        env = SerialVectorEnv(made.makers, made.mode, name, made.restarts, cfg.step_timeout)
        return MadeVector(env, kind=SingleEnvs)
    from zoo.env.workers import WorkerVectorEnv

    workers = WorkerVectorEnv(made.makers, made.mode, cfg.step_timeout, name, made.restarts)
    return MadeVector(workers, kind=SingleEnvs)


def make_ready_envs(
    cfg: EnvConfig, device: str = 'cpu', restarts: Restarts | None = None, first: int | None = None, seed: int = 0
) -> ReadyEnvs:
    """The training envs of a config with env.ready_num: they step asynchronously. Args: as of `make_env_groups`.

    Raises: as `make_vector_env`; UnsupportedEnvError for envs that cannot step one by one.
    """
    name = env_name(cfg)
    n_env = cfg.collector_env_num
    _check_ready(cfg, name)
    seeds = constructor_seeds(seed, True, first or 0, n_env)
    made = _single_makers(cfg, 'async', seeds, n_env, True, restarts)
    reader = None
    if device.startswith('cuda'):
        reader = torch.device(device)
    from zoo.env.ready import ReadyEnvs, ReadyWorkers

    assert cfg.ready_num is not None
    workers = ReadyWorkers(made.makers, made.mode, cfg.step_timeout, name, made.restarts)
    with ExitStack() as undo:
        undo.callback(workers.close)
        envs = ReadyEnvs(workers, cfg.ready_num, cfg, name, reader, first or 0)
        if cfg.schedule or cfg.reset_options:
            from zoo.env.settings import EnvSettings

            EnvSettings(cfg).apply([envs], 0)
        undo.pop_all()
    return envs


def _check_ready(cfg: EnvConfig, name: str) -> None:
    """Raises: UnsupportedEnvError if the envs of a config cannot step one by one."""
    given = f'env.ready_num is {cfg.ready_num} but'
    if isinstance(find_env(cfg.id, cfg.game), EnvFamily):
        raise UnsupportedEnvError(
            f'{given} {name!r} steps all its envs at once; leave ready_num out, or use an env that is made alone.'
        )
    if cfg.vectorization not in ('auto', 'async'):
        raise UnsupportedEnvError(
            f"{given} env.vectorization is {cfg.vectorization!r}, with which no env is ready before the others; use 'async'."
        )
    if cfg.autoreset not in ('auto', 'same_step'):
        raise UnsupportedEnvError(
            f"{given} env.autoreset is {cfg.autoreset!r}, which needs a step of its own for a reset; use 'same_step'."
        )
    if cfg.collector_group_num not in (None, 1):
        raise UnsupportedEnvError(
            f'{given} env.collector_group_num is {cfg.collector_group_num}, groups that take turns; leave one of the two out.'
        )


def constructor_seeds(seed: int, training: bool, first: int, n_env: int) -> list[int]:
    """The seeds for the constructors of some envs of a run; training and evaluation envs have different ones."""
    purpose = 'evaluation'
    if training:
        purpose = 'training'
    return child_seeds(stream(seed, 'make envs', purpose), first, n_env)


def make_env_groups(
    cfg: EnvConfig | Mapping[str, Any],
    device: str = 'cpu',
    restarts: Restarts | None = None,
    first: int | None = None,
    seed: int = 0,
) -> list[AnyVectorEnv]:
    """The training envs of a config, in groups of equal size: see env.collector_group_num.

    Args: device: of the policy; restarts: as in `make_vector_env`, by default one for all groups; first: index of their
      first env, if other processes have envs too; None: these are all envs; seed: as in `make_vector_env`.
    Raises: as `make_vector_env`; UnsupportedEnvError for more than one group of tensor envs.
    """
    cfg = env_config(cfg)
    if cfg.ready_num is not None:
        return [make_ready_envs(cfg, device, restarts, first, seed)]
    n_env = cfg.collector_env_num
    n_group = cfg.collector_group_num
    if n_group is None:
        has_two_places = device.startswith('cuda') or cfg.vectorization == 'async'
        n_group = 1
        if has_two_places and n_env % 2 == 0:
            n_group = 2
    if n_group == 1:
        return [make_vector_env(cfg, n_env, True, device, first, restarts, seed=seed)]
    if restarts is None:
        restarts = Restarts(cfg.max_restarts)
    groups: list[AnyVectorEnv] = []
    with ExitStack() as undo:
        for start in range(first or 0, (first or 0) + n_env, n_env // n_group):
            group = make_vector_env(cfg, n_env // n_group, True, device, start, restarts, seed=seed)
            if group.is_tensor_program:  # then all groups are; this one needs no close
                if cfg.collector_group_num is not None:
                    raise UnsupportedEnvError(
                        f'env.collector_group_num is {n_group} but {env_name(cfg)!r} is a tensor program on the device of '
                        'the policy, which gains nothing from groups; leave it out.'
                    )
                return [make_vector_env(cfg, n_env, True, device, first, seed=seed)]
            groups.append(undo.enter_context(closing(group)))
        undo.pop_all()
    return groups


def vectorization_of(cfg: EnvConfig, source: Source | None = None) -> Literal['sync', 'async', 'batched']:
    """The vectorization of the envs of a config. source: of these envs, if `find_env` was called before.

    Raises: UnsupportedEnvError, UnknownEnvError, as `make_vector_env`.
    """
    if source is None:
        source = find_env(cfg.id, cfg.game)
    if cfg.on_error == 'restart' and (isinstance(source, EnvFamily) or cfg.vectorization == 'batched'):
        raise UnsupportedEnvError(
            f"env.on_error is 'restart' but {env_name(cfg)!r} steps all its envs at once, of which none can be made anew "
            "alone; use 'raise', or env.vectorization 'sync' or 'async' where there is such."
        )
    if isinstance(source, EnvFamily):
        _check_family_fits(cfg)
        return 'batched'
    spec = None
    if isinstance(source, EnvSpec) and source.vector_entry_point is not None:
        spec = source
    wrapped = wrapper_fields(cfg)
    if cfg.vectorization == 'batched' and spec is None:
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
    needs_single_envs = bool(wrapped) or cfg.on_error == 'restart' or cfg.reset_options != {}
    if spec is None or needs_single_envs or not _batched_fits(cfg, spec) or _batched_loses_masks(cfg, spec):
        return 'sync'
    return 'batched'


def _check_family_fits(cfg: EnvConfig) -> None:
    """Raises: UnsupportedEnvError if the config asks for single envs of a family, or for wrappers around them."""
    if cfg.vectorization in ('sync', 'async'):
        raise UnsupportedEnvError(
            f"env.vectorization is {cfg.vectorization!r} but {env_name(cfg)!r} steps all its envs at once; use 'auto'."
        )
    wrapped = wrapper_fields(cfg)
    if wrapped:
        raise UnsupportedEnvError(
            f'{wrapped[0]} is set but {env_name(cfg)!r} steps all its envs at once, and the wrapper that it needs '
            'is one of single envs; leave it out.'
        )


def _batched_fits(cfg: EnvConfig, spec: EnvSpec) -> bool:
    """Whether the batched version fits the config; used for 'auto', which falls back to sync."""
    try:
        entry = creator_of(spec.vector_entry_point)
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


def _batched_loses_masks(cfg: EnvConfig, spec: EnvSpec) -> bool:
    """Whether action masks are in the infos of the batched version alone; of single envs, infos are read too.

    One reset of one env shows it; the answer is kept for the process. Versions of packages without masks are not tried.
    """
    if cfg.action_mask != 'auto' or str(spec.vector_entry_point).startswith(WITHOUT_MASKS):
        return False
    key = f'{spec.id} {spec.vector_entry_point!r} {_batched_kwargs(cfg, spec)}'
    if key not in _LOSES_MASKS:
        _LOSES_MASKS[key] = _has_masks_in_infos_alone(cfg, spec)
    return _LOSES_MASKS[key]


def _has_masks_in_infos_alone(cfg: EnvConfig, spec: EnvSpec) -> bool:
    name = env_name(cfg)
    try:
        with env_call(f'env {name!r}, in a reset to look for action masks'):
            env = _make_batched(cfg, spec, 1)
        try:
            space = env.single_observation_space
            if isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces:
                return False
            if mask_size(convert_space(env.single_action_space, 'action', name)) == 0:
                return False
            with env_call(f'env {name!r}, in a reset to look for action masks'):
                _, info = env.reset(seed=0)
            return ACTION_MASK in info
        finally:
            close_in_time({f'env {name!r}': env.close}, cfg.step_timeout)
    except (NoAnswerError, *STOPS):
        raise
    except BaseException:  # the run makes it again, and then the message has its place
        return False


def _make_family(cfg: EnvConfig, family: EnvFamily, request: EnvRequest) -> MadeVector:
    with locate(made_at(request.name)):
        options = family.read_options(cfg.kwargs)
        if options is not None:
            return MadeVector(family.make(request, options), family.one_seed)
        maker: Callable[..., Any] = family.make
        first = next(iter(inspect.signature(family.make).parameters), '')
        if isinstance(family, OwnVector) and family.maker is not None:
            maker = family.maker
            first = 'num_envs'
        with explaining(maker, {first: None}, cfg.kwargs, env_name(cfg)):
            env = family.make(request, **own_copy(cfg.kwargs))
    if not isinstance(family, OwnVector):
        return MadeVector(env, family.one_seed)
    from zoo.env.given import takes_one_seed

    assert isinstance(env, gymnasium.vector.VectorEnv)
    return MadeVector(env, takes_one_seed(env))


def _batched_kwargs(cfg: EnvConfig, spec: EnvSpec) -> dict[str, Any]:
    limit = cfg.max_episode_steps
    if limit is None:
        limit = spec.max_episode_steps
    kwargs = dict(spec.kwargs)
    if limit is not None:
        kwargs['max_episode_steps'] = limit
    return {**kwargs, **own_copy(cfg.kwargs)}


def _make_batched(cfg: EnvConfig, spec: EnvSpec, n_env: int) -> gymnasium.vector.VectorEnv:
    kwargs = _batched_kwargs(cfg, spec)
    defaults = {key: value for key, value in kwargs.items() if key not in cfg.kwargs}
    with explaining(spec.vector_entry_point, {'num_envs': n_env, **defaults}, cfg.kwargs, env_name(cfg), spec):
        env = gymnasium.make_vec(spec, n_env, vectorization_mode='vector_entry_point', **kwargs)
    use_fast_action_space(env.unwrapped)
    return env
