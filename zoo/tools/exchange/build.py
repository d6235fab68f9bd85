"""Builder of policies and run folders from models of other libraries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.config.section import ConfigError, plain
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, Space, is_image, space_words
from zoo.env import make_vector_env
from zoo.model.inputs import DictInput, NormedVector
from zoo.policy.base import Policy
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.run.base_config import JobConfig
from zoo.run.build import new_policy
from zoo.run.config import frozen_config, resolve_config
from zoo.run.folder import RunFolder
from zoo.run.result import ResultFile
from zoo.tools.exchange.form import ForeignModel, ModelFileError, Moments, SavedStatistics

logger = logging.getLogger(__name__)
NO_ENV = 'CartPole-v1'
"""An env for configs of models whose env is not known; it is never made."""


def policy_of(model: ForeignModel, env: str | None, overrides: Sequence[str] = ()) -> tuple[Policy, JobConfig]:
    """Builds the policy of a model, with its parameters, statistics and the state of its optimiser; and its config.

    Args: env: None: it is not known, so the spaces are those of the file. Raises: ModelFileError, ConfigError.
    """
    config = plain(model.config)
    if config.get('seed', 0) is None:  # other libraries draw one then
        del config['seed']
    if env is None:
        config['env'] = {'id': NO_ENV, **config.get('env', {})}
        model.became.append(('env', 'not known: the policy acts; a run needs env.id'))
    elif 'id' not in config.setdefault('env', {}):
        config['env']['id'] = env
    try:
        cfg = frozen_config(resolve_config(config, overrides))
    except ConfigError as error:
        problems = ' '.join(map(str, error.problems))
        raise ModelFileError(model.path, f'has settings that no run of zoo can have: {problems}') from error
    spaces = _spaces(model, cfg, env is not None)
    if env is None:
        make = POLICY_REGISTRY.get(cfg.policy.type)
        try:
            policy: Policy = make(cfg.policy, *spaces, seed=cfg.seed, action_mode=cfg.env.action_mode)
        except UserError as error:  # of spaces or settings, which are those of the file
            raise ModelFileError(model.path, f'becomes no policy of zoo: {error}') from error
    else:
        policy = new_policy(cfg, spaces, None)
    with torch.no_grad():
        _put_weights(model, policy)
        _put_statistics(model, policy)
        _put_moments(model, policy)
    policy._follow_model()
    return policy, cfg


def _spaces(model: ForeignModel, cfg: JobConfig, has_env: bool) -> tuple[Space, Space]:
    """The spaces of the env, which must be those of the file; without an env those of the file."""
    if not has_env:
        if model.obs_space is None or model.action_space is None:
            raise ModelFileError(
                model.path, 'does not say its observations and actions; name its env with --env ID (env=ID)'
            )
        return model.obs_space, model.action_space
    with closing(make_vector_env(cfg.env, 1)) as env:
        spaces = env.obs_space, env.action_space
    for what, found, wanted in zip(
        ('observations', 'actions'), spaces, (model.obs_space, model.action_space), strict=True
    ):
        if wanted is not None and _form(found) != _form(wanted):
            raise ModelFileError(
                model.path,
                f'has {what} {space_words(wanted)} but env {cfg.env.id!r} has {space_words(found)}; name the env that it was '
                'trained on, with the same wrappers (env.wrappers=[..])',
            )
    return spaces


def _form(space: Space) -> Any:
    """What the networks see of a space: shapes and numbers of values, no bounds; images in one order of dimensions."""
    if isinstance(space, Dict):
        return {name: _form(each) for name, each in sorted(space.spaces.items())}
    if isinstance(space, Box):
        if is_image(space):
            return 'image', sorted(space.shape)
        return 'numbers', int(np.prod(space.shape))
    return plain(space.to_json()) | {'start': 0, 'dtype': ''}


def _put_weights(model: ForeignModel, policy: Policy) -> None:
    """Copies the parameters. Raises: ModelFileError if names or shapes differ."""
    own = dict(policy.model.named_parameters())
    misfits = [f'{name} is not in the file' for name in own if name not in model.weights]
    misfits += [f'{name} has no place' for name in model.weights if name not in own]
    for name in own.keys() & model.weights.keys():
        if own[name].shape != model.weights[name].shape:
            misfits.append(f'{name} is {list(model.weights[name].shape)} there and {list(own[name].shape)} here')
    if misfits:
        raise ModelFileError(
            model.path, f'has a network that does not fit: {", ".join(misfits[:3])}; import it without overrides'
        )
    for name, parameter in own.items():
        if not model.weights[name].isfinite().all():
            raise ModelFileError(
                model.path, f'has numbers in {name} that are not finite: its training had failed; use an older file'
            )
        parameter.copy_(model.weights[name])


def _put_statistics(model: ForeignModel, policy: Policy) -> None:
    if model.obs_statistics:
        for name, norm in _norms(policy.model.input).items():
            _put_into(norm, model.obs_statistics[name])
    if model.reward_statistics is not None:
        _put_into(policy._normalizers['reward'], model.reward_statistics)


def _norms(stage: nn.Module) -> dict[str, RunningMeanStd]:
    """The statistics of an input stage, by the name of the entry of a Dict, '' for other observations."""
    stages: Mapping[str, nn.Module] = {'': stage}
    if isinstance(stage, DictInput):
        inner = [each for _, each in stage.named_stages()]
        stages = dict(zip(stage.entry_names, inner, strict=True))
    norms = {}
    for name, each in stages.items():
        norm = each
        if isinstance(each, NormedVector):
            norm = each.norm
        if isinstance(norm, RunningMeanStd):
            norms[name] = norm
    return norms


def _put_into(norm: RunningMeanStd, statistics: SavedStatistics) -> None:
    """Sets running statistics, as if they had counted those values here."""
    norm.mean.copy_(torch.from_numpy(statistics.mean).reshape(norm.mean.shape))
    norm.var.copy_(torch.from_numpy(statistics.var).reshape(norm.var.shape))
    norm.count.fill_(statistics.n)
    norm.update(norm.mean.new_empty(0, *norm.mean.shape))  # no values: shift and scale follow


def _put_moments(model: ForeignModel, policy: Policy) -> None:
    """Copies the state of the optimiser, of those parameters that an optimiser here trains."""
    optimizers: Mapping[str, Any] = getattr(policy, 'optimizers', {})
    moments: Moments | None = model.moments
    for name, optimizer in optimizers.items():
        if moments is None or name == 'actor' and policy.cfg.type in ('trpo', 'npg'):
            continue  # the step of such an actor has no moments
        wanted = set(optimizer.names)
        lacking = [kind for kind in optimizer.rule.moments if not wanted <= set(moments.tensors.get(kind, ()))]
        if lacking:
            model.left_out.append(
                ('policy.optimizer.pth', f'{", ".join(lacking)} is missing: the optimiser begins anew')
            )
            continue
        flat: dict[str, Tensor] = {
            kind: torch.cat([moments.tensors[kind][each].flatten() for each in optimizer.names])
            for kind in optimizer.rule.moments
        }
        state = optimizer.state_dict() | flat
        state['step_count'] = torch.full_like(optimizer.step_count, moments.step_count)
        optimizer.load_state_dict(state)
    if model.train_iter and hasattr(policy, 'passes'):
        policy.passes.train_iter = model.train_iter


def save_run(policy: Policy, cfg: JobConfig, model: ForeignModel, run_dir: Path) -> Path:
    """Writes the run folder of an imported policy, and returns it. Raises: UserError if it is one, or cannot be written."""
    if (run_dir / 'config.yaml').exists():
        raise UserError(f'{run_dir} is the folder of a run; name another one')
    with closing(RunFolder(cfg, None, run_dir)) as folder:
        folder.begin()
        (folder.path / 'checkpoints').mkdir(exist_ok=True)
        policy.save(folder.path / 'checkpoints' / f'step_{model.env_step}.safetensors', env_step=model.env_step)
        ResultFile(folder.path).end({'env_step': model.env_step, 'imported_from': model.source}, True)
    return run_dir
