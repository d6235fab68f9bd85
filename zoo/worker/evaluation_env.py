"""The envs that a policy is evaluated on: their differences from the training envs, and envs that the user gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import gymnasium

from zoo.config.section import ConfigError, ConfigLike, Job, fields_of, plain, section_problems, validate
from zoo.config.source import parse_value, split_override
from zoo.config.user_code import is_moved_code
from zoo.core.errors import UserError, join_path, shown
from zoo.core.spaces import Space, leaf_spaces
from zoo.env import AnyVectorEnv, EnvConfig, UnknownEnvError, make_vector_env
from zoo.env.adapter import OldGymEnv
from zoo.env.config import env_config
from zoo.env.errors import EnvSettingError
from zoo.env.make import check_source
from zoo.env.settings import AT_END, EnvSettings
from zoo.env.vector import VectorEnv
from zoo.policy.base import Policy

NOT_OF_EVALUATION = {
    **dict.fromkeys(('collector_env_num', 'collector_group_num'), 'is of the training envs alone'),
    'action_mode': 'is that of the policy, for all its envs',
}
MAIN = ''  # name of the main evaluation among those of policy.eval.sets
SET_NAME = re.compile(r'[\w-]{1,50}')


def evaluation_env(cfg: ConfigLike, overrides: Sequence[str] = (), name: str | None = None) -> EnvConfig:
    """The config of the envs that a run evaluates on: its section env, overridden by policy.eval.env.

    Args:
      cfg: the config of a run, resolved or as a checkpoint has it.
      overrides: 'env.a.b=value' texts, which win over both.
      name: of one of policy.eval.sets; None: the main evaluation.
    Raises: ConfigError.
    """
    main, sets = _of_eval(cfg)
    env = differing(plain(cfg['env']), plain(main))
    if name is not None:
        if name not in sets:
            raise ConfigError(
                f'there is no evaluation {name!r} in policy.eval.sets; it has {", ".join(sets) or "none"}'
            )
        env = differing(env, plain(sets[name]))
    fields = dict(fields_of(EnvConfig))
    given: dict[str, Any] = {}
    for text in overrides:
        path, raw = split_override(text)
        group, _, key = path.partition('.')
        if group != 'env' or not key:
            raise ConfigError(
                f'{text!r} does not set a key of the env; write it as env.KEY=value, e.g. env.kwargs.x=1.'
            )
        given[key] = parse_value(raw, fields.get(key))
    if is_moved_code(env.get('id'), given.get('id')):
        env['id'] = given.pop('id')  # the same env in another place: its kwargs stay
    chosen = {key: value for key, value in given.items() if key in ('id', 'game')}
    env = differing(env, chosen)
    for key, value in given.items():
        if key in chosen:
            continue
        first, *inner = key.split('.')
        env = differing(env, {first: _put(env.get(first), inner, value)})
    return validate(EnvConfig, env, 'env')


def evaluation_envs(cfg: ConfigLike) -> dict[str, EnvConfig]:
    """The envs of all evaluations of a resolved config: the main one, whose name is MAIN, then those of policy.eval.sets."""
    return {name: evaluation_env(cfg, name=name or None) for name in (MAIN, *_of_eval(cfg)[1])}


def _of_eval(cfg: ConfigLike) -> tuple[Any, Any]:
    """policy.eval.env and policy.eval.sets; empty where there are none."""
    of_eval: Mapping[str, Any] = {}
    if 'policy' in cfg:
        of_eval = cfg['policy'].get('eval') or {}
    return of_eval.get('env') or {}, of_eval.get('sets') or {}


def differing(env: Mapping[str, Any], differs: Mapping[str, Any]) -> dict[str, Any]:
    """A section env, overridden by the values of another one.

    kwargs are merged key by key. If id or game differs, kwargs, schedule and reset_options of the first are dropped.
    """
    is_other = any(key in differs and differs[key] != env.get(key) for key in ('id', 'game'))
    merged = {**env, **differs}
    kwargs = differs.get('kwargs', {})
    if is_other:
        merged |= {'kwargs': kwargs}
        merged |= {key: differs.get(key, {}) for key in ('schedule', 'reset_options') if key in merged}
        if 'id' in differs and differs['id'] != env.get('id'):
            merged['game'] = differs.get('game')
    elif isinstance(kwargs, dict):
        merged['kwargs'] = {**env.get('kwargs', {}), **kwargs}
    return merged


@contextmanager
def naming_section(cfg: ConfigLike, name: str) -> Iterator[None]:
    """Context in which an EnvSettingError of evaluation envs names the section with the key: of a set, eval.env, or env."""
    try:
        yield
    except EnvSettingError as error:
        main, sets = _of_eval(cfg)
        key = error.key.partition('.')[0]
        places = {'policy.eval.env': main}
        if name != MAIN:
            places = {f'policy.eval.sets.{name}': sets[name], **places}
        where = next((place for place, section in places.items() if key in section), 'env')
        raise EnvSettingError(error.key, error.said, where) from error.__cause__


def evaluation_problems(job: Job) -> Iterator[str]:
    """Yields a sentence for every problem of policy.eval.env and policy.eval.sets."""
    env = plain(job.env)
    differs_of_main = plain(job.policy.eval.env)
    yield from _problems(env, differs_of_main, 'policy.eval.env')
    merged = differing(env, differs_of_main)
    for name, differs in plain(job.policy.eval.sets).items():
        if not SET_NAME.fullmatch(name):
            yield (
                f'policy.eval.sets has an evaluation {shown(name)}, whose name is to be part of the names of metrics; use '
                '1 to 50 letters, digits, - and _.'
            )
        yield from _problems(merged, differs, f'policy.eval.sets.{name}')


def fill_evaluation(config: dict[str, Any]) -> None:
    """Converts the values of policy.eval.env and policy.eval.sets as section env does, in place: paths become absolute."""
    main, sets = _of_eval(config)
    merged = differing(config['env'], main)
    for env, differs in ((config['env'], main), *((merged, differs) for differs in sets.values())):
        if differs:
            section = EnvConfig.model_validate(differing(env, differs))
            differs.update({key: plain(getattr(section, key)) for key in differs if key != 'kwargs'})


def _problems(env: Mapping[str, Any], differs: Mapping[str, Any], path: str) -> Iterator[str]:
    if not differs:
        return
    for key, why in NOT_OF_EVALUATION.items():
        if key in differs:
            yield f'{join_path(path, key)}: env.{key} {why}; leave it out here.'
    merged = differing(env, differs)
    problems = section_problems(EnvConfig, merged, path, ())
    if problems:
        yield from problems
        return
    try:
        check_source(merged)
    except (UnknownEnvError, ConfigError) as error:
        yield f'{path}: {error}'


@contextmanager
def open_env(env: object, policy: Policy, n_episode: int) -> Iterator[AnyVectorEnv]:
    """Context with the envs to evaluate a policy on, from any form that `evaluate` takes; closes only envs that it makes."""
    if isinstance(env, AnyVectorEnv):
        yield env
    elif isinstance(env, gymnasium.vector.VectorEnv):
        from zoo.env.given import takes_one_seed

        kind = type(env.unwrapped)
        section = env_config({'id': kind.__qualname__, 'action_mode': policy._action_map.mode})
        yield VectorEnv(env, section, f'{kind.__module__}:{kind.__qualname__}', one_seed=takes_one_seed(env))
    else:
        cfg = config_of(env, policy)
        device = str(policy.device)
        with closing(make_vector_env(cfg, min(n_episode, cfg.evaluator_env_num), device=device)) as made:
            EnvSettings(cfg).apply([made], policy.run.max_env_step or AT_END)
            yield made


def refuse_other_spaces(policy: Policy, env: AnyVectorEnv, where: str = '') -> None:
    """Checks that envs have the spaces of the policy; bounds of a Box may differ. Raises: UserError.

    Args: where: the config section that names these envs.
    """
    wanted, got = ([_form(x.obs_space), _form(x.action_space)] for x in (policy, env))
    if wanted != got:
        if where:
            where = f'{where}: '
        else:
            where = ''
        raise UserError(
            f'{where}the policy takes {wanted[0]} and gives {wanted[1]} but env {env.name!r} has {got[0]} and {got[1]}; '
            'evaluate it on the env that it was trained on, or one with the same spaces (what env.wrappers, env.window and '
            'the like change is in the section env of its config)'
        )


def config_of(env: object, policy: Policy) -> EnvConfig:
    """The section `env` for an argument `env` of `evaluate` that is no vector env. Raises: UserError for any other type."""
    if isinstance(env, EnvConfig | Mapping):
        cfg = env_config(env)
    elif not isinstance(env, type) and all(callable(getattr(env, name, None)) for name in ('reset', 'step')):
        cfg = env_config({'id': _lend(env), 'evaluator_env_num': 1, 'vectorization': 'sync'})
    elif isinstance(env, str) or callable(env):
        cfg = env_config({'id': env})
    else:
        raise UserError(
            f'env is {shown(env)} but must be a section env (a dict with id), an id, a callable that makes an env, or an env '
            'or vector env of gymnasium'
        )
    if 'action_mode' in cfg.model_fields_set:
        return cfg
    return cfg.model_copy(update={'action_mode': policy._action_map.mode})


class _Lent(gymnasium.Wrapper):
    """An env that belongs to the caller: `close` does nothing, the caller closes it."""

    def close(self) -> None:
        pass


def _lend(env: object) -> Callable[[], gymnasium.Env]:
    """A callable that returns the caller's env; it has the name of the env's class."""
    kind = type(getattr(env, 'unwrapped', env))
    name = f'{kind.__module__}:{kind.__qualname__}'

    def make() -> gymnasium.Env:
        return _Lent(env if isinstance(env, gymnasium.Env) else OldGymEnv(env, name))

    make.__module__ = kind.__module__
    make.__qualname__ = kind.__qualname__
    return make


def _put(old: object, keys: Sequence[str], value: object) -> object:
    """The value if there are no keys, else the old dict with the value at the path of the keys."""
    if not keys:
        return value
    held: Mapping[Any, Any] = {}
    if isinstance(old, Mapping):
        held = old
    return {**held, keys[0]: _put(held.get(keys[0]), keys[1:], value)}


def _form(space: Space) -> str:
    """A space in words, without bounds."""
    return ', '.join(
        f'{path} {type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}'.strip()
        for path, leaf in leaf_spaces(space)
    )
