from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.processes import is_alive, left
from zoo.core.processes import end_words

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
