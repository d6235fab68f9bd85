"""Loads a policy from a checkpoint file alone: without env, config file or pickle."""

from __future__ import annotations

import os

import torch

from zoo.config.section import Config, fill_defaults
from zoo.core.registry import MODEL_REGISTRY, POLICY_REGISTRY
from zoo.core.spaces import space_from_json
from zoo.policy.base import Policy
from zoo.run.checkpoint import Checkpoint, fit_state, load_checkpoint


def load_policy(path: str | os.PathLike[str], device: str | None = None) -> Policy:
    """The policy of a checkpoint file or run folder with eval mode: `policy.act(obs)` acts as in evaluation.

    Args: device: as `policy.device`; None: the device of the run, or the CPU if there is no CUDA.
    Raises: CheckpointError (path and reason); UnknownNameError if its policy or model is not registered.
    """
    return policy_of(load_checkpoint(path), device)


def policy_of(checkpoint: Checkpoint, device: str | None = None) -> Policy:
    """Like `load_policy`, for a checkpoint in memory."""
    meta = checkpoint.meta
    cfg = Config(meta['config'])
    policy_cls = POLICY_REGISTRY.get(cfg.policy.type)
    fill_defaults(policy_cls.config, cfg.policy)
    if cfg.policy.model:  # a policy may have no network
        fill_defaults(MODEL_REGISTRY.get(cfg.policy.model.type).config, cfg.policy.model)
    if device is not None or not torch.cuda.is_available():
        cfg.policy.device = device or 'cpu'
    policy = policy_cls(
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
