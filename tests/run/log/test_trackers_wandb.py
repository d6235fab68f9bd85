"""Weights & Biases, offline: metrics, config, resume, a run that the user has begun, and its TensorBoard mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.policy_envs import job_config
from tests.run.processes import environment
from zoo.pipeline import serial_pipeline
from zoo.run.base_config import LoggerConfig
from zoo.run.log.logger import Logger

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # MLflow uses what SQLAlchemy deprecates


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('wandb')  # only when a test needs it: its import takes 0.5 s
    monkeypatch.setenv('WANDB_SILENT', 'true')


def offline_runs(folder: Path) -> list[Path]:
    return sorted(folder.glob('wandb/offline-run-*'))


def records_of(run: Path) -> bytes:
    (file,) = run.glob('run-*.wandb')
    return file.read_bytes()


@pytest.mark.long
def test_run_and_its_resume_have_one_id_config_metrics_and_best_checkpoint(tmp_path: Path) -> None:
    config = job_config(tmp_path, exp_name='tracked', seed=3, policy={'eval': {'eval_freq': 64}})
    config['logger']['sinks'] = [{'type': 'wandb', 'mode': 'offline', 'tags': ['sunny'], 'group': 'flowers'}]
    first = serial_pipeline(config)
    run_id = json.loads((first.run_dir / 'wandb_run.json').read_text())['id']
    second = serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert second.run_dir == first.run_dir
    runs = offline_runs(first.run_dir)
    assert len(runs) == 2 and all(f'-{run_id}' in run.name for run in runs)  # within one second: '-1' is added
    for run in runs:
        data = records_of(run)
        words = ['eval/return_mean', 'learn/train_iter', 'env_step', 'sunny', 'flowers', first.run_dir.name, 'tracked']
        assert [word for word in words if word.encode() not in data] == []
    assert (runs[0] / 'files' / 'checkpoints' / 'best.safetensors').exists()
    assert yaml.safe_load((runs[0] / 'files' / 'config.yaml').read_text())


@pytest.mark.long
def test_run_that_the_user_began_is_used_and_stays_open(tmp_path: Path) -> None:
    import wandb

    with wandb.init(mode='offline', dir=str(tmp_path), project='mine') as run:
        cfg = LoggerConfig(console='off', tensorboard=False, sinks=[{'type': 'wandb', 'upload': False}])
        with Logger(tmp_path / 'run', cfg, 'exp', 100) as log:
            log.write(8, {'eval/return_mean': 3.0})
        assert wandb.run is run and run.summary['eval/return_mean'] == 3.0
        assert run.config['exp_name'] == 'exp'
    assert not (tmp_path / 'run' / 'wandb_run.json').exists()


SYNC = """
import sys, wandb
from zoo.run.log.logger import Logger, LoggerConfig
run = wandb.init(project='p', mode='offline', sync_tensorboard=True, dir=sys.argv[1])
with Logger(sys.argv[1] + '/run', LoggerConfig(console='off'), 'exp', 100) as log:
    for step in range(20):
        log.write(step, {'eval/return_mean': step * 1.5})
run.finish()
"""


@pytest.mark.soak
def test_sync_tensorboard_of_wandb_has_what_zoo_logs(tmp_path: Path) -> None:
    pytest.importorskip('tensorboard')  # W&B needs it
    done = subprocess.run(
        [sys.executable, '-c', SYNC, str(tmp_path)], capture_output=True, text=True, timeout=120, env=environment()
    )
    assert done.returncode == 0, done.stderr
    (run,) = offline_runs(tmp_path)
    assert records_of(run).count(b'eval/return_mean') >= 20


def test_tracker_that_cannot_begin_warns_once_and_the_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('WANDB_API_KEY', 'WANDB_MODE'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))  # no credentials, and no terminal to ask for them
    monkeypatch.setenv('NETRC', str(tmp_path / 'none'))
    cfg: Any = LoggerConfig(console='off', tensorboard=False, sinks=[{'type': 'wandb', 'mode': 'online'}])
    with Logger(tmp_path, cfg, 'exp', 100) as log:
        log.write(8, {'a': 1})
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith('zoo.')]
    assert len(warnings) == 1 and warnings[0].startswith('sink wandb '), warnings
    assert os.path.getsize(tmp_path / 'metrics.jsonl') > 0
