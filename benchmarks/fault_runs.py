"""A training run for fault tests: a process that is started, stopped, killed and resumed, and checked in between."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from fault_system import environment, is_helper, marked

from report import last_json_line

DEADLINE_S = 120.0
"""Time limit for a start or a stop on a busy machine; an evaluation has ten times as much."""

ORPHAN_S = 30.0
"""Time limit within which the children of a killed run must have ended."""


class _Slow(gymnasium.Wrapper):
    """An env whose every step takes at least `pause` seconds."""

    def __init__(self, env: gymnasium.Env, pause: float) -> None:
        super().__init__(env)
        self._pause = pause

    def step(self, action: Any) -> Any:
        time.sleep(self._pause)
        return self.env.step(action)


def slow_cartpole(pause: float) -> gymnasium.Env:
    """CartPole-v1 whose steps take at least `pause` seconds, so that the envs limit the speed of a run on any machine."""
    return _Slow(gymnasium.make('CartPole-v1'), pause)


class FaultyRun:
    """One run folder and the process that trains in it.

    Args:
      root: a folder for the run folder and the output of the processes.
      config: a config's name or file; overrides: 'key=value' words for the first start.
      imports: modules that the run's config names.
    Attributes: process: the newest process; mark: a value that all processes of the run have in their environment;
      faults: one sentence for each failed check.
    """

    def __init__(self, root: Path, config: str, overrides: Sequence[str], imports: Sequence[str] = ()) -> None:
        self.root, self.faults = root, []
        self._config, self._overrides, self._imports = config, list(overrides), list(imports)
        self.mark, self._n_start, self._is_resume = uuid.uuid4().hex, 0, False
        self.process: subprocess.Popen[bytes] | None = None
        self.floor = 0  # env step of the newest checkpoint that was seen
        self._left: set[str] = set()  # unfinished checkpoint files of earlier processes
        self.orphan_s = 0.0  # the longest that children outlived their run

    @property
    def run_dir(self) -> Path | None:
        """The newest run folder that has a checkpoint."""
        folders = sorted(path.parent for path in self.root.glob('runs/*/*/checkpoints'))
        return next((folder for folder in reversed(folders) if checkpoints(folder)), None)

    @property
    def said(self) -> Path:
        """The file with the stderr of the newest process."""
        return self.root / f'stderr_{self._n_start}'

    @property
    def resumed_at(self) -> int | None:
        """The env step from which the newest process continued; None before it logs that, and at a first start."""
        found = re.search(r'resuming at env step (\d+)', self.said.read_text(errors='replace'))
        return None if found is None else int(found[1])

    def start(self, *overrides: str) -> None:
        """Starts a new process, which resumes the newest run folder, or begins a run if there is no checkpoint yet."""
        self._n_start += 1
        self._left = self._unfinished()
        folder = self.run_dir
        self._is_resume = folder is not None
        words = [self._config, f'logger.root={self.root / "runs"}', *self._overrides]
        words = words if folder is None else ['--resume', str(folder)]
        imports = [word for name in self._imports for word in ('--import', name)]
        with open(self.said, 'wb') as stderr, open(self.root / 'stdout', 'wb') as stdout:
            self.process = subprocess.Popen(
                [sys.executable, '-m', 'zoo', 'train', *words, *imports, '--json', *overrides],
                cwd=self.root,
                env=environment(self.mark),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def wait_until_running(self) -> bool:
        """Waits until the new process says that it resumes and writes a log line; False if it ended before."""
        if self._is_resume and not self._wait_for(lambda: self.resumed_at is not None):
            return False
        return self.wait_for_line()

    def wait_for_line(self) -> bool:
        """Waits for the next line of the log; False if the process ended before."""
        size = self._log_size()
        return self._wait_for(lambda: self._log_size() > size)

    def _wait_for(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def wait(self, timeout: float = DEADLINE_S) -> int | None:
        """Waits for the exit code. After the timeout it kills the process, adds a fault and returns None."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.faults.append(f'the process did not end within {timeout:g} s: {self.tail()}')
            self.kill()
            return None

    def kill(self) -> None:
        """Kills the run's main process, and only that, with kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Kills all remaining processes of the run."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def note_checkpoints(self) -> None:
        """Records the newest checkpoint, which a resume must reach; to be called before a fault."""
        folder = self.run_dir
        self.floor = max([self.floor, *(checkpoints(folder) if folder else ())])

    def check_resume(self) -> None:
        """Adds a fault unless the resume continued from the last recorded checkpoint or a later one."""
        at = self.resumed_at
        if self.floor and (at is None or at < self.floor):
            self.faults.append(f'lost: a checkpoint of env step {self.floor} was there, the resume is at {at}')

    def check_end(self, is_complete: bool = False) -> dict[str, int]:
        """Checks what an ended process left: orphans, checkpoints, the log. Returns the number of problems by kind."""
        found = {'children left': self._orphans(), 'corrupt checkpoints': 0, 'log lines out of order': 0, '*.tmp': 0}
        folder = self.run_dir
        folders = [path for path in self.root.glob('runs/*/*') if checkpoints(path)]
        found['run folders too many'] = max(len(folders) - 1, 0)  # a resume continues in the folder of its run
        if folder is not None:
            found['corrupt checkpoints'] = sum(not is_valid(file) for file in folder.glob('checkpoints/*.safetensors'))
            found['log lines out of order'] = broken_lines(folder / 'metrics.jsonl')
            found['*.tmp'] = len(list(folder.rglob('*.tmp'))) if is_complete else 0
        said = self.said.read_text(errors='replace')
        if self.process.returncode != -signal.SIGKILL:  # after kill -9, workers may report a broken pipe
            found['tracebacks'] = said.count('Traceback (most recent call last)')
        self.faults += [f'{n} {what}: {self.tail()}' for what, n in found.items() if n]
        return found

    def evaluate(self, n_episode: int = 20) -> float | None:
        """The mean greedy return of the newest checkpoint on its env."""
        imports = [word for name in self._imports for word in ('--import', name)]
        words = ['eval', str(self.run_dir), *imports, '--json', '--episodes', str(n_episode), '--seed', '1000000']
        done = subprocess.run(
            [sys.executable, '-m', 'zoo', *words],
            cwd=self.root,
            env=environment(self.mark),
            capture_output=True,
            text=True,
            timeout=10 * DEADLINE_S,
            check=False,
        )
        if done.returncode:
            self.faults.append(f'eval ended with {done.returncode}: {done.stderr[-300:]}')
            return None
        return (last_json_line(done.stdout) or {}).get('return_mean')

    def workers(self) -> list[int]:
        """Process ids of the running run's env workers, those of its training envs first."""
        return [pid for pid in sorted(marked(self.mark)) if pid != self.process.pid and not is_helper(pid)]

    def is_saved(self) -> bool:
        """Whether the newest checkpoint is as new as the log."""
        folder = self.run_dir
        if folder is None:
            return False
        rows = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
        return max(checkpoints(folder)) >= max((row['env_step'] for row in rows), default=0)

    def is_saving(self) -> bool:
        """Whether the newest process is writing a checkpoint at this moment, or was when it was killed."""
        return bool(self._unfinished() - self._left)  # a killed process's file stays until the next save

    def _unfinished(self) -> set[str]:
        folder = self.run_dir
        names = [] if folder is None else os.listdir(folder / 'checkpoints')
        return {name for name in names if name.endswith('.tmp')}

    def tail(self) -> str:
        """The last three lines of the newest process's stderr."""
        return ' / '.join(self.said.read_text(errors='replace').splitlines()[-3:])

    def _log_size(self) -> int:
        paths = list(self.root.glob('runs/*/*/metrics.jsonl'))
        return sum(path.stat().st_size for path in paths)

    def _orphans(self) -> int:
        start = time.monotonic()
        while (left := marked(self.mark)) and time.monotonic() < start + ORPHAN_S:
            time.sleep(0.05)
        self.orphan_s = max(self.orphan_s, time.monotonic() - start)
        self.stop()
        return len(left)


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run folder by env step."""
    from zoo.run.checkpoint.file import steps_of

    return steps_of(folder / 'checkpoints')


def is_valid(file: Path) -> bool:
    """Whether a checkpoint can be loaded; True also for a file that was removed meanwhile."""
    from zoo.run.checkpoint.file import CheckpointError, load_checkpoint

    try:
        load_checkpoint(file)
    except CheckpointError:
        return not file.exists()
    return True


def kind_of(row: Mapping[str, Any]) -> str:
    """The kind of a log line: 'training' or 'eval'. Lines of both kinds may have the same env step."""
    return 'eval' if any(name.startswith('eval/') for name in row) else 'training'


def broken_lines(path: Path) -> int:
    """Number of log lines that are cut off, or whose env step is not above that of the previous line of the same kind."""
    if not path.exists():
        return 0
    newest: dict[str, int] = {}
    n_broken = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line)
            kind, env_step = kind_of(row), row['env_step']
        except (ValueError, LookupError):
            n_broken += 1
            continue
        n_broken += not line.endswith(b'\n') or env_step <= newest.get(kind, -1)
        newest[kind] = env_step
    return n_broken
