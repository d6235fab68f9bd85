"""Training of members for one generation, in this process or in several that live as long as the population."""

from __future__ import annotations

import json
import logging
import math
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from zoo.core.data import Rollout, map_tensors
from zoo.core.errors import RunError, UserError, env_failure, show_error
from zoo.core.files import read_small, synced_together, whole_file
from zoo.core.processes import Interrupted, end_words
from zoo.core.streams import LogFormat, log_levels
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import load_checkpoint, steps_of
from zoo.run.checkpoint.consent import Trust
from zoo.run.observers.base import Callback, RunView
from zoo.run.policy_file import load_policy
from zoo.run.result import NAME as RESULT
from zoo.tools.population.growth import kl_of_fork
from zoo.tools.population.members import Stage, checkpoint_at, undo_stage
from zoo.tools.sweep.team import Ended, Team, Tell, set_log_format

MAX_REASON = 1_000  # most characters
logger = logging.getLogger(__name__)
KL_FILE = 'fork_kl.json'
"""File in the run folder of a child: {"kl": the mean KL(parent || child) in nats}."""


class StageEnd(NamedTuple):
    """The end of the training of a life in a generation.

    fitness: mean return of its last evaluation; error: why it failed; kl: divergence of its first policy from its parent's, if
    it was measured.
    """

    env_step: int
    fitness: float | None = None
    reason: str = ''
    error: str = ''
    kl: float | None = None


class StageTask(NamedTuple):
    """What a process needs to train a life for a generation."""

    source: Any
    stage: Stage
    trust: Trust


class StageLog(logging.Filter):
    """The log of members that train in one process: warnings alone, each of them once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()
        self._last: logging.LogRecord | None = None
        self._is_shown = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown; those of other loggers always are."""
        if not record.name.startswith('zoo.') or record.name.startswith('zoo.tools.population'):
            return True
        if record is not self._last:  # else another handler asks
            text = record.getMessage()
            self._is_shown = text not in self._said
            self._said.add(text)
            self._last = record
        return self._is_shown

    @contextmanager
    def on(self) -> Iterator[None]:
        """The context in which members train."""
        level = logging.getLogger('zoo').getEffectiveLevel()
        # the end of a run says how to continue it
        quiet = dict.fromkeys(('zoo.pipeline', 'zoo.core.processes'), max(level, logging.ERROR))
        handlers = list(logging.getLogger().handlers)
        for handler in handlers:
            handler.addFilter(self)
        try:
            with log_levels({'zoo': max(level, logging.WARNING), 'zoo.tools.population': level, **quiet}):
                yield
        finally:
            for handler in handlers:
                handler.removeFilter(self)


_log_of_process = StageLog()


def train_stages(
    tasks: Iterable[StageTask], jobs: int, team: Team | None, received: list[int], log: StageLog
) -> Mapping[str, StageEnd]:
    """Trains lives for a generation, `jobs` at a time; those whose generation is complete on the disk are not trained again.

    Args: tasks: with a team the next one is taken while others train; team: the processes; None: this one; received: the
      signals that this process has got; log: of this process.
    Returns: the end of each, by life. Raises: Interrupted after a signal, or an error of `tasks`, once all have ended.
    """
    ends: dict[str, StageEnd] = {}
    waiting = _not_on_disk(tasks, ends)
    if team is None:
        for task in waiting:
            ends[task.stage.life] = _end_here(task, received, log)
        return ends
    try:
        ahead = next(waiting, None)
        while ahead is not None or team.members:
            while ahead is not None and not received and len(team.members) < jobs:
                team.start(ahead)
                ahead = next(waiting, None)
            if received and not team.members:
                raise Interrupted(128 + received[0])
            for ended in team.ended():
                ends[ended.task.stage.life] = _end_of(ended)
    except BaseException:
        team.stop()
        while team.members:
            team.ended()
        raise
    if received:
        raise Interrupted(128 + received[0])
    return ends


def _not_on_disk(tasks: Iterable[StageTask], ends: dict[str, StageEnd]) -> Iterator[StageTask]:
    """Yields the tasks that are to be trained; `ends` gets the ends of the others."""
    for task in tasks:
        end = end_on_disk(task.stage)
        if end is None:
            yield task
        else:
            ends[task.stage.life] = end


def end_on_disk(stage: Stage) -> StageEnd | None:
    """The end of a stage that was trained before this process began; None if it was not, or was interrupted."""
    with suppress(OSError, ValueError, TypeError, RecursionError, UserError):
        result = json.loads(read_small(stage.folder / RESULT))
        env_step = max(steps_of(stage.folder / 'checkpoints'), default=0)
        if result['state'] == 'done' and result['env_step'] == env_step > stage.env_step:
            load_checkpoint(checkpoint_at(stage.folder, env_step))  # a power cut may have damaged it
            reason = str(result.get('stop_reason', ''))[:MAX_REASON]
            return StageEnd(env_step, _fitness(result['last_return']), reason, kl=_kl(stage))
    return None


def _fitness(value: object) -> float | None:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def train_stage(task: StageTask, received: list[int], tell: Tell) -> StageEnd:
    """Trains a life for a generation; the work of a process of a `Team`."""
    if received:
        raise Interrupted(128 + received[0])
    set_log_format(LogFormat(f'zoo: {task.stage.life}:'))
    with _log_of_process.on():
        return _trained(task)


def _trained(task: StageTask) -> StageEnd:
    stage = task.stage
    undo_stage(stage.folder, stage.env_step)
    if stage.env_step and not checkpoint_at(stage.folder, stage.env_step).is_file():
        raise UserError(
            f'{stage.folder} has no checkpoint of env step {stage.env_step} any more, from which its next generation begins; '
            'another command may have trained it on, which a fork does safely: zoo fork'
        )
    measures = []
    if stage.parent is not None:
        measures.append(ForkKL(stage.parent, task.trust))
    with synced_together():  # a stage that was interrupted is trained again from its beginning
        result = serial_pipeline(
            task.source, overrides=stage.texts, run_dir=stage.folder, trust=task.trust, callbacks=measures
        )
    reason = '' if 'env steps are done' in result.stop_reason else result.stop_reason
    return StageEnd(result.env_step, _fitness(result.last_return), reason, kl=_kl(stage))


def _kl(stage: Stage) -> float | None:
    if stage.parent is None:
        return None
    return written_kl(stage.folder)


def _end_here(task: StageTask, received: Sequence[int], log: StageLog) -> StageEnd:
    """Trains a life in this process. Raises: Interrupted."""
    if received:
        raise Interrupted(128 + received[0])
    with log.on():
        try:
            return _trained(task)
        except (UserError, RunError) as error:
            return _failed(task.stage, str(error))
        except Exception as error:
            failure = env_failure(error)
            if failure is None:
                logger.exception('%s: this was not expected', task.stage.life)
            return _failed(task.stage, failure or show_error(error))


def _end_of(ended: Ended) -> StageEnd:
    """The end of a stage in another process."""
    stage = ended.task.stage
    if isinstance(ended.value, StageEnd):
        return ended.value
    if ended.error is not None:
        return _failed(stage, str(ended.error))
    if ended.exitcode > 128 or ended.exitcode == -signal.SIGTERM:
        return _failed(stage, 'it was stopped by a signal')
    return _failed(stage, f'its process {end_words(ended.exitcode)}')


def _failed(stage: Stage, error: str) -> StageEnd:
    return StageEnd(stage.env_step, error=error[:MAX_REASON])


class ForkKL(Callback):
    """Writes the divergence to a file in the run folder, before the child learns for the first time.

    A memory is in its state at the start of an episode for each observation.
    Args: parent: the checkpoint that the child began with.
    """

    def __init__(self, parent: Path, trust: Trust = ()) -> None:
        self._parent = parent
        self._trust = trust
        self._is_written = False

    def on_rollout(self, job: RunView, rollout: Rollout) -> None:
        if self._is_written:
            return
        self._is_written = True
        obs = map_tensors(lambda x: x.flatten(0, 1), rollout.data['obs'])
        try:
            parent = load_policy(self._parent, trust=self._trust, device=str(job.policy.device))
            kl = kl_of_fork(parent, job.policy, obs)
        except UserError as error:  # no reason to end a run
            logger.warning('the KL divergence from the parent is not known: %s', error)
            return
        with whole_file(job.run_dir / KL_FILE) as file:
            file.write(f'{json.dumps({"kl": kl})}\n'.encode())


def written_kl(run_dir: Path) -> float | None:
    """The divergence in the run folder of a child; None if there is none, or no finite one."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        kl = float(json.loads(read_small(run_dir / KL_FILE))['kl'])
        if math.isfinite(kl):
            return kl
    return None
