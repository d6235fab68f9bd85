"""The process engine, with runners whose numbers are known; whole runs are in test_process_engine_runs.py."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.engine_contract import OutsideContract, request, shown, until
from tests.cluster.runners import Numbers, Spec, shared_names
from tests.processes import PATIENCE, is_alive, left
from zoo.cluster.messages import Lost, Reply, RunnerLostError
from zoo.cluster.process_engine import ProcessEngine
from zoo.core.errors import RunError

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != 'linux', reason='it looks into /proc')]

CLUSTER = {'start_timeout': PATIENCE, 'runner_timeout': PATIENCE, 'max_lag': 2}
ROOT = Path(__file__).parents[2]


def started(*specs: Spec) -> ProcessEngine:
    """An engine with these runners and weights of version 0."""
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start(list(specs))  # type: ignore[arg-type]
    engine.publish(np.full(9, 100, np.uint8), 0)
    return engine


@pytest.fixture(scope='module')
def engine() -> Iterator[ProcessEngine]:
    """An engine with two runners, shared by all tests that leave no request outstanding."""
    engine = started(Spec(0), Spec(1))
    yield engine
    engine.close()


def n_open() -> int:
    """Returns the number of open descriptors, after garbage is collected."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)  # for garbage of other tests
        gc.collect()
    return len(os.listdir('/proc/self/fd'))


class TestProcessEngine(OutsideContract):
    killed = 'its process {pid} was ended by signal 9 (SIGKILL; by the system if memory ran out)'


def test_reply_stays_whole_until_the_next_wait(engine: ProcessEngine) -> None:
    engine.ask(request(0, 0, 0))
    (reply,) = engine.wait(PATIENCE)
    assert isinstance(reply, Reply)
    for i in (1, 2):
        engine.ask(request(0, i, 0))
    assert engine.call(0, 'give', 'threads') == 1  # served after both requests; their replies are kept for `wait`
    assert (reply.blocks['obs'] == 0.0).all() and reply.finals[0][2]['a'].tolist() == [1.0, 1.0]
    assert [shown(each)[2] for each in engine.wait(0.0)] == [0.001, 0.002]
    assert engine.wait(0.0) == []


def test_runner_leaves_signals_to_the_parent_and_refuses_an_answer_that_cannot_be_sent(engine: ProcessEngine) -> None:
    assert engine.call(1, 'give', 'signals') == [signal.SIG_IGN] * 4
    with pytest.raises(AttributeError, match="Can't pickle"):
        engine.call(1, 'give', 'lambda')
    assert engine.call(1, 'give', 'threads') == 1


def test_call_of_a_runner_that_dies_raises_and_its_loss_is_given(engine: ProcessEngine) -> None:
    engine.call(0, 'next', 'exit')
    engine.ask(request(0, 0, 0))
    said = "runner 0 was lost before it answered 'give': its process .* exit code 7"
    with pytest.raises(RunnerLostError, match=said):
        engine.call(0, 'give', 'threads')
    (lost,) = until(engine, 1)
    assert isinstance(lost, Lost) and lost.group == 0
    assert engine.call(0, 'give', 'threads') == 1  # the replacement answers


def test_call_that_takes_too_long_ends_the_runner() -> None:
    engine = started(Spec(0))
    engine.call(0, 'next', 'sleep')
    engine.ask(request(0, 0, 0))
    engine.call_s = 0.3
    with pytest.raises(RunnerLostError, match="it did not answer 'give' in time"):
        engine.call(0, 'give', 'threads')
    engine.close()


def test_larger_reply_gets_larger_memory(engine: ProcessEngine) -> None:
    for n in (1000, 10**6, 500):
        engine.call(0, 'grow', n)
        engine.ask(request(0, 0, 0))
        (reply,) = engine.wait(PATIENCE)
        assert isinstance(reply, Reply) and reply.blocks['obs'].shape == (n,) and reply.blocks['empty'].shape == (0, 3)


CANNOT = 'runner 1 cannot be started:'


@pytest.mark.parametrize(
    ('words', 'error', 'match'),
    [
        ('raise', OSError, 'the moon is full, in group 1'),
        ('import', ModuleNotFoundError, 'no_such_module'),
        ('exit', RunError, f'{CANNOT} its process .* ended with exit code 7 before .*: no room on the moon'),
        (
            'sleep',
            RunError,
            '^runner (0, )?1 of 2 has not started within 2 s; find out .* raise cluster.start_timeout.$',
        ),
    ],
)
@pytest.mark.soak
def test_start_that_fails_says_which_runner_and_leaves_nothing(words: str, error: type[Exception], match: str) -> None:
    before = n_open()
    engine = ProcessEngine({**CLUSTER, 'start_timeout': 2.0 if words == 'sleep' else PATIENCE}, 'run', Numbers)
    with pytest.raises(error, match=match):
        engine.start([Spec(0), Spec(1, words)])  # type: ignore[list-item]
    assert engine.pids() == {} and n_open() == before


def test_what_a_runner_says_while_it_starts_is_passed_on_once(capfd: pytest.CaptureFixture[str]) -> None:
    started(Spec(0, 'say'), Spec(1, 'say')).close()
    assert capfd.readouterr().err == 'a warning of mine\n'


def test_close_leaves_no_process_descriptor_thread_or_shared_memory() -> None:
    before, shared, n_thread = n_open(), shared_names(), threading.active_count()
    engine = started(Spec(0), Spec(1))
    engine.ask(request(0, 0, 0))
    until(engine, 1)
    engine.call(1, 'next', 'no close')
    pids = [pid for _, pid in engine.pids().values()]
    engine.close()  # runner 1, which would sleep for an hour instead of closing, is killed after 2 s
    engine.close()
    assert not any(map(is_alive, pids)) and engine.pids() == {}
    assert n_open() == before and shared_names() == shared
    assert threading.active_count() == n_thread


def test_engine_that_is_dropped_ends_its_runners_and_its_fork_does_not() -> None:
    engine = started(Spec(0))
    pids = [pid for _, pid in engine.pids().values()]
    if not (child := os.fork()):
        engine.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert engine.call(0, 'give', 'threads') == 1
    del engine
    gc.collect()
    assert not left(pids)


DRIVER = """
import os, sys, threading, time
import numpy as np
from tests.cluster.runners import Numbers, Spec
from zoo.cluster.messages import Request
from zoo.cluster.process_engine import ProcessEngine

def drive():
    engine = ProcessEngine({'start_timeout': 60.0, 'runner_timeout': None, 'max_lag': 0}, 'run', Numbers)
    engine.start([Spec(0), Spec(1)])
    engine.publish(np.zeros(9, np.uint8), 0)
    child = engine.call(1, 'give', 'child')
    engine.call(0, 'next', sys.argv[2])
    engine.ask(Request('run', 0, 0, 0, 0))
    time.sleep(0.2)
    print(*(pid for _, pid in engine.pids().values()), child, flush=True)
    if sys.argv[1] == 'ends':
        sys.exit('the end')
    time.sleep(3600)

if sys.argv[3] == 'main':
    drive()
thread = threading.Thread(target=drive)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ('end', 'hangs_in', 'thread'),
    [('killed', 'gil', 'main'), ('killed', 'sleep', 'other'), ('ends', 'gil', 'main'), ('ends', 'sleep', 'other')],
)
@pytest.mark.soak
def test_runners_end_with_their_driver(end: str, hangs_in: str, thread: str) -> None:
    shared = shared_names()
    words, env = [sys.executable, '-c', DRIVER, end, hangs_in, thread], {**os.environ, 'PYTHONPATH': str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, env=env) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 3
        if end == 'killed':
            assert all(map(is_alive, pids))
            driver.kill()
    assert not left(pids)
    assert shared_names() == shared
