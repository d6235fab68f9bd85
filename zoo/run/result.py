"""The result of a run: how it ended and on which machine, as an object and in result.json."""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeGuard

import torch

from zoo.core import VERSION
from zoo.core.data import Metrics
from zoo.core.errors import UserError, show_error
from zoo.core.files import read_small, whole_file
from zoo.core.processes import STOP_REQUESTS, n_core
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.streams import without_passwords
from zoo.policy.base import Policy
from zoo.worker.evaluator import Evaluation

NAME = 'result.json'
FEW = 4  # least points of a curve of evaluations
PACKAGES = ('torch', 'numpy', 'gymnasium')
NOTEBOOKS = ('ipykernel_launcher.py', 'colab_kernel_launcher.py')  # the scripts that start a notebook's kernel
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
    policies: dict[str, Policy] = field(default_factory=dict)  # of all learners by name; of a single one: {'': policy}
    return_of: str = ''  # whose returns these are, in an env of several agents: 'mean over 3 agents'

    def __repr__(self) -> str:
        best = _number_text(self.best_return)
        last = _number_text(self.last_return)
        return (
            f'TrainResult(policy={self.policy.cfg.type!r}, env_step={self.env_step:,}, best_return={best}, last_return={last},\n'
            f'  wall_s={self.wall_s:.1f}, env_step_per_s={self.env_step_per_s:,.0f}, stop_reason={self.stop_reason!r},\n'
            f'  run_dir={str(self.run_dir)!r})'
        )

    def plot(self, metric: str | Sequence[str] | None = None, path: str | Path | None = None) -> Any:
        """The curve of a metric of the run, as `zoo plot` draws it: a matplotlib Figure.

        Args:
          metric: e.g. 'learn/entropy', or several, which get a line each; None: the return in evaluations, or in training where there was none.
          path: a file .svg, .png or .pdf to write it to.
        Raises: UserError for a metric that the log lacks, a file that cannot be written, or without the extra `plot`.
        """
        return TOOL_REGISTRY.get('plot_run')(self.run_dir, metric, path)

    def _repr_html_(self) -> str | None:
        """HTML for notebooks: the text of `repr` and the curve. None if no curve can be drawn: they show the text."""
        with suppress(UserError):
            return TOOL_REGISTRY.get('html_of_run')(self.run_dir, repr(self))
        return None


@dataclass
class RoundResult:
    """What one round of a run did, see `SerialJob.iteration`.

    env_step, train_iter: counters of the run after it; of several ranks, those of all.
    returns, lengths: undiscounted returns and lengths [env steps] of the training episodes that ended in it, of this process.
    metrics: of its updates, 0-dim tensors by their names in the log without the group's name, e.g. 'policy_loss'.
    evaluation: of the policy after it, if one was due.
    """

    env_step: int = 0
    train_iter: int = 0
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    evaluation: Evaluation | None = None


def _number_text(value: float | None) -> str:
    if value is None:
        return 'none'
    return f'{value:g}'


class ResultFile:
    """The file result.json, written with the state 'running' when a run begins, and again when it ends.

    If a file still says 'running' although no process holds the run's lock, its run was killed. `seconds`, by part of the
    run, and `timed_s` are sums over all processes that ended in this folder; `n_killed` is the number of earlier processes
    that were killed, if any were. If the file cannot be written, a warning is logged.
    Args: folder: of the run; threads: torch's threads in each phase, if they are known.
    """

    def __init__(self, folder: Path, threads: Mapping[Any, int] | None = None) -> None:
        self._path = folder / NAME
        self._facts: dict[str, Any] = {
            'versions': versions(),
            'machine': machine(),
            'commit': commit(),
            'command': [without_passwords(word) for word in command()],
        }
        if threads is not None:
            self._facts['threads'] = dict(threads)
        self._before: dict[str, Any] = {}  # the earlier content; empty if there is no file, or a damaged one
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads(read_small(self._path))
            if isinstance(content, dict):
                self._before = content
        n_killed = self._before.get('n_killed')
        if not isinstance(n_killed, int):
            n_killed = 0
        n_killed += self._before.get('state') == 'running'
        if n_killed:
            self._facts['n_killed'] = n_killed
        times: dict[str, Any] = {'seconds': {}, 'timed_s': 0.0}
        if self._before:
            times = self._times({})
        self._write({'state': 'running', **times})

    def keep(self) -> bool:
        """Restores the earlier content if it says that the run was done; returns whether it did."""
        if self._before.get('state') != 'done':
            return False
        self._write(self._before)
        return True

    def end(self, numbers: dict[str, Any], is_done: bool = False, error: BaseException | None = None) -> None:
        """Writes how the run ended; of several calls the last one counts.

        Args: numbers: env_step, train_iter, last_return, best_return, wall_s, env_step_per_s, stop_reason, and the seconds of
            each part and timed_s of this process, to which those of earlier ones are added; error: the reason of an early
            end, which is no failure of the run for Ctrl-C and the like.
        """
        end = {'state': 'stopped', **numbers, **self._times(numbers)}
        if is_done:
            end['state'] = 'done'
        if error is not None and not isinstance(error, (SystemExit, *STOP_REQUESTS)):
            end |= {'state': 'failed', 'error': without_passwords(show_error(error))}
        self._write(end)

    def see_exit(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """For `ExitStack.push`: writes how the run ended if an error leaves the stack, which happens while it is made."""
        if error is not None:
            self.end({}, error=error)

    def _times(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """`seconds` and `timed_s`, summed over this process and earlier ones in this folder; {} if none is known."""
        timed = [values for values in (self._before, numbers) if _has_times(values)]
        if not timed:
            return {}
        seconds: dict[str, float] = {}
        for values in timed:
            for name, value in values['seconds'].items():
                seconds[name] = seconds.get(name, 0.0) + value
        return {
            'seconds': {name: round(value, 3) for name, value in seconds.items()},
            'timed_s': round(sum(values['timed_s'] for values in timed), 3),
        }

    def _write(self, values: dict[str, Any]) -> None:
        facts = {key: x for key, x in self._facts.items() if key not in values}
        text = json.dumps(values | facts, indent=1)
        try:
            with whole_file(self._path) as file:
                file.write(f'{text}\n'.encode())
        except OSError as error:
            logger.warning('%s cannot be written (%s); the run continues', self._path, error.strerror)


def _has_times(values: Mapping[str, Any]) -> bool:
    """Whether the content of a file, maybe of another version, has valid times of parts."""
    seconds = values.get('seconds')
    return isinstance(seconds, dict) and all(map(is_time, [*seconds.values(), values.get('timed_s')]))


def is_time(value: object) -> TypeGuard[float]:
    """Whether a value is a number of seconds or steps; an integer of 400 digits, too large for a float, is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def versions() -> dict[str, str]:
    """Versions of zoo, Python and the packages that results depend on most."""
    return {'zoo': VERSION, 'python': platform.python_version(), **_versions_of_packages()}


@functools.cache
def _versions_of_packages() -> dict[str, str]:
    """The versions of PACKAGES. Kept, since to read them takes 4 ms of a run's start."""
    numbers = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def machine() -> dict[str, str | int]:
    """The processor, how many cores of it this process may use, the system, the GPU."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            names = (line.split(':', 1)[1].strip() for line in file if line.startswith('model name'))
            cpu = next(names, platform.machine())
    except OSError:
        cpu = platform.processor() or platform.machine()
    system = f'{platform.system()} {platform.release()}'
    facts: dict[str, str | int] = {'cpu': cpu, 'cores': n_core(), 'system': system}
    if torch.cuda.is_available():
        facts['gpu'] = torch.cuda.get_device_name()
    return facts


def command() -> list[str]:
    """The command that started this process, as a user types it: ['zoo', 'train', ...] or ['python', 'my.py', ...].

    Returns: [] if nobody typed a command, as in a notebook.
    """
    file = Path(next(iter(sys.argv), ''))
    if file.name == 'zoo' or file.parts[-2:] == ('zoo', '__main__.py'):
        n_rank = os.environ.get('WORLD_SIZE', '1')
        ranks = []
        if n_rank != '1':
            ranks = ['torchrun', f'--nproc-per-node={os.environ.get("LOCAL_WORLD_SIZE", n_rank)}', '-m']
        return [*ranks, 'zoo', *sys.argv[1:]]
    if not file.name or file.name in NOTEBOOKS:
        return []
    arguments = sys.orig_argv[1:]
    if '--multiprocessing-fork' in arguments:  # a spawned process has the words of its parent in sys.argv
        arguments = sys.argv
    return ['python', *arguments]


def commit() -> str | None:
    """The git commit of the current folder; None if it is in no checkout. Uncommitted changes are not detected."""
    heads = (folder / '.git' / 'HEAD' for folder in (Path.cwd() / '.git').parents)
    try:
        head = next(filter(Path.is_file, heads), None)
        if head is None:
            return None
        text = read_small(head.resolve()).decode(errors='replace')
        name = ''
        if text.startswith('ref: refs/') and '..' not in text:
            name = text.removeprefix('ref: ').strip()
            file = next(filter(Path.is_file, (head.parent / name, head.parent / 'packed-refs')), head)
            text = read_small(file.resolve()).decode(errors='replace')
    except OSError:
        return None
    # nothing but a commit: the checkout may be somebody else's, and its HEAD may name any file
    match = re.search(f'^([0-9a-f]{{40}}|[0-9a-f]{{64}})(?: {re.escape(name)})?$', text, re.MULTILINE)
    return match and match[1]
