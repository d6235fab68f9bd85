"""Signals: exit codes and saved files; tested in this process where that is enough, otherwise in a separate process."""

from __future__ import annotations

import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs import LimitEnv
from tests.policy_envs import job_config, rows
from tests.processes import wait_until
from tests.run.processes import PATIENCE, ROOT, config_file, ended, environment, start_zoo
from zoo.backend.choose import missing_compiler
from zoo.core.processes import STOP_SIGNALS, catch_signals
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.tools.cli.command import main

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 128 + signal.SIGUSR1)]
UPDATE = 40  # gradient steps of an update of cartpole_ppo: 10 epochs of 4 minibatches


class SendingEnv(LimitEnv):
    """LimitEnv that sends these signals to its own process, one per step from step number `at` on."""

    def __init__(self, numbers: list[int], at: int = 1, limit: int = 5) -> None:
        super().__init__(limit)
        self._numbers, self._left = list(numbers), at

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left <= 0 and self._numbers:
            os.kill(os.getpid(), self._numbers.pop(0))
        return super().step(action)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Sets the signal handlers that a command finds, even under `nohup`, and checks that a test restores them."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    wanted = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == wanted


def stopped(root: Path, numbers: list[int], at: int, **sections: Any) -> tuple[Any, Path]:
    """Trains until the envs' signals stop the run; returns its exit code and run folder."""
    env = dict(kwargs=dict(numbers=[*map(int, numbers)], at=at), collector_env_num=1, vectorization='sync')
    policy = dict(learn=dict(batch_size=16), eval=dict(eval_freq=16))
    sections = {'max_env_step': 10_000_000, 'checkpoint': dict(freq=10**6), 'env': env, 'policy': policy, **sections}
    with pytest.raises(SystemExit) as caught:
        serial_pipeline(job_config(root, SendingEnv, **sections))
    (run_dir,) = (root / 'run').iterdir()
    return caught.value.code, run_dir


@pytest.mark.usefixtures('handlers')
@pytest.mark.parametrize(('number', 'code'), CODES)
def test_first_signal_finishes_the_update_and_saves(tmp_path: Path, number: int, code: int) -> None:
    found, run_dir = stopped(tmp_path, [number], at=40)
    meta = load_checkpoint(run_dir).meta
    assert found == code and (meta['env_step'], meta['train_iter']) == (48, 6)  # 3 rollouts of 16, 2 steps each
    assert rows(run_dir)[-1]['env_step'] == 48
    resumed = serial_pipeline(resume=run_dir, max_env_step=80, overrides=['env.kwargs.numbers=[]'])
    assert (resumed.env_step, resumed.train_iter) == (80, 10)


@pytest.mark.usefixtures('handlers')
def test_signal_that_comes_again_from_a_closed_terminal_or_scheduler_does_not_end_the_run_unsaved(
    tmp_path: Path,
) -> None:
    code, run_dir = stopped(tmp_path, [1, 1, 10, 1], at=3)
    assert code == 129 and load_checkpoint(run_dir).meta['env_step'] == 16


@pytest.mark.usefixtures('handlers')
def test_signal_ends_an_evaluation_that_never_would(tmp_path: Path) -> None:
    kwargs = dict(numbers=[2], at=200, limit=10**9)  # a training env makes only 16 steps before the evaluation
    env = dict(kwargs=kwargs, collector_env_num=4, evaluator_env_num=1, vectorization='sync')
    code, run_dir = stopped(tmp_path, [], at=0, env=env, policy=dict(eval=dict(eval_freq=64)))
    assert code == 130 and load_checkpoint(run_dir).meta['env_step'] == 64


@pytest.mark.parametrize('mine', ['a handler', 'ignored'])  # as `nohup` ignores SIGHUP
@pytest.mark.parametrize('number', [signal.SIGUSR1, signal.SIGHUP])
def test_signals_that_the_caller_handles_or_ignores_are_left_alone(tmp_path: Path, mine: str, number: int) -> None:
    got: list[int] = []
    handler = signal.SIG_IGN if mine == 'ignored' else lambda number, frame: got.append(number)
    old = signal.signal(number, handler)
    try:
        env = dict(kwargs=dict(numbers=[int(number)]))
        assert serial_pipeline(job_config(tmp_path, SendingEnv, env=env, max_env_step=64)).env_step == 64
    finally:
        signal.signal(number, old)
    assert bool(got) == (mine == 'a handler')


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures('handlers')
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_env_workers_too_saves(tmp_path: Path, number: int) -> None:
    """Ctrl-C on a terminal and most job schedulers send a signal to the whole process group."""

    def on_rollout(job: Any, rollout: Any) -> None:
        workers = multiprocessing.active_children()
        assert len(workers) >= 2
        for pid in (*(worker.pid for worker in workers), os.getpid()):
            os.kill(pid, number)

    env = dict(vectorization='async', collector_env_num=2)
    with pytest.raises(SystemExit) as caught:
        serial_pipeline(job_config(tmp_path, env=env, max_env_step=10_000_000), callbacks=[on_rollout])
    assert caught.value.code == 128 + number and saved_in(tmp_path) == 32


def test_signal_between_two_catchers_stops_what_begins_then(tmp_path: Path) -> None:
    with catch_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as caught:
            serial_pipeline(job_config(tmp_path, max_env_step=10_000_000))
    assert received == [signal.SIGTERM] and caught.value.code == 128 + signal.SIGTERM


def test_command_whose_env_fails_exits_1_with_the_state_before_it_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reward of each of 4 envs is NaN at its 40th step: after two rollouts of 16 steps, or 128 env steps."""
    config = config_file(tmp_path / 'a.yaml', tmp_path, 'tests.policy_envs:nan_env', env=dict(kwargs={'at': 40}))
    assert main(['train', str(config)]) == 1
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert load_checkpoint(run_dir).meta['env_step'] == 128
    assert 'reward is nan' in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    'words', [['cartpole_ppo', 'polisy.type=ppo'], ['no_such_config'], ['--resume', 'no_such_run'], ['--no-such']]
)
def test_command_that_is_refused_exits_2_with_nothing_made(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['train', *words, f'logger.root={tmp_path}']) == 2
    assert not list(tmp_path.iterdir()) and capsys.readouterr().err.splitlines()[-1].startswith('zoo: error: ')


# --- real processes ---


def started(folder: Path, kwargs: dict[str, Any], freq: int = 10**6, **env: Any) -> subprocess.Popen[str]:
    """Starts `zoo train` on envs that are slow or stuck, in its own process group."""
    sections = dict(env=dict(kwargs=kwargs, **env), max_env_step=10_000_000, checkpoint=dict(freq=freq))
    return start_zoo('train', config_file(folder / 'a.yaml', folder, 'tests.policy_envs:stuck_env', **sections))


def has_begun(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob('run/*/metrics.jsonl'))


def saved_in(folder: Path) -> int:
    """Returns the env step of the newest checkpoint of the only run."""
    (run_dir,) = (folder / 'run').iterdir()
    return int(load_checkpoint(run_dir).meta['env_step'])


@pytest.mark.long
def test_signal_to_the_whole_process_group_saves_and_exits_with_its_code(tmp_path: Path) -> None:
    process = started(tmp_path, {'pause': 0.002}, vectorization='async')
    wait_until(lambda: has_begun(tmp_path), process)
    os.killpg(process.pid, signal.SIGINT)
    code, stderr = ended(process)
    assert code == 130, stderr
    assert 'Ctrl-C: finishing the update' in stderr and 'stopped by Ctrl-C; continue with' in stderr
    assert saved_in(tmp_path) >= 64


@pytest.mark.long
def test_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    marker = tmp_path / 'marker'
    process = started(tmp_path, {'at': 20, 'marker': str(marker)}, freq=64)
    wait_until(marker.exists, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while 'finishing the update' not in process.stderr.readline():  # the run waits for a step that never ends
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143
    assert saved_in(tmp_path) == 64  # after the only whole rollout


@pytest.mark.long
def test_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    """All standard streams are the terminal. Writing to it fails once it is closed, which must not change the exit code."""
    config = config_file(
        tmp_path / 'a.yaml',
        tmp_path,
        'tests.policy_envs:stuck_env',
        max_env_step=10_000_000,
        env=dict(kwargs={'pause': 0.002}),
        checkpoint=dict(freq=10**6),
        logger=dict(console='auto'),
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup` themselves
        os.execve(sys.executable, [sys.executable, '-m', 'zoo', 'train', str(config)], environment())
    try:
        while not has_begun(tmp_path):
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 1 << 16)
        os.close(terminal)
        deadline = time.monotonic() + PATIENCE
        while (left := os.waitpid(pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline, 'it does not end'
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(left[1]) == 129
    assert saved_in(tmp_path) >= 64


@pytest.mark.soak
@pytest.mark.skipif(missing_compiler(torch.device('cpu')) != '', reason='nothing can be compiled here')
@pytest.mark.parametrize('to_group', [False, True])
def test_signal_during_compilation_gives_it_up_and_saves(tmp_path: Path, to_group: bool) -> None:
    cache = tmp_path / 'cache'  # empty, so that compiling takes a minute
    words = [f'logger.root={tmp_path}', 'logger.console=off', 'policy.learn.compile=on', 'policy.learn.executor=graph']
    process = start_zoo('train', 'cartpole_ppo', *words, TORCHINDUCTOR_CACHE_DIR=str(cache))
    wait_until(lambda: any(path.is_file() for path in cache.rglob('*')), process)  # the compiler's input
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    code, stderr = ended(process)
    assert code == 130 and 'compiling ppo_step is given up' in stderr
    (run_dir,) = (tmp_path / 'cartpole_ppo').iterdir()
    meta = load_checkpoint(run_dir).meta
    assert 0 < meta['env_step'] <= 1024 and meta['train_iter'] == UPDATE  # the whole first update, uncompiled


BEGIN = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what Python itself does before that is not ours
print('begin', flush=True)
sys.argv = ['zoo', 'train', *sys.argv[1:]]
runpy.run_module('zoo', run_name='__main__')
"""


@pytest.mark.soak
@pytest.mark.parametrize('seconds', [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0])
def test_interrupt_at_any_moment_of_the_start_ends_it(tmp_path: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', BEGIN, 'cartpole_ppo', 'max_env_step=10_000_000', f'logger.root={tmp_path}'],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == 'begin\n'
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        words = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows 130 for both
    assert 'Traceback' not in words
