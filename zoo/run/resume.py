"""The state of a run: saved in checkpoints, at regular steps, the best evaluation and the end; restored by a resume."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config.schedule import is_signed_schedule, schedule_value
from zoo.config.section import plain
from zoo.config.source import split_override
from zoo.config.yaml_io import storable, value_text
from zoo.core.errors import RunError, UserError, join_path, place_of
from zoo.core.processes import GivenUp, Interrupted
from zoo.core.ranks import ALONE, Ranks
from zoo.core.spaces import Space, space_words
from zoo.env.errors import EnvError
from zoo.policy.base import Policy
from zoo.policy.modes import MODES
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import (
    Checkpoint,
    CheckpointError,
    LearnerFile,
    SavedRun,
    SaveError,
    causes_of_misfits,
    check_env_known,
    check_finite,
    check_given_model,
    check_saved_modes,
    fit_state,
    learner_file,
    load_checkpoint,
    malformed,
    of_rank,
    saved_meta,
    saved_run,
    shown,
)
from zoo.run.checkpoint.consent import Trust, check_memory, check_names, check_sizes
from zoo.run.config import without_defaults, without_derived_values
from zoo.run.folder import root_of
from zoo.run.learner import Learner
from zoo.run.observers.base import Observer, Parts, Progress, RunView
from zoo.run.result import ResultFile
from zoo.worker.evaluator import Evaluation

if TYPE_CHECKING:
    from zoo.run.observers.stop_rules import StopRules

NOT_NUMBERS = ('policy', 'policies', 'run_dir')  # fields of a TrainResult
MAX_CHANGES = 10  # that the log names
MAX_VALUE = 300  # characters of a changed value in the log: whole schedules and lists of layers
logger = logging.getLogger(__name__)


def state_of(job: RunView, is_whole: bool, stop: dict[str, Any]) -> dict[str, Any]:
    """Everything that a resume needs of a run and its first learner; the envs' own state is not part of it.

    Args: is_whole: no update was interrupted; else the memory of the auxiliary phase, which may be incomplete, is left
      out; stop: state of the stop rules.
    """
    state = _learner_state(job, job.parts.first, is_whole)
    if stop:
        state['stop'] = stop
    return state


def meta_of(job: RunView) -> dict[str, Any]:
    """The description of a run, with its first learner, in its main checkpoint."""
    meta = _learner_meta(job, job.parts.first, job.cfg)
    if len(job.parts.learners) > 1:
        meta['learners'] = list(job.parts.learners)
    return meta


def files_of_others(job: RunView, is_whole: bool) -> dict[str, LearnerFile]:
    """The contents of the files of all learners but the first, by name. Each is a checkpoint that `load_policy` reads alone."""
    _, *others = job.parts.learners.values()
    return {
        learner.name: LearnerFile(
            state=_learner_state(job, learner, is_whole), meta=_learner_meta(job, learner, learner.cfg)
        )
        for learner in others
    }


def _learner_state(job: RunView, learner: Learner, is_whole: bool) -> dict[str, Any]:
    """The state of a learner, with the counters of the run."""
    collector = job.collector
    progress = job.progress
    counter = {
        'env_step': collector.env_step,
        'collect_iter': collector.collect_iter,
        'episode': collector.episodes.n_episode,
        'reset': collector.episodes.n_reset,
        'sample': int(learner.n_sample),
        'eval_step': progress.eval_step,
        'best_return': progress.best_return,
        'last_return': progress.last_return,
        'wall_s': job.wall_s,
    }
    if collector.agent_step is not None:
        counter['agent_step'] = collector.agent_step
    return {**learner.state_dict(with_memory=job.cfg.checkpoint.aux_memory and is_whole), 'counter': counter}


def _learner_meta(job: RunView, learner: Learner, cfg: JobConfig) -> dict[str, Any]:
    meta = saved_meta(learner.policy, storable(cfg), job.env_step, learner.train_iter, job.progress.best_return)
    if job.parts.n_rank > 1:
        meta['rank_num'] = job.parts.n_rank
    return meta


def restore(
    cfg: JobConfig,
    parts: Parts,
    checkpoint: Checkpoint,
    ranks: Ranks = ALONE,
    stop_rules: StopRules | None = None,
) -> Progress:
    """Copies the state of a checkpoint into the components. Raises: CheckpointError if it does not fit them.

    Args: stop_rules: those of the run, if it has any.
    """
    run = saved_run(checkpoint)
    saved_runs = _saved_learners(checkpoint, run, parts, ranks)
    for name, saved in saved_runs.items():
        _check_spaces(saved, parts.learners[name].policy, parts.envs[0].name)
    _warn_of_another_env(cfg, run)
    for name, saved in saved_runs.items():
        _load(saved, parts.learners[name])
    if stop_rules is not None:
        with _misfits_named(run):
            stop_rules.load_state_dict(run.state.stop)
    counter = run.state.counter
    collector = parts.collector
    collector.env_step = counter.env_step
    collector.collect_iter = counter.collect_iter
    collector.episodes.n_episode = counter.episode
    collector.episodes.n_reset = counter.episode
    if counter.reset is not None:
        collector.episodes.n_reset = counter.reset
    if collector.agent_step is not None and counter.agent_step is not None:
        collector.agent_step = counter.agent_step
    return Progress(
        eval_step=counter.eval_step,
        save_step=counter.env_step,
        best_return=counter.best_return,
        last_return=counter.last_return,
        wall_before=counter.wall_s,
    )


def _saved_learners(checkpoint: Checkpoint, run: SavedRun, parts: Parts, ranks: Ranks) -> dict[str, SavedRun]:
    """Reads the saved learners that this run has too, by name: the first of the main file, each other of its own."""
    saved_runs = {}
    for name in run.learners:
        if name not in parts.learners:
            logger.info('policy %r of the checkpoint is not used: this run has no such policy', name)
            continue
        file = checkpoint
        if name != run.learners[0]:
            file = load_checkpoint(learner_file(run.path, name))
        saved = saved_run(of_rank(file, ranks, parts.n_rank))
        if saved.env_step != run.env_step:
            raise CheckpointError(
                saved.path, f'is of env step {saved.env_step} but {run.path.name} next to it of {run.env_step}'
            )
        saved_runs[name] = saved
    for name in parts.learners.keys() - saved_runs.keys():
        logger.info('policy %r is not in the checkpoint: it begins anew', name)
    return saved_runs


def _warn_of_another_env(cfg: JobConfig, run: SavedRun) -> None:
    before, now = ([env['id'], env.get('game')] for env in (run.config['env'], storable(cfg)['env']))
    if before != now:
        names = [' '.join(name for name in pair if name) for pair in (before, now)]
        logger.warning('the run was trained on env %s and continues with %s', *names)


def _check_spaces(run: SavedRun, policy: Policy, env_name: str) -> None:
    """Raises: CheckpointError if the policy of a saved run had other spaces."""
    spaces = (
        ('observations', run.obs_space, policy.obs_space),
        ('actions', run.action_space, policy.action_space),
    )
    for what, before, now in spaces:
        if before == now:
            continue
        difference = ''
        if space_words(before) == space_words(now):
            difference = ' with some other bounds or first values'
        raise CheckpointError(
            run.path,
            f'is of a run with {what} {_space_text(before)} but env {env_name!r} has {_space_text(now)}{difference}; '
            'resume with the env that it was trained on',
        )


def _space_text(space: Space) -> str:
    return shown(space_words(space), 400)


def changes(cfg: JobConfig, run: SavedRun) -> str:
    """The values that a resume changes, 'key old -> new, ...', at most 10; '' if there are none.

    Values that follow from others, and keys that one of the two configs does not have, are left out.
    """
    was = without_derived_values(storable(run.config))
    now = without_derived_values(storable(cfg))
    if now['logger']['root'] == root_of(run):  # derived from the path of the checkpoint
        was = {**was, 'logger': {**was['logger'], 'root': root_of(run)}}
    differences = list(_differences(was, now))
    text = ', '.join(differences[:MAX_CHANGES])
    if len(differences) > MAX_CHANGES:
        text += f' and {len(differences) - MAX_CHANGES} more'
    return text


def _differences(was: object, now: object, path: str = '') -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict) and path != 'env.kwargs':
        for key in (key for key in now if key in was):
            yield from _differences(was[key], now[key], join_path(path, key))
    elif was != now:
        yield f'{path} {shown(value_text(was), MAX_VALUE)} -> {shown(value_text(now), MAX_VALUE)}'


def stretched(cfg: JobConfig, run: SavedRun, env_step: int) -> Iterator[str]:
    """Yields a sentence for each schedule as long as the run whose value another max_env_step changes at this env step."""
    was, now = (dict(_schedules(storable(config))) for config in (run.config, cfg))
    lengths = run.config.get('max_env_step'), cfg.max_env_step
    for key, new in now.items():
        old = was.get(key)
        is_same = old is not None and (old['start'], old['end']) == (new['start'], new['end'])
        if old is None or not is_same or (old.get('over'), new.get('over')) != lengths or lengths[0] == lengths[1]:
            continue
        before = schedule_value(old, env_step)
        after = schedule_value(new, env_step)
        yield (
            f'{key} continues at {after:.2g} (was {before:.2g}): its schedule is as long as the run; {key}=... gives it another '
            'value'
        )


def _schedules(config: object, path: str = '') -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the linear schedules of a config by their dotted keys."""
    if not isinstance(config, dict):
        return
    if is_signed_schedule(config) and 'start' in config:
        yield path, config
        return
    for key, value in config.items():
        yield from _schedules(value, join_path(path, key))


def _load(run: SavedRun, learner: Learner) -> None:
    """Copies the state of a saved learner into a new one. Raises: CheckpointError."""
    policy = learner.policy
    state = run.state
    check_saved_modes(run, MODES)
    check_given_model(run, policy.given_model is not None)
    if run.executor not in (None, policy.executor_name):
        logger.warning(
            'the run was trained by executor %s and continues with %s: equal to rounding, not bit for bit',
            run.executor,
            policy.executor_name,
        )
    expected = policy.state_dict()
    fit_state(expected, state.policy, run.path, causes_of_misfits(run, plain(learner.cfg.policy)))
    for name in expected.keys() & {'model', 'normalizer'}:
        check_finite(expected[name], state.policy[name], run.path)
    with _misfits_named(run):
        policy.load_state_dict(state.policy)
        policy.load_memory_state_dict(state.memory)
        learner.buffer.load_state_dict(state.buffer)
    n = learner.train_iter
    if type(n) is not int or not 0 <= n < 2**53:
        raise malformed(run.path, f'train_iter is {n!r}: it should be a count')
    counter = state.counter
    learner.n_sample = counter.env_step
    if counter.sample is not None:
        learner.n_sample = counter.sample


@contextmanager
def _misfits_named(run: SavedRun) -> Iterator[None]:
    """Raises: CheckpointError for an error of code that gets a state with other keys or shapes than it writes."""
    try:
        yield
    except (UserError, RunError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            run.path,
            f'has a state that this run cannot continue from ({type(error).__name__}: {shown(str(error))}); '
            'use the config that it was saved with',
        ) from error


def announce(job: RunView, checkpoint: Checkpoint, has_stopped: bool, rule: str | None) -> None:
    """Logs where a run continues, what changed since it was saved, and whether anything is left to train.

    Args: has_stopped: it reached its stop_value; rule: the reason of a stop rule that ends it, if one does.
    """
    logger.info('resuming at env step %d in %s', job.env_step, job.run_dir)
    changed = changes(job.cfg, saved_run(checkpoint))
    if changed:
        logger.info('changed since it was saved: %s', changed)
    for sentence in stretched(job.cfg, saved_run(checkpoint), job.env_step):
        logger.warning('%s', sentence)
    if has_stopped:
        logger.warning('this run had reached policy.eval.stop_value; to continue it: policy.eval.stop_value=null')
    if rule:
        logger.warning('this run ends by a stop rule: %s; to continue it change `stop`, e.g. stop=[]', rule)
    elif job.done and not has_stopped:
        logger.warning(
            'nothing is left to train: the run has %d env steps, a rollout %d, and max_env_step is %d; raise that',
            job.env_step,
            job.step_per_iteration,
            job.cfg.max_env_step,
        )


def with_saved_start(cfg: JobConfig, checkpoint: Checkpoint) -> JobConfig:
    """The config of a run that continues, with the init_from and init_from_keys that the run began with.

    They stay in its config.yaml and checkpoints, although a run that continues reads no parameters of another one.
    Raises: UserError if the config has an init_from of its own: it would have no effect.
    """
    saved = saved_run(checkpoint).config
    now = cfg.init_from
    before = saved.get('init_from')
    if not isinstance(before, str):  # a file may hold anything
        before = None
    if now is not None and (before is None or os.path.abspath(now) != os.path.abspath(before)):
        has = f'init_from {before}'
        if before is None:
            has = 'no init_from'
        raise UserError(
            f'init_from is {now} but {checkpoint.path}, from which the run continues, was saved with {has}, and its '
            'parameters count; leave init_from out, or begin a new run in another folder'
        )
    return cfg.model_copy(update={'init_from': before, 'init_from_keys': saved.get('init_from_keys', ['*'])})


def config_to_continue(run: SavedRun, trust: Trust, overrides: Sequence[str]) -> dict[str, Any]:
    """The config to resume a run with, before overrides. Raises: CheckpointError if it needs the user's consent."""
    sections = list(run.config)
    check_names(run, sections, trust, overrides)
    check_sizes(run, sections, trust, overrides)
    check_memory(run, overrides)
    check_env_known(run, overrides)
    config = without_derived_values(run.config)
    named = dict(split_override(text) for text in overrides).get('policy.type')
    if named is not None and named != config['policy']['type']:
        config['policy'] = without_defaults(config['policy'])
    return {**config, 'logger': {**config['logger'], 'root': root_of(run)}}


class Checkpoints(Observer):
    """Saves a run every checkpoint.freq env steps, and its policy at each best evaluation.

    Args: save_best: writes the best policy; keeps_best: whether this process writes it.
    """

    def __init__(self, save_best: Callable[[], Path], keeps_best: bool) -> None:
        self._save_best = save_best
        self._keeps_best = keeps_best

    def on_evaluate(self, job: RunView, evaluation: Evaluation) -> None:
        best = job.progress.best_return
        last = job.progress.last_return
        if last is not None and (best is None or last > best):
            self.keep_best(job.progress)

    def keep_best(self, progress: Progress) -> None:
        """Keeps the current policy as the best one; a failed write is a warning."""
        progress.best_return = progress.last_return
        if self._keeps_best:
            or_warn(self._save_best)

    def after_round(self, job: RunView) -> None:
        if job.env_step - job.progress.save_step >= job.cfg.checkpoint.freq:
            with job.timer.part('log'):
                or_warn(job.save)


class Ending(Observer):
    """Observer that saves the end of a run, and writes to result.json how it ended.

    Args: job: the run; file: None in a process that writes no files.
    """

    def __init__(self, job: RunView, file: ResultFile | None) -> None:
        self._job = job
        self._file = file
        self._env_step: int | None = None  # at the end that is in result.json

    def finish(self, is_evaluated: bool) -> None:
        """Writes to result.json that the run ended; of several calls the last one counts.

        Args: is_evaluated: the last policy was evaluated.
        """
        if self._file is not None:
            self._env_step = self._job.env_step
            has_trained = self._job.result().env_step_per_s > 0  # in this process; else the old end remains
            if has_trained or not self._file.keep():
                self._file.end(self._numbers(), is_evaluated or self._is_over())

    def before_round(self, job: RunView) -> None:
        """Forgets an earlier end: the run continues, maybe after `finish`."""
        self._env_step = None

    def leave(self, error: BaseException | None = None, may_save: bool = False) -> None:
        """Saves the run after an error, and writes to result.json how it ended; called when a run is closed.

        Args: may_save: whether a run may continue from the state. Raises: SaveError.
        """
        # if an env, a disk, a callback or other code of the user failed, the state is worth saving
        is_outside = error is not None and not isinstance(error, GivenUp | Interrupted)
        if isinstance(error, KeyboardInterrupt):  # no signal: during a run signals are handled
            logger.warning('KeyboardInterrupt was raised by %s, not by Ctrl-C: the run ends', place_of(error))
        try:
            if may_save and is_outside and not isinstance(error, NonFiniteGradientError | SaveError):
                self.save(error)
        finally:
            # write how the run ended, unless that is done and the run did not continue
            if self._file is not None and self._env_step != self._job.env_step:
                self._env_step = self._job.env_step
                is_signalled = isinstance(error, EnvError) and self._job.stop_requested()  # it ended env workers too
                is_done = error is None and self._is_over()
                if is_signalled:
                    error = None
                self._file.end(self._numbers(), is_done, error)

    def save(self, cause: BaseException | None = None) -> None:
        """Saves the end of the run. Raises: SaveError, which is only logged if an error that is not zoo's ended the run."""
        try:
            self._job.save()
        except SaveError as error:
            if cause is not None and not isinstance(cause, RunError):
                logger.error('the end of the run is lost: %s', error)  # the cause is raised on, with its traceback
                return
            ended = ''
            if cause is not None:
                ended = f'; it had failed: {cause}'
            lost = SaveError(f'the end of the run, env step {self._job.env_step}, is lost: {error}{ended}')
            lost.result = self._job.result()
            raise lost from (cause or error)

    def _is_over(self) -> bool:
        """Whether nothing is left to train: the run has its full length or was stopped, but not by a signal."""
        return self._job.done and not self._job.stop_requested()

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the end of the run for result.json; seconds of each part and the total timed_s are of this process."""
        numbers = {name: value for name, value in vars(self._job.result()).items() if name not in NOT_NUMBERS}
        seconds = {name: round(value, 3) for name, value in self._job.clocks().seconds.items()}
        return numbers | {'seconds': seconds, 'timed_s': round(self._job.timer.run_s, 3)}


def or_warn(save: Callable[[], Path]) -> None:
    """Writes a checkpoint; gives a warning if it cannot be written."""
    try:
        save()
    except SaveError as error:
        logger.warning('%s; training continues', error)
