"""The contract of every engine, as tests that the tests of an engine inherit, and what they share."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.processes import PATIENCE, left
from zoo.cluster.engine import Engine
from zoo.cluster.messages import Lost, Reply, Request


def request(group: int, collect_iter: int, version: int | None = 0) -> Request:
    return Request('run', group, collect_iter, version, 0)


def until(engine: Engine, n: int) -> list[Reply | Lost]:
    """Waits for the next n replies (copies) and losses."""
    found: list[Reply | Lost] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < n and time.monotonic() < deadline:
        found += [item.copied() if isinstance(item, Reply) else item for item in engine.wait(1.0)]
    assert len(found) == n, found
    return found


def shown(reply: Any) -> tuple[int, int, float, int]:
    """Returns (group, version, last number of the block 'obs', byte of the weights)."""
    return reply.group, reply.version, reply.blocks['obs'][-1], int(reply.blocks['steps.reward'][1, 2])


def weights(value: int) -> np.ndarray:
    return np.full(9, value, np.uint8)


class EngineContract:
    """Tests that each engine's tests inherit. `engine` has two runners, `Numbers`; the weights of version 0 are bytes of 100."""

    def test_orders_are_done_with_the_weights_of_their_version_or_the_newest(self, engine: Engine) -> None:
        engine.ask(request(0, 0, 0))
        engine.publish(weights(101), 1)
        engine.ask(request(0, 1, 1))
        engine.ask(request(0, 2, 0))
        engine.ask(request(1, 3, None))
        replies = sorted(map(shown, until(engine, 4)), key=lambda reply: reply[2] % 1)
        # version + collect_iter / 1000, and the byte that was published with the version
        assert replies == [(0, 0, 0.0, 100), (0, 1, 1.001, 101), (0, 0, 0.002, 100), (1, 1, 1.003, 101)]
        assert engine.wait(0.0) == []

    def test_call_comes_after_the_requests_before_it_whose_replies_are_kept(self, engine: Engine) -> None:
        before = engine.call(1, 'give', 'rollouts')
        for i in (4, 5):
            engine.ask(request(1, i))
        assert engine.call(1, 'give', 'rollouts') == before + 2
        assert [shown(reply) for reply in until(engine, 2)] == [(1, 0, 0.004, 100), (1, 0, 0.005, 100)]

    def test_call_raises_the_error_of_the_runner(self, engine: Engine) -> None:
        with pytest.raises(KeyError, match='nothing'):
            engine.call(1, 'give', 'nothing')
        assert engine.call(1, 'give', 'threads') == 1


class OutsideContract(EngineContract):
    """Tests of engines with runners in other processes. Attributes: killed: the cause that is reported for a killed runner."""

    killed: ClassVar[str]

    def test_errors_of_runners_have_their_place(self, engine: Engine) -> None:
        with pytest.raises(KeyError) as caught:
            engine.call(1, 'give', 'nothing')
        notes = ''.join(caught.value.__notes__)
        assert 'tests/cluster/runners.py' in notes and f'in a runner on {socket.gethostname()}' in notes

    def test_error_of_a_rollout_is_raised_by_wait_after_earlier_replies(self, engine: Engine) -> None:
        engine.ask(request(0, 0))
        engine.call(0, 'next', 'raise')
        engine.ask(request(0, 1))
        engine.call(0, 'next', '')
        assert len(until(engine, 1)) == 1
        with pytest.raises(OSError, match='the moon is full, in group 0') as caught:
            until(engine, 1)
        assert caught.value.errno == 28 and 'in a runner on' in caught.value.__notes__[0]

    def test_killed_runner_is_lost_once_and_recreated_while_others_collect(self, engine: Engine) -> None:
        engine.call(1, 'next', 'sleep')
        for i in (6, 7):  # each takes an hour
            engine.ask(request(1, i))
        pid = engine.pids()[1][1]
        os.kill(pid, signal.SIGKILL)
        assert until(engine, 1) == [Lost(1, self.killed.format(pid=pid, host=socket.gethostname()))]
        assert not left([pid])
        engine.ask(request(1, 8))  # for its replacement, which is still starting
        engine.ask(request(0, 9))
        assert [shown(reply) for reply in until(engine, 2)] == [(0, 0, 0.009, 100), (1, 0, 0.008, 100)]
        assert engine.pids()[1][1] != pid

    def test_idle_runner_that_ended_is_lost(self, engine: Engine) -> None:
        pid = engine.pids()[0][1]
        os.kill(pid, signal.SIGKILL)
        assert not left([pid])
        engine.ask(request(0, 10))
        (lost,) = until(engine, 1)  # not a reply: nobody has reset the new runner's envs
        assert isinstance(lost, Lost) and lost.group == 0

    @pytest.mark.parametrize('how', ['gil', 'stopped'])
    def test_kill_ends_a_runner_that_hangs_and_forgets_its_orders(self, engine: Engine, how: str) -> None:
        engine.call(1, 'next', 'gil' if how == 'gil' else '')
        pid = engine.pids()[1][1]
        if how == 'stopped':
            os.kill(pid, signal.SIGSTOP)
        for i in (11, 12):
            engine.ask(request(1, i))
        assert engine.wait(0.2) == []
        engine.kill(1, 'it took too long')
        engine.ask(request(1, 13))
        lost, reply = until(engine, 2)
        assert lost == Lost(1, 'it took too long') and shown(reply) == (1, 0, 0.013, 100)
        assert not left([pid])
