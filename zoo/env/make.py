"""Makes one env from its id, with the wrappers that the config asks for."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from zoo.config.section import ConfigError, own_copy
from zoo.config.user_code import is_in_file, lacks, load_home, member, shown_name, split_name
from zoo.core.errors import did_you_mean, missing_extra, show_error
from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK, mask_size
from zoo.env.adapter import (
    OldGymEnv,
    check_limits,
    check_methods,
    creator_of,
    env_spaces,
    limit_of,
    mask_method,
    restore_seed_methods,
    takes_optional_seed,
    takes_options,
)
from zoo.env.calls import env_call, locate
from zoo.env.config import EnvConfig, MaskSource, env_config, wrapper_fields
from zoo.env.dm import DmEnv, is_dm_env
from zoo.env.entry_names import NamedEnv, has_other_keys
from zoo.env.errors import (
    STOPS,
    EnvKwargsError,
    MissingExtraError,
    NoAnswerError,
    UnknownEnvError,
    UnsupportedEnvError,
    made_at,
)
from zoo.env.families.family import EnvFamily

Source = EnvSpec | EnvFamily | Callable[..., Any]
EXTRAS = {'gymnasium.envs.box2d': 'box2d', 'gymnasium.envs.mujoco': 'mujoco'}
logger = logging.getLogger(__name__)


def reset_kwargs(cfg: EnvConfig, env: gymnasium.Env) -> dict[str, Any]:
    """The argument `options` of a run's first reset, for checks of an env before the run; {} if there is none."""
    if not cfg.reset_options or not takes_options(env):
        return {}
    from zoo.env.settings import options_rule  # few envs need it

    return {'options': own_copy(options_rule(cfg.reset_options)(0))}


def has_mask_in_info(env: gymnasium.Env, cfg: EnvConfig) -> bool:
    """Whether the info of a reset has an action mask."""
    try:
        with env_call(f'env {type(env.unwrapped).__name__!r}, in a reset to look for action masks'):
            _, info = env.reset(seed=0, **reset_kwargs(cfg, env))
        return ACTION_MASK in info
    except (NoAnswerError, *STOPS):
        raise
    except BaseException:  # the next reset raises it again, and then the message has index and step
        return False


def has_mask_in_worker(cfg: EnvConfig, name: str, timeout: float) -> bool:
    """`has_mask_in_info` of an env that is made in a separate process, since its reset may hang or end the process.

    timeout: seconds that the reset may take.
    """
    from zoo.env.workers import WorkerVectorEnv  # few envs need them

    try:
        with contextlib.closing(
            WorkerVectorEnv([lambda: _MaskProbe(cfg)], gymnasium.vector.AutoresetMode.SAME_STEP, timeout, name)
        ) as env:
            obs, _ = env.reset(seed=[0])
            return bool(obs[0])
    except STOPS:
        raise
    except BaseException:  # as in `has_mask_in_info`
        return False


class _MaskProbe(gymnasium.Env):
    """Env that tests another one, made in `reset`: its first observation is 1 if that env's reset info has a mask, else 0."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cfg: EnvConfig) -> None:
        self._cfg = cfg
        self._env: gymnasium.Env | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self._env = _make_bare_env(self._cfg)
        return int(has_mask_in_info(self._env, self._cfg)), {}

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


def make_env(cfg: EnvConfig | Mapping[str, Any]) -> gymnasium.Env:
    """One env with the gymnasium interface and the wrappers of the config; envs of other libraries are adapted.

    Raises: UnknownEnvError if no env has the id; MissingExtraError if a package that it needs is not installed;
      EnvKwargsError if it does not take env.kwargs; UnsupportedEnvError if it is a family, which makes vectors only, or
      if it has spaces or action masks that zoo does not support; exceptions of the env's constructor pass through,
      with a note.
    """
    cfg = env_config(cfg)
    with locate(made_at(env_name(cfg))):
        return EnvMaker(cfg)()


class EnvMaker:
    """Makes the envs of a config, one per call.

    The first call finds out where their action masks come from: it may reset that env once, to look at its info.
    """

    def __init__(self, cfg: EnvConfig, timeout: float | None = None, n_env: int = 1, training: bool = False) -> None:
        """
        Args:
          timeout: seconds for this reset, which then runs in a separate process; None: it runs in this process.
          n_env, training: number of envs in the vector env, and whether they are for training, to check the env's limits.
        """
        self._cfg = cfg
        self._timeout = timeout
        self._n_env = n_env
        self._training = training
        self._source: MaskSource | None = None  # once the first env is made

    def __call__(self, seed: int | None = None) -> gymnasium.Env:
        """Makes an env. Args: seed: for its constructor, if `seeds_constructor`."""
        name = env_name(self._cfg)
        env = _make_bare_env(self._cfg, seed)
        if self._source is None:
            limit = self._cfg.max_episode_steps
            check_limits(env, self._n_env, limit, self._training, name)
            horizon = limit_of(env, 'max_horizon')
            if self._training and limit is None and horizon:
                logger.info('env %r: episodes are cut after %d steps, its max_horizon', name, horizon)
            self._source = self._cfg.action_mask
            if self._source == 'auto':
                self._source = self._find_mask_source(env, name)
        restore_seed_methods(env.observation_space)
        restore_seed_methods(env.action_space)
        if not wrapper_fields(self._cfg) and self._source not in ('info', 'method'):
            return env
        from zoo.env.wrappers import wrap_env

        return wrap_env(env, self._cfg, self._source, name)

    def _find_mask_source(self, env: gymnasium.Env, name: str) -> MaskSource:
        """The source of an env's masks: a Dict entry, else its method, else its infos; 'off' if there are none.

        Infos are checked last, and only if the actions can be masked, since this takes a reset.
        """
        space = env.observation_space
        if isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces:
            return 'obs'
        _, action_space = env_spaces(env, name)
        if mask_size(action_space) == 0:
            return 'off'
        if mask_method(env) is not None:
            return 'method'
        if self._timeout is None:
            is_in_info = has_mask_in_info(env, self._cfg)
        else:
            is_in_info = has_mask_in_worker(self._cfg, name, self._timeout)
        if is_in_info:
            return 'info'
        return 'off'


def seeds_constructor(cfg: EnvConfig) -> bool:
    """Whether each copy of an env gets a seed for its constructor: it has an argument `seed` that may be None, the default.

    A default number is part of the task, such as the seed of a map, and stays.
    """
    try:
        source = find_env(cfg.id, cfg.game)
        if 'seed' in cfg.kwargs:
            return False
        if isinstance(source, EnvSpec):
            return 'seed' not in source.kwargs and takes_optional_seed(creator_of(source.entry_point))
        return takes_optional_seed(source)
    except Exception:  # also of an import: making the env reports it
        return False


def _make_bare_env(cfg: EnvConfig, seed: int | None = None) -> gymnasium.Env:
    """One env without the wrappers that zoo puts around it. seed: for its constructor, if `seeds_constructor`."""
    name = env_name(cfg)
    made = make_source(cfg, name, seed)
    if is_dm_env(made):
        made = DmEnv(made, name)
    is_of_gymnasium = isinstance(made, gymnasium.Env)
    env = made
    if not is_of_gymnasium:
        env = _adapted(env, cfg, name)
    elif isinstance(getattr(env, 'action_space', None), gymnasium.spaces.Tuple):
        from zoo.env.given import check_one_vector

        check_one_vector(env, name)
    n_step = cfg.max_episode_steps or limit_of(env, 'max_horizon')
    if n_step is not None:
        env = _limit(env, n_step, replace=cfg.max_episode_steps is not None)
    if cfg.wrappers:
        from zoo.env.wrappers import apply_wrappers

        env = apply_wrappers(env, cfg.wrappers, name)
    if is_of_gymnasium and has_other_keys(env):
        env = NamedEnv(env, name)
    if cfg.drop_obs and is_of_gymnasium:
        from zoo.env.entries import DropEnv, kept_space

        env = DropEnv(env, kept_space(env.observation_space, cfg.drop_obs, name))
    if cfg.reward_weights is not None:
        from zoo.env.wrappers import WeightedRewardEnv

        env = WeightedRewardEnv(env, cfg.reward_weights)
    env_spaces(env, name)
    check_methods(env, name)
    return env


def make_source(cfg: EnvConfig, name: str, seed: int | None = None) -> Any:
    """Calls the source of an env. Returns: an env of gymnasium, or one of another library, without any wrapper of zoo."""
    source = find_env(cfg.id, cfg.game)
    if isinstance(source, EnvFamily):
        raise UnsupportedEnvError(f'env {name!r} is available as a vector only; use make_vector_env(cfg, 1).')
    kwargs = own_copy(cfg.kwargs)
    if seed is not None and seeds_constructor(cfg):
        kwargs['seed'] = seed
    if not isinstance(source, EnvSpec):
        with explaining(source, {}, cfg.kwargs, name):
            return source(**kwargs)
    with explaining(source.entry_point, source.kwargs, cfg.kwargs, name, source):
        if str(source.entry_point).startswith('gymnasium.envs.mujoco'):
            _log_warnings_of_mujoco()
        return gymnasium.make(source, max_episode_steps=cfg.max_episode_steps, disable_env_checker=True, **kwargs)


def _adapted(env: object, cfg: EnvConfig, name: str) -> gymnasium.Env:
    """An env of another library as one of gymnasium, without the entries of env.drop_obs."""
    from zoo.env.given import check_one_vector

    check_one_vector(env, name)
    if not cfg.drop_obs or not hasattr(env, 'observation_space'):
        return OldGymEnv(env, name)
    from zoo.env.entries import DropEnv, kept_space

    space = kept_space(env.observation_space, cfg.drop_obs, name)
    return DropEnv(OldGymEnv(env, name, space), space)


def _log_warnings_of_mujoco() -> None:
    """Logs MuJoCo's warnings, which MuJoCo by default writes to MUJOCO_LOG.TXT in the folder where the run was started."""
    levels = {True: logging.DEBUG, False: logging.WARNING}  # deprecated parts of gymnasium's models are no fault
    with contextlib.suppress(ImportError):  # gymnasium says what is missing
        import mujoco

        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(lambda text: logger.log(levels['is deprecated' in text], 'MuJoCo: %s', text))


def env_name(cfg: EnvConfig) -> str:
    """The env's name in messages: its id and game, or the place where its callable is defined."""
    if isinstance(cfg.id, str):
        name = shown_name(cfg.id)
        if cfg.game is None:
            return name
        return f'{name}/{cfg.game}'
    maker = cfg.id
    if isinstance(maker, partial):
        maker = maker.func
    named = getattr(maker, 'env_name', None)
    if isinstance(named, str):
        return named
    return f'{getattr(maker, "__module__", "?")}:{getattr(maker, "__qualname__", repr(maker))}'


def extra_of(env_id: str) -> str | None:
    """The extra of zoo that an id of gymnasium needs, e.g. 'mujoco'; None if none is known."""
    entry_point = str(gymnasium.registry[env_id].entry_point)
    return next((extra for module, extra in EXTRAS.items() if entry_point.startswith(module)), None)


def find_source(env_id: str | Callable[..., Any]) -> Source:
    """The source of an env id: a gymnasium spec, a family, or a callable. Raises: UnknownEnvError, ConfigError."""
    if not isinstance(env_id, str):
        return env_id
    if env_id in ENV_REGISTRY:
        return ENV_REGISTRY.get(env_id)
    if ':' in env_id:
        return _find_in_code(env_id)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    from zoo.env.ids import unknown_env

    raise UnknownEnvError(unknown_env(env_id))


def _find_in_code(env_id: str) -> Source:
    """The object that a name of code names, or the env that its module or file registered under that name on import."""
    home, attribute = split_name(env_id)
    if home.startswith('pettingzoo.mpe.'):
        raise UnknownEnvError(_moved_to_mpe2(env_id, home.removeprefix('pettingzoo.mpe.'), attribute))
    try:
        module = load_home(env_id, f'env {shown_name(env_id)!r}')
    except ConfigError as error:
        from zoo.env.ids import game_hint

        sentence = str(error)
        if isinstance(error.__cause__, ModuleNotFoundError):
            package = home.partition('.')[0]
            if package in OF_EXTRA_AGENTS and importlib.util.find_spec(package) is None:
                raise MissingExtraError(missing_extra(f'env {env_id!r}', 'agents', package)) from error.__cause__
            sentence = game_hint(env_id) or sentence
        raise UnknownEnvError(sentence) from (error.__cause__ or error)
    except ModuleNotFoundError as error:
        if not home.startswith('pettingzoo.'):
            raise
        raise _needs_extra_of_pettingzoo(env_id, home.split('.')[1], error) from error
    if home in NAMED_BY_PACKAGE:
        return NAMED_BY_PACKAGE[home](module, attribute, env_id)
    code = member(module, attribute)
    in_file = is_in_file(env_id)
    if attribute in gymnasium.registry and not (in_file and code is not None):
        return gymnasium.registry[attribute]
    if in_file and code is None and attribute in ENV_REGISTRY:
        return ENV_REGISTRY.get(attribute)
    if isinstance(code, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UnknownEnvError(
            f'env {shown_name(env_id)!r} is an env of class {type(code).__name__}, and a run makes its envs itself; '
            'name the function or class that makes one.'
        )
    if not callable(code) and not isinstance(code, EnvFamily):
        missing = (
            f'module {home!r} has no function or class {attribute!r}, and registers no gymnasium env of that id; '
            'check the spelling.'
        )
        if in_file:
            missing = lacks(module, attribute)
        raise UnknownEnvError(f'env {shown_name(env_id)!r}: {missing}')
    return code


def _of_old_gym(gym: ModuleType, env_id: str, name: str) -> Callable[..., Any]:
    """The maker of an env of the package gym, the predecessor of gymnasium. Raises: UnknownEnvError if gym lacks the env."""
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        raise UnknownEnvError(
            f'env {name!r}: gym {getattr(gym, "__version__", "")} has no {env_id!r} ({" ".join(str(error).split())}); '
            f'check the id, or leave out `gym:` for the env of gymnasium.'
        ) from error
    without_checker = {}
    if 'disable_env_checker' in inspect.signature(gym.make).parameters:
        without_checker['disable_env_checker'] = True  # it uses np.bool8, which numpy 2 no longer has

    def make(**kwargs: Any) -> Any:
        return gym.make(env_id, **without_checker, **kwargs)

    with contextlib.suppress(ImportError, AttributeError, TypeError, ValueError):  # only for messages about env.kwargs
        make.__signature__ = inspect.signature(creator_of(spec.entry_point))  # type: ignore[attr-defined]
    return make


def _of_pettingzoo(pettingzoo: ModuleType, env_id: str, name: str) -> Callable[..., Any]:
    """The maker of an env of PettingZoo's registry: of its parallel version if there is one. Raises: UnknownEnvError."""
    if not hasattr(pettingzoo, 'make'):
        raise UnknownEnvError(f'env {name!r}: this version of pettingzoo has no registry; install pettingzoo>=1.27.')
    kinds = {'parallel': list(pettingzoo.parallel_registry), 'aec': list(pettingzoo.aec_registry)}
    registered = re.sub(r'_v(\d+)$', r'-v\1', env_id)  # its modules have names with _v
    kind = next((kind for kind, ids in kinds.items() if registered in ids), None)
    if kind is None:
        if env_id.startswith('mpe/'):
            module = re.sub(r'-v(\d+)$', r'_v\1', env_id.removeprefix('mpe/'))
            raise UnknownEnvError(_moved_to_mpe2(name, module, 'parallel_env'))
        all_ids = sorted({*kinds['parallel'], *kinds['aec']})
        hint = did_you_mean(registered, all_ids, 'see pettingzoo.pprint_registry().')
        raise UnknownEnvError(f'env {name!r}: pettingzoo has no {env_id!r}; {hint}')

    def make(**kwargs: Any) -> Any:
        try:
            return pettingzoo.make(kind, registered, **kwargs)
        except Exception as error:
            cause = error.__cause__ or error
            if not isinstance(cause, ImportError):
                raise
            raise _needs_extra_of_pettingzoo(name, registered.partition('/')[0], cause) from cause

    make.__signature__ = inspect.signature(partial(pettingzoo.make, kind, registered))  # type: ignore[attr-defined]
    return make


def _needs_extra_of_pettingzoo(env_id: str, extra: str, error: BaseException) -> MissingExtraError:
    """The error of an env whose kind of envs, such as butterfly, needs packages that are not installed."""
    install = f'pip install {shlex.quote(f"pettingzoo[{extra}]")}'
    return MissingExtraError(f'env {env_id!r} needs what is not installed ({show_error(error)}); run: {install}')


def _moved_to_mpe2(env_id: str, module: str, attribute: str) -> str:
    """The message for an env of the multi-particle envs, which newer versions of PettingZoo do not have."""
    return (
        f'env {env_id!r}: the multi-particle envs have left PettingZoo for the package mpe2, of the extra agents; write '
        f'mpe2.{module}:{attribute}.'
    )


def _of_open_spiel(pyspiel: ModuleType, game: str, name: str) -> Callable[..., Any]:
    """The maker of a game of OpenSpiel; its text may have parameters. Raises: UnknownEnvError."""
    short_name = game.partition('(')[0]
    if short_name.startswith('python_'):
        importlib.import_module('open_spiel.python.games')  # registers them
    if short_name not in pyspiel.registered_names():
        hint = did_you_mean(short_name, sorted(pyspiel.registered_names()), 'see pyspiel.registered_names().')
        raise UnknownEnvError(f'env {name!r}: OpenSpiel has no game {short_name!r}; {hint}')

    def make(**parameters: Any) -> Any:
        try:
            if parameters:
                return pyspiel.load_game(game, parameters)
            return pyspiel.load_game(game)
        except pyspiel.SpielError as error:
            said = ' '.join(str(error).split())
            raise EnvKwargsError(
                f'env {name!r}: OpenSpiel does not take its parameters ({said}); correct those in brackets, or env.kwargs.'
            ) from error

    return make


def _of_jax(package: ModuleType, env_id: str, name: str) -> EnvFamily:
    """The family of an env written in JAX, whose copies are one program. Raises: UnknownEnvError; MissingExtraError."""
    from zoo.env.tensor.jax_packages import check_id, make_jax_envs  # only these import JAX

    check_id(package, env_id, name)
    make: Callable[..., Any] = partial(make_jax_envs, package, env_id)
    if package.__name__ != 'pgx':
        return EnvFamily(make)
    from zoo.env.tensor.jax_games import make_pgx_game

    return EnvFamily(make, make_agents=partial(make_pgx_game, package, env_id))


def _of_vmas(vmas: ModuleType, scenario: str, name: str) -> EnvFamily:
    """The family of a scenario of VMAS. Raises: UnknownEnvError."""
    from zoo.env.tensor.vmas_scenarios import vmas_family  # few runs need it

    return vmas_family(vmas, scenario, name)


OF_EXTRA_AGENTS = ('pettingzoo', 'pyspiel', 'mpe2')
"""Modules of the packages of the extra agents."""
OF_JAX = ('brax', 'gymnax', 'jumanji', 'mujoco_playground', 'pgx')
NAMED_BY_PACKAGE: dict[str, Callable[[ModuleType, str, str], Any]] = {
    'gym': _of_old_gym,
    'pettingzoo': _of_pettingzoo,
    'pyspiel': _of_open_spiel,
    'vmas': _of_vmas,
    **dict.fromkeys(OF_JAX, _of_jax),
}
"""Packages that name their envs themselves, as `package:id`."""


def find_env(env_id: str | Callable[..., Any], game: str | None = None) -> Source:
    """The maker of the env: a gymnasium spec, a family, or a callable (given, registered, or named).

    A source that makes only whole vector envs becomes a family too, see `own_vector`.
    Raises: UnknownEnvError with the closest known ids or games; MissingExtraError if the package with the games is not
      installed.
    """
    source = find_source(env_id)
    if game is not None and (not isinstance(source, EnvFamily) or source.games is None):
        raise UnknownEnvError(
            f'env.game is {game!r} but env {str(env_id)!r} has no games to choose from; leave env.game out, or use '
            'env.kwargs.game if it takes that.'
        )
    if isinstance(source, EnvFamily):
        source.check_game(str(env_id), game)
        return source
    if isinstance(source, EnvSpec) and source.entry_point is not None:
        return source
    from zoo.env.given import own_vector  # not needed for a registered id that makes single envs

    return own_vector(source) or source


def take_env_instances(config: dict[str, Any]) -> None:
    """Replaces vector envs given as ids in `env`, policy.eval.env and policy.eval.sets by GivenVectorEnvs, in place.

    Where the section `env` sets no number of envs, it gets that of its vector env.
    Raises: ConfigError for a single env, since a run needs several.
    """
    evaluation = _section(_section(config, 'policy'), 'eval')
    sets = {f'policy.eval.sets.{key}': section for key, section in _section(evaluation, 'sets').items()}
    sections = {'env': config.get('env'), 'policy.eval.env': evaluation.get('env'), **sets}
    for path, section in sections.items():
        if not isinstance(section, dict):
            continue
        env = section.get('id')
        if isinstance(env, gymnasium.Env):
            kind = type(env.unwrapped).__name__
            raise ConfigError(
                f'{path}.id is an env of class {kind}, and a run makes several of them; give what makes one, e.g. '
                f'{path}.id={kind}, or lambda: {kind}(...).'
            )
        if isinstance(env, gymnasium.vector.VectorEnv):
            from zoo.env.given import GivenVectorEnv

            section['id'] = GivenVectorEnv(env)
            if path == 'env':
                for key in ('collector_env_num', 'evaluator_env_num'):
                    section.setdefault(key, env.num_envs)
                section.setdefault('collector_group_num', 1)


def _section(config: dict[str, Any], key: str) -> dict[str, Any]:
    section = config.get(key)
    if isinstance(section, dict):
        return section
    return {}


def check_source(cfg: EnvConfig | Mapping[str, Any]) -> None:
    """Checks env.id, env.game, env.kwargs and env.wrappers without making an env.

    A missing extra is not a mistake in the config; `make_env` reports it.
    Raises: UnknownEnvError, ConfigError.
    """
    cfg = env_config(cfg)
    with contextlib.suppress(MissingExtraError):
        source = find_env(cfg.id, cfg.game)
        if isinstance(source, EnvFamily):
            source.read_options(cfg.kwargs)
    if cfg.wrappers:
        from zoo.env.wrappers import wrapper_problems

        problems = list(wrapper_problems(cfg.wrappers))
        if problems:
            raise ConfigError(problems)


def source_problems(cfg: EnvConfig) -> Iterator[str]:
    """Yields a sentence for each problem that `check_source` finds."""
    problems: list[str] = []
    try:
        check_source(cfg)
    except UnknownEnvError as error:
        problems = [str(error)]
    except ConfigError as error:
        problems = error.problems
    yield from problems


@contextlib.contextmanager
def explaining(
    creator: object, defaults: Mapping[str, Any], kwargs: Mapping[str, Any], name: str, spec: EnvSpec | None = None
) -> Iterator[None]:
    """Context for a call that makes envs: turns an error about env.kwargs or a missing package into one that names it.

    Args:
      creator: the function called, or its entry point.   defaults: its arguments that do not come from env.kwargs.
      spec: of the env, if its id is one of gymnasium.
    """
    try:
        yield
    except TypeError as error:
        _raise_bad_kwargs(creator, defaults, kwargs, name, error)
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        if spec is not None:
            _raise_missing_extra(spec, error)
        raise


def _raise_bad_kwargs(
    creator: object, defaults: Mapping[str, Any], kwargs: Mapping[str, Any], name: str, error: TypeError
) -> None:
    """Raises an EnvKwargsError if the signature shows that `error` is about an argument that env.kwargs has or lacks."""
    try:
        parameters = inspect.signature(creator_of(creator)).parameters.values()
    except (ImportError, AttributeError, ValueError):  # a callable without a signature
        return
    takes = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [key for key in kwargs if key not in takes]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # it passes unknown ones on to a function that may refuse them
        refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        unknown = [key for key in unknown if refused and key == refused[1]]
    required = [p.name for p in parameters if p.name in takes and p.default is p.empty]
    missing = [key for key in required if key not in kwargs and key not in defaults]
    raise_kwargs_error(name, unknown, missing, [key for key in takes if key not in defaults], error)


def raise_kwargs_error(
    name: str, unknown: list[str], missing: list[str], takes: list[str], error: TypeError | None = None
) -> None:
    """Raises an EnvKwargsError if env.kwargs has unknown arguments, or lacks some."""
    if missing and not unknown:
        raise EnvKwargsError(f'env.kwargs lacks {_join(missing)}, which {name} needs; give it a value.') from error
    if 'max_episode_steps' in unknown:
        raise EnvKwargsError(
            f"env.kwargs has 'max_episode_steps', which {name} does not take; set env.max_episode_steps."
        ) from error
    if unknown:
        raise EnvKwargsError(
            f'env.kwargs has {_join(unknown)} but {name} takes {", ".join(takes) or "none"}; '
            'correct the name, or leave it out.'
        ) from error


def _join(names: list[str]) -> str:
    return ', '.join(map(repr, names))


def _raise_missing_extra(spec: EnvSpec, error: Exception) -> None:
    """Raises an error that names the extra to install, or the newer version to use, if that is the cause of `error`."""
    extra = extra_of(spec.id)
    if extra and isinstance(error, gymnasium.error.DependencyNotInstalled):
        raise MissingExtraError(missing_extra(f'env {spec.id!r}', extra)) from error
    from zoo.env.ids import versions_of

    versions = versions_of(spec.id)
    if versions and versions[-1].id != spec.id:
        newest = versions[-1].id
        raise UnknownEnvError(f'env {spec.id!r} is too old for this gymnasium ({error}); use {newest!r}.') from error


def _limit(env: gymnasium.Env, max_episode_steps: int, replace: bool) -> gymnasium.Env:
    """The env with a limit of steps. replace: replaces a limit that the env has; else the shorter of the two applies."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            n_step = max_episode_steps
            if not replace:
                n_step = min(max_episode_steps, layer._max_episode_steps)
            layer._max_episode_steps = n_step  # a second limit could only shorten the episodes
            return env
        layer = layer.env
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps)
