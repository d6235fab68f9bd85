"""The state of a run: what a checkpoint holds of it, and how a run continues from a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from zoo.config.section import Config
from zoo.config.source import storable
from zoo.core.version import VERSION
from zoo.run.checkpoint import Checkpoint, CheckpointError, fit_state
from zoo.run.parts import Parts

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """How far a run is, apart from the counters of its parts."""

    eval_step: int = 0  # env step of the last evaluation
    save_step: int = 0  # env step of the last checkpoint
    best_return: float | None = None
    last_return: float | None = None
    wall_before: float = 0.0  # seconds before the resume

    def reached(self, stop_value: float | None) -> bool:
        """Whether the last evaluation reached policy.eval.stop_value."""
        return stop_value is not None and self.last_return is not None and self.last_return >= stop_value


def state_of(cfg: Config, parts: Parts, progress: Progress, wall_s: float) -> dict[str, Any]:
    """Everything that a resume needs; the envs' own state is not part of it."""
    return {
        'policy': parts.policy.state_dict(),
        'memory': parts.policy.memory_state_dict() if cfg.checkpoint.aux_memory else {},
        'buffer': parts.buffer.state_dict(),
        'counter': _counters(parts, progress, wall_s),
    }


def meta_of(cfg: Config, parts: Parts, progress: Progress) -> dict[str, Any]:
    """What describes a checkpoint: config, counters, spaces, versions."""
    return {
        'config': storable(cfg),
        'env_step': parts.collector.env_step,
        'train_iter': parts.learner.train_iter,
        'best_return': progress.best_return,
        'obs_space': parts.policy.obs_space.to_json(),
        'action_space': parts.policy.action_space.to_json(),
        'version': {'zoo': VERSION, 'torch': torch.__version__, 'executor': parts.policy.executor_name},
    }


def restore(cfg: Config, parts: Parts, checkpoint: Checkpoint) -> Progress:
    """Copies the state of a checkpoint into the parts. Raises: CheckpointError if it does not fit them."""
    _check_same_env(cfg, parts, checkpoint)
    was, now = checkpoint.meta['version'].get('executor'), parts.policy.executor_name
    if was not in (None, now):
        logger.warning(
            'the run was trained by executor %s and continues with %s: equal to rounding, not bit for bit', was, now
        )
    state, counter = checkpoint.state, checkpoint.state['counter']
    fit_state(parts.policy.state_dict(), state['policy'], checkpoint.path)
    fit_state(_counters(parts, Progress(), 0.0), counter, checkpoint.path)
    parts.policy.load_state_dict(state['policy'])
    parts.policy.load_memory_state_dict(state.get('memory', {}))
    parts.buffer.load_state_dict(state.get('buffer', {}))
    parts.collector.env_step, parts.collector.collect_iter = counter['env_step'], counter['collect_iter']
    parts.collector.episodes.n_episode = counter['episode']
    return Progress(
        counter['eval_step'], counter['env_step'], counter['best_return'], counter['last_return'], counter['wall_s']
    )


def _counters(parts: Parts, progress: Progress, wall_s: float) -> dict[str, Any]:
    return {
        'env_step': parts.collector.env_step,
        'collect_iter': parts.collector.collect_iter,
        'episode': parts.collector.episodes.n_episode,
        'eval_step': progress.eval_step,
        'best_return': progress.best_return,
        'last_return': progress.last_return,
        'wall_s': wall_s,
    }


def _check_same_env(cfg: Config, parts: Parts, checkpoint: Checkpoint) -> None:
    for name in ('obs_space', 'action_space'):
        was, now = checkpoint.meta[name], getattr(parts.envs[0], name).to_json()
        if was != now:
            raise CheckpointError(
                checkpoint.path,
                f'is of a run with {name} {was} but the env has {now}; resume with the env that it was trained on',
            )
    was, now = ([env['id'], env['game']] for env in (checkpoint.meta['config']['env'], storable(cfg)['env']))
    if was != now:
        names = [' '.join(name for name in pair if name) for pair in (was, now)]
        logger.warning('the run was trained on env %s and continues with %s', *names)
