"""The end of a run: saves it, and says in result.json how it ended and on which machine."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch

from zoo.core.errors import RunError, show_error
from zoo.core.files import whole_file
from zoo.core.version import VERSION
from zoo.env.errors import EnvError
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.checkpoint.manager import SaveError

if TYPE_CHECKING:
    from zoo.run.observers.base import RunView

NAME = 'result.json'
PACKAGES = ('torch', 'numpy', 'gymnasium')
NOTEBOOKS = ('ipykernel_launcher.py', 'colab_kernel_launcher.py')  # what a notebook's kernel is started by
End = Literal['done', 'stopped', 'failed']
logger = logging.getLogger(__name__)


class ResultFile:
    """Written when a run begins, with the state 'running', and again when it ends.

    A file that still says 'running' although no process holds the run's lock is that of a run that was killed. `seconds` of
    each part of a run are those of all processes that ended in this folder, which took `timed_s` together; `n_killed` is the
    number of processes before that were killed, if any were.
    Args: folder: of the run; threads: torch's threads in each phase, where they are known. A file that cannot be written is
      a warning: it changes no result.
    """

    def __init__(self, folder: Path, threads: Mapping[Any, int] | None = None) -> None:
        self._path = folder / NAME
        self._facts: dict[str, Any] = {
            'versions': versions(),
            'machine': machine(),
            'commit': commit(),
            'command': command(),
        }
        if threads is not None:
            self._facts['threads'] = dict(threads)
        self._before: dict[str, Any] = {}  # what the file said; nothing if there is none, or it was damaged
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_bytes())
            self._before = found if isinstance(found, dict) else {}
        n_before = self._before.get('n_killed')
        n = (n_before if isinstance(n_before, int) else 0) + (self._before.get('state') == 'running')
        if n:
            self._facts['n_killed'] = n
        self._write({'state': 'running', **(self._times({}) if self._before else {'seconds': {}, 'timed_s': 0.0})})

    def keep(self) -> bool:
        """Puts back what the file said before, if that is that the run was done; returns whether it was."""
        if self._before.get('state') != 'done':
            return False
        self._write(self._before)
        return True

    def end(self, state: End, numbers: dict[str, Any], error: str = '') -> None:
        """Says how the run ended; of several calls the last one counts.

        Args: numbers: env_step, train_iter, last_return, best_return, wall_s, env_step_per_s, stop_reason, and of this process
            seconds of each part and timed_s, which the file has with those before.
        """
        self._write({'state': state, **numbers, **self._times(numbers), **({'error': error} if error else {})})

    def see_exit(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """For `ExitStack.push`: says how the run ended if an error leaves the stack, which is while the run is made."""
        if error is not None:
            self.end_by(error, {})

    def end_by(self, error: BaseException | None, numbers: dict[str, Any]) -> None:
        """`end` of a run that was left early, by an error or without one. Ctrl-C and the like are no failure of a run."""
        if isinstance(error, Exception):
            self.end('failed', numbers, show_error(error))
        else:
            self.end('stopped', numbers)

    def _times(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """`seconds` and `timed_s` of this process and those before it in this folder; {} if none of them is known."""
        found = [(each['seconds'], each['timed_s']) for each in (self._before, numbers) if _has_times(each)]
        if not found:
            return {}
        names = dict.fromkeys(name for seconds, _ in found for name in seconds)
        sums = {name: round(sum(seconds.get(name, 0.0) for seconds, _ in found), 3) for name in names}
        return {'seconds': sums, 'timed_s': round(sum(timed_s for _, timed_s in found), 3)}

    def _write(self, values: dict[str, Any]) -> None:
        try:
            with whole_file(self._path) as file:
                file.write(
                    f'{json.dumps(values | {key: x for key, x in self._facts.items() if key not in values}, indent=1)}\n'.encode()
                )
        except OSError as error:
            logger.warning('%s cannot be written (%s); the run continues', self._path, error.strerror)


def _has_times(values: Mapping[str, Any]) -> bool:
    """Whether a file, which may be of another version, says how long which part took."""
    seconds = values.get('seconds')
    return isinstance(seconds, dict) and all(map(is_time, [*seconds.values(), values.get('timed_s')]))


def is_time(value: object) -> TypeGuard[float]:
    """Whether it is a number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def versions() -> dict[str, str]:
    """Versions of zoo, Python and the packages that results depend on most."""
    found = {'zoo': VERSION, 'python': platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict[str, str | int]:
    """The processor, how many cores of it this process may use, the system, the GPU."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            names = (line.split(':', 1)[1].strip() for line in file if line.startswith('model name'))
            cpu = next(names, platform.machine())
    except OSError:
        cpu = platform.processor() or platform.machine()
    system = f'{platform.system()} {platform.release()}'
    found: dict[str, str | int] = {'cpu': cpu, 'cores': n_core(), 'system': system}
    if torch.cuda.is_available():
        found['gpu'] = torch.cuda.get_device_name()
    return found


def n_core() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def command() -> list[str]:
    """The words that started this process, as a person types them: ['zoo', 'train', ...] or ['python', 'my.py', ...].

    Returns: [] where nobody typed any, as in a notebook.
    """
    file = Path(sys.argv[0] if sys.argv else '')
    if file.name == 'zoo' or file.parts[-2:] == ('zoo', '__main__.py'):
        n_rank = os.environ.get('WORLD_SIZE', '1')
        ranks = (
            []
            if n_rank == '1'
            else ['torchrun', f'--nproc-per-node={os.environ.get("LOCAL_WORLD_SIZE", n_rank)}', '-m']
        )
        return [*ranks, 'zoo', *sys.argv[1:]]
    if not file.name or file.name in NOTEBOOKS:
        return []
    words = sys.orig_argv[1:]
    is_spawned = '--multiprocessing-fork' in words  # it has the words of its parent in sys.argv
    return ['python', *(sys.argv if is_spawned else words)]


def commit() -> str | None:
    """The git commit of the current folder; None if it is in no checkout. Files that differ from it are not looked for."""
    heads = (folder / '.git' / 'HEAD' for folder in (Path.cwd() / '.git').parents)
    head = next(filter(Path.is_file, heads), None)
    if head is None:
        return None
    try:
        text = head.read_text().strip()
        if not text.startswith('ref: '):
            return text
        name = text.removeprefix('ref: ')
        if (file := head.parent / name).is_file():
            return file.read_text().strip()
        lines = (head.parent / 'packed-refs').read_text().splitlines()
        return next((line.split()[0] for line in lines if line.endswith(f' {name}')), None)
    except OSError:
        return None


class Ending:
    """Saves the end of a run, and says in result.json how it ended.

    Args: job: the run; file: None in a process that writes no files.
    """

    def __init__(self, job: RunView, file: ResultFile | None) -> None:
        self._job, self._file = job, file
        self._env_step: int | None = None  # at the end that result.json has

    def finish(self, is_whole: bool) -> None:
        """Says that the run ended; of several calls the last one counts.

        Args: is_whole: its last policy was evaluated.
        """
        if self._file is not None:
            self._env_step = self._job.env_step
            has_trained = self._job.result().env_step_per_s > 0  # in this process: else the end that it had stays
            if has_trained or not self._file.keep():
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
            # says how the run ended, unless that was done and the run did not go on
            if self._file is not None and self._env_step != self._job.env_step:
                self._env_step = self._job.env_step
                is_signalled = isinstance(error, EnvError) and self._job.stop_requested()  # it ended env workers too
                if error is None and self._is_over():
                    self._file.end('done', self._numbers())
                else:
                    self._file.end_by(None if is_signalled else error, self._numbers())

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
