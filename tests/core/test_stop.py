"""A stop signal ends work that may be given up, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from zoo.backend.trace import CompiledFunction
from zoo.core.processes import STOP_SIGNALS, GivenUp, given_up_at_its_end, may_be_given_up
from zoo.run.signals import catch_signals


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
