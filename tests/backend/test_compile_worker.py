"""The process that compiles: what it says where it fails, and that it ends when its parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zoo.backend import compile_worker
from zoo.backend.compile_worker import LIBRARY, CompilationError, Job, compile_in_child, end_child, reason

SLOW = Job('slow', {}, [], {})
GCC = """Traceback (most recent call last):
  File "<string>", line 1, in <module>
torch._inductor.exc.InductorError: CppCompileError: C++ compile error

Output:
/tmp/a.cpp: In function 'int main()':
  /tmp/a.cpp:3:5: error: 'x' was not declared in this scope
/tmp/a.cpp:4:5: error: 'y' was not declared in this scope
"""
PYTHON = """a warning: of no importance
Traceback (most recent call last):
  File "a.py", line 3, in <module>
KeyError: 'first'

During handling of the above exception, another exception occurred:

torch.errors.Unsupported: no such operation
  and what to do about it

Set MORE=1 to hear more
"""
# The child's part as it is, but for the compilation: it says who it is, may take a minute, and copies the code
SLOW_CHILD = """import sys; sys.path[:] = sys.argv[3:]
import os, time
from zoo.backend import compile_worker
def compile_slowly(job, folder):
    (folder.parent / 'partial').write_text(str(os.getpid()))
    os.replace(folder.parent / 'partial', folder.parent / 'pid')
    time.sleep(60 if job.code == 'slow' else 0)
    folder.write_text(job.code)
    return folder
compile_worker._compile = compile_slowly
compile_worker.main()"""
PARENT = """import pathlib, signal, sys, tempfile
from zoo.backend import compile_worker
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests themselves ignore it
compile_worker._START, tempfile.tempdir = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    compile_worker.compile_in_child(compile_worker.Job('slow', {}, [], {}), pathlib.Path(folder))"""


@pytest.fixture(autouse=True)
def own_child() -> Iterator[None]:
    end_child()
    yield
    end_child()


@pytest.mark.parametrize(
    'said, line',
    [
        (GCC, "/tmp/a.cpp:3:5: error: 'x' was not declared in this scope"),
        (PYTHON, 'torch.errors.Unsupported: no such operation'),
        ('Segmentation fault\n\n', 'Segmentation fault'),
        ('\n', 'the compiler ended without a word'),
    ],
    ids=['gcc', 'python', 'other', 'nothing'],
)
def test_reason_is_the_first_error_or_the_last_exception(said: str, line: str) -> None:
    assert reason(said) == line


def test_failure_of_the_child_is_an_error_with_its_reason(tmp_path: Path) -> None:
    code = 'def forward(self):\n    raise ArithmeticError("no such area")\n'
    with pytest.raises(CompilationError, match='^ArithmeticError: no such area$'):
        compile_in_child(Job(code, {}, [], {}), tmp_path)


def test_child_that_is_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, '_START', 'import os; os.kill(os.getpid(), 9)')
    with pytest.raises(RuntimeError, match='the compiler was ended by signal 9'):
        compile_in_child(SLOW, tmp_path)


def test_child_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, '_START', SLOW_CHILD)
    compile_in_child(Job('quick', {}, [], {}), tmp_path)
    (tmp_path / LIBRARY).unlink()
    monkeypatch.setattr(compile_worker, 'LIMIT_S', 0.2)
    with pytest.raises(RuntimeError, match='the compiler took more than 0.2 s'):
        compile_in_child(SLOW, tmp_path)
    assert not alive(int((tmp_path / 'pid').read_text()))


def test_child_compiles_one_graph_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And another child does after it has ended, as where nothing was to do for a while."""
    monkeypatch.setattr(compile_worker, '_START', SLOW_CHILD)
    pids = []
    for name in ('one', 'two', 'three'):
        folder = tmp_path / name
        folder.mkdir()
        assert compile_in_child(Job(name, {}, [], {}), folder).read_text() == name
        pids.append(int((folder / 'pid').read_text()))
        if name == 'two':
            os.kill(pids[-1], signal.SIGTERM)
            wait_until(lambda: not alive(pids[-1]))
    assert pids[0] == pids[1] != pids[2]


def test_child_without_work_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = SLOW_CHILD.replace('compile_worker.main()', 'compile_worker.IDLE_S = 0.1\ncompile_worker.main()')
    monkeypatch.setattr(compile_worker, '_START', idle)
    monkeypatch.setattr(compile_worker.tempfile, 'tempdir', str(tmp_path))
    folder = tmp_path / 'job'
    folder.mkdir()
    compile_in_child(Job('quick', {}, [], {}), folder)
    wait_until(lambda: not alive(int((folder / 'pid').read_text())))
    assert list(tmp_path.iterdir()) == [folder]  # nor leaves anything, though its parent goes on


def test_child_that_ended_as_it_was_given_a_job_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, '_START', SLOW_CHILD)
    for name in ('one', 'two'):
        (tmp_path / name).mkdir()
    compile_in_child(Job('one', {}, [], {}), tmp_path / 'one')
    pid = int((tmp_path / 'one' / 'pid').read_text())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    monkeypatch.setattr(compile_worker._Child, 'is_running', lambda self: True)  # as it seemed a moment before
    assert compile_in_child(Job('two', {}, [], {}), tmp_path / 'two').read_text() == 'two'


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='has no fork')
def test_child_of_a_process_is_left_alone_by_its_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, '_START', SLOW_CHILD)
    pids = []
    for name in ('one', 'two', 'three'):
        folder = tmp_path / name
        folder.mkdir()
        if name == 'two':
            fork = os.fork()
            if fork == 0:
                try:
                    compile_in_child(Job(name, {}, [], {}), folder)
                    end_child()
                finally:
                    os._exit(0)
            os.waitpid(fork, 0)
        else:
            compile_in_child(Job(name, {}, [], {}), folder)
        pids.append(int((folder / 'pid').read_text()))
    assert pids[0] == pids[2] != pids[1]


def test_child_lives_on_when_ctrl_c_reaches_the_whole_terminal(tmp_path: Path) -> None:
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    ignores = PARENT.replace('signal.default_int_handler', 'signal.SIG_IGN')  # as a run that ends its update first
    parent = subprocess.Popen(
        [sys.executable, '-c', ignores, SLOW_CHILD, str(tmp_path)], env=env, start_new_session=True
    )
    try:
        wait_until(lambda: list(tmp_path.glob('*/pid')))
        (pid,) = (int(path.read_text()) for path in tmp_path.glob('*/pid'))
        os.killpg(parent.pid, signal.SIGINT)
        time.sleep(0.5)
        assert alive(pid) and parent.poll() is None
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not alive(pid))


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGKILL])
def test_child_ends_with_its_parent_and_leaves_nothing(number: int, tmp_path: Path) -> None:
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, '-c', PARENT, SLOW_CHILD, str(tmp_path)], env=env, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: list(tmp_path.glob('*/pid')))
    (pid,) = (int(path.read_text()) for path in tmp_path.glob('*/pid'))
    assert alive(pid)
    parent.send_signal(number)
    parent.wait()
    wait_until(lambda: not alive(pid) and not list(tmp_path.iterdir()))


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended, but nobody asked for its exit code yet, does not."""
    stat = Path(f'/proc/{pid}/stat')
    if Path('/proc/self/stat').exists():
        return stat.exists() and stat.read_text().rpartition(') ')[2][0] != 'Z'
    done = subprocess.run(['ps', '-o', 'stat=', '-p', str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] not in ('', 'Z')


def wait_until(true: object) -> None:
    for _ in range(1200):
        if true():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError('it did not come true in a minute')
