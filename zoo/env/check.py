"""Checks in a few steps whether an env keeps the gymnasium interface.

What makes learning wrong is an error. Episodes that no seed repeats are a warning: to a policy they are chance like any
other, and only the promise that runs with one seed are equal is lost. `env.check=strict` refuses them too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from zoo.core.errors import UserError
from zoo.env.check_family import Finding, check_family
from zoo.env.check_single import EnvCheck
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import EnvContractError
from zoo.env.families.family import EnvFamily
from zoo.env.make import env_name, find_env, make_env

logger = logging.getLogger(__name__)


def check_env(cfg: EnvConfig | Mapping[str, Any], n_step: int = 10) -> list[str]:
    """Make one env of the config and take `n_step` random steps with it, starting new episodes where they end.

    The first of these steps are taken twice, with the same seed and the same actions. A family makes two envs that
    step together; VectorEnv checks what they return.

    Returns: warnings, one sentence each, which are also logged: episodes with the same seed differ; a wrapper normalises
      by running statistics; in 1,000 steps or more no episode ended, and nothing limits them.
    Raises: EnvContractError that names env, index, step, what was got, what was wanted and what to do; UserError if
      n_step is below 1; and what make_env raises. With env.check=strict also in place of the warnings about episodes
      that no seed repeats.
    """
    if n_step < 1:
        raise UserError(f'check_env got n_step={n_step}, wanted 1 or more; leave it out for 10 steps.')
    cfg = env_config(cfg)
    found = check_family(cfg, n_step) if is_vector(cfg) else _check_single(cfg, n_step)
    for sentence, is_chance in found:
        if is_chance and cfg.check == 'strict':
            raise EnvContractError(refused(sentence))
    for sentence, _ in found:
        logger.warning('%s', sentence)
    return [sentence for sentence, _ in found]


def _check_single(cfg: EnvConfig, n_step: int) -> list[Finding]:
    env = make_env(cfg)
    try:
        return EnvCheck(env, cfg).run(n_step)
    finally:
        close_in_time({f'env {env_name(cfg)!r}': env.close}, cfg.step_timeout)


def is_vector(cfg: EnvConfig) -> bool:
    """Whether the envs of a config come as a vector only."""
    return isinstance(find_env(cfg.id, cfg.game), EnvFamily)


def refused(sentence: str) -> str:
    """What env.check=strict makes of a warning."""
    return f'{sentence} (env.check=strict refuses this; env.check=true only warns of it.)'
