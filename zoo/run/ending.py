"""The end of a run: what it hands back, its last checkpoint, and what result.json says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.core.errors import RunError
from zoo.env.errors import EnvError
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.result_file import ResultFile
from zoo.run.saving import SaveError

if TYPE_CHECKING:
    from zoo.run.job import SerialJob

logger = logging.getLogger(__name__)


@dataclass
class TrainResult:
    """The outcome of a run: the policy as last trained, the folder of its files, its counters and returns."""

    policy: Policy
    run_dir: Path
    env_step: int
    train_iter: int
    best_return: float | None
    last_return: float | None
    wall_s: float
    env_step_per_s: float
    stop_reason: str = ''  # why the run ended before max_env_step: a stop rule, stop_value, or `SerialJob.stop`


class Ending:
    """Saves the end of a run, and says in result.json how it ended.

    Args: job: the run; file: None in a process that writes no files.
    """

    def __init__(self, job: SerialJob, file: ResultFile | None) -> None:
        self._job, self._file = job, file
        self._env_step: int | None = None  # at the end that result.json has

    def finish(self, is_whole: bool) -> None:
        """Says that the run ended; of several calls the last one counts.

        Args: is_whole: its last policy was evaluated.
        """
        if self._file is not None:
            self._env_step = self._job.env_step
            if self._has_trained() or not self._file.keep():
                self._file.end('done' if is_whole or self._is_over() else 'stopped', self._numbers())

    def go_on(self) -> None:
        """The run goes on, maybe after `finish`, so that its end is another one."""
        self._env_step = None

    def leave(self, error: BaseException | None = None, may_save: bool = False) -> None:
        """Saves after an error, and says how a run ended that is closed.

        Args: may_save: whether the state is one to continue from. Raises: SaveError.
        """
        # if an env, a disk or a callback failed, the state is worth saving; during a run signals are handled, so that a
        # KeyboardInterrupt was raised by an env
        is_outside = isinstance(error, Exception | KeyboardInterrupt)
        try:
            if may_save and is_outside and not isinstance(error, NonFiniteGradientError | SaveError):
                self.save(error)
        finally:
            self._say(error)

    def save(self, cause: BaseException | None = None) -> None:
        """Saves the end of the run. Raises: SaveError; unless the run ended by an error that is not zoo's own."""
        try:
            self._job.save()
        except SaveError as error:
            if cause is not None and not isinstance(cause, RunError):
                logger.error('the end of the run is lost: %s', error)  # the cause is raised on, with its traceback
                return
            ended = f'; it had failed: {cause}' if cause is not None else ''
            lost = SaveError(f'the end of the run, env step {self._job.env_step}, is lost: {error}{ended}')
            lost.result = self._job.result()
            raise lost from (cause or error)

    def _say(self, error: BaseException | None) -> None:
        """Writes how the run ended, unless that was done and the run did not go on."""
        if self._file is None or self._env_step == self._job.env_step:
            return
        self._env_step = self._job.env_step
        is_signalled = isinstance(error, EnvError) and self._job.stop_requested()  # it ended env workers too
        if error is None and self._is_over():
            self._file.end('done', self._numbers())
        else:
            self._file.end_by(None if is_signalled else error, self._numbers())

    def _has_trained(self) -> bool:
        """Whether the run took an env step in this process: where nothing is left of it, the end that it had stays."""
        return self._job.result().env_step_per_s > 0

    def _is_over(self) -> bool:
        """Whether nothing is left to train: the run is at its length, or was to end here, and not by a signal."""
        return self._job.done and not self._job.stop_requested()

    def _numbers(self) -> dict[str, Any]:
        """What result.json says of the end of the run; seconds of each part, and timed_s, all of it, are of this process."""
        numbers = {name: value for name, value in vars(self._job.result()).items() if name not in ('policy', 'run_dir')}
        seconds = {name: round(value, 3) for name, value in self._job.clocks().seconds.items()}
        return numbers | {'seconds': seconds, 'timed_s': round(self._job.timer.run_s, 3)}


def or_warn(save: Callable[[], Path | None]) -> Path | None:
    """The checkpoint that was written; None, with a warning, if it could not be."""
    try:
        return save()
    except SaveError as error:
        logger.warning('%s; training continues', error)
        return None
