"""A policy with its network, made from a config without a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from torch import nn

from zoo.buffer import n_draw_of, reuse_of
from zoo.config.section import Config
from zoo.config.yaml_text import storable
from zoo.core.data import RunInfo
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import make_vector_env
from zoo.policy.base import Policy
from zoo.run.config import resolve_config
from zoo.run.init_from import start_from


def make_policy(
    config: Any, overrides: Sequence[str] = (), *, seed: int | None = None, model: nn.Module | None = None
) -> Policy:
    """The policy that a run of this config begins with, with all its modes; `serial_pipeline(policy=...)` trains it.

    One env is made to know its spaces, and closed. `policy.model` is the network.
    Args: config, overrides, seed, model: as of `serial_pipeline`.
    Raises: ConfigError, EnvError, UserError, as that.
    """
    return policy_of_config(resolve_config(config, overrides, seed=seed), model)


def policy_of_config(cfg: Config, model: nn.Module | None = None) -> Policy:
    """The same of a resolved config."""
    with closing(make_vector_env(cfg.env, 1)) as env:
        spaces = env.obs_space, env.action_space
    run = RunInfo(
        cfg.max_env_step,
        reuse_of(cfg.buffer, cfg.policy.collect.n_sample),
        n_draw_of(cfg.buffer),
        config=storable(cfg),
    )
    options = {'seed': cfg.seed, 'action_mode': cfg.env.action_mode, 'run': run, 'model': model}
    policy = POLICY_REGISTRY.get(cfg.policy.type)(cfg.policy, *spaces, **options)
    if cfg.init_from is not None:
        start_from(policy, cfg.init_from, cfg.init_from_keys)
    return policy
