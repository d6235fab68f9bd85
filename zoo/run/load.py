"""A policy from a checkpoint file alone: no env, no config file, no pickle."""

from __future__ import annotations

import os

import torch

from zoo.config.section import Config
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import space_from_json
from zoo.policy.base import Policy
from zoo.run.checkpoint import Checkpoint, fit_state, load_checkpoint


def load_policy(path: str | os.PathLike[str], device: str | None = None) -> Policy:
    """The policy of a checkpoint file or run folder, ready to evaluate: `policy.act(obs)` acts as it did in evaluation.

    Args: device: as `policy.device`; None: as the run was configured, but the CPU where there is no CUDA.
    Raises: CheckpointError (path and reason); UnknownNameError if it needs a policy or model that was not imported.
    """
    return policy_of(load_checkpoint(path), device)


def policy_of(checkpoint: Checkpoint, device: str | None = None) -> Policy:
    """As `load_policy`, from a checkpoint that was read already."""
    meta = checkpoint.meta
    cfg = Config(meta['config'])
    if device is not None or not torch.cuda.is_available():
        cfg.policy.device = device or 'cpu'
    policy = POLICY_REGISTRY.get(cfg.policy.type)(
        cfg.policy,
        space_from_json(meta['obs_space']),
        space_from_json(meta['action_space']),
        seed=cfg.seed,
        enable_field=['eval'],
        action_mode=cfg.env.action_mode,
    )
    expected = policy.state_dict()
    fit_state(expected, {key: checkpoint.state['policy'][key] for key in expected}, checkpoint.path)
    policy.load_state_dict(checkpoint.state['policy'])
    return policy
