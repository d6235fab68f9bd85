"""`zoo train` under torchrun, for the tests of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.forked import run_python
from tests.processes import PATIENCE, descendants, is_alive, wait_until, words_of
from zoo.run.checkpoint.file import steps_of

TORCHRUN = sys.executable, '-m', 'torch.distributed.run', '--standalone'
QUICK = ('env.check=false', 'logger.tensorboard=false', 'logger.freq=1', 'policy.eval.stop_value=null')


class Started:
    """`zoo train ARGS` under torchrun, in a session of its own, with its output in files of `folder`."""

    def __init__(self, folder: Path, n_rank: int, *args: str, options: tuple[str, ...] = ()) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.root, self.log = folder, folder / 'runs', folder / 'output.txt'
        with self.log.open('w') as out:
            self.process = subprocess.Popen(
                _command(n_rank, self.root, *args, options=options),
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, 'OMP_NUM_THREADS': '1'},
                start_new_session=True,
            )

    @classmethod
    def of(cls, folder: Path) -> Started:
        """Returns the object for a run that has ended, perhaps started by another process."""
        found = cls.__new__(cls)
        found.folder, found.root, found.log = folder, folder / 'runs', folder / 'output.txt'
        return found

    @classmethod
    def ran(cls, folder: Path, n_rank: int, *args: str) -> tuple[Started, int]:
        """Runs it to its end; returns the object and the exit code."""
        found = cls.of(folder)
        folder.mkdir(exist_ok=True)
        done = run_python(*_command(n_rank, found.root, *args)[1:], timeout=PATIENCE, OMP_NUM_THREADS='1')
        found.log.write_text(done.stdout + done.stderr)
        return found, done.returncode

    @property
    def output(self) -> str:
        return self.log.read_text()

    def ended(self) -> int:
        """Waits for the exit code; processes that do not end are killed, and the test fails."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            for pid in filter(is_alive, (self.process.pid, *self.ranks())):
                os.kill(pid, signal.SIGKILL)

    def ranks(self) -> list[int]:
        """Ids of the ranks' processes, in ascending order."""
        return sorted(pid for pid in descendants(self.process.pid) if 'train' in words_of(pid))

    def run(self) -> Path:
        """The run folder; there must be exactly one."""
        (found,) = self.root.glob('*/*')
        return found

    def saved(self) -> list[int]:
        """Env steps of the checkpoints."""
        return [step for folder in self.root.glob('*/*/checkpoints') for step in steps_of(folder)]

    def wait_for_checkpoints(self, n: int) -> None:
        wait_until(lambda: len(self.saved()) >= n, self.process, lambda: self.output)


def _command(n_rank: int, root: Path, *args: str, options: tuple[str, ...] = ()) -> list[str]:
    run = [*TORCHRUN, f'--nproc-per-node={n_rank}', *options]
    return [*run, '-m', 'zoo', 'train', *args, f'logger.root={root}', *QUICK]
