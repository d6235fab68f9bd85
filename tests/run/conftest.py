"""Fixture of a finished run, which is made once and copied for each test that needs one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.policy_envs import job_config
from zoo.pipeline import serial_pipeline


@pytest.fixture(scope='session')
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serial_pipeline(job_config(tmp_path_factory.mktemp('finished'))).run_dir


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """The folder of a finished run of `job_config(tmp_path)`: 256 env steps, with its last and its best checkpoint."""
    return shutil.copytree(_finished, tmp_path / 'run' / _finished.name)
