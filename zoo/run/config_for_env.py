"""A config for an env that was given without one: the bundled config of that env, or settings that fit many envs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from zoo.config.section import plain
from zoo.config.source import bundled_configs, load_config, split_override
from zoo.config.yaml_io import function_name
from zoo.core.registry import MODEL_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import is_image
from zoo.env.adapter import convert_space
from zoo.env.errors import UnsupportedEnvError
from zoo.env.make import check_source, env_name, make_env
from zoo.worker.evaluation_env import evaluation_env

logger = logging.getLogger(__name__)
EXP_NAME_CHARS = 60


def config_for_env(
    env: str | Callable[..., Any], policy_type: str | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The bundled config of an env and policy, or a new one if there is none; the log says which.

    Args:
      env: a value for `env.id`.   policy_type: 'ppo' if it is None and no override names another.
      overrides: those of the run, which may change the env's keywords; they are not applied here.
    Returns: a plain config. Raises: UserError if no policy has the name.
    """
    given = dict(split_override(text) for text in overrides)
    policy_type = policy_type or given.get('policy.type') or 'ppo'
    POLICY_REGISTRY.get(policy_type)  # a misspelt name is refused before the env is looked up
    name = bundled_config_of(env, policy_type, given.get('env.game')) if isinstance(env, str) else None
    if name is not None:
        logger.info('training with the bundled config %s; zoo config %s shows it', name, name)
        return load_config(name)[0]
    label = env if isinstance(env, str) else function_name(env)
    check_source({'id': env, 'game': given.get('env.game')})
    has_images = _has_images(env, overrides)
    norms = [] if has_images is None else _norms(policy_type, given.get('policy.model.type'), has_images)
    if has_images is not None:  # else the run says what is wrong with the env
        with_norms = ''.join(f' and {path}=true' for path in norms)
        logger.info('no bundled config is for %s and %s: training with the defaults%s', label, policy_type, with_norms)
    policy: dict[str, Any] = {'type': policy_type}
    for path in norms:
        _, section, key = path.split('.')
        policy[section] = {key: True}
    return {'exp_name': exp_name_of(label), 'env': {'id': env}, 'policy': policy}


def bundled_config_of(env_id: str, policy_type: str, game: str | None = None) -> str | None:
    """The name of the bundled config that trains this policy on this env without kwargs; None if there is none."""
    for name in sorted(bundled_configs(), key=len):  # a longer name is that of a variant
        config = plain(load_config(name)[0])
        env, policy = config['env'], config['policy']
        is_plain = env['id'] == env_id and policy.get('type', 'ppo') == policy_type and 'kwargs' not in env
        if is_plain and str(env.get('game')).lower() == str(game).lower():
            return name
    return None


def _norms(policy_type: str, model_type: str | None, has_images: bool) -> list[str]:
    """The normalisations to turn on for an untuned env: those of policy and model that suit its observations.

    Of six envs, three ended far higher with them and three about as high (benchmarks/results/any_env.md).
    """
    policy = POLICY_REGISTRY.get(policy_type)
    learn = getattr(policy.config.model_fields['learn'].annotation, 'model_fields', {})
    if 'reward_norm' not in learn:
        return []
    model = MODEL_REGISTRY.get(model_type or policy.default_model())
    has_norm = 'obs_norm' in model.config.model_fields and not has_images
    return [*(['policy.model.obs_norm'] if has_norm else []), 'policy.learn.reward_norm']


def _has_images(env: object, overrides: Sequence[str]) -> bool | None:
    """Whether observations are images and nothing else; None if no env can be made to check."""
    try:
        cfg = evaluation_env({'env': {'id': env}}, [text for text in overrides if text.startswith('env.')])
        with closing(make_env(cfg)) as made:
            return is_image(convert_space(made.observation_space, 'observation', env_name(cfg)))
    except UnsupportedEnvError:  # a family, which makes vectors only
        return True
    except Exception:  # also from the env's own code: the run makes the env again, and reports the error
        return None


def exp_name_of(env_id: str) -> str:
    """A folder name made of an env's id: 'my_env.py:MyEnv' is 'MyEnv', 'CartPole-v1' is 'CartPole-v1'."""
    name = env_id.rpartition(':')[2] if ':' in env_id else Path(env_id).name
    return re.sub(r'[^\w.-]+', '_', name).strip('._')[:EXP_NAME_CHARS] or 'run'
