"""The engine by itself, with runners whose numbers are known; runs on it are in test_process_runs.py."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.runners import Numbers, Spec, shared_names
from tests.processes import PATIENCE, is_alive, left
from zoo.cluster.messages import Lost, Order, Parcel, RunnerLostError
from zoo.cluster.process_engine import ProcessEngine
from zoo.core.errors import RunError

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != 'linux', reason='it looks into /proc')]

CLUSTER = {'start_timeout': 60.0, 'runner_timeout': 60.0, 'max_lag': 2}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def engine() -> Iterator[ProcessEngine]:
    """Two runners, with weights of version 0, for all tests that leave nothing outstanding."""
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    engine.publish(np.full(9, 100, np.uint8), 0)
    yield engine
    engine.close()


def order(group: int, collect_iter: int, version: int | None) -> Order:
    return Order('run', group, collect_iter, version, 0)


def until(engine: ProcessEngine, n: int) -> list[Parcel | Lost]:
    """The next n things, of parcels copies."""
    found: list[Parcel | Lost] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < deadline:
        for item in engine.wait(PATIENCE):
            if isinstance(item, Parcel):
                item = item._replace(blocks={name: block.copy() for name, block in item.blocks.items()})
            found.append(item)
    assert len(found) == n, found
    return found


def shown(parcel: Any) -> tuple[int, int, float, int]:
    """Group, version, first number of the block, byte of the weights."""
    return parcel.group, parcel.version, parcel.blocks['obs'][-1], int(parcel.blocks['steps.reward'][1, 2])


def n_open() -> int:
    """Open descriptors, without those of garbage."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)  # of others
        gc.collect()
    return len(os.listdir('/proc/self/fd'))


def test_orders_are_done_with_the_weights_of_their_version(engine: ProcessEngine) -> None:
    engine.ask(order(0, 0, 0))
    engine.publish(np.full(9, 101, np.uint8), 1)
    engine.ask(order(0, 1, 1))
    engine.ask(order(0, 2, 0))
    engine.ask(order(1, 3, None))
    parcels = sorted(map(shown, until(engine, 4)), key=lambda parcel: parcel[2] % 1)
    # version + collect_iter / 1000, and the byte that was published with the version
    assert parcels == [(0, 0, 0.0, 100), (0, 1, 1.001, 101), (0, 0, 0.002, 100), (1, 1, 1.003, 101)]


def test_parcel_stays_whole_until_the_next_wait(engine: ProcessEngine) -> None:
    engine.ask(order(0, 0, 0))
    (parcel,) = engine.wait(PATIENCE)
    assert isinstance(parcel, Parcel)
    for i in (1, 2):
        engine.ask(order(0, i, 0))
    assert engine.call(0, 'give', 'threads') == 1  # after both orders, whose parcels are kept
    assert (parcel.blocks['obs'] == 0.0).all() and parcel.finals[0][2]['a'].tolist() == [1.0, 1.0]
    assert [shown(each)[2] for each in engine.wait(0.0)] == [0.001, 0.002]
    assert engine.wait(0.0) == []


def test_call_returns_raises_and_refuses_what_cannot_be_sent(engine: ProcessEngine) -> None:
    assert engine.call(1, 'give', 'signals') == [signal.SIG_IGN] * 4
    with pytest.raises(KeyError, match='nothing') as caught:
        engine.call(1, 'give', 'nothing')
    assert 'tests/cluster/runners.py' in ''.join(caught.value.__notes__)
    with pytest.raises(AttributeError, match="Can't pickle"):
        engine.call(1, 'give', 'lambda')
    assert engine.call(1, 'give', 'threads') == 1


def test_killed_runner_is_lost_at_once_and_made_anew_while_others_collect(engine: ProcessEngine) -> None:
    child = engine.call(1, 'give', 'child')  # hangs with the lock
    engine.call(1, 'next', 'sleep')
    engine.ask(order(1, 0, 0))
    pid = engine.pids()[1][1]
    os.kill(pid, signal.SIGKILL)
    (lost,) = until(engine, 1)  # while its order sleeps for an hour
    assert lost == Lost(1, f'its process {pid} was ended by signal 9 (SIGKILL; by the system if memory ran out)')
    assert not left([pid, child])
    engine.ask(order(1, 7, 0))  # of the new process, which is still starting
    engine.ask(order(0, 6, 0))
    assert [shown(parcel) for parcel in until(engine, 2)] == [(0, 0, 0.006, 100), (1, 0, 0.007, 100)]
    assert engine.pids()[1][1] not in (pid, child)


def test_kill_ends_a_runner_that_holds_the_lock_and_forgets_its_orders(engine: ProcessEngine) -> None:
    engine.call(0, 'next', 'gil')
    for i in range(3):
        engine.ask(order(0, i, 0))
    pid = engine.pids()[0][1]
    engine.kill(0, 'it took too long')
    engine.ask(order(0, 3, 0))
    assert until(engine, 1) == [Lost(0, 'it took too long')]
    assert shown(until(engine, 1)[0]) == (0, 0, 0.003, 100)
    assert not left([pid])


def test_call_of_a_runner_that_dies_raises_and_its_loss_is_given(engine: ProcessEngine) -> None:
    engine.call(0, 'next', 'exit')
    engine.ask(order(0, 0, 0))
    with pytest.raises(
        RunnerLostError, match="runner 0 was lost before it answered 'give': its process .* exit code 7"
    ):
        engine.call(0, 'give', 'threads')
    (lost,) = until(engine, 1)
    assert isinstance(lost, Lost) and lost.group == 0
    assert engine.call(0, 'give', 'threads') == 1  # the new one


def test_call_that_takes_too_long_ends_the_runner() -> None:
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start([Spec(0)])  # type: ignore[list-item]
    engine.publish(np.zeros(1, np.uint8), 0)
    engine.call(0, 'next', 'sleep')
    engine.ask(order(0, 0, 0))
    engine._call_s = 0.3
    with pytest.raises(RunnerLostError, match="it did not answer 'give' in time"):
        engine.call(0, 'give', 'threads')
    engine.close()


def test_larger_parcel_gets_larger_memory(engine: ProcessEngine) -> None:
    for n in (1000, 10**6, 500):
        engine.call(0, 'grow', n)
        engine.ask(order(0, 0, 0))
        (parcel,) = engine.wait(PATIENCE)
        assert (
            isinstance(parcel, Parcel) and parcel.blocks['obs'].shape == (n,) and parcel.blocks['empty'].shape == (0, 3)
        )


def test_error_of_a_rollout_is_raised_by_wait_after_earlier_parcels(engine: ProcessEngine) -> None:
    engine.ask(order(0, 0, 0))
    engine.call(0, 'next', 'raise')
    engine.ask(order(0, 1, 0))
    engine.call(0, 'next', '')
    assert len(engine.wait(0.0)) == 1
    with pytest.raises(OSError, match='the moon is full, in group 0') as caught:
        engine.wait(PATIENCE)
    assert caught.value.errno == 28 and 'in a runner on' in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ('words', 'error', 'match'),
    [
        ('raise', OSError, 'the moon is full, in group 1'),
        ('import', ModuleNotFoundError, 'no_such_module'),
        (
            'exit',
            RunError,
            'runner 1 cannot be started: its process .* ended with exit code 7 before .*: no room on the moon',
        ),
        (
            'sleep',
            RunError,
            '^runner (0, )?1 of 2 has not started within 3 s; find out .* raise cluster.start_timeout.$',
        ),
    ],
)
def test_start_that_fails_says_which_runner_and_leaves_nothing(words: str, error: type[Exception], match: str) -> None:
    before = n_open()
    engine = ProcessEngine({**CLUSTER, 'start_timeout': 3.0 if words == 'sleep' else 60.0}, 'run', Numbers)
    with pytest.raises(error, match=match):
        engine.start([Spec(0), Spec(1, words)])  # type: ignore[list-item]
    assert engine.pids() == {} and n_open() == before


def test_what_a_runner_says_while_it_starts_is_passed_on_once(capfd: pytest.CaptureFixture[str]) -> None:
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start([Spec(0, 'say'), Spec(1, 'say')])  # type: ignore[list-item]
    engine.close()
    assert capfd.readouterr().err == 'a warning of mine\n'


def test_close_leaves_no_process_descriptor_thread_or_shared_memory() -> None:
    before, shared, n_thread = n_open(), shared_names(), threading.active_count()
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start([Spec(0), Spec(1)])  # type: ignore[list-item]
    engine.publish(np.zeros(9, np.uint8), 0)
    engine.ask(order(0, 0, 0))
    until(engine, 1)
    engine.call(1, 'next', 'no close')
    pids = [pid for _, pid in engine.pids().values()]
    engine.close()  # runner 1, which would sleep for an hour instead of closing, is killed after 2 s
    engine.close()
    assert not any(map(is_alive, pids)) and engine.pids() == {}
    assert n_open() == before and shared_names() == shared
    assert threading.active_count() == n_thread


def test_engine_that_is_dropped_ends_its_runners_and_its_fork_does_not() -> None:
    engine = ProcessEngine(CLUSTER, 'run', Numbers)
    engine.start([Spec(0)])  # type: ignore[list-item]
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
from zoo.cluster.messages import Order
from zoo.cluster.process_engine import ProcessEngine

def drive():
    engine = ProcessEngine({'start_timeout': 60.0, 'runner_timeout': None, 'max_lag': 0}, 'run', Numbers)
    engine.start([Spec(0), Spec(1)])
    engine.publish(np.zeros(9, np.uint8), 0)
    child = engine.call(1, 'give', 'child')
    engine.call(0, 'next', sys.argv[2])
    engine.ask(Order('run', 0, 0, 0, 0))
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
def test_runners_end_with_their_driver(end: str, hangs_in: str, thread: str) -> None:
    shared = shared_names()
    arguments = [sys.executable, '-c', DRIVER, end, hangs_in, thread]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)}
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 3
        if end == 'killed':
            assert all(map(is_alive, pids))
            driver.kill()
    assert not left(pids)
    assert shared_names() == shared
