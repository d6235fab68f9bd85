"""Processes end with their parent; a stop signal ends work that may be given up, and nothing else."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.processes import is_alive, left
from zoo.backend.trace import CompiledFunction
from zoo.core.processes import (
    STOP_SIGNALS,
    GivenUp,
    catch_signals,
    cgroup_memory,
    collection_paused,
    end_words,
    given_up_at_its_end,
    may_be_given_up,
    signal_name,
)

HANGING = """
import ctypes, os, sys
from zoo.core.processes import die_with_parent
die_with_parent(int(sys.argv[1]), True, lambda seconds: False)
print('ready', flush=True)
ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the lock: no thread of Python could end this
"""
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(3600)
"""
SIGNALLED = """
import os, signal, sys
from zoo.core.processes import leave_signals_to_parent, stop_signals_blocked, unblock_stop_signals
leave_signals_to_parent(ends_at_sigterm=sys.argv[1] == 'ends')
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    os.kill(os.getpid(), number)
with stop_signals_blocked():
    os.kill(os.getpid(), signal.SIGTERM)
    print('blocked', flush=True)
unblock_stop_signals()
print('left', flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='processes are looked up in /proc')
def test_process_that_hangs_with_the_lock_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, '-c', PARENT, HANGING], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.communicate()
    assert not left([child])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('how', 'said', 'code'), [('ends', 'blocked\n', -signal.SIGTERM), ('stays', 'blocked\nleft\n', 0)]
)
def test_signals_that_are_left_to_the_parent_end_nothing(how: str, said: str, code: int) -> None:
    done = subprocess.run([sys.executable, '-c', SIGNALLED, how], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (said, code)


@pytest.mark.parametrize(
    ('code', 'words'),
    [
        (3, 'ended with exit code 3'),
        (-signal.SIGSEGV, 'ended by signal 11 (SIGSEGV)'),
        (-signal.SIGKILL, 'ended by signal 9 (SIGKILL; by the system if memory ran out)'),
    ],
)
def test_end_words(code: int, words: str) -> None:
    assert end_words(code) == words


@pytest.mark.parametrize(
    ('number', 'name'), [(signal.SIGINT, 'Ctrl-C'), (signal.SIGTERM, 'SIGTERM'), (99, 'signal 99')]
)
def test_signals_are_called_what_users_call_them(number: int, name: str) -> None:
    assert signal_name(number) == name


# --- memory ---


@pytest.mark.parametrize(
    ('lines', 'files', 'limit'),
    [
        ('0::/a/b\n', {'a/b/memory.max': 'max', 'a/memory.max': '3000'}, 3_000),
        ('0::/a/b\n', {'a/b/memory.max': '2000', 'a/memory.max': '3000'}, 2_000),
        ('0::/\n', {'memory.max': '500'}, 500),
        ('0::/host/path\n', {'memory.max': '500'}, 500),  # in a container the path may be that of the host
        ('0::/a\n', {'unified/a/memory.max': '700'}, 700),
        ('5:cpu,memory:/j\n0::/\n', {'memory/j/memory.limit_in_bytes': '9223372036854771712'}, 2**63 - 4096),
        ('5:cpu,memory:/j/k\n', {'memory/j/memory.limit_in_bytes': '40', 'memory/memory.limit_in_bytes': '80'}, 40),
        ('5:cpu:/j\n', {'memory/j/memory.limit_in_bytes': '40'}, 2**63),  # the group of another controller
        ('', {}, 2**63),
    ],
)
def test_memory_of_control_groups_is_the_lowest_limit(
    lines: str, files: dict[str, str], limit: int, tmp_path: Path
) -> None:
    (tmp_path / 'cgroup').write_text(lines)
    for name, text in files.items():
        path = tmp_path / 'fs' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')
    assert cgroup_memory(tmp_path / 'cgroup', tmp_path / 'fs') == limit


@pytest.mark.slow
def test_memory_is_what_ulimit_leaves() -> None:
    code = 'from zoo.core.processes import machine_memory, memory_words; print(machine_memory(), memory_words())'
    command = ['bash', '-c', f'ulimit -v 3000000; exec {sys.executable} -c "{code}"']  # kB
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    n_byte, _, words = done.stdout.partition(' ')
    # an interpreter has mapped some of the 3.07 GB, but not 2 GB
    assert 1_000_000_000 < int(n_byte) < 3_072_000_000
    assert words.startswith('the limit on address space (ulimit -v) leaves ')


# --- stop signals ---


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def not_ignored(number: int) -> Iterator[None]:
    """Sets the default action of `number`; under `nohup` a process starts with SIGHUP ignored."""
    before = signal.signal(number, signal.SIG_DFL)
    yield
    signal.signal(number, before)


@pytest.mark.usefixtures('not_ignored')
@pytest.mark.parametrize('number', STOP_SIGNALS)
def test_signal_ends_work_that_may_be_given_up(number: int) -> None:
    with catch_signals() as received:
        with pytest.raises(GivenUp), may_be_given_up():
            _send(number)
        assert received == [number]
        with pytest.raises(GivenUp), may_be_given_up():  # after the signal no such work begins
            pytest.fail('it began')
    with may_be_given_up():  # the next run may begin again
        pass


def test_part_that_nothing_may_interrupt_is_given_up_at_its_end() -> None:
    done = []
    with catch_signals():
        with pytest.raises(GivenUp), may_be_given_up():
            with given_up_at_its_end() as is_over:
                assert not is_over()
                _send(signal.SIGTERM)
                done.append(is_over())
            pytest.fail('it went on')
        assert done == [True]
        with given_up_at_its_end() as is_over:  # not inside work that may be given up
            assert not is_over()


def test_signal_outside_of_such_work_is_noted_only() -> None:
    with catch_signals() as received:
        with may_be_given_up():
            pass
        _send(signal.SIGTERM)
        assert received == [signal.SIGTERM]


def test_work_in_another_thread_is_left_alone() -> None:
    begun, sent, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        with may_be_given_up():
            begun.set()
            sent.wait(60)
            ended.append(True)

    thread = threading.Thread(target=work)
    with catch_signals() as received:
        thread.start()
        assert begun.wait(60)
        _send(signal.SIGTERM)
        sent.set()
        thread.join(60)
    assert ended and received == [signal.SIGTERM]


def test_compilation_is_given_up_and_the_function_runs_as_it_is() -> None:
    def function(static: object, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        _send(signal.SIGTERM)  # while the function is traced
        return [inputs[0] + 1]

    compiled = CompiledFunction(function, 'a function')
    with catch_signals() as received:
        assert compiled([torch.zeros(3)]) is None and compiled.failed
        assert received == [signal.SIGTERM]


@pytest.mark.long
def test_command_called_as_a_function_sets_no_limit_to_the_end_of_the_process() -> None:
    text = """
import threading
from zoo.__main__ import main
import sys
sys.argv = ['zoo', 'list', 'policies']
assert main() == 0
print('left:', [thread.name for thread in threading.enumerate() if thread.name == 'zoo exit'])
"""
    done = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.splitlines()[-1] == 'left: []'


def test_objects_of_imports_are_not_collected_and_not_looked_at_again() -> None:
    try:
        with collection_paused(owns_process=True):
            assert not gc.isenabled()
            of_imports: list[object] = []
        assert gc.isenabled() and gc.get_freeze_count() > 0
        assert not any(x is of_imports for x in gc.get_objects())  # those that the collector looks at
    finally:
        gc.unfreeze()


def test_collection_goes_on_in_a_process_of_others() -> None:
    with collection_paused(owns_process=False):
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_collection_that_the_caller_paused_stays_paused() -> None:
    gc.disable()
    try:
        with collection_paused(owns_process=True):
            pass
        assert not gc.isenabled() and gc.get_freeze_count() == 0
    finally:
        gc.enable()


def test_signal_within_a_write_to_stderr_requests_the_stop_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of logging then raises, as a buffered stream does that is entered twice."""

    class Entered(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(logging.getLogger('zoo.core.processes'), 'handlers', [Entered()])
    with catch_signals() as received:
        signal.raise_signal(signal.SIGUSR1)
    assert received == [signal.SIGUSR1]
