"""Env processes that die, hang, raise or are signalled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete

from tests.envs import LimitEnv
from zoo.env import EnvConfig, EnvError, VectorEnv, make_vector_env


class FragileEnv(LimitEnv):
    """Action 1: its process exits with code 3. 2: it is killed. 3: it hangs. 4: it raises."""

    def __init__(self) -> None:
        super().__init__(limit=100)
        self.action_space = Discrete(5)

    def step(self, action: Any) -> Any:
        if action == 1:
            os._exit(3)
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 3:
            time.sleep(600)
        if action == 4:
            raise ZeroDivisionError('raised by the env')
        return super().step(action)


class HangingResetEnv(LimitEnv):
    def reset(self, **kwargs: Any) -> Any:
        time.sleep(600)


def make(env_id: Any = FragileEnv, timeout: float = 30.0) -> VectorEnv:
    return make_vector_env(EnvConfig(id=env_id, vectorization='async', step_timeout=timeout), 3)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(('action', 'cause'), [(1, 'exit code 3'), (2, 'killed by SIGKILL')])
def test_step_worker_that_dies_is_named_with_step_and_cause(action: int, cause: str) -> None:
    env = make()
    env.reset(0)
    env.step(torch.tensor([0, 0, 0]))
    with pytest.raises(EnvError) as raised:
        env.step(torch.tensor([0, action, 0]))
    assert str(raised.value).startswith(
        f"env '{__name__}:FragileEnv', index 1: its worker process died during step 2 ({cause}); find out where"
    )
    env.close()  # may be called after the end


@pytest.mark.slow
def test_step_worker_that_hangs_is_named_after_the_timeout() -> None:
    env = make(timeout=0.5)
    env.reset(0)
    with pytest.raises(EnvError, match='index 0, 2: no answer to step 1 within 0.5 s; .* raise env.step_timeout'):
        env.step(torch.tensor([3, 0, 3]))


@pytest.mark.slow
def test_reset_worker_that_hangs_is_named_after_the_timeout() -> None:
    with pytest.raises(EnvError, match='index 0, 1, 2: no answer to the reset after step 0 within 0.5 s'):
        make(HangingResetEnv, timeout=0.5).reset(0)


def test_make_vector_env_worker_that_dies_in_the_constructor_is_named() -> None:
    parent = os.getpid()

    def make_one() -> LimitEnv:
        if os.getpid() != parent:
            os._exit(5)
        return LimitEnv()

    with pytest.raises(EnvError, match=r'its worker process died during its construction \(exit code 5'):
        make(make_one)


def test_step_exception_in_a_worker_passes_through_with_where_it_was() -> None:
    env = make()
    env.reset(0)
    with pytest.raises(ZeroDivisionError, match='raised by the env') as raised:
        env.step(torch.tensor([0, 4, 0]))
    assert "raise ZeroDivisionError('raised by the env')" in str(raised.value.__cause__)  # the worker's traceback
    if hasattr(raised.value, '__notes__'):  # from Python 3.11 on
        assert raised.value.__notes__ == [f"in env '{__name__}:FragileEnv', index 1, step 1"]
    env.close()


@pytest.mark.slow
def test_close_ends_a_worker_in_the_middle_of_a_step() -> None:
    env = make()
    env.reset(0)
    workers = multiprocessing.active_children()
    env._env.step_async(torch.tensor([3, 0, 0]).numpy())  # type: ignore[attr-defined]
    env.close()
    assert len(workers) == 3 and not any(worker.is_alive() for worker in workers)


def test_step_workers_live_through_the_interrupt_of_their_process_group() -> None:
    """Ctrl-C reaches every process of the group; the run's handler decides, not the workers."""
    env = make()
    env.reset(0)
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGINT)
    assert env.step(torch.tensor([0, 0, 0])).obs.tolist() == [[1], [1], [1]]
    env.close()


def test_workers_do_not_inherit_the_runs_handler_of_sigterm() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        env = make()
        env.reset(0)
        worker = multiprocessing.active_children()[0]
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM
        env.close()
    finally:
        signal.signal(signal.SIGTERM, before)


class LockError(Exception):
    """Cannot be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError('no')


class UnsendableEnv(FragileEnv):
    def step(self, action: Any) -> Any:
        if action == 4:
            raise LockError
        return super().step(action)


@pytest.mark.slow
def test_step_exception_that_cannot_be_sent_is_an_error_and_no_hang() -> None:
    env = make(UnsendableEnv)
    env.reset(0)
    with pytest.raises(EnvError, match='index 1: it raised an exception at step 1 that no process can send to another'):
        env.step(torch.tensor([0, 4, 0]))


def test_reset_takes_the_end_of_a_step_that_nobody_came_for() -> None:
    env = make()
    env.reset(0)
    env.send(torch.tensor([0, 0, 0]))
    assert env.reset(0).tolist() == [[0], [0], [0]]
    assert env.step(torch.tensor([0, 0, 0])).obs.tolist() == [[1], [1], [1]]
    env.close()


@pytest.mark.parametrize('half', ['send', 'receive'])
def test_worker_killed_before_either_half_of_a_step_is_named(half: str) -> None:
    env = make()
    env.reset(0)
    block = env.block(1)
    victim: Any = env._env.processes[2]  # type: ignore[attr-defined]
    if half == 'receive':
        env.send(torch.tensor([0, 0, 3]))  # in which it still is
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(EnvError, match=r'index 2: its worker process died during step 1 \(killed by SIGKILL'):
        env.send(torch.tensor([0, 0, 0])) if half == 'send' else env.receive(block, 0)


def test_death_between_resets_of_some_envs_is_told_with_the_step_of_the_run() -> None:
    """Envs that do not start anew by themselves are reset one by one, which is no new beginning of the count."""
    config = EnvConfig(id=ShortFragileEnv, vectorization='async', autoreset='disabled')
    env = make_vector_env(config, 2)
    env.reset(0)
    for _ in range(4):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(EnvError, match='index 1: its worker process died during step 5'):
        env.step(torch.tensor([0, 1]))


class ShortFragileEnv(FragileEnv):
    def __init__(self) -> None:
        super().__init__()
        self.limit = 2


def test_step_info_that_cannot_be_pickled_is_left_in_its_process() -> None:
    class Env(LimitEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {'render': lambda: None}

    env = make(Env)
    env.reset(0)
    assert env.step(torch.tensor([0, 0, 0])).obs.tolist() == [[1], [1], [1]]
    env.close()
