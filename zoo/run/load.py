"""Loads a policy from a checkpoint file alone: without env, config file or pickle."""

from __future__ import annotations

import os

import torch
from torch import nn

from zoo.config.section import Config, validate
from zoo.core.errors import RunError
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import EnvConfig
from zoo.policy.base import Policy
from zoo.run.checkpoint import Checkpoint, State, check_finite, fit_state, load_checkpoint
from zoo.run.checkpoint_file import CheckpointError, malformed, shown
from zoo.run.config import resolve_policy
from zoo.run.memory import AllocationError, AllocationLimit
from zoo.run.saved_run import SavedRun, causes_of_misfits, check_given_model, saved_run
from zoo.run.sizes import check_sizes
from zoo.run.trust import Trust, check_names

BUILD_FACTOR, BUILD_SLACK = 8, 1 << 28
"""A policy of n bytes of parameters may allocate BUILD_FACTOR * n + BUILD_SLACK while it is built.

Initialisation and a first pass through the network need some 3 * n; small networks some MB.
"""


def load_policy(
    path: str | os.PathLike[str], device: str | None = None, trust: Trust = (), model: nn.Module | None = None
) -> Policy:
    """The policy of a checkpoint file or run folder with eval mode: `policy.act(obs)` acts as in evaluation.

    Args:
      device: as `policy.device`; None: the device of the run, or the CPU if there is no CUDA.
      trust: True, or a list of modules: code that the config of the policy may name, as 'module:function'.
      model: a module like the one that was trained, where `serial_pipeline` was given one; its weights are replaced.
    Raises: CheckpointError (path and reason); ConfigError if its policy or model is not registered.
    """
    return policy_of(load_checkpoint(path), device, trust, model)


def policy_of(
    checkpoint: Checkpoint, device: str | None = None, trust: Trust = (), model: nn.Module | None = None
) -> Policy:
    """Like `load_policy`, for a checkpoint in memory."""
    run = saved_run(checkpoint)
    check_names(run, ('policy',), trust)
    cfg = resolve_policy(run.config['policy'])
    if device is not None or not torch.cuda.is_available():
        cfg.device = device or 'cpu'
    policy = build_policy(run, cfg, model)
    policy.load_state_dict(run.state.policy)
    return policy


def build_policy(run: SavedRun, cfg: Config, model: nn.Module | None = None) -> Policy:
    """A new policy with eval mode of this section `policy`, which the state in a checkpoint fits.

    Raises: CheckpointError if it does not, has numbers that are not finite, or if the policy would be much larger.
    """
    check_given_model(run, model is not None)
    n_byte = _n_byte(run.state.policy)
    make = POLICY_REGISTRY.get(cfg.type)
    mode = run.config['env'].get('action_mode', 'clip')
    try:
        with AllocationLimit(BUILD_FACTOR * n_byte + BUILD_SLACK):
            spaces, options = (run.obs_space, run.action_space), {'seed': run.config['seed'], 'action_mode': mode}
            policy = make(cfg, *spaces, enable_field=['eval'], model=model, **options)
    except AllocationError as error:
        raise CheckpointError(
            run.path,
            f'does not fit: its config describes a policy of {error.n_byte / 1e6:,.0f} MB or more but its tensors have '
            f'{n_byte / 1e6:,.1f} MB; use the config that it was saved with',
        ) from error
    except RunError:
        raise
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise malformed(run.path, f'its policy cannot be built ({shown(str(error))})') from error
    expected = policy.state_dict()
    got = {key: run.state.policy[key] for key in expected if key in run.state.policy}
    fit_state(expected, got, run.path, causes_of_misfits(run, cfg))
    check_finite(expected, got, run.path)
    return policy


def env_config_of(checkpoint: Checkpoint, trust: Trust = ()) -> EnvConfig:
    """The section `env` of a checkpoint, to evaluate its policy on. Raises: CheckpointError, ConfigError."""
    run = saved_run(checkpoint)
    check_names(run, ('env', 'policy'), trust)
    check_sizes(run, ('env',), trust)
    return validate(EnvConfig, run.config['env'], 'env')


def _n_byte(state: State) -> int:
    """Bytes of all tensors in a state."""
    return sum(
        _n_byte(value) if isinstance(value, dict) else value.nbytes if isinstance(value, torch.Tensor) else 0
        for value in state.values()
    )
