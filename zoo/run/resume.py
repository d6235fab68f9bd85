"""The state of a run: what a checkpoint holds of it, and how a run continues from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from zoo.config.section import Config, join_path
from zoo.config.yaml_text import storable
from zoo.core.errors import RunError, UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.version import VERSION
from zoo.policy.base import MODES
from zoo.run.checkpoint import Checkpoint, check_finite, fit_state
from zoo.run.checkpoint_file import CheckpointError, malformed, shown
from zoo.run.config_check import without_derived_values
from zoo.run.parts import Parts
from zoo.run.rank_files import of_rank
from zoo.run.run_dir import root_of
from zoo.run.saved_run import (
    MAX_KEY,
    SavedRun,
    causes_of_misfits,
    check_given_model,
    check_saved_modes,
    saved_run,
)
from zoo.run.stopping import StopRules

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


def state_of(
    cfg: Config,
    parts: Parts,
    progress: Progress,
    wall_s: float,
    is_whole: bool = True,
    stop: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that a resume needs; the envs' own state is not part of it.

    Args: is_whole: no update was broken off; else what is kept for an auxiliary phase, maybe a half one, is left out;
      stop: state of the stop rules.
    """
    return {
        'policy': parts.policy.state_dict(),
        'memory': parts.policy.memory_state_dict() if cfg.checkpoint.aux_memory and is_whole else {},
        'buffer': parts.buffer.state_dict(),
        'counter': _counters(parts, progress, wall_s),
        **({'stop': stop} if stop else {}),
    }


def meta_of(cfg: Config, parts: Parts, progress: Progress, n_rank: int = 1) -> dict[str, Any]:
    """What describes a checkpoint: config, counters, spaces, versions; n_rank: ranks that trained together."""
    return {
        'config': storable(cfg),
        'env_step': parts.collector.env_step,
        'train_iter': parts.learner.train_iter,
        'best_return': progress.best_return,
        'obs_space': parts.policy.obs_space.to_json(),
        'action_space': parts.policy.action_space.to_json(),
        'version': {'zoo': VERSION, 'torch': torch.__version__, 'executor': parts.policy.executor_name},
        **({'rank_num': n_rank} if n_rank > 1 else {}),
        **({} if parts.policy.given_model is None else {'model': parts.policy.given_model[:MAX_KEY]}),
    }


def restore(cfg: Config, parts: Parts, checkpoint: Checkpoint, stop_rules: StopRules, ranks: Ranks = ALONE) -> Progress:
    """Copies the state of a checkpoint into the parts. Raises: CheckpointError if it does not fit them."""
    checkpoint = of_rank(checkpoint, ranks)
    run = saved_run(checkpoint)
    _check_same_env(cfg, parts, run)
    check_saved_modes(run, MODES)
    check_given_model(run, parts.policy.given_model is not None)
    now = parts.policy.executor_name
    if run.executor not in (None, now):
        logger.warning(
            'the run was trained by executor %s and continues with %s: equal to rounding, not bit for bit',
            run.executor,
            now,
        )
    _load(cfg, parts, run, stop_rules)
    counter = run.state.counter
    parts.collector.env_step, parts.collector.collect_iter = counter.env_step, counter.collect_iter
    parts.collector.episodes.n_episode = counter.episode
    parts.collector.episodes.n_reset = counter.episode if counter.reset is None else counter.reset
    parts.learner.n_sample = counter.env_step if counter.sample is None else counter.sample
    return Progress(counter.eval_step, counter.env_step, counter.best_return, counter.last_return, counter.wall_s)


def changes(cfg: Config, checkpoint: Checkpoint) -> str:
    """The values that a resume changes, 'key old -> new, ...', at most 10; '' if there are none.

    Values that follow from others, and keys that one of the two configs does not have, are left out.
    """
    run = saved_run(checkpoint)
    was, now = without_derived_values(run.config), without_derived_values(storable(cfg))
    if now['logger']['root'] == root_of(run):  # taken from the place of the file
        was = {**was, 'logger': {**was['logger'], 'root': root_of(run)}}
    found = list(_differences(was, now))
    return ', '.join(found[:10]) + (f' and {len(found) - 10} more' if len(found) > 10 else '')


def _differences(was: Any, now: Any, path: str = '') -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict) and path != 'env.kwargs':
        for key in (key for key in now if key in was):
            yield from _differences(was[key], now[key], join_path(path, key))
    elif was != now:
        yield f'{path} {shown(repr(was), 40)} -> {shown(repr(now), 40)}'


def _load(cfg: Config, parts: Parts, run: SavedRun, stop_rules: StopRules) -> None:
    expected, state = parts.policy.state_dict(), run.state
    fit_state(expected, state.policy, run.path, causes_of_misfits(run, cfg.policy))
    for name in expected.keys() & {'model', 'normalizer'}:
        check_finite(expected[name], state.policy[name], run.path)
    try:
        parts.policy.load_state_dict(state.policy)
        parts.policy.load_memory_state_dict(state.memory)
        parts.buffer.load_state_dict(state.buffer)
        stop_rules.load_state_dict(state.stop)
    except (UserError, RunError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # a state of other keys or shapes than this policy and buffer write
        raise CheckpointError(
            run.path,
            f'has a state that this run cannot continue from ({type(error).__name__}: {shown(str(error))}); '
            'use the config that it was saved with',
        ) from error
    n = parts.learner.train_iter
    if type(n) is not int or not 0 <= n < 2**53:
        raise malformed(run.path, f'train_iter is {n!r}: it should be a count')


def _counters(parts: Parts, progress: Progress, wall_s: float) -> dict[str, Any]:
    return {
        'env_step': parts.collector.env_step,
        'collect_iter': parts.collector.collect_iter,
        'episode': parts.collector.episodes.n_episode,
        'reset': parts.collector.episodes.n_reset,
        'sample': parts.learner.n_sample,
        'eval_step': progress.eval_step,
        'best_return': progress.best_return,
        'last_return': progress.last_return,
        'wall_s': wall_s,
    }


def _check_same_env(cfg: Config, parts: Parts, run: SavedRun) -> None:
    spaces = {name: getattr(parts.envs[0], name) for name in ('obs_space', 'action_space')}
    for name, now in spaces.items():
        was = getattr(run, name)
        if was != now:
            raise CheckpointError(
                run.path,
                f'is of a run with {name} {was.to_json()} but the env has {now.to_json()}; resume with the env that it '
                'was trained on',
            )
    was, now = ([env['id'], env.get('game')] for env in (run.config['env'], storable(cfg)['env']))
    if was != now:
        names = [' '.join(name for name in pair if name) for pair in (was, now)]
        logger.warning('the run was trained on env %s and continues with %s', *names)
