"""Starts of a run: under torchrun, after a restart, alone."""

from __future__ import annotations

import logging
import os
import shutil
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch

import zoo.run.launch as launch_module
from tests.policy_envs import job_config
from zoo.config.section import ConfigError
from zoo.core.ranks import ALONE
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import steps_of
from zoo.run.config import resolve_config
from zoo.run.launch import FILE, Launch, continued, filter_rank_log, launched


def test_log_of_another_rank_has_its_warnings_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    log, keep = logging.getLogger('tests.of_rank'), partial(filter_rank_log, 3)
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(keep)
    caplog.handler.addFilter(keep)  # as for a second handler, which sees the same record
    try:
        log.info('not this')
        log.warning('%d of these', 2)
    finally:
        caplog.handler.removeFilter(keep)
    assert caplog.messages == ['rank 3: 2 of these']


# --- starts under torchrun ---


def _steps(folder: Path) -> list[int]:
    return list(steps_of(folder / 'checkpoints'))


@pytest.mark.slow
def test_run_dir_whose_newest_checkpoint_is_damaged_continues_from_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / 'run'
    serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64)), run_dir=folder)
    newest = steps_of(folder / 'checkpoints')[256]
    newest.write_bytes(newest.read_bytes()[:-1])
    with caplog.at_level('INFO', 'zoo'):
        result = serial_pipeline(job_config(tmp_path, max_env_step=320), run_dir=folder)
    assert result.env_step == 320 and _steps(folder)[-1] == 320
    assert 'resuming at env step 192' in caplog.text


def test_restart_finds_the_folder_of_its_own_start(tmp_path: Path, finished: Path) -> None:
    other = shutil.copytree(finished, finished.with_name(f'{finished.name}_2'))
    for folder, name in ((finished, 'mine'), (other, 'of another start')):
        (folder / FILE).write_text(name + '\n')
    cfg = resolve_config(job_config(tmp_path))
    folder, checkpoint = continued(Launch(ALONE, 'mine', 1), cfg, None)
    assert folder is not None and folder.resolve() == finished.resolve()
    assert checkpoint is not None and checkpoint.meta['env_step'] == 256
    assert continued(Launch(ALONE, 'mine', 0), cfg, None) == (None, None)  # not a restart
    assert continued(Launch(ALONE, 'a third', 1), cfg, None) == (None, None)


def test_one_process_under_torchrun_is_alone(tmp_path: Path) -> None:
    environ = {'WORLD_SIZE': '1', 'TORCHELASTIC_RUN_ID': 'name', 'TORCHELASTIC_RESTART_COUNT': '2'}
    cfg = resolve_config(job_config(tmp_path))
    with launched(cfg, environ) as launch:
        assert launch.ranks is ALONE and launch.n_restart == 2
        assert launch.id.startswith('name')
    with launched(cfg, {}) as launch:
        assert launch == (ALONE, '', 0)


def test_runs_of_one_script_have_numbers_by_which_each_finds_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ, cfg = {'TORCHELASTIC_RUN_ID': 'name'}, resolve_config(job_config(tmp_path))

    def ids() -> list[str]:
        monkeypatch.setattr(launch_module, '_runs', count(1))  # as in a new process
        found = []
        for _ in range(2):
            with launched(cfg, environ) as launch:
                found.append(launch.id)
        return found

    assert ids() == ids() == ['name 1', 'name 2']


def test_uneven_split_is_refused_before_the_ranks_meet(tmp_path: Path) -> None:
    cfg = resolve_config(job_config(tmp_path))
    with pytest.raises(ConfigError, match='env.collector_env_num is 4 but there are 3 ranks: 4 % 3 = 1'):
        with launched(cfg, {'WORLD_SIZE': '3', 'RANK': '0'}):
            pass
    assert not torch.distributed.is_initialized()


def test_run_folder_notes_its_start_only_under_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (serial_pipeline(job_config(tmp_path)).run_dir / FILE).exists()
    monkeypatch.setitem(os.environ, 'TORCHELASTIC_RUN_ID', 'name')
    assert (serial_pipeline(job_config(tmp_path)).run_dir / FILE).read_text().startswith('name')
