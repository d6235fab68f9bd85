"""The serial pipeline: one call takes a config to a trained policy."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from torch import nn

from zoo.config.section import Config
from zoo.config.source import storable
from zoo.core.errors import UserError
from zoo.env import EnvError
from zoo.policy.base import Policy
from zoo.run.checkpoint import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.config_check import without_derived_values
from zoo.run.interrupt import Interrupted, catch_signals
from zoo.run.job import SerialJob, TrainResult
from zoo.run.load import build_policy
from zoo.run.profile import profiled
from zoo.run.run_dir import root_of
from zoo.run.saved_run import SavedRun, check_config_size, saved_run
from zoo.run.sizes import check_memory, check_sizes
from zoo.run.trust import Trust, check_names, consent_words, give_names

logger = logging.getLogger(__name__)


def serial_pipeline(
    config: Any = None,
    seed: int | None = None,
    max_env_step: int | None = None,
    max_train_iter: int | None = None,
    policy: Policy | None = None,
    resume: str | os.PathLike[str] | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    profile: int | None = None,
    trust: Trust = (),
    model: nn.Module | None = None,
) -> TrainResult:
    """Trains a policy from a config.

    Args:
      config: a dict, an EasyDict, a path to a .py or .yaml file, or a bundled config's name; None only with resume.
      seed, max_env_step: replace those of the config.
      max_train_iter: also stop after this many optimiser steps (checked between rollouts).
      policy: a policy with all its modes, to train instead of a new one.
      resume: a run folder or checkpoint file to continue from; without a config, its own is used. The learner's state
        is restored; envs start new episodes, from seeds that depend on the seed and the env step.
      overrides: 'a.b.c=value' strings, applied last.
      profile: number of iterations to time after 2 to warm up (result in the log and in profile.txt of the run
        folder); torch's profiler traces the next 3 (trace.json). The run then continues; its results do not change.
      trust: True, or a list of modules: code that the config of the run to resume may name, as 'module:function'.
        Registered names need no trust, nor do those that an override or an earlier call in this process gave.
      model: a network for the policy, in place of the one that policy.model names; its methods are those of a registered
        model. `load_policy(run, model=...)` needs it again.
    Returns: TrainResult. Raises: ConfigError before anything is made; EnvError, CheckpointError,
      NonFiniteGradientError; Interrupted (SystemExit, 130 or 143) after SIGINT or SIGTERM, with the state saved.
    """
    checkpoint = None if resume is None else load_checkpoint(resume)
    if config is None and checkpoint is None:
        raise UserError('serial_pipeline got neither a config nor a run to resume; pass one')
    if max_train_iter is not None and (type(max_train_iter) is not int or max_train_iter < 1):
        raise UserError(f'max_train_iter is {max_train_iter!r} but must be an integer >= 1; leave it out for no limit')
    if profile is not None and (type(profile) is not int or profile < 1):
        raise UserError(f'profile is {profile!r} but must be the number of iterations to time, 1 or more; e.g. 10')
    run = saved_run(checkpoint) if checkpoint is not None and config is None else None
    source = config if run is None else _config_of(run, trust, overrides)
    cfg = resolve_config(source, overrides, seed=seed, max_env_step=max_env_step)
    _check_storable(cfg)
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f'model is {model!r} but must be a torch.nn.Module, made for the spaces of the env')
    if policy is not None and model is not None:
        raise UserError(
            'serial_pipeline got both a policy and a model, but a policy has its model; pass one of the two'
        )
    if run is not None and policy is None and model is None:
        build_policy(run, cfg.policy)  # its size, before envs are made
    run_dir: Path | None = None
    with catch_signals() as received:
        try:
            with SerialJob(cfg, policy, checkpoint, model) as job, closing(_iterations(job, profile)) as iterations:
                job.stop_requested, run_dir = lambda: bool(received), job.run_dir
                while not job.done and not received and (max_train_iter is None or job.train_iter < max_train_iter):
                    next(iterations)
                iterations.close()  # ends a profile
                job.finish(evaluate=not received)
                result = job.result()
        except EnvError:
            if not received:  # a signal to the process group also ends env workers, which is not their fault
                raise
        if received:
            if run_dir is not None:
                words = f'{run_dir}{consent_words()}'
                logger.warning('stopped by signal %d; continue with: zoo train --resume %s', received[0], words)
            raise Interrupted(128 + received[0])
        return result


def _config_of(run: SavedRun, trust: Trust, overrides: Sequence[str]) -> dict[str, Any]:
    """The config to resume a run with, before overrides. Raises: CheckpointError if it needs the user's consent."""
    sections = list(run.config)
    check_names(run, sections, trust, overrides)
    check_sizes(run, sections, trust, overrides)
    check_memory(run, overrides)
    config = without_derived_values(run.config)
    return {**config, 'logger': {**config['logger'], 'root': root_of(run)}}


def _check_storable(cfg: Config) -> None:
    """Raises: UserError if checkpoints of this config would be refused. Remembers the code that it names."""
    config = storable(cfg)
    try:
        check_config_size(config)
    except ValueError as error:
        raise UserError(f'the config {error}; its checkpoints could not be loaded') from error
    give_names(config)


def _iterations(job: SerialJob, profile: int | None) -> Generator[None]:
    if profile is not None:
        yield from profiled(job, profile)
    while True:
        job.iteration()
        yield
