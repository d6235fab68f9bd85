"""The serial pipeline: one call takes a config to a trained policy."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, NoReturn

from torch import nn

from zoo.cluster.config import STARTED_BY
from zoo.config.components import section_of
from zoo.config.section import ConfigError
from zoo.config.source import load_config
from zoo.config.yaml_io import storable
from zoo.core.errors import CallbackError, UserError, did_you_mean, shown
from zoo.core.files import current_folder
from zoo.core.processes import GivenUp, Interrupted, catch_signals, limit_exit, signal_name
from zoo.core.registry import PIPELINE_REGISTRY
from zoo.env import EnvError
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, SavedRun, SaveError, load_checkpoint, saved_run, steps_of
from zoo.run.checkpoint.consent import Trust, consent_words, give_names, is_started_here, remember_started
from zoo.run.config import frozen_config, resolve_config
from zoo.run.config_for_env import resolve_with_agents
from zoo.run.folder import newest_in, refuse_no_run_folder, refuse_other_config, refuse_same_run
from zoo.run.fork import begin_fork
from zoo.run.job import SerialJob
from zoo.run.launch import Launch, continued, launched, note, train_with_learners
from zoo.run.observers.callbacks import callback_problems
from zoo.run.result import TrainResult
from zoo.run.resume import config_to_continue
from zoo.worker.env_watch import EnvWatch
from zoo.worker.evaluator import OnEvaluation

logger = logging.getLogger(__name__)
LEFT_OUT = 0.05  # the share of max_env_step from which on a run says that its last whole rollout ends before it


def serial_pipeline(
    config: object = None,
    seed: int | None = None,
    max_env_step: int | None = None,
    max_train_iter: int | None = None,
    policy: Policy | None = None,
    resume: str | os.PathLike[str] | None = None,
    overrides: tuple[str, ...] | list[str] = (),
    profile: int | None = None,
    trust: Trust = (),
    model: nn.Module | None = None,
    callbacks: Sequence[Any] = (),
    env: object = None,
    on_evaluation: OnEvaluation | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    **unknown: NoReturn,
) -> TrainResult:
    """Trains a policy from a config.

    Args:
      config: a dict, an EasyDict, a path to a .py or .yaml file, a bundled config's name, or DI-engine's pair
        (main_config, create_config); None only with resume or env.
      seed, max_env_step: replace those of the config.
      max_train_iter: also stop once the policy has taken this many gradient steps in total (checked between rollouts).
      policy: a policy with all its modes, to train instead of a new one.
      resume: a run folder or checkpoint file to continue from; without a config, its own is used. The learner's state
        is restored; envs start new episodes, from seeds that depend on the seed and the env step.
      overrides: 'a.b.c=value' strings, applied last.
      profile: number of iterations to time after 2 to warm up (result in the log and in profile.txt of the run
        folder); torch's profiler traces the next 3 (trace.json). The run then continues; its results do not change.
      trust: True, or a list of modules: code that the config of the run to resume may name, as 'module:function'. A tracker
        or a cluster that it names is reached only with True. Registered names need no trust, nor do names that an override
        or an earlier call in this process gave.
      model: a network for the policy, in place of the one that policy.model names; its methods are those of a registered
        model. `load_policy(run, model=...)` needs it again.
      callbacks: classes, objects or functions that the run calls at its events, see `Callback`, after those of the
        config; a resume needs them again.
      env: a value for `env.id`, or a dict of keys of the section `env`; they replace those of the config. Without a config,
        the bundled config of that env is used, or the defaults of 'ppo'.
      on_evaluation: called with the env step and the `Evaluation` after each evaluation; the run ends after the current
        round if it returns 'stop', or 'stop: REASON' for `TrainResult.stop_reason`. Under torchrun rank 0 calls it.
      run_dir: the folder of the run. If it has a checkpoint, the run continues from its newest one, so that the same call
        can be repeated. A config that differs from that of the run is refused; with `resume` alone it may differ. With
        `resume` a run without checkpoints there begins as a fork of the run to resume, see `zoo.fork`.
    Under torchrun every process calls this; they train together, and rank 0 alone writes.
    Returns: TrainResult. Raises: ConfigError before anything is made; UserError if the run folder has a run of another
      config, cannot be written or another process uses it; EnvError, CallbackError, CheckpointError,
      NonFiniteGradientError; TypeError for an argument that does not exist; SaveError if the end of the run could not be
      saved, whose `result` has the trained policy;
      Interrupted (SystemExit, 128 + its number) after SIGINT, SIGTERM, SIGHUP or SIGUSR1, with the state saved.
    """
    current_folder()  # if it was removed, no run folder can be made
    _check_arguments(locals())
    if env is not None:
        config = _with_env(config, env, overrides)
    folder: Path | None = None
    forks = False  # the run begins in run_dir with the state of another run
    if run_dir is not None:
        folder = Path(run_dir)
        refuse_no_run_folder(folder, has_start=config is not None or resume is not None)
        has_begun = newest_in(folder) is not None
        if resume is not None:
            refuse_same_run(Path(resume), folder)
            forks = not has_begun
        if has_begun:
            resume = None if config is not None else folder
    checkpoint: Checkpoint | None = None
    if resume is not None:
        checkpoint = load_checkpoint(resume)
    source = config
    run: SavedRun | None = None  # whose config is used
    if checkpoint is not None and config is None:
        run = saved_run(checkpoint)
        source = config_to_continue(run, trust, overrides)
    resolve = resolve_config
    if run is None:  # a checkpoint's env is made with consent alone
        resolve = resolve_with_agents
    cfg = frozen_config(resolve(source, overrides, seed=seed, max_env_step=max_env_step))
    if folder is not None and config is not None and STARTED_BY not in os.environ:  # set after such a check
        refuse_other_config(cfg, config, overrides, folder)
    is_learner = STARTED_BY in os.environ  # its config may be of a checkpoint that was trusted for one command
    give_names(storable(cfg), remembers_env=run is None and not is_learner)
    if trust:
        from zoo.run.policy_file import approve_opponents

        approve_opponents(storable(cfg).get('agents'), trust)
    is_own = not is_learner and (run is None or is_started_here(run))
    if run is not None and policy is None and model is None:
        from zoo.run.policy_file import build_policy

        build_policy(run, cfg.policy)  # checks its size before envs are made
    if cfg.cluster.learner_num > 1 and os.environ.get('WORLD_SIZE', '1') == '1':  # this process is no learner itself
        place: dict[str, Any] = {'resume': resume, 'run_dir': run_dir}
        if not forks and run_dir is not None:
            place['resume'] = None
        result = train_with_learners(
            serial_pipeline,
            cfg,
            policy,
            on_evaluation,
            max_train_iter=max_train_iter,
            profile=profile,
            trust=trust,
            model=model,
            callbacks=callbacks,
            **place,
        )
        if is_own:
            remember_started(result.run_dir, storable(cfg))
        return result
    with launched(cfg) as launch:
        if forks and launch.ranks.rank == 0 and checkpoint is not None and folder is not None:
            begin_fork(checkpoint, folder, cfg)
        if forks or checkpoint is None or launch.n_restart:
            folder, newest = continued(launch, cfg, folder)
            checkpoint = newest or checkpoint
        make_job = partial(
            job_class(cfg),
            cfg,
            policy=policy,
            checkpoint=checkpoint,
            model=model,
            callbacks=callbacks,
            on_evaluation=on_evaluation,
            run_dir=folder,
            ranks=launch.ranks,
        )
        return _run(make_job, cfg, max_train_iter or math.inf, profile, launch, is_own)


def _run(
    make_job: Callable[[], SerialJob],
    cfg: JobConfig,
    max_train_iter: float,
    profile: int | None,
    launch: Launch,
    is_own: bool,
) -> TrainResult:
    """Runs a job from its start or its checkpoint to its end, a signal, or an error.

    Args: is_own: the user chose the addresses in the config: a resume of the run needs no consent to them.
    """
    run_dir: Path | None = None
    watch = EnvWatch(cfg.env.step_timeout)
    limit_exit(cfg.env.step_timeout)
    with catch_signals(watch.interrupts) as received, watch:
        try:
            with make_job() as job, closing(_iterations(job, profile)) as iterations:
                job.stop_requested = lambda: bool(received)
                run_dir = job.run_dir
                watch.save = job.save if job.is_alone else None  # other ranks would not take part in it
                note(launch, job.run_dir)
                if is_own and job.leads:
                    remember_started(job.run_dir, storable(job.cfg))
                result = _train(job, iterations, received, max_train_iter)
        except GivenUp:  # while the run was being made
            pass
        except Exception as error:
            is_of_run = isinstance(error, SaveError | NonFiniteGradientError | CallbackError | UserError)
            # a signal to the whole process group ends env workers too, and the processes of runners
            is_of_others = isinstance(error, EnvError) or (cfg.cluster.runner_num > 0 and not is_of_run)
            if not received or not is_of_others:
                if launch.ranks.rank == 0:
                    _say_what_is_saved(run_dir, cfg)
                raise
        launch.ranks.gather(None)  # torchrun ends all ranks as soon as one has ended by a signal: rank 0 may be saving
        if received:
            if launch.ranks.rank == 0:
                _say_that_it_was_stopped(received[0], run_dir, cfg)
            raise Interrupted(128 + received[0])
        return result


def _train(job: SerialJob, iterations: Generator[None], received: list[int], max_train_iter: float) -> TrainResult:
    """Trains until the job is done, or a signal came. Args: received: gets the number of the signal."""
    job.start()
    if job.leads:
        _say_how_far_it_trains(job)
    if job.leads and job.train_iter >= max_train_iter:
        logger.warning(
            'nothing is left to train: the policy has taken %d gradient steps and max_train_iter is %d; raise that',
            job.train_iter,
            max_train_iter,
        )
    while not job.agreement.ends(job, received) and job.train_iter < max_train_iter:
        next(iterations)
    iterations.close()  # ends a profile
    is_signalled = job.agreement.stops(False, received) is not None
    if job.done and not is_signalled:
        _say_what_is_left(job)
    job.finish(evaluate=not is_signalled)
    return job.result()


def _say_that_it_was_stopped(signal: int, run_dir: Path | None, cfg: JobConfig) -> None:
    """Logs how to continue a run that a signal has stopped."""
    if run_dir is None:
        logger.warning('stopped by %s before the run began; nothing was saved', signal_name(signal))
        return
    logger.warning(
        'stopped by %s; continue with: zoo train --resume %s%s',
        signal_name(signal),
        quote(str(run_dir)),
        consent_words(cfg, run_dir),
    )


def _say_how_far_it_trains(job: SerialJob) -> None:
    """Logs, before training, that max_env_step leaves a part of a rollout, if that is much of the run."""
    left = job.cfg.max_env_step - job.env_step
    size = job.step_per_iteration
    n = left // size
    if n and left - n * size > LEFT_OUT * job.cfg.max_env_step:
        unit = 'round'
        if size == job.cfg.policy.collect.n_sample:
            unit = 'rollout'
        more = ''
        if job.env_step:
            more = ' more'
        units = f'{unit}s'
        if n == 1:
            units = unit
        logger.info(
            'a %s takes up to %d env steps (those that only reset an env are not counted): max_env_step=%d is enough for at '
            'least %d%s %s, max_env_step=%d for %d',
            unit,
            size,
            job.cfg.max_env_step,
            n,
            more,
            units,
            job.env_step + (n + 1) * size,
            n + 1,
        )


def _say_what_is_left(job: SerialJob) -> None:
    """Logs why a run ends well before max_env_step, if only the size of its rollouts ends it."""
    left = job.cfg.max_env_step - job.env_step
    if not job.result().stop_reason and LEFT_OUT * job.cfg.max_env_step < left < job.step_per_iteration:
        logger.info(
            'the run ends with its last whole rollout, %d env steps before max_env_step=%d: another one takes %d',
            left,
            job.cfg.max_env_step,
            job.step_per_iteration,
        )


def _say_what_is_saved(run_dir: Path | None, cfg: JobConfig) -> None:
    """Logs how to continue a run that failed, if it has saved anything."""
    if run_dir is None:
        return
    steps = steps_of(run_dir / 'checkpoints')
    if steps:
        logger.warning(
            'the run failed; it is saved up to env step %d; once the cause is fixed, continue with: zoo train --resume %s%s',
            max(steps),
            quote(str(run_dir)),
            consent_words(cfg, run_dir),
        )


def _with_env(config: Any, env: Any, overrides: Sequence[str]) -> dict[str, Any]:
    """The config with another env, or one for an env that was given without a config."""
    keys = {'id': env}
    if isinstance(env, Mapping):
        keys = dict(env)
    if config is None:
        if 'id' not in keys:
            raise ConfigError(
                f'env is {shown(env)} but has no id; give one, e.g. env=dict(id="CartPole-v1"), or a config'
            )
        from zoo.run.config_for_env import config_for_env

        config = config_for_env(keys, overrides=overrides)
    else:
        config = load_config(config)[0]
    return {**config, 'env': {**(config.get('env') or {}), **keys}}


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises: UserError for an argument of a type that `serial_pipeline` does not take, or one that contradicts another;
      TypeError for one that it does not have.

    Args: arguments: all by name; those of the config are checked elsewhere.
    """
    for name in arguments['unknown']:
        raise _unknown_argument(name, arguments.keys() - {'unknown'})
    for name, argument in _ARGUMENTS.items():
        if not argument.is_right(arguments[name]):
            raise UserError(f'{name} is {shown(arguments[name])} but must be {argument.wanted}')
    problems = list(callback_problems(arguments['callbacks']))
    if problems:
        raise ConfigError(problems)
    policy = arguments['policy']
    if policy is not None:
        _check_policy(policy, has_model=arguments['model'] is not None)
    if all(arguments[name] is None for name in ('config', 'env', 'resume', 'run_dir')):
        raise UserError('serial_pipeline got neither a config nor a run to resume; pass one')


def _unknown_argument(name: str, known_names: Collection[str]) -> TypeError:
    from zoo.config.names import look_up

    known_elsewhere = look_up(name, inside=False)
    do = "give keys of the config in it, or as overrides=['key=value']"
    do += f'; {known_elsewhere.sentence()}' if known_elsewhere else '.'
    hint = did_you_mean(name, known_names, do, str)
    return TypeError(f'serial_pipeline has no argument {name!r}: {hint}')


def _check_policy(policy: Policy, has_model: bool) -> None:
    """Raises: UserError if a policy that was given cannot be trained, or a model was given too."""
    lacking = [mode for mode in ('collect', 'learn', 'eval') if mode not in policy._fields]
    if lacking:
        raise UserError(
            f"policy was made without its modes {', '.join(lacking)} and cannot be trained; load it with fields='all': "
            "load_policy(run, fields='all'), or build it without enable_field"
        )
    if has_model:
        raise UserError(
            'serial_pipeline got both a policy and a model, but a policy has its model; pass one of the two'
        )


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


class _Argument(NamedTuple):
    """An argument of `serial_pipeline`: the check of its value, and the end of the sentence about a wrong one."""

    check: Callable[[Any], bool]
    wanted: str
    may_be_none: bool = True

    def is_right(self, value: Any) -> bool:
        if value is None:
            return self.may_be_none
        return self.check(value)


_ARGUMENTS = {
    'policy': _Argument(
        lambda value: isinstance(value, Policy),
        'a policy made from a class of POLICY_REGISTRY; to choose one by its name, set policy.type in the config',
    ),
    'resume': _Argument(_is_path, 'the path of a run folder or checkpoint file'),
    'overrides': _Argument(_are_texts, "a list of 'key=value' texts, e.g. ['seed=1']", may_be_none=False),
    'model': _Argument(lambda value: isinstance(value, nn.Module), 'a torch.nn.Module, made for the spaces of the env'),
    'callbacks': _Argument(
        lambda value: isinstance(value, list | tuple), 'a list of classes, objects or functions', may_be_none=False
    ),
    'max_train_iter': _Argument(_is_count, 'an integer >= 1; leave it out for no limit'),
    'profile': _Argument(_is_count, 'the number of iterations to time, 1 or more; e.g. 10'),
    'on_evaluation': _Argument(callable, "a function of env step and Evaluation that returns 'stop' or None"),
    'run_dir': _Argument(lambda value: _is_path(value) and bool(str(value)), 'the path of a folder'),
}


def _iterations(job: SerialJob, profile: int | None) -> Generator[None]:
    if profile is not None:
        from zoo.run.profile import profiled  # imports torch's profiler too

        yield from profiled(job, profile)
    while True:
        job.iteration()
        yield


def job_class(cfg: JobConfig) -> type[SerialJob]:
    """The class that the section `pipeline` names. Raises: ConfigError if it is not derived from SerialJob."""
    name = section_of(PIPELINE_REGISTRY, cfg.pipeline, 'pipeline').type
    cls = PIPELINE_REGISTRY.get(name)
    if not (isinstance(cls, type) and issubclass(cls, SerialJob)):
        where = PIPELINE_REGISTRY.where(name)
        raise ConfigError(f'pipeline {name!r} of {where} is no class derived from zoo.SerialJob; derive it from that.')
    return cls
