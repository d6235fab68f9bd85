"""A config for an env that was given without one: the bundled config of that env, or settings that fit many envs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from zoo.agents.config import SHARED
from zoo.agents.games import find_game
from zoo.config.section import Config, ConfigError, plain
from zoo.config.source import bundled_configs, load_config, parse_value, split_override
from zoo.config.yaml_io import function_name
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import Box, Space, leaf_spaces
from zoo.env.adapter import env_spaces
from zoo.env.closing import close_in_time
from zoo.env.errors import STOPS, EnvError, NoAnswerError, SeveralAgentsError
from zoo.env.ids import faster_family
from zoo.env.inspection.bounds import far_bounds
from zoo.env.inspection.family import N_ENV
from zoo.env.make import check_source, env_name, make_env
from zoo.env.make_vector import make_vector_env, vectorization_of
from zoo.env.vector import seen_space
from zoo.model.entities import sets_of
from zoo.model.images import holds_images
from zoo.model.inputs import views_of
from zoo.run.config import frozen_config, resolve_config
from zoo.worker.env_watch import watch_calls
from zoo.worker.evaluation_env import evaluation_env

logger = logging.getLogger(__name__)
EXP_NAME_CHARS = 60


class _Spaces(NamedTuple):
    """The spaces of an env: what a policy sees, and its actions."""

    obs: Space
    action: Space


def config_for_env(
    env: str | Callable[..., Any] | Mapping[str, Any], policy_type: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The bundled config of an env and policy, or a new one if there is none; the log says which.

    Args:
      env: a value for `env.id`, or a section `env`, whose settings the result does not repeat.
      policy_type: 'ppo' if it is None and no override names another.
      overrides: those of the run, which may change the env's keywords; they are not applied here.
    Returns: a plain config. Raises: UserError if no policy has the name.
    """
    if isinstance(env, Mapping):
        section = dict(env)
    else:
        section = {'id': env}
    env_id = section['id']
    settings: dict[str, Any] = {f'env.{key}': value for key, value in section.items()}
    settings |= dict(split_override(text) for text in overrides)
    policy_type = policy_type or settings.get('policy.type') or 'ppo'
    game = settings.get('env.game')
    POLICY_REGISTRY.get(policy_type)  # a misspelt name is refused before the env is looked up
    name = None
    if isinstance(env_id, str):
        plays_itself = any(key.startswith('agents.self_play') and value != 'null' for key, value in settings.items())
        name = bundled_config_of(env_id, policy_type, game, plays_itself)
    if name is not None:
        logger.info('training with the bundled config %s; zoo config %s shows it', name, name)
        return load_config(name)[0]
    if isinstance(env_id, str):
        label = env_id
    else:
        label = function_name(env_id)
    check_source({'id': env_id, 'game': game})
    config: dict[str, Any] = {'exp_name': exp_name_of(label), 'env': {'id': env_id}, 'policy': {'type': policy_type}}
    spaces = _spaces_of(section, overrides)
    if spaces is None:
        return config  # the run says what is wrong with the env
    chosen = _norms(policy_type, settings, spaces.obs)
    if _is_rescaled(settings, spaces.action):
        chosen['env.action_mode'] = 'rescale'
    for path, value in chosen.items():
        _put_at(config, path, value)
    with_chosen = ''.join(f' and {path}={str(value).lower()}' for path, value in chosen.items())
    logger.info('no bundled config is for %s and %s: training with the defaults%s', label, policy_type, with_chosen)
    hint = faster_family(label)
    if hint is not None and settings.get('env.kwargs.obs_type') is None:
        logger.info('%s', hint)
    return config


def _put_at(config: dict[str, Any], path: str, value: Any) -> None:
    """Sets a value at a dotted path; sections that are missing are made."""
    *sections, key = path.split('.')
    target = config
    for name in sections:
        target = target.setdefault(name, {})
    target[key] = value


def bundled_config_of(env_id: str, policy_type: str, game: str | None = None, plays_itself: bool = False) -> str | None:
    """The name of the bundled config that trains this policy on this env without kwargs; None if there is none.

    Args: plays_itself: the policy is to play against itself, so that a config with other opponents is none for it.
    """
    for name in sorted(bundled_configs(), key=len):  # a longer name is that of a variant
        config = plain(load_config(name)[0])
        env = config['env']
        policy = config['policy']
        is_plain = env['id'] == env_id and policy.get('type', 'ppo') == policy_type and 'kwargs' not in env
        if plays_itself and (config.get('agents') or {}).get('self_play') is None:
            continue
        if is_plain and str(env.get('game')).lower() == str(game).lower():
            return name
    return None


def _norms(policy_type: str, settings: Mapping[str, Any], obs_space: Space) -> dict[str, Any]:
    """The normalisations to turn on for an untuned env: those of policy and model that suit its observations.

    Of six envs, three ended far higher with them and three about as high (benchmarks/results/any_env.md).
    """
    policy = POLICY_REGISTRY.get(policy_type)
    learn = getattr(policy.config.model_fields['learn'].annotation, 'model_fields', {})
    if 'reward_norm' not in learn:
        return {}
    model = MODEL_REGISTRY.get(settings.get('policy.model.type') or policy.default_model())
    chosen: dict[str, Any] = {}
    if 'obs_norm' in model.config.model_fields and _has_unscaled_numbers(obs_space, settings):
        chosen['policy.model.obs_norm'] = True
    chosen['policy.learn.reward_norm'] = True
    return chosen


def _has_unscaled_numbers(obs_space: Space, settings: Mapping[str, Any]) -> bool:
    """Whether the networks see a Box that is no image: policy.model.obs_norm changes nothing else.

    Not if there are sets of entities: their statistics would be of places, so that the order of entities would count.
    """
    entries = {key: _value_of(settings, f'policy.model.{key}') for key in ('actor_obs', 'critic_obs')}
    try:
        seen = views_of(obs_space, **entries).input
    except UserError:  # the run reports it
        return False
    if sets_of(seen):
        return False
    return any(isinstance(leaf, Box) and not holds_images(leaf) for _, leaf in leaf_spaces(seen))


def _is_rescaled(settings: Mapping[str, Any], action_space: Space) -> bool:
    """Whether to set env.action_mode=rescale: a policy begins far from some bounds, and the user chose nothing else."""
    if any(key in settings for key in ('env.action_mode', 'env.action_bins')):
        return False
    if not any(bounds.are_finite for bounds in far_bounds(action_space)):
        return False
    name = settings.get('policy.model.distribution') or 'auto'
    if name == 'auto':
        return True
    try:
        return not DISTRIBUTION_REGISTRY.get(name).is_bounded  # a bounded one begins inside the bounds
    except UserError:  # the run reports it
        return False


def _value_of(settings: Mapping[str, Any], path: str) -> Any:
    value = settings.get(path)
    if isinstance(value, str):
        return parse_value(value)
    return value


def _spaces_of(section: Mapping[str, Any], overrides: Sequence[str]) -> _Spaces | None:
    """The spaces of the env that a run with these settings uses; None if none can be made to look at them.

    Raises: NoAnswerError if the env does not answer in time; the run would only wait for it once more.
    """
    try:
        cfg = evaluation_env({'env': section}, [text for text in overrides if text.startswith('env.')])
        with watch_calls(cfg.step_timeout):
            if vectorization_of(cfg) == 'batched':
                with closing(make_vector_env(cfg, N_ENV)) as vector:
                    return _Spaces(vector.obs_space, vector.action_space)
            name = env_name(cfg)
            made = make_env(cfg)
            try:
                obs_space, action_space = env_spaces(made, name)
                return _Spaces(seen_space(obs_space, action_space, cfg.action_mask, name), action_space)
            finally:
                # the run closes such envs too, and warns
                close_in_time({f'env {name!r}': made.close}, cfg.step_timeout, logging.DEBUG)
    except (NoAnswerError, *STOPS):
        raise
    except SeveralAgentsError:
        return _spaces_of_agents(section, overrides)
    except BaseException:  # also from the env's own code: the run makes the env again, and reports the error
        return None


def resolve_with_agents(source: Any, overrides: Sequence[str] = (), **top_level: Any) -> Config:
    """Resolves a config, see `resolve_config`; one of an env of several agents need not have a section agents.

    Only the env tells how many agents there are, and so how many rows a rollout has, which minibatches must divide. If the config
    of one agent is refused, the env is made; if it has several agents, the section agents becomes that of one policy for all.
    """
    try:
        return resolve_config(source, overrides, **top_level)
    except ConfigError as error:
        if any(text.startswith('agents.') for text in overrides) or load_config(source)[0].get('agents'):
            raise
        try:
            several = resolve_config(source, [*overrides, f'agents.policies={{{SHARED}: {{}}}}'], **top_level)
            game, _ = find_game(frozen_config(several).env)
        except (ConfigError, EnvError):
            raise error from None
        if game is None:
            raise
        game.close()
        return several


def _spaces_of_agents(section: Mapping[str, Any], overrides: Sequence[str]) -> _Spaces | None:
    """The spaces of the first policy of an env of several agents; None as in `_spaces_of`."""
    from zoo.agents.stage import look_at_agents

    texts = [text for text in overrides if text.startswith(('env.', 'agents.'))]
    try:
        cfg = frozen_config(resolve_config({'env': dict(section)}, texts))
        with watch_calls(cfg.env.step_timeout):
            group = look_at_agents(cfg.env, cfg.agents).groups[0]
            return _Spaces(group.obs_space, group.action_space)
    except (NoAnswerError, *STOPS):
        raise
    except BaseException:  # as in `_spaces_of`
        return None


OF_PETTINGZOO = ('env', 'raw_env', 'parallel_env', 'aec_env')
"""Names of the functions of PettingZoo's modules, which do not tell envs apart."""


def exp_name_of(env_id: str) -> str:
    """A folder name made of an env's id: 'my_env.py:MyEnv' is 'MyEnv', 'CartPole-v1' is 'CartPole-v1'.

    'mpe2.simple_spread_v3:parallel_env' is 'simple_spread_v3'.
    """
    if ':' in env_id:
        home, _, name = env_id.rpartition(':')
        if home == 'pettingzoo':  # its registry
            name = Path(name).name
        elif name in OF_PETTINGZOO:
            name = home.rpartition('.')[2]
            if home.endswith('.py'):
                name = Path(home).stem
    else:
        name = Path(env_id).name
    return re.sub(r'[^\w.-]+', '_', name).strip('._')[:EXP_NAME_CHARS] or 'run'
