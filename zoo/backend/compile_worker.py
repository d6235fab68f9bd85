"""Compiles graphs in another process, so that the memory of torch's compiler is not the run's. Both ends are here.

It is one process for all graphs of a run that come soon after each other: a first one takes 14 s, the next ones 9.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LIMIT_S = 900  # for a graph; ours take up to 20 s of an idle machine
IDLE_S = 60
LIBRARY = 'graph.so'  # beside it graph.json, if there are operations that C++ code calls by their names
_JOB = 'job.pkl'
# this very file, wherever another zoo may be; `-c` puts the current folder first, but only sys is imported before that
# is undone (`-m` would need -P of Python 3.11)
_START = """import sys; sys.path[:] = sys.argv[3:]
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location('zoo_compile_worker', sys.argv[2])
sys.modules[spec.name] = worker = module_from_spec(spec)
spec.loader.exec_module(worker)
worker.main()"""


class Job(NamedTuple):
    """A graph to compile. (A GraphModule that was pickled comes back with tensors made in it turned into constants.)"""

    code: str  # of its forward(self, *inputs)
    constants: dict[str, Tensor]  # attributes of self
    forms: list[tuple[tuple[int, ...], tuple[int, ...], Any]]  # shape, stride, dtype of each input
    options: dict[str, Any]  # of torch._inductor.config


class CompilationError(RuntimeError):
    """The compiler ran, and said why it did not succeed."""


class _ChildGoneError(RuntimeError):
    """It had ended, as it does when idle, before it was given the job, or soon after: another one is asked."""


def compile_in_child(job: Job, folder: Path) -> Path:
    """The shared library of a graph, made in an empty folder of `scratch_root`.

    Raises: CompilationError; RuntimeError if the child was ended or took more than LIMIT_S; OSError.
    """
    try:
        return _running_child().compile(job, folder)
    except _ChildGoneError:
        end_child()
        return _running_child().compile(job, folder)
    except BaseException:  # KeyboardInterrupt too
        end_child()
        raise


def _running_child() -> _Child:
    global _child
    if _child is None or not _child.is_running():
        end_child()
        _child = _Child()
    return _child


@atexit.register
def end_child() -> None:
    """Ends the process that compiles, if there is one. It would end with this one, or after IDLE_S without work."""
    global _child
    if _child is not None and _child.owner == os.getpid():  # one that was there before a fork is another's
        _child.end()
    _child = None


def scratch_root() -> str:
    """Where to make temporary folders: with no space in the path, since torch's commands would break.

    Raises: RuntimeError if there is no such place.
    """
    for place in (tempfile.gettempdir(), '/tmp', '/var/tmp'):
        if ' ' not in place and os.access(place, os.W_OK):
            return place
    raise RuntimeError(
        f'the folder for temporary files is {tempfile.gettempdir()!r}, and compilers take no path with '
        'a space; name another in TMPDIR'
    )


class _Child:
    """The parent's end."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._is_used = False  # then it may have ended since
        self._scratch = tempfile.mkdtemp(prefix='zoo_', dir=scratch_root())
        # modules as here, but nothing of the user's script or current folder in place of what torch imports
        paths = [os.path.abspath(path) for path in (*sys.path[1:], *sys.path[:1])]
        env = {
            **os.environ,
            'TORCHINDUCTOR_CACHE_DIR': self._scratch,
            'TMPDIR': self._scratch,
            'CUDA_VISIBLE_DEVICES': '',
            'TORCHINDUCTOR_COMPILE_THREADS': '1',
        }
        self._output = Path(self._scratch, 'output')
        command = [sys.executable, '-W', 'ignore', '-c', _START, self._scratch, os.path.abspath(__file__), *paths]
        with open(self._output, 'wb') as output:
            # its stdin is closed when this process ends, however it does; then it ends too. A session of its own: at
            # Ctrl-C a run finishes its update, and what compiles for it must live on
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=self._scratch,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                bufsize=0,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self.owner == os.getpid() and self._process.poll() is None

    def compile(self, job: Job, folder: Path) -> Path:
        (folder / _JOB).write_bytes(pickle.dumps(tuple(job)))
        try:
            said_before, deadline = self._output.stat().st_size, time.monotonic() + LIMIT_S
            assert self._process.stdin is not None
            self._process.stdin.write(os.fsencode(folder) + b'\n')
        except OSError as error:
            raise _ChildGoneError('the compiler ended before it began') from error
        library = folder / LIBRARY
        while not library.exists():
            code = self._process.poll()
            if code == 0 or (code is not None and code < 0 and self._is_used):
                raise _ChildGoneError('the compiler ended, perhaps before it began')
            if code is not None and code < 0:
                raise RuntimeError(f'the compiler was ended by signal {-code}')
            if code is not None:
                raise CompilationError(reason(self._output.read_bytes()[said_before:].decode(errors='replace')))
            if time.monotonic() > deadline:
                raise RuntimeError(f'the compiler took more than {LIMIT_S} s')
            time.sleep(0.01)
        self._is_used = True
        return library

    def end(self) -> None:
        with self._process:  # closes its stdin, and waits
            if self._process.poll() is None:
                _kill_session(self._process.pid)
        shutil.rmtree(self._scratch, ignore_errors=True)


def _kill_session(pid: int) -> None:
    """A child and the C++ compiler that it has started."""
    if hasattr(os, 'killpg'):
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)


_child: _Child | None = None


def reason(said: str) -> str:
    """The line that matters of what a compiler said: its first error, or else the last exception."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r'\berror: ', line)]
    exceptions = [line for line in said.splitlines() if re.match(r'[\w.]+: ', line)]
    return next(iter([*errors, *exceptions[-1:], *lines[-1:]]), 'the compiler ended without a word')


def main() -> None:
    """The child: compiles the jobs in the folders that its stdin names, until none came for IDLE_S."""
    folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(folders, Path(sys.argv[1])), daemon=True).start()
    while True:
        try:
            folder = folders.get(timeout=IDLE_S)
        except queue.Empty:
            shutil.rmtree(sys.argv[1], ignore_errors=True)
            return
        made = _compile(Job(*pickle.loads((folder / _JOB).read_bytes())), folder / 'made')
        named_operations = made.with_suffix('.json')
        if named_operations.exists():
            os.replace(named_operations, (folder / LIBRARY).with_suffix('.json'))
        os.replace(made, folder / LIBRARY)  # the last, for it is what the parent waits for


def _listen(folders: queue.SimpleQueue[Path], scratch: Path) -> None:
    folder = scratch
    with open(0, 'rb', buffering=0) as stdin:  # a buffer that a thread waits in would end the process with an abort
        for line in stdin:
            folder = Path(os.fsdecode(line[:-1]))
            folders.put(folder)
    for path in (folder, scratch):  # the parent has ended, and has perhaps left them
        shutil.rmtree(path, ignore_errors=True)
    if hasattr(os, 'getpgrp') and os.getpgrp() == os.getpid():
        _kill_session(os.getpid())
    os._exit(1)


def _compile(job: Job, folder: Path) -> Path:
    import torch
    from torch._inductor import aot_compile, config
    from torch.fx.experimental.proxy_tensor import make_fx

    names: dict[str, Any] = {
        'torch': torch,
        'device': torch.device,
        'inf': torch.inf,
        'nan': torch.nan,
        'NoneType': type(None),
    }
    exec(job.code, names)  # makes `forward`
    constants = SimpleNamespace(**job.constants)
    inputs = tuple(torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in job.forms)
    with torch.no_grad(), config.patch({**job.options, 'aot_inductor.output_path': str(folder)}):
        forward = partial(names['forward'], constants)
        graph = make_fx(forward, tracing_mode='fake', _allow_non_fake_inputs=True)(*inputs)
        made = aot_compile(graph, inputs)
    assert isinstance(made, str)
    return Path(made)
