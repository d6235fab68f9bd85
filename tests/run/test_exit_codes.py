"""The exit codes of `zoo train`: real processes, and what each leaves on the disk."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Done, run_python
from tests.policy_envs import job_config
from tests.run.test_interrupt import CODES, ROOT, Run
from zoo.config.yaml_io import save_yaml
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config

pytestmark = pytest.mark.slow  # every test starts processes


def train(*arguments: Any) -> Done:
    return run_python('-m', 'zoo', 'train', *arguments, cwd=ROOT, PYTHONPATH=str(ROOT))


def config(folder: Path, *env: Any, **sections: Any) -> Path:
    path = folder / 'config.yaml'
    save_yaml(resolve_config(job_config(folder, *env, **sections)), path)
    return path


def saved(folder: Path) -> tuple[Path, int]:
    """The run folder, and the env step of its newest checkpoint."""
    (run_dir,) = (folder / 'run').iterdir()
    return run_dir, load_checkpoint(run_dir).meta['env_step']


@pytest.mark.long
def test_0_done_and_saved(tmp_path: Path) -> None:
    done = train(config(tmp_path, max_env_step=128))
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path)[1] == 128


def test_1_failed_with_the_state_before_it_saved(tmp_path: Path) -> None:
    """4 envs whose reward is NaN at their 40th step: after two rollouts of 16 steps."""
    failed = train(config(tmp_path, 'tests.policy_envs:nan_env', env=dict(kwargs={'at': 40})))
    assert failed.returncode == 1 and 'Traceback' not in failed.stderr
    assert saved(tmp_path)[1] == 128


@pytest.mark.long
@pytest.mark.parametrize(
    'arguments', [['cartpole_ppo', 'polisy.type=ppo'], ['no_such_config'], ['--resume', 'no_such_run'], ['--no-such']]
)
def test_2_refused_with_nothing_made(tmp_path: Path, arguments: list[str]) -> None:
    refused = train(*arguments, f'logger.root={tmp_path}')
    assert refused.returncode == 2 and 'Traceback' not in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(('number', 'code'), CODES)
def test_128_and_the_signal_stopped_and_saved_to_resume(tmp_path: Path, number: int, code: int) -> None:
    run = Run(tmp_path / 'a', env=dict(kwargs={'pause': 0.002}), checkpoint=dict(freq=1_000_000))
    run.wait_for('run/*/metrics.jsonl')
    run.process.send_signal(number)
    assert run.end() == code == 128 + number
    run_dir, env_step = saved(tmp_path / 'a')
    done = train('--resume', run_dir, f'max_env_step={env_step + 64}', '--import', 'tests.policy_envs')
    assert done.returncode == 0, done.stderr
    assert saved(tmp_path / 'a') == (run_dir, env_step + 64)


def test_128_and_the_signal_of_a_second_one_that_ends_it_at_once(tmp_path: Path) -> None:
    marker = tmp_path / 'a' / 'marker'
    run = Run(tmp_path / 'a', env=dict(kwargs={'at': 20, 'marker': str(marker)}))
    run.wait_for('marker')
    run.process.send_signal(signal.SIGHUP)
    assert run.process.stderr is not None
    while 'finishing the update' not in run.process.stderr.readline():
        assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 143
