"""A run folder of somebody else leads to no other folder or file, and no pipe or device in it is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.policy_envs import job_config
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.tools.cli.command import main


def run_in(folder: Path) -> Path:
    """A run that has ended."""
    return serial_pipeline(job_config(folder, 'CartPole-v1', policy={'eval': {'n_episode': 1}})).run_dir


@pytest.mark.parametrize('name', ['checkpoints', 'tb', 'videos', 'wandb', 'trace.json', 'profile.txt', 'metrics.jsonl'])
def test_run_folder_with_a_link_is_not_continued_and_nothing_is_changed_elsewhere(tmp_path: Path, name: str) -> None:
    run, elsewhere = run_in(tmp_path), tmp_path / 'elsewhere' / name
    elsewhere.parent.mkdir()
    if (run / name).exists():
        (run / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    if elsewhere.is_dir():
        for victim in ('step_000000001.safetensors', 'other.tmp'):
            (elsewhere / victim).write_text('precious')
    (run / name).symlink_to(elsewhere)
    before = {
        file: (file.read_bytes(), file.stat().st_mtime_ns) for file in elsewhere.parent.rglob('*') if file.is_file()
    }
    for place in ({'resume': run}, {'run_dir': run}):
        with pytest.raises(UserError, match=f"the run folder .* has '{name}', which is a link, a pipe or a device"):
            serial_pipeline(**place, max_env_step=320)
    after = {
        file: (file.read_bytes(), file.stat().st_mtime_ns) for file in elsewhere.parent.rglob('*') if file.is_file()
    }
    assert after == before


@pytest.mark.parametrize('name', ['result.json', 'profile.txt', 'run.lock'])
def test_run_folder_with_a_pipe_is_not_continued(tmp_path: Path, name: str) -> None:
    run = run_in(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(UserError, match=f"has '{name}', which is a link, a pipe or a device"):
        serial_pipeline(resume=run, max_env_step=320)


@pytest.mark.parametrize('name', ['metrics.jsonl', 'result.json', 'run.lock'])
@pytest.mark.parametrize('kind', ['pipe', 'zeros', 'a long line'])
def test_commands_that_read_a_run_end_whatever_its_files_are(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(tmp_path)
    (run / name).unlink(missing_ok=True)
    if kind == 'pipe':
        os.mkfifo(run / name)
    elif kind == 'zeros':
        (run / name).symlink_to('/dev/zero')
    else:
        with open(run / name, 'wb') as file:
            file.truncate(1 << 36)  # 64 GB of zeros, which take no room
    assert main(['runs', str(tmp_path), '--json']) == 0
    assert main(['report', str(run), '-o', str(tmp_path / 'report.html')]) == 0
    assert run.name in capsys.readouterr().out
