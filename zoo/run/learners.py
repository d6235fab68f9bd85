"""A run of several learners on a Ray cluster: what `cluster.learner_num` above 1 starts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.cluster.cargo import packed_call
from zoo.cluster.split import split_problems
from zoo.config.section import Config, ConfigError
from zoo.core.errors import UserError
from zoo.core.ranks import RanksLostError
from zoo.policy.base import Policy
from zoo.run.env_watch import EnvWatch
from zoo.run.interrupt import Interrupted, catch_signals
from zoo.run.job import OnEvaluation, TrainResult
from zoo.run.load import load_policy
from zoo.run.trust import give_imports, given_imports

Pipeline = Callable[..., TrainResult]


def starts_learners(cfg: Config, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is to start the learners, being none of them."""
    return bool(cfg.cluster.learner_num > 1 and environ.get('WORLD_SIZE', '1') == '1')


def train_with_learners(
    pipeline: Pipeline, cfg: Config, policy: Policy | None, on_evaluation: OnEvaluation | None, **options: Any
) -> TrainResult:
    """Trains in cluster.learner_num processes, each of which calls the pipeline with the config and these options.

    Args: policy: refused; on_evaluation: called in this process; options: others of `serial_pipeline`; what they hold is copied to the learners.
    Returns: the result of rank 0, with the policy of its last checkpoint.
    Raises: as `serial_pipeline`, what a learner raised; UserError for a policy, which cannot be given to them.
    """
    if policy is not None:
        raise UserError(
            f'serial_pipeline got a policy but cluster.learner_num is {cfg.cluster.learner_num}: a policy is not sent to '
            'other processes; give a config, and model= for a network of your own, or start the learners with torchrun'
        )
    if problems := list(split_problems(cfg, cfg.cluster.learner_num, by='ray')):
        raise ConfigError(problems)
    for name in {'resume', 'run_dir'} & options.keys():
        options[name] = None if options[name] is None else str(Path(options[name]).absolute())
    config = cfg.to_dict()
    work = {
        'pipeline': pipeline,
        'config': config,
        'has_listener': on_evaluation is not None,
        'imports': given_imports(),
    }
    from zoo.cluster.launch import run_ranks

    with catch_signals() as received:
        try:
            cargo = packed_call({'work': _as_rank, 'options': {**work, **options}}, config)
            result: TrainResult = run_ranks(cfg, cargo, received, on_evaluation)
        except RanksLostError as error:
            if received:
                raise Interrupted(128 + received[0]) from error
            raise
    if not result.run_dir.is_dir():
        raise UserError(
            f'the run folder {result.run_dir} of rank 0 is not on this machine; set logger.root to a folder that all nodes share'
        )
    with _quiet('zoo.backend'):  # how steps are executed was said by the learners
        trained = load_policy(result.run_dir, trust=True, model=options['model'], fields='all')
    return replace(result, policy=trained)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only warnings of this logger."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(max(log.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        log.setLevel(before)


def _as_rank(
    rank: int, ask: Any, pipeline: Pipeline, has_listener: bool, imports: tuple[str, ...], **options: Any
) -> TrainResult | None:
    """What a learner does. Args: ask: calls on_evaluation in the process that started the learners."""
    give_imports(imports)
    EnvWatch.owns_process = True
    result = pipeline(on_evaluation=ask if has_listener and rank == 0 else None, **options)
    without: Any = None
    return replace(result, policy=without) if rank == 0 else None
