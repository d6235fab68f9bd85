"""Env calls in this process that never return: the error names the env, the step and the line; the run is saved."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from tests.envs import LimitEnv, LimitVectorEnv
from tests.policy_envs import job_config
from tests.run.processes import config_file, run_zoo
from zoo.env import EnvConfig, EnvError, check_env, make_vector_env
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.worker.env_watch import watch_calls

THIS = f'{__file__}:'


class HangingEnv(LimitEnv):
    """LimitEnv that hangs in its at-th `call` ('init', 'step', 'reset'). how: see `hang`; index: which env hangs; None: all."""

    n_made = 0

    def __init__(self, call: str = 'step', at: int = 100, how: str = 'python', index: int | None = None) -> None:
        super().__init__()
        self._is_mine = index is None or HangingEnv.n_made == index
        HangingEnv.n_made += 1
        self._call, self._left, self._how = call, at, how
        self._maybe('init')

    def reset(self, **kwargs: Any) -> Any:
        self._maybe('reset')
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self._maybe('step')
        return super().step(action)

    def _maybe(self, call: str) -> None:
        if call != self._call or not self._is_mine:
            return
        self._left -= 1
        if self._left == 0:
            hang(self._how)


hung_at: list[float] = []  # time.monotonic() of each hang in this process


def hang(how: str) -> None:
    hung_at.append(time.monotonic())
    if how == 'python':
        time.sleep(3600)
    while how == 'stubborn':
        try:
            time.sleep(3600)
        except Exception:
            pass
    while how == 'c':  # a signal may end libc's sleep: sleep again
        _sleep_blind()


def _sleep_blind() -> None:
    """Blocks all signals of this thread, then sleeps in C."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).sleep(3600)


hanging_env = HangingEnv
hangs_in_python = partial(HangingEnv, 'step', 3)
hangs_in_c = partial(HangingEnv, 'step', 3, 'c')


class MadeTogetherEnv(LimitEnv):
    """LimitEnv of which two are made at the same time, in two threads: the first to begin is the first to end."""

    begun, ended = [threading.Event(), threading.Event()], threading.Event()

    def __init__(self, number: int) -> None:
        super().__init__()
        self.begun[number].set()
        assert (self.ended if number else self.begun[1]).wait(60)


class SleepyEnv(LimitEnv):
    """LimitEnv whose 20th step, counted over all such envs, takes an hour and whose 30th step takes 8 s."""

    n_step = 0

    def step(self, action: Any) -> Any:
        SleepyEnv.n_step += 1
        time.sleep({20: 3600, 30: 8}.get(SleepyEnv.n_step, 0))
        return super().step(action)


class CtrlCEnv(LimitEnv):
    """LimitEnv whose third step sends the signal of Ctrl-C."""

    n_step = 0

    def step(self, action: Any) -> Any:
        CtrlCEnv.n_step += 1
        if CtrlCEnv.n_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


ctrl_c_env = CtrlCEnv


class HangingVector(LimitVectorEnv):
    """LimitVectorEnv that hangs at its 20th step."""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self._left = 20

    def step(self, actions: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            hang('python')
        return super().step(actions)


gymnasium.register('HangingVector-v0', entry_point=LimitEnv, vector_entry_point=HangingVector)


class AnsweringVector(HangingVector):
    """HangingVector that has a function for every public name, as a stub of an object in another process has."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith('_'):
            raise AttributeError(name)
        return lambda *_: None


class SlowEnv(LimitEnv):
    """LimitEnv that takes 0.1 s for a reset."""

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return super().reset(**kwargs)


@pytest.mark.long
@pytest.mark.parametrize(
    ('kwargs', 'place'),
    [
        ({'call': 'step', 'at': 20, 'index': 1}, 'index 1, step 20'),
        ({'call': 'reset', 'at': 3, 'index': 1}, 'index 1, step 10'),  # third reset: after 2 episodes of 5 steps
        ({'call': 'reset', 'at': 2, 'index': 2}, 'index 0, step 0'),  # evaluation env; the first looks for masks
        ({'call': 'init', 'at': 1, 'index': 1}, 'index 1, while it was made'),
    ],
)
def test_call_that_never_returns_ends_the_run(tmp_path: Path, kwargs: dict[str, Any], place: str) -> None:
    HangingEnv.n_made = 0
    env = dict(kwargs=kwargs, step_timeout=0.3, vectorization='sync', collector_env_num=2, evaluator_env_num=1)
    with pytest.raises(EnvError) as caught:
        serial_pipeline(job_config(tmp_path, HangingEnv, env=env, max_env_step=64))
    assert time.monotonic() - hung_at[-1] < 0.3 + 10
    words = str(caught.value)
    assert f"HangingEnv', {place}: no answer within" in words.replace('"', "'"), words
    assert THIS in words and 'raise env.step_timeout' in words
    saved = list(tmp_path.glob('run/*/checkpoints/step_*'))
    assert bool(saved) == (kwargs['call'] != 'init')


@pytest.mark.slow
def test_batched_env_that_hangs_ends_the_run(tmp_path: Path) -> None:
    env = dict(step_timeout=0.3)
    with pytest.raises(
        EnvError, match="env 'HangingVector-v0', step 20: no answer within 0.3 s, at .*test_env_watch.py"
    ):
        serial_pipeline(job_config(tmp_path, 'HangingVector-v0', env=env))
    assert time.monotonic() - hung_at[-1] < 0.3 + 10
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert load_checkpoint(run_dir).meta['env_step'] > 0


@pytest.mark.slow
def test_check_of_an_env_that_hangs_ends(tmp_path: Path) -> None:
    HangingEnv.n_made = 0
    env = dict(kwargs={'call': 'step', 'at': 3}, step_timeout=0.3, check=True)
    with pytest.raises(EnvError, match='in its check: no answer within 0.3 s, at .*test_env_watch.py'):
        serial_pipeline(job_config(tmp_path, HangingEnv, env=env))


@pytest.mark.long
@pytest.mark.slow
def test_many_slow_calls_are_no_hang(tmp_path: Path) -> None:
    """One reset of the vector makes 8 resets of 0.1 s, as does each end of the episodes; the limit for a call is 0.5 s."""
    env = dict(step_timeout=0.5, vectorization='sync', collector_env_num=8, evaluator_env_num=1)
    assert serial_pipeline(job_config(tmp_path, SlowEnv, env=env, max_env_step=128)).env_step == 128


@pytest.mark.slow
def test_env_that_hangs_in_another_thread_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    HangingEnv.n_made = 0
    env = dict(kwargs={'call': 'step', 'at': 20}, step_timeout=0.3, vectorization='sync')
    cfg = job_config(tmp_path, HangingEnv, env=env)
    threading.Thread(target=serial_pipeline, args=(cfg,), daemon=True).start()
    deadline = time.monotonic() + 60
    while 'no answer within 0.3 s' not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert 'not in the main thread' in caplog.text


def test_each_thread_has_the_time_of_its_own_calls(tmp_path: Path) -> None:
    """Making an env may take ten times env.step_timeout. Two made at the same time do not leave this longer limit behind."""

    def make(number: int) -> None:
        cfg = EnvConfig(id=MadeTogetherEnv, kwargs={'number': number}, vectorization='sync', action_mask='off')
        make_vector_env(cfg, 1)
        MadeTogetherEnv.ended.set()

    thread = threading.Thread(target=make, args=(0,))
    thread.start()
    assert MadeTogetherEnv.begun[0].wait(60)
    make(1)
    thread.join()
    HangingEnv.n_made = 0
    env = dict(kwargs={'call': 'step', 'at': 20}, step_timeout=0.3, vectorization='sync')
    with pytest.raises(EnvError, match='no answer within 0.3 s'):
        serial_pipeline(job_config(tmp_path, HangingEnv, env=env))


@pytest.mark.long
@pytest.mark.slow
def test_second_hang_is_seen_while_it_lasts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If an interrupted call ends at once, the watch does not wait the rest of the 10 s that it gives the call to end."""
    SleepyEnv.n_step = 0
    env = dict(step_timeout=0.3, vectorization='sync', on_error='restart')
    serial_pipeline(job_config(tmp_path, SleepyEnv, env=env, max_env_step=64))
    assert '(2 of at most 10 restarts)' in caplog.text


@pytest.mark.slow
def test_watch_calls_ends_a_call_and_gives_the_handler_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(EnvError, match='index 0, in its check: no answer within 0.3 s'), watch_calls(0.3):
        check_env({'id': hangs_in_python})
    assert signal.getsignal(signal.SIGINT) is before


def test_vector_env_that_has_an_answer_for_every_attribute_is_watched() -> None:
    env = make_vector_env(EnvConfig(id=AnsweringVector), 2)
    env.reset(0)
    with pytest.raises(EnvError, match='no answer within 0.3 s'), watch_calls(0.3):
        for _ in range(20):
            env.step(torch.zeros(2, dtype=torch.int64))


def test_watch_calls_leaves_ctrl_c_to_the_handler_of_the_caller() -> None:
    CtrlCEnv.n_step, got = 0, []
    before = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    try:
        with watch_calls(60.0):
            check_env({'id': CtrlCEnv})
    finally:
        signal.signal(signal.SIGINT, before)
    assert got == [signal.SIGINT]


@pytest.mark.soak
@pytest.mark.parametrize('how', ['python', 'c'])
def test_zoo_check_env_of_an_env_that_hangs_exits_1(tmp_path: Path, how: str) -> None:
    """The hang is a problem in the report; if the call cannot be interrupted, the process ends instead."""
    done = run_zoo('check-env', f'tests.worker.test_env_watch:hangs_in_{how}', '--import', _impatient(tmp_path))
    assert done.returncode == 1, done.stderr
    said = done.stdout + done.stderr
    assert f"hangs_in_{how}', index 0, in its check: no answer within 0.5 s, at {THIS}" in said
    assert 'Traceback' not in said and said.count('no answer') == 1
    assert ('It cannot be interrupted' in said) == (how == 'c')


@pytest.mark.long
def test_ctrl_c_ends_zoo_check_env_at_once() -> None:
    assert run_zoo('check-env', 'tests.worker.test_env_watch:ctrl_c_env').returncode == -signal.SIGINT


@pytest.mark.long
def test_zoo_eval_of_an_env_that_hangs_exits_1(tmp_path: Path) -> None:
    env = dict(kwargs={'call': 'step', 'at': 3, 'index': 1}, step_timeout=0.5, vectorization='sync')
    HangingEnv.n_made = 100  # so that no env hangs in the training
    result = serial_pipeline(job_config(tmp_path, hanging_env, env=env, max_env_step=64))
    done = run_zoo('eval', result.run_dir, '--import', 'tests.worker.test_env_watch')
    assert done.returncode == 1, done.stderr
    assert f"HangingEnv', index 1, step 3: no answer within 0.5 s, at {THIS}" in done.stderr
    assert 'Traceback' not in done.stderr and len(done.stderr.splitlines()) == 1


def _impatient(folder: Path) -> Path:
    """Writes a module for `--import` that makes 0.5 s the default of env.step_timeout; returns its path."""
    path = folder / 'impatient.py'
    path.write_text(
        'from zoo.env import EnvConfig\n'
        "EnvConfig.model_fields['step_timeout'].default = 0.5\n"
        'EnvConfig.model_rebuild(force=True)\n'
    )
    return path


@pytest.mark.soak
@pytest.mark.parametrize('how', ['stubborn', 'c'])
def test_process_ends_with_1_and_its_state_saved(tmp_path: Path, how: str) -> None:
    """This holds even if the env catches every exception, or sleeps in C code that no signal reaches."""
    env = dict(kwargs={'call': 'step', 'at': 40, 'how': how}, step_timeout=0.5, vectorization='sync')
    sections = dict(env=env, checkpoint=dict(freq=10**6))
    done = run_zoo(
        'train', config_file(tmp_path / 'a.yaml', tmp_path, 'tests.worker.test_env_watch:hanging_env', **sections)
    )
    assert done.returncode == 1, done.stderr
    assert 'index 0, step 40: no answer within 0.5 s, at' in done.stderr and 'Traceback' not in done.stderr
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert load_checkpoint(run_dir).meta['env_step'] == 128  # 4 envs, two rollouts of 16 steps
