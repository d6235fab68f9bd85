"""Env processes that die, hang, raise or get signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete

import tests
from tests.env import closing_envs, raising_envs
from tests.envs import LimitEnv, play
from tests.processes import left
from zoo.env import EnvConfig, EnvError, VectorEnv, make_vector_env, workers


class FragileEnv(LimitEnv):
    """Action 1: its process exits with code 3. 2: it is killed. 3: it hangs. 4: it raises."""

    def __init__(self, limit: int = 100) -> None:
        super().__init__(limit)
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


def make(env_id: Any = FragileEnv, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(**{'id': env_id, 'vectorization': 'async', 'step_timeout': 30.0, **fields}), 3)


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


class LockError(Exception):
    """An exception that cannot be pickled, so not be sent to another process."""

    def __reduce__(self) -> Any:
        raise TypeError('no')


class UnsendableEnv(LimitEnv):
    def step(self, action: Any) -> Any:
        if action:
            raise LockError
        return super().step(action)


class WorkerEnv(LimitEnv):
    """In a worker it ends the process or has another action space; not in the parent, which makes it first."""

    parent = os.getpid()

    def __init__(self, does: str) -> None:
        super().__init__()
        if os.getpid() != self.parent:
            if does == 'exit':
                os._exit(5)
            self.action_space = Discrete(3)


SOON = {'step_timeout': 0.5}
DIED = 'its worker process died during'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('env_id', 'fields', 'action', 'message'),
    [
        (FragileEnv, {}, [0, 1, 0], rf', index 1: {DIED} step 2 \(exit code 3\); find'),
        (FragileEnv, {}, [0, 2, 0], rf', index 1: {DIED} step 2 \(killed by SIGKILL\)'),
        (FragileEnv, SOON, [3, 0, 3], ', index 0, 2: no answer to step 2 within 0.5 s; .* raise env.step_'),
        (HangingResetEnv, SOON, [0] * 3, ', index 0, 1, 2: no answer to the reset after step 0 within 0.5 s'),
        (WorkerEnv, {'kwargs': {'does': 'exit'}}, [0] * 3, rf'.* {DIED} its construction \(exit code 5'),
        (
            WorkerEnv,
            {'kwargs': {'does': 'three'}},
            [0] * 3,
            r', index 0, step 0: its action_space is Discrete\(3\), wanted that of',
        ),
        (
            UnsendableEnv,
            {},
            [0, 1, 0],
            r', index 1: its code raised LockError at step 2 \(.*workers.py:\d+\), which',
        ),
        # without autoreset, ended envs are reset one by one, and such a reset must not restart the count of steps
        (
            FragileEnv,
            {'kwargs': {'limit': 1}, 'autoreset': 'disabled'},
            [0, 1, 0],
            f', index 1: {DIED} step 2',
        ),
    ],
)
def test_worker_at_fault_is_named_with_env_index_step_and_cause(
    env_id: type[LimitEnv], fields: dict[str, Any], action: list[int], message: str
) -> None:
    with pytest.raises(EnvError, match=f"^env '{__name__}:{env_id.__name__}'{message}"):
        env, begun = make(env_id, **fields), time.monotonic()
        play(env, [0] * 3, action)  # it closes the envs after the failure, which is allowed
    assert fields != SOON or time.monotonic() - begun < 0.5 + 10


@pytest.mark.long
def test_close_ends_a_worker_in_the_middle_of_a_step() -> None:
    env = make()
    env.reset(0)
    workers = multiprocessing.active_children()
    env.env.step_async(torch.tensor([3, 0, 0]).numpy())  # type: ignore[attr-defined]
    env.close()
    assert len(workers) == 3 and not any(worker.is_alive() for worker in workers)


@pytest.mark.slow
def test_step_workers_live_through_a_signal_to_their_process_group() -> None:
    """Ctrl-C reaches every process of the group; only the run's own handler may act on it."""
    env = make()
    env.reset(0)
    for t, number in enumerate((signal.SIGINT, signal.SIGHUP, signal.SIGUSR1), 1):
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, number)
        assert env.step(torch.tensor([0, 0, 0])).obs.tolist() == [[t]] * 3
    env.close()


@pytest.mark.slow
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


@pytest.mark.slow
def test_reset_takes_the_end_of_a_step_that_nobody_came_for() -> None:
    env = make()
    env.reset(0)
    env.send(torch.tensor([0, 0, 0]))
    assert env.reset(0).tolist() == [[0], [0], [0]]
    assert env.step(torch.tensor([0, 0, 0])).obs.tolist() == [[1], [1], [1]]
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize('half', ['send', 'receive'])
def test_worker_killed_before_either_half_of_a_step_is_named(half: str) -> None:
    env = make()
    env.reset(0)
    block = env.block(1)
    victim: Any = env.env.processes[2]  # type: ignore[attr-defined]
    if half == 'receive':
        env.send(torch.tensor([0, 0, 3]))  # worker 2 hangs in this step
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(EnvError, match=r'index 2: its worker process died during step 1 \(killed by SIGKILL'):
        env.send(torch.tensor([0, 0, 0])) if half == 'send' else env.receive(block, 0)


@pytest.mark.slow
def test_step_info_that_cannot_be_pickled_is_left_in_its_process() -> None:
    class Env(LimitEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {'render': lambda: None}

    (step,) = play(make(Env), [0, 0, 0])
    assert step.obs.tolist() == [[1], [1], [1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('stop', 'call'),
    [(KeyboardInterrupt, 'constructor'), (SystemExit, 'reset'), (KeyboardInterrupt, 'step'), (SystemExit, 'step')],
)
def test_worker_whose_env_stops_the_program_is_a_sentence(stop: type[BaseException], call: str) -> None:
    with pytest.raises(EnvError) as raised:
        play(make(StopEnv, kwargs=dict(error=stop, call=call)), [0, 0, 0])
    when = {'constructor': 'its construction', 'reset': 'the reset after step 0', 'step': 'step 1'}[call]
    words = f"env '{__name__}:StopEnv', index 0: its code raised {stop.__name__}: a joint is loose at {when} ("
    assert str(raised.value).startswith(f'{words}{raising_envs.__file__}:')
    assert 'raise self.error' in str(raised.value.__cause__)  # the traceback of the worker


class StopEnv(raising_envs.RaisingEnv):
    """Raises only in a worker, not in the parent, which makes the first env too."""

    parent = os.getpid()

    def fail_in(self, call: str) -> None:
        if os.getpid() != self.parent:
            super().fail_in(call)


@pytest.mark.slow
def test_make_vector_env_worker_that_raises_in_the_constructor_passes_through_with_its_index() -> None:
    with pytest.raises(ZeroDivisionError, match='a joint') as raised:
        make(StopEnv, kwargs=dict(error=ZeroDivisionError, call='constructor'))
    assert raised.value.env_place[0].endswith("StopEnv', index 0, while it was made")  # type: ignore[attr-defined]


# --- closing has a deadline, and a failed close is a warning


class CloseEnv(closing_envs.Closing):
    """Closes badly in a worker only."""

    parent = os.getpid()

    def close(self) -> None:
        if os.getpid() != self.parent:
            super().close()


@pytest.mark.long
@pytest.mark.parametrize(
    ('how', 'message'),
    [
        ('hang', "env '{name}', index 0, 1, 2: they had not closed after 2 s, and were killed"),
        ('raise', "env '{name}', index 0 and 2 more: close raised ValueError: no such window ({file}:"),
    ],
)
def test_close_that_hangs_or_raises_is_one_warning_with_env_and_index(how: str, message: str, caplog: Any) -> None:
    play(make(CloseEnv, kwargs={'how': how}, action_mask='off', step_timeout=5.0))
    warned = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
    where = dict(name=f'{__name__}:CloseEnv', file=closing_envs.__file__)
    assert len(warned) == 1 and warned[0].startswith(message.format(**where))


@pytest.mark.slow
@pytest.mark.parametrize('action', [0, 4], ids=['good', 'raising'])
def test_close_of_good_workers_says_nothing(action: int, caplog: Any) -> None:
    env = make()
    env.reset(0)
    env.send(torch.tensor([0, action, 0]))  # nobody receives the result of this step
    env.close()
    assert caplog.records == []


# --- workers die with their parent

HANGING_RUN = """
import multiprocessing, os, sys, threading, time
import torch
from tests.envs import LimitEnv
from zoo.env import EnvConfig, make_vector_env

class HangingEnv(LimitEnv):
    def step(self, action):
        if os.environ['HANG'] == 'sleep':
            time.sleep(10**6)
        while True:
            pass

def run():
    fields = dict(id='hanging_run:HangingEnv', vectorization='async', step_timeout=10**6, action_mask='off')
    env = make_vector_env(EnvConfig(**fields), int(sys.argv[3]))
    env.reset(0)
    env.send(torch.zeros(env.n_env, dtype=torch.int64))
    print(*[process.pid for process in env.env.processes], flush=True)
    env.receive(env.block(1), 0)

if __name__ == '__main__':
    multiprocessing.set_start_method(sys.argv[1])
    if sys.argv[2] == 'thread':
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()  # from Python 3.12 on none can start after the main thread has ended
    else:
        run()
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ('method', 'place', 'hang'),
    [
        ('fork', 'main', 'loop'),
        ('fork', 'thread', 'sleep'),
        pytest.param('spawn', 'main', 'sleep', marks=pytest.mark.slow),
        pytest.param('forkserver', 'main', 'loop', marks=pytest.mark.slow),
    ],
)
def test_workers_that_hang_in_a_step_die_with_their_parent(method: str, place: str, hang: str, tmp_path: Path) -> None:
    file = tmp_path / 'hanging_run.py'
    file.write_text(HANGING_RUN)
    root = Path(next(iter(tests.__path__))).parent
    environment = {**os.environ, 'HANG': hang, 'PYTHONPATH': os.pathsep.join([str(tmp_path), str(root)])}
    n_env = 4 if method == 'fork' else 2  # with other methods each process imports torch
    command = [sys.executable, str(file), method, place, str(n_env)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == n_env
    assert left(pids, 60) == []


@pytest.mark.slow
def test_workers_outlive_the_thread_that_made_them() -> None:
    """Linux sends its signal for the end of a parent already when the thread that started the worker ends."""
    made: list[VectorEnv] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    assert play(made[0], [0, 0, 0])[0].obs.tolist() == [[1], [1], [1]]


# --- a process that is stopped for a while


class _SlowPipe:
    """A pipe whose answer comes at `answer_at`; the process that polls it is stopped for `stop` s during its n-th poll."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer_at: float, stop: float, n: int) -> None:
        self.now, self._answer_at, self._stop, self._left = 0.0, answer_at, stop, n
        monkeypatch.setattr(workers.time, 'monotonic', lambda: self.now)

    def poll(self, seconds: float) -> bool:
        self._left -= 1
        self.now += min(seconds, max(self._answer_at - self.now, 0.0)) + (self._stop if self._left == 0 else 0.0)
        return self.now >= self._answer_at


@pytest.mark.parametrize(
    ('answer_at', 'stop', 'n', 'has_come'),
    [
        (1.9, 0.0, 1, True),
        (2.1, 0.0, 1, False),
        (6.5, 5.0, 1, True),  # 6.5 - 5 = 1.5 s count
        (7.5, 5.0, 3, False),  # 7.5 - 5 = 2.5 s count
        (6.9, 5.0, 8, True),  # 1.9 s; stopped in the last poll
    ],
)
def test_seconds_in_which_the_process_is_stopped_do_not_count(
    monkeypatch: pytest.MonkeyPatch, answer_at: float, stop: float, n: int, has_come: bool
) -> None:
    pipe: Any = _SlowPipe(monkeypatch, answer_at, stop, n)
    assert workers.AnswerTime(2.0).has_answer(pipe) is has_come


STOPPED_RUN = """
import time
import torch
from tests.envs import LimitEnv
from zoo.env import EnvConfig, make_vector_env

class SlowEnv(LimitEnv):
    def step(self, action):
        for _ in range(8):  # one long sleep would be over when the process continues
            time.sleep(0.1)
        return super().step(action)

env = make_vector_env(EnvConfig(id=SlowEnv, vectorization='async', step_timeout=2.0, action_mask='off'), 2)
env.reset(0)
env.send(torch.zeros(env.n_env, dtype=torch.int64))
print('stepping', flush=True)
env.receive(env.block(1), 0)
print('answered', flush=True)
env.close()
"""


@pytest.mark.long
@pytest.mark.slow
def test_run_that_is_stopped_longer_than_step_timeout_continues(tmp_path: Path) -> None:
    (tmp_path / 'stopped_run.py').write_text(STOPPED_RUN)
    root = Path(next(iter(tests.__path__))).parent
    command = [sys.executable, str(tmp_path / 'stopped_run.py')]
    pipes: Any = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
    environment = {**os.environ, 'PYTHONPATH': str(root)}
    with subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == 'stepping\n'
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.killpg(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, 'answered\n'), err
