"""Signals: a real process, and what it leaves behind."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs import LimitEnv
from tests.policy_envs import job_config, rows
from zoo.backend.trace import missing_compiler
from zoo.config.source import load_config
from zoo.config.yaml_io import save_yaml
from zoo.core.processes import STOP_SIGNALS
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.signals import catch_signals

pytestmark = pytest.mark.slow  # every test starts processes

ROOT = Path(__file__).parents[2]
CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 128 + signal.SIGUSR1)]
UPDATE = 40  # gradient steps of an update of cartpole_ppo: 10 epochs of 4 minibatches
TRUST = ['tests.policy_envs']  # the runs are of other processes


def test_signal_handlers_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    serial_pipeline(job_config(tmp_path, max_env_step=64))
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


class Sender(LimitEnv):
    """LimitEnv that sends SIGUSR1 to its own process at every step."""

    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return super().step(action)


@pytest.mark.parametrize('mine', ['a handler', 'ignored'])
def test_signals_that_the_caller_handles_or_ignores_are_left_alone(tmp_path: Path, mine: str) -> None:
    got: list[int] = []
    handler = signal.SIG_IGN if mine == 'ignored' else lambda number, frame: got.append(number)
    old = signal.signal(signal.SIGUSR1, handler)
    try:
        assert serial_pipeline(job_config(tmp_path, Sender, max_env_step=64)).env_step == 64
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert bool(got) == (mine == 'a handler')


class Run:
    """`zoo train` of a config in a process of its own."""

    def __init__(self, folder: Path, ignores: int | None = None, **sections: Any) -> None:
        """ignores: a signal that the process is told to ignore, as `nohup` does."""

        def prepare() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under `nohup` themselves
            if ignores is not None:
                signal.signal(ignores, signal.SIG_IGN)

        folder.mkdir(exist_ok=True)
        cfg = job_config(
            folder,
            'tests.policy_envs:stuck_env',
            **{'max_env_step': 10_000_000, 'checkpoint': dict(freq=64), **sections},
        )
        save_yaml(resolve_config(cfg), folder / 'config.yaml')
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'zoo', 'train', str(folder / 'config.yaml')],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT)},
            preexec_fn=prepare,
        )

    @property
    def run_dir(self) -> Path:
        (run_dir,) = (self._folder / 'run').iterdir()
        return run_dir

    def wait_for(self, pattern: str, n: int = 1) -> None:
        """Until n files of this pattern exist that are not empty."""
        while sum(path.stat().st_size > 0 for path in self._folder.glob(pattern)) < n:
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.01)

    def end(self) -> int:
        """The exit code; a run that does not end is killed and fails the test."""
        try:
            self.process.communicate(timeout=120)
        finally:
            self.process.kill()
        return self.process.returncode


@pytest.mark.long
@pytest.mark.parametrize(('number', 'code'), CODES)
def test_first_signal_finishes_the_update_and_saves(tmp_path: Path, number: int, code: int) -> None:
    run = Run(tmp_path / 'a', env=dict(kwargs={'pause': 0.002}), checkpoint=dict(freq=1_000_000))
    run.wait_for('run/*/metrics.jsonl')
    run.process.send_signal(number)
    assert run.end() == code
    checkpoint = load_checkpoint(run.run_dir)
    env_step, train_iter = checkpoint.meta['env_step'], checkpoint.meta['train_iter']
    assert env_step % 64 == 0 and train_iter == env_step // 64 * 4  # whole rollouts, each learned from
    assert rows(run.run_dir)[-1]['env_step'] == env_step
    resumed = serial_pipeline(resume=run.run_dir, max_env_step=env_step + 128, trust=TRUST)
    assert (resumed.env_step, resumed.train_iter) == (env_step + 128, train_iter + 8)


@pytest.mark.long
@pytest.mark.parametrize(('number', 'code'), CODES)
def test_signal_to_the_whole_process_group_saves_too(tmp_path: Path, number: int, code: int) -> None:
    """As Ctrl-C on a terminal and most job schedulers send it: the env workers get it as well, but leave it to the run."""
    env = dict(kwargs={'pause': 0.002}, vectorization='async')
    run = Run(tmp_path / 'a', env=env, checkpoint=dict(freq=1_000_000))
    run.wait_for('run/*/metrics.jsonl')
    os.killpg(run.process.pid, number)
    assert run.end() == code
    assert load_checkpoint(run.run_dir).meta['env_step'] >= 64


@pytest.mark.long
def test_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    marker = tmp_path / 'a' / 'marker'
    run = Run(tmp_path / 'a', env=dict(kwargs={'at': 20, 'marker': str(marker)}))
    run.wait_for('marker')
    run.process.send_signal(signal.SIGINT)
    assert run.process.stderr is not None
    while 'finishing the update' not in run.process.stderr.readline():  # it waits for a step that never ends
        assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143
    assert load_checkpoint(run.run_dir).meta['env_step'] == 64  # that of the only whole rollout


@pytest.mark.long
def test_killed_run_leaves_a_checkpoint_to_resume_from(tmp_path: Path) -> None:
    run = Run(tmp_path / 'a')
    run.wait_for('run/*/checkpoints/step_*.safetensors', 3)
    run.process.kill()
    run.end()
    env_step = load_checkpoint(run.run_dir).meta['env_step']
    assert env_step >= 192 and env_step % 64 == 0
    assert serial_pipeline(resume=run.run_dir, max_env_step=env_step + 64, trust=TRUST).env_step == env_step + 64
    assert load_config(str(run.run_dir / 'config.yaml'))[0]['max_env_step'] == env_step + 64


@pytest.mark.long
def test_signal_ends_an_evaluation_that_never_would(tmp_path: Path) -> None:
    endless = dict(id='tests.envs:limit_env', kwargs={'limit': 10**9})
    run = Run(tmp_path / 'a', env=endless, checkpoint=dict(freq=1_000_000), policy=dict(eval=dict(eval_freq=64)))
    run.wait_for('run/*/metrics.jsonl')  # of the first rollout; the evaluation that follows has no end
    time.sleep(0.2)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert load_checkpoint(run.run_dir).meta['env_step'] == 64


@pytest.mark.long
def test_signal_that_comes_again_from_a_closed_terminal_or_scheduler_does_not_end_the_run_unsaved(
    tmp_path: Path,
) -> None:
    env = dict(kwargs={'pause': 0.02})  # a rollout takes 16 * 4 * 20 ms: all signals fall into it
    run = Run(tmp_path / 'a', env=env, checkpoint=dict(freq=1_000_000))
    run.wait_for('run/*/metrics.jsonl')
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1, signal.SIGHUP):
        run.process.send_signal(number)
        time.sleep(0.05)
    assert run.end() == 129
    assert load_checkpoint(run.run_dir).meta['env_step'] >= 64


@pytest.mark.long
def test_nohup_keeps_the_run_alive(tmp_path: Path) -> None:
    run = Run(tmp_path / 'a', ignores=signal.SIGHUP, env=dict(kwargs={'pause': 0.002}))
    run.wait_for('run/*/checkpoints/step_*.safetensors')
    run.process.send_signal(signal.SIGHUP)
    run.wait_for('run/*/checkpoints/step_*.safetensors', 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143


@pytest.mark.long
def test_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    """All standard streams are that terminal; writing to it then fails, which must not change the exit code."""
    cfg = job_config(
        tmp_path,
        'tests.policy_envs:stuck_env',
        max_env_step=10_000_000,
        env=dict(kwargs={'pause': 0.002}),
        checkpoint=dict(freq=1_000_000),
        logger=dict(console='auto'),
    )
    save_yaml(resolve_config(cfg), tmp_path / 'config.yaml')
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # see Run
        command = [sys.executable, '-m', 'zoo', 'train', str(tmp_path / 'config.yaml')]
        os.execve(sys.executable, command, {**os.environ, 'PYTHONPATH': str(ROOT)})
    try:
        while not any(path.stat().st_size for path in tmp_path.glob('run/*/metrics.jsonl')):
            if select.select([terminal], [], [], 0.01)[0]:
                os.read(terminal, 1 << 16)
        os.close(terminal)
        deadline = time.monotonic() + 120
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < deadline, 'it does not end'
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(ended[1]) == 129
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert load_checkpoint(run_dir).meta['env_step'] >= 64


@pytest.mark.long
@pytest.mark.skipif(missing_compiler(torch.device('cpu')) != '', reason='nothing can be compiled here')
@pytest.mark.parametrize('to_group', [False, True])
def test_signal_during_compilation_gives_it_up_and_saves(tmp_path: Path, to_group: bool) -> None:
    cache = {'TORCHINDUCTOR_CACHE_DIR': str(tmp_path / 'cache')}  # an empty one: compiling then takes a minute
    options = [
        f'logger.root={tmp_path}',
        'logger.console=off',
        'policy.learn.compile=on',
        'policy.learn.executor=graph',
    ]
    process = subprocess.Popen(
        [sys.executable, '-m', 'zoo', 'train', 'cartpole_ppo', *options],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **cache, 'PYTHONPATH': str(ROOT)},
    )
    assert process.stderr is not None
    try:
        while not any(path.is_file() for path in (tmp_path / 'cache').rglob('*')):  # what the compiler reads
            assert process.poll() is None
            time.sleep(0.01)
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
        words = process.communicate(timeout=120)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert 'compiling ppo_step is given up' in words
    (run_dir,) = (tmp_path / 'cartpole_ppo').iterdir()
    meta = load_checkpoint(run_dir).meta
    assert 0 < meta['env_step'] <= 1024 and meta['train_iter'] == UPDATE  # all of the first update was done, uncompiled


BEGIN = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what Python itself does before that is not ours
print('begin', flush=True)
sys.argv = ['zoo', 'train', *sys.argv[1:]]
runpy.run_module('zoo', run_name='__main__')
"""


@pytest.mark.long
@pytest.mark.parametrize('seconds', [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0])
def test_interrupt_at_any_moment_of_the_start_ends_it(tmp_path: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', BEGIN, 'cartpole_ppo', 'max_env_step=10_000_000', f'logger.root={tmp_path}'],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == 'begin\n'
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        words = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows 130 for both
    assert 'Traceback' not in words


def test_signal_between_two_catchers_stops_what_begins_then(tmp_path: Path) -> None:
    with catch_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as caught:
            serial_pipeline(job_config(tmp_path, max_env_step=10_000_000))
    assert received == [signal.SIGTERM] and caught.value.code == 128 + signal.SIGTERM
