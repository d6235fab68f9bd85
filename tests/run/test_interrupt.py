"""Signals: a real process, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config, rows
from zoo.config.source import load_config, save_yaml
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import load_checkpoint
from zoo.run.config import resolve_config

pytestmark = pytest.mark.slow  # every test starts processes

ROOT = Path(__file__).parents[2]
TRUST = ['tests.policy_envs']  # the runs are of other processes


def test_signal_handlers_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    serial_pipeline(job_config(tmp_path, max_env_step=64))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class Run:
    """`zoo train` of a config in a process of its own."""

    def __init__(self, folder: Path, **sections: Any) -> None:
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
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()
        return self.process.returncode


@pytest.mark.slow
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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


@pytest.mark.slow
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_whole_process_group_saves_too(tmp_path: Path, number: int, code: int) -> None:
    """As Ctrl-C on a terminal and most job schedulers send it: the env workers get it as well."""
    env = dict(kwargs={'pause': 0.002}, vectorization='async')
    run = Run(tmp_path / 'a', env=env, checkpoint=dict(freq=1_000_000))
    run.wait_for('run/*/metrics.jsonl')
    os.killpg(run.process.pid, number)
    assert run.end() == code
    assert load_checkpoint(run.run_dir).meta['env_step'] >= 64


@pytest.mark.slow
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


@pytest.mark.slow
def test_killed_run_leaves_a_checkpoint_to_resume_from(tmp_path: Path) -> None:
    run = Run(tmp_path / 'a')
    run.wait_for('run/*/checkpoints/step_*.safetensors', 3)
    run.process.kill()
    run.end()
    env_step = load_checkpoint(run.run_dir).meta['env_step']
    assert env_step >= 192 and env_step % 64 == 0
    assert serial_pipeline(resume=run.run_dir, max_env_step=env_step + 64, trust=TRUST).env_step == env_step + 64
    assert load_config(str(run.run_dir / 'config.yaml'))[0]['max_env_step'] == env_step + 64


@pytest.mark.slow
def test_signal_ends_an_evaluation_that_never_would(tmp_path: Path) -> None:
    endless = dict(id='tests.envs:limit_env', kwargs={'limit': 10**9})
    run = Run(tmp_path / 'a', env=endless, checkpoint=dict(freq=1_000_000), policy=dict(eval=dict(eval_freq=64)))
    run.wait_for('run/*/metrics.jsonl')  # of the first rollout; the evaluation that follows has no end
    time.sleep(0.2)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert load_checkpoint(run.run_dir).meta['env_step'] == 64
