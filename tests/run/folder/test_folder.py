"""Run folders: where a run writes when it begins or continues, and the files there that it must not harm."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.envs import limit_env
from tests.policy_envs import differing, job_config, rows
from tests.processes import wait_until
from tests.run.processes import (
    config_file,
    ended,
    fill,
    make_read_only,
    small_disk,
    start_zoo,
    without_override,
)
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.checkpoint.manager import SaveError
from zoo.run.config import resolve_config
from zoo.run.folder import NAME, newest_in
from zoo.run.job import SerialJob
from zoo.tools.cli.command import main


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['best.safetensors', 'step_000000128.safetensors'])
def test_resume_from_an_older_checkpoint_leaves_its_run_as_it_was(tmp_path: Path, name: str) -> None:
    first = serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64, keep_last=9)))
    before = _files(first.run_dir)
    second = serial_pipeline(resume=first.run_dir / 'checkpoints' / name, max_env_step=320)
    assert second.run_dir != first.run_dir and second.env_step == 320
    assert _files(first.run_dir) == before


def test_resume_keeps_a_best_policy_that_came_after_the_last_checkpoint(finished: Path) -> None:
    best = finished / 'checkpoints' / 'best.safetensors'
    state, meta, _ = load_checkpoint(best)
    save_checkpoint(best, state, {**meta, 'best_return': 1000.0})  # as if the run had been killed right after this save
    result = serial_pipeline(resume=finished, max_env_step=512)
    assert result.best_return == 1000.0 and load_checkpoint(best).meta['best_return'] == 1000.0


def test_resume_with_another_env_of_the_same_spaces_says_so(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        serial_pipeline(resume=finished, max_env_step=320, overrides=['env.id=tests.envs:LimitEnv'])
    assert 'was trained on env tests.envs:limit_env and continues with tests.envs:LimitEnv' in caplog.text


@pytest.mark.slow
def test_resume_of_a_solved_run_stays_stopped_and_says_how_to_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    solved = job_config(tmp_path, max_env_step=10_000, policy=dict(eval=dict(eval_freq=128, stop_value=5.0)))
    first = serial_pipeline(solved)  # every return is 5
    assert serial_pipeline(resume=first.run_dir).env_step == first.env_step
    assert 'policy.eval.stop_value=null' in caplog.text
    on = serial_pipeline(resume=first.run_dir, max_env_step=256, overrides=['policy.eval.stop_value=null'])
    assert on.env_step == 256


@pytest.mark.parametrize('root', ['/dev/null', '/proc/nothing'])
def test_root_that_cannot_hold_a_folder_is_the_users_error(tmp_path: Path, root: str) -> None:
    with pytest.raises(UserError, match='set logger.root'):
        serial_pipeline(job_config(tmp_path, logger=dict(root=root)))


def test_run_that_keeps_no_best_writes_none_and_remembers_its_return_over_a_resume(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path, checkpoint=dict(keep_best=False)))
    (newest,) = (first.run_dir / 'checkpoints').iterdir()
    assert newest.name.startswith('step_') and first.best_return is not None
    state, meta, _ = load_checkpoint(newest)
    state['counter']['best_return'] = 1000.0
    save_checkpoint(newest, state, meta)
    assert serial_pipeline(resume=first.run_dir, max_env_step=512).best_return == 1000.0


def test_resume_into_a_new_folder_takes_the_best_along(finished: Path) -> None:
    old = load_checkpoint(finished / 'checkpoints' / 'best.safetensors')
    second = serial_pipeline(resume=old.path, overrides=['exp_name=on'])
    best = load_checkpoint(second.run_dir / 'checkpoints' / 'best.safetensors')
    assert second.best_return == best.meta['best_return'] == old.meta['best_return']
    assert best.meta['env_step'] == old.meta['env_step']


@pytest.mark.parametrize('override', ['exp_name=tuned', 'seed=9', 'logger.root={}/elsewhere'])
def test_resume_that_would_be_named_otherwise_starts_a_folder(tmp_path: Path, finished: Path, override: str) -> None:
    before = _files(finished)
    override = override.format(tmp_path)
    second = serial_pipeline(resume=finished, max_env_step=320, overrides=[override])
    assert second.run_dir != finished and override.rpartition('=')[2] in str(second.run_dir)
    assert _files(finished) == before


@pytest.mark.slow
def test_resume_of_a_killed_run_logs_no_evaluation_twice(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, checkpoint=dict(freq=64, keep_last=9), policy=dict(eval=dict(eval_freq=64)))
    first = serial_pipeline(cfg)
    for path in (first.run_dir / 'checkpoints').glob('step_*'):
        if path.name > 'step_000000064.safetensors':
            path.unlink()  # as if the run had been killed before it wrote them
    serial_pipeline(resume=first.run_dir)
    judged = [row['env_step'] for row in rows(first.run_dir) if 'eval/return_mean' in row]
    assert judged == [64, 128, 192, 256]


def test_newest_checkpoint_is_that_of_the_largest_step_not_name(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64)))
    folder = first.run_dir / 'checkpoints'
    *_, older, newest = sorted(folder.glob('step_*'))
    older.rename(folder / 'step_999999999.safetensors')
    newest.rename(folder / 'step_1000000000.safetensors')  # by name it would come before the other
    second = serial_pipeline(resume=first.run_dir, max_env_step=320)
    assert second.run_dir == first.run_dir.absolute()


# --- a folder that is removed, or cannot be written ---


def begun(root: Path, **sections: Any) -> SerialJob:
    cfg = job_config(root, logger=dict(tensorboard=True), checkpoint=dict(freq=64), **sections)
    return SerialJob(resolve_config(cfg))


def move(folder: Path) -> None:
    folder.rename(folder.with_name('elsewhere'))


@pytest.mark.slow
@pytest.mark.parametrize('remove', [shutil.rmtree, move])
@pytest.mark.parametrize('level', [0, 1])
def test_run_folder_removed_in_mid_run_is_recreated_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, remove: Any, level: int
) -> None:
    with begun(tmp_path / 'root') as job:
        job.iteration()
        remove([job.run_dir, job.run_dir.parent][level])
        job.iteration()
        assert (job.run_dir / NAME).exists()
        job.iteration()
        job.finish()
    (warning,) = caplog.messages
    assert f'the run folder {job.run_dir} or its lock was removed or moved' in warning
    assert [row['env_step'] for row in rows(job.run_dir)] == [128, 192, 192]  # the last one is the evaluation
    assert load_checkpoint(job.run_dir).meta['env_step'] == 192
    assert resolve_config(str(job.run_dir / 'config.yaml')) == job.cfg
    (events,) = (job.run_dir / 'tb').iterdir()
    assert b'learn/train_iter' in events.read_bytes()
    assert serial_pipeline(resume=job.run_dir, max_env_step=256).run_dir == job.run_dir


def test_run_folder_removed_before_the_last_save_is_recreated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with begun(tmp_path) as job:
        job.iteration()
        shutil.rmtree(job.run_dir)
        job.save()
    assert len(caplog.messages) == 1 and 'was removed or moved' in caplog.text
    assert sorted(path.name for path in job.run_dir.iterdir()) == [
        'checkpoints',
        'config.yaml',
        'metrics.jsonl',
        'result.json',
        'tb',
    ]


def test_run_folder_that_cannot_be_recreated_is_a_failed_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with begun(tmp_path / 'root') as job, pytest.raises(SaveError, match='is lost: .*no other one is saved'):
        job.iteration()
        shutil.rmtree(tmp_path / 'root')
        (tmp_path / 'root').touch()
        for _ in range(2):
            job.iteration()
        log, *saves = caplog.messages
        assert f'run folder {job.run_dir} cannot be written (' in log and len(saves) == 2
        assert all('could not be saved' in message for message in saves)
        (tmp_path / 'root').unlink()
        job.iteration()
        assert [row['env_step'] for row in rows(job.run_dir)] == [256]  # written as soon as the folder can be made
        shutil.rmtree(tmp_path / 'root')
        (tmp_path / 'root').touch()
        job.finish()


@pytest.mark.parametrize('name', ['metrics.jsonl', 'tb'])
def test_log_file_removed_in_mid_run_is_recreated_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with begun(tmp_path) as job:
        job.iteration()
        move(job.run_dir / name)
        job.iteration()
        job.iteration()
    (warning,) = caplog.messages
    assert str(job.run_dir / name) in warning and warning.endswith('was removed or moved; it is begun anew')
    assert rows(job.run_dir)[-1]['env_step'] == 192
    (events,) = (job.run_dir / 'tb').iterdir()
    assert b'learn/train_iter' in events.read_bytes()


@pytest.mark.slow
def test_resume_on_a_read_only_disk_is_refused_and_may_continue_elsewhere(tmp_path: Path) -> None:
    with small_disk(tmp_path / 'disk', '4m') as disk:
        first = serial_pipeline(job_config(disk))
        before = _files(first.run_dir)
        make_read_only(disk)
        with pytest.raises(UserError) as refused:
            serial_pipeline(resume=first.run_dir, max_env_step=320)
        assert str(refused.value) == (
            f'the run folder {first.run_dir} cannot be written (Read-only file system); make that possible, '
            'or set logger.root to a folder that can be written'
        )
        elsewhere = [f'logger.root={tmp_path}/elsewhere']
        assert serial_pipeline(resume=first.run_dir, max_env_step=320, overrides=elsewhere).env_step == 320
        assert list(tmp_path.glob('elsewhere/run/*/config.yaml')) and _files(first.run_dir) == before


def test_folder_that_may_not_be_written_refuses_a_run_and_a_resume(tmp_path: Path, finished: Path) -> None:
    (tmp_path / 'closed').mkdir(mode=0o500)
    wanted: list[tuple[Any, dict[str, Any], str]] = [
        (None, dict(resume=finished, max_env_step=320), f'the run folder {finished} cannot be written'),
        (job_config(tmp_path), {}, rf'the run folder {finished.parent}/\S* cannot be made'),
        (
            job_config(tmp_path),
            dict(run_dir=tmp_path / 'closed' / 'mine'),
            f'the run folder {tmp_path}/closed/mine cannot be written',
        ),
    ]
    for folder in (finished, finished.parent):
        folder.chmod(0o555)
    with without_override():
        for config, options, said in wanted:
            with pytest.raises(UserError, match=rf'^{said} \(Permission denied\); .*(logger.root|name another folder)'):
                serial_pipeline(config, **options)
    for folder in (finished, finished.parent):
        folder.chmod(0o755)  # so that it can be removed


def test_folder_that_may_not_be_looked_into_is_refused_in_a_sentence(tmp_path: Path) -> None:
    closed = tmp_path / 'closed'
    closed.mkdir(mode=0o600)
    with without_override():
        for folder in (closed, closed / 'mine'):
            with pytest.raises(UserError, match=rf'^the run folder {folder} cannot be written \(Permission denied\)'):
                serial_pipeline(job_config(tmp_path), run_dir=folder)
        with pytest.raises(UserError, match=f'^the run folder {closed}/mine has no checkpoint to continue from'):
            serial_pipeline(run_dir=closed / 'mine')
        with pytest.raises(CheckpointError, match='is a folder without checkpoints'):
            serial_pipeline(resume=closed)


def test_disk_that_is_full_refuses_a_run_and_leaves_one_that_is_resumed_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / 'disk', '256k') as disk:
        first = serial_pipeline(job_config(disk))
        before = _files(first.run_dir)
        fill(disk)
        with pytest.raises(UserError, match=rf'^the run folder {disk}/run/.*\(No space left on device\)'):
            serial_pipeline(job_config(disk))
        with pytest.raises(UserError, match='cannot be written .No space left on device.'):
            serial_pipeline(resume=first.run_dir, max_env_step=512)
        assert _files(first.run_dir) == before


def test_config_that_was_half_written_does_not_matter_to_a_resume(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    whole = (first.run_dir / 'config.yaml').read_bytes()
    (first.run_dir / 'config.yaml').write_bytes(whole[:100])
    (first.run_dir / 'config.yaml.123.tmp').write_bytes(whole[:50])  # left by a killed process
    serial_pipeline(resume=first.run_dir, max_env_step=256)
    assert (first.run_dir / 'config.yaml').read_bytes() == whole
    assert not list(first.run_dir.glob('*.tmp'))


# --- run_dir=, or --run: the folder is named, and the run in it continues ---


def test_run_continues_in_the_folder_that_is_named_and_says_what_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = tmp_path / 'deep' / 'mine'
    first = serial_pipeline(job_config(tmp_path, max_env_step=128), run_dir=place)
    assert (first.run_dir, first.env_step) == (place, 128) and not (tmp_path / 'run').exists()
    assert 'continues' not in caplog.text
    changed = job_config(tmp_path, policy=dict(eval=dict(stop_value=99.0)))
    second = serial_pipeline(changed, run_dir=str(place))
    assert (second.run_dir, second.env_step) == (place, 256)
    assert f'{place} is there: the run continues from step_000000128.safetensors' in caplog.text
    assert 'max_env_step 128 -> 256, policy.eval.stop_value null -> 99.0' in caplog.text
    assert [row['env_step'] for row in rows(place) if 'learn/train_iter' in row] == [64, 128, 192, 256]


@pytest.mark.slow
def test_run_in_a_named_folder_has_the_bits_of_one_that_is_resumed(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, 'CartPole-v1')
    first = serial_pipeline(cfg, max_env_step=128)
    shutil.copytree(first.run_dir, tmp_path / 'copy')
    resumed = serial_pipeline(resume=first.run_dir, max_env_step=256)
    continued = serial_pipeline(cfg, run_dir=tmp_path / 'copy')
    assert continued.env_step == resumed.env_step and continued.run_dir == tmp_path / 'copy'
    assert not differing(continued.policy.state_dict(), resumed.policy.state_dict())


def test_finished_run_in_a_named_folder_has_nothing_left(
    tmp_path: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, iterations = (finished / 'metrics.jsonl').read_text(), load_checkpoint(finished).meta['train_iter']
    again = serial_pipeline(job_config(tmp_path), run_dir=finished)
    assert (again.env_step, again.train_iter) == (256, iterations) and again.last_return is not None
    assert 'nothing is left to train: the run has 256 env steps' in caplog.text
    assert (finished / 'metrics.jsonl').read_text() == log


def test_folder_with_files_of_others_and_no_checkpoint_gets_a_new_run(tmp_path: Path) -> None:
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'notes.txt').write_text('keep')
    # lines of a process that was killed before its first checkpoint
    (tmp_path / 'mine' / 'metrics.jsonl').write_text('{"env_step": 64, "wall_s": 1.0}\n{"env_step": 128, "wal')
    result = serial_pipeline(job_config(tmp_path), run_dir=tmp_path / 'mine')
    assert [row['env_step'] for row in rows(result.run_dir) if 'learn/train_iter' in row] == [64, 128, 192, 256]
    assert [row['env_step'] for row in rows(result.run_dir)] == [64, 128, 192, 256, 256]
    assert (tmp_path / 'mine' / 'notes.txt').read_text() == 'keep'


def test_run_is_continued_without_a_config_and_refused_without_either(tmp_path: Path, finished: Path) -> None:
    second = serial_pipeline(run_dir=finished, max_env_step=320)
    assert (second.run_dir, second.env_step) == (finished, 320)
    with pytest.raises(UserError, match='new has no checkpoint to continue from; give a config to begin a run in it'):
        serial_pipeline(run_dir=tmp_path / 'new')
    assert not (tmp_path / 'new').exists()


def test_folder_that_cannot_be_that_of_a_run_is_refused_in_a_sentence(tmp_path: Path, finished: Path) -> None:
    (tmp_path / 'file').touch()
    places = {
        tmp_path / 'file': r'file cannot be written \(File exists\); make that possible, or name another folder',
        tmp_path / 'file' / 'x': r'x cannot be written \(Not a directory\)',
        finished / 'checkpoints': f'is the folder of the checkpoints of a run; name the run, {finished}$',
        '': "^run_dir is '' but must be the path of a folder$",
        3: '^run_dir is 3 but must be the path of a folder$',
    }
    for place, said in places.items():
        with pytest.raises(UserError, match=said):
            serial_pipeline(job_config(tmp_path), run_dir=place)  # type: ignore[arg-type]
    with pytest.raises(UserError, match='the run to resume and its new folder are both '):
        serial_pipeline(run_dir=finished, resume=finished / 'checkpoints' / 'best.safetensors')


@pytest.mark.parametrize(
    ('override', 'said'),
    [
        (
            'env.kwargs.action=box',
            r"actions Discrete\(2\) but env '.*' has Box \(\d+,\) float32 in -1 \.\. 1; resume with the env",
        ),
        ('env.id=CartPole-v1', 'resume with the env that it was trained on'),
        ('policy.model.hidden_sizes=[9]', 'does not fit'),
    ],
)
def test_resume_of_a_run_that_does_not_fit_is_refused_and_left_as_it_was(
    finished: Path, override: str, said: str
) -> None:
    before = _files(finished)
    with pytest.raises(CheckpointError, match=said):
        serial_pipeline(resume=finished, max_env_step=512, overrides=[override])
    assert _files(finished) == before


def test_named_folder_in_use_is_refused(tmp_path: Path) -> None:
    with SerialJob(resolve_config(job_config(tmp_path)), run_dir=tmp_path / 'mine') as job:
        job.iteration()
        job.save()
        before = _files(tmp_path / 'mine')
        with pytest.raises(UserError, match=r'mine is in use by process \d+ on host'):
            serial_pipeline(job_config(tmp_path), run_dir=tmp_path / 'mine')
        assert _files(tmp_path / 'mine') == before
        job.iteration()


def test_last_checkpoint_of_a_process_that_is_about_to_end_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job moves to another machine: the new process looks for the newest checkpoint while the old one is still saving."""
    mine = tmp_path / 'mine'
    with SerialJob(resolve_config(job_config(tmp_path)), run_dir=mine) as job:
        job.iteration()
        job.save()
        job.iteration()

        def found(folder: Path) -> Any:
            checkpoint = load_checkpoint(folder)
            job.finish()
            job.close()
            return checkpoint

        monkeypatch.setattr('zoo.run.launch.load_checkpoint', found)
        with pytest.raises(UserError, match=r'mine is in use by process \d+ on host'):
            serial_pipeline(job_config(tmp_path), run_dir=mine)
        job.finish()
    assert newest_in(mine) == mine / 'checkpoints' / 'step_000000128.safetensors'


@pytest.mark.long
def test_command_that_was_killed_continues_and_ends_when_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = dict(kwargs={'pause': 0.002})
    sections = dict(env=env, checkpoint=dict(freq=64), max_env_step=1024)
    config = config_file(tmp_path / 'a.yaml', tmp_path, 'tests.policy_envs:stuck_env', **sections)
    command = ['train', str(config), '--run', str(tmp_path / 'mine')]
    process = start_zoo(*command)
    wait_until(lambda: len(list((tmp_path / 'mine').glob('checkpoints/step_*.safetensors'))) > 1, process)
    process.kill()
    ended(process)
    n = load_checkpoint(tmp_path / 'mine').meta['env_step']
    assert 128 <= n < 1024
    with caplog.at_level('INFO'):
        assert main(command) == 0
    assert f'the run continues from step_{n:09d}.safetensors' in caplog.text
    assert load_checkpoint(tmp_path / 'mine').meta['env_step'] == 1024
    steps = [row['env_step'] for row in rows(tmp_path / 'mine') if 'learn/train_iter' in row]
    assert steps == list(range(64, 1025, 64))
    assert main(command) == 0 and 'nothing is left to train' in caplog.text


def test_root_is_that_of_the_folder_in_which_the_command_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An env may change the current folder when it is made. Paths in the config do not refer to that folder."""
    (tmp_path / 'here').mkdir()
    (tmp_path / 'of_env').mkdir()
    monkeypatch.chdir(tmp_path / 'here')
    first = serial_pipeline(job_config('runs'))

    def make() -> Any:
        os.chdir(tmp_path / 'of_env')
        return limit_env()

    second = serial_pipeline(job_config('runs', make, init_from=os.path.relpath(first.run_dir)))
    assert second.run_dir.parent == first.run_dir.parent == tmp_path / 'here' / 'runs' / 'run'
    assert not list((tmp_path / 'of_env').iterdir())


def test_root_below_the_home_folder_may_be_written_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    monkeypatch.chdir(tmp_path)
    run_dir = serial_pipeline(job_config('~/runs')).run_dir
    assert run_dir.parent == tmp_path / 'home' / 'runs' / 'run' and not Path('~').exists()
    assert serial_pipeline(resume=run_dir, max_env_step=320).run_dir == run_dir
