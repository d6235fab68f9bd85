"""Run folders from somebody else: their links are not followed, and no command waits for a pipe or device in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import load_checkpoint
from zoo.run.checkpoint.file import CheckpointError
from zoo.tools.cli.command import main


def files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob('*') if file.is_file()}


@pytest.mark.parametrize('name', ['checkpoints', 'tb', 'videos', 'wandb', 'trace.json', 'profile.txt', 'metrics.jsonl'])
def test_run_folder_with_a_link_is_not_continued_and_nothing_is_changed_elsewhere(
    tmp_path: Path, finished: Path, name: str
) -> None:
    run, elsewhere = finished, tmp_path / 'elsewhere' / name
    elsewhere.parent.mkdir()
    if (run / name).exists():
        (run / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    if elsewhere.is_dir():
        for victim in ('step_000000001.safetensors', 'other.tmp'):
            (elsewhere / victim).write_text('precious')
    (run / name).symlink_to(elsewhere)
    before = files(elsewhere.parent)
    for place in ({'resume': run}, {'run_dir': run}):
        with pytest.raises(UserError, match=f"the run folder .* has '{name}', which is a link, a pipe or a device"):
            serial_pipeline(**place, max_env_step=320)
    assert files(elsewhere.parent) == before


@pytest.mark.parametrize('name', ['result.json', 'profile.txt', 'run.lock'])
def test_run_folder_with_a_pipe_is_not_continued(finished: Path, name: str) -> None:
    (finished / name).unlink(missing_ok=True)
    os.mkfifo(finished / name)
    with pytest.raises(UserError, match=f"has '{name}', which is a link, a pipe or a device"):
        serial_pipeline(resume=finished, max_env_step=320)


KINDS = ['pipe', 'zeros', 'a long line']


@pytest.mark.slow
@pytest.mark.parametrize('first', range(3))
def test_commands_that_read_a_run_end_whatever_its_files_are(
    tmp_path: Path, finished: Path, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('matplotlib')  # zoo report
    for i, name in enumerate(['metrics.jsonl', 'result.json', 'run.lock']):  # each kind in one of 3 cases
        (finished / name).unlink(missing_ok=True)
        kind = KINDS[(first + i) % 3]
        if kind == 'pipe':
            os.mkfifo(finished / name)
        elif kind == 'zeros':
            (finished / name).symlink_to('/dev/zero')
        else:
            with open(finished / name, 'wb') as file:
                file.truncate(1 << 36)  # 64 GB of zeros, which take no room
    assert main(['runs', str(tmp_path), '--json']) == 0
    assert main(['report', str(finished), '-o', str(tmp_path / 'report.html')]) == 0
    assert finished.name in capsys.readouterr().out


@pytest.mark.parametrize('where', ['checkpoints/step_000000001.safetensors', 'checkpoints/best.safetensors'])
def test_checkpoint_of_a_run_that_is_a_link_is_not_read(tmp_path: Path, finished: Path, where: str) -> None:
    newest = max((finished / 'checkpoints').glob('step_*'))
    kept = newest.rename(tmp_path / 'kept.safetensors')
    (finished / where).unlink(missing_ok=True)
    (finished / where).symlink_to(kept)
    assert load_checkpoint(kept).meta['env_step'] > 0  # the file itself is a checkpoint
    with pytest.raises(CheckpointError, match='is a link; pass a run folder or a .safetensors file of it'):
        load_checkpoint(finished / where)


@pytest.mark.parametrize('line', ['[' * 100_000, '{"env_step": 1' + '0' * 400 + '}', '{"env_step": null}', '[1]'])
def test_resume_ends_the_log_at_a_line_that_is_none_of_it(finished: Path, line: str) -> None:
    log = finished / 'metrics.jsonl'
    whole = log.read_text()
    log.write_text(f'{whole}{line}\n{whole}')
    serial_pipeline(resume=finished, max_env_step=320, overrides=['logger.sinks=[csv]'])
    after = log.read_text()
    assert after.startswith(whole) and line not in after
    assert (finished / 'progress.csv').read_text().count('\n') == after.count('\n') + 1
