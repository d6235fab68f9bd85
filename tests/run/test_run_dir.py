"""Where a resumed run writes, and that it harms nothing which is there."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.policy_envs import job_config, rows
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('name', ['best.safetensors', 'step_000000128.safetensors'])
def test_resume_from_an_older_checkpoint_leaves_its_run_as_it_was(tmp_path: Path, name: str) -> None:
    first = serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64, keep_last=9)))
    before = _files(first.run_dir)
    second = serial_pipeline(resume=first.run_dir / 'checkpoints' / name, max_env_step=320)
    assert second.run_dir != first.run_dir and second.env_step == 320
    assert _files(first.run_dir) == before


def test_resume_under_another_name_starts_a_folder_of_that_name(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    before = _files(first.run_dir)
    second = serial_pipeline(resume=first.run_dir, max_env_step=320, overrides=['exp_name=tuned'])
    assert second.run_dir.parent.name == 'tuned' and _files(first.run_dir) == before


def test_resume_keeps_a_best_policy_that_came_after_the_last_checkpoint(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    best = first.run_dir / 'checkpoints' / 'best.safetensors'
    state, meta, _ = load_checkpoint(best)
    save_checkpoint(best, state, {**meta, 'best_return': 1000.0})  # as if the run was killed right after it
    result = serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert result.best_return == 1000.0 and load_checkpoint(best).meta['best_return'] == 1000.0


def test_resume_with_an_env_of_other_spaces_is_refused_with_both(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    before = _files(first.run_dir)
    with pytest.raises(CheckpointError, match="action_space.*'n': 2.*but the env has.*'box'"):
        serial_pipeline(resume=first.run_dir, max_env_step=512, overrides=['env.kwargs.action=box'])
    assert _files(first.run_dir) == before


def test_resume_with_another_env_of_the_same_spaces_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = serial_pipeline(job_config(tmp_path))
    with caplog.at_level(logging.WARNING):
        serial_pipeline(resume=first.run_dir, max_env_step=320, overrides=['env.id=tests.envs:LimitEnv'])
    assert 'was trained on env tests.envs:limit_env and continues with tests.envs:LimitEnv' in caplog.text


def test_resume_of_a_solved_run_stays_stopped_and_says_how_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    solved = job_config(tmp_path, max_env_step=10_000, policy=dict(eval=dict(eval_freq=128, stop_value=5.0)))
    first = serial_pipeline(solved)  # every return is 5
    assert serial_pipeline(resume=first.run_dir).env_step == first.env_step
    assert 'policy.eval.stop_value=null' in caplog.text
    on = serial_pipeline(resume=first.run_dir, max_env_step=256, overrides=['policy.eval.stop_value=null'])
    assert on.env_step == 256


def test_resume_after_a_resume_logs_one_history(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    for limit in (320, 384):
        serial_pipeline(resume=first.run_dir, max_env_step=limit)
    steps = [row['env_step'] for row in rows(first.run_dir)]
    assert steps == sorted(steps) and steps[-1] == 384


@pytest.mark.parametrize('root', ['/dev/null', '/proc/nothing'])
def test_root_that_cannot_hold_a_folder_is_the_users_error(tmp_path: Path, root: str) -> None:
    with pytest.raises(UserError, match='set logger.root'):
        serial_pipeline(job_config(tmp_path, logger=dict(root=root)))


def test_resume_without_a_best_checkpoint_remembers_the_best_return(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path, checkpoint=dict(keep_best=False)))
    newest = max((first.run_dir / 'checkpoints').iterdir())
    state, meta, _ = load_checkpoint(newest)
    state['counter']['best_return'] = 1000.0
    save_checkpoint(newest, state, meta)
    assert serial_pipeline(resume=first.run_dir, max_env_step=512).best_return == 1000.0


def test_resume_into_a_new_folder_takes_the_best_along(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path))
    second = serial_pipeline(resume=first.run_dir / 'checkpoints' / 'best.safetensors', overrides=['exp_name=on'])
    best = load_checkpoint(second.run_dir / 'checkpoints' / 'best.safetensors')
    assert (second.best_return, best.meta['best_return']) == (first.best_return, first.best_return)
    assert best.meta['env_step'] == load_checkpoint(first.run_dir / 'checkpoints' / 'best.safetensors').meta['env_step']


@pytest.mark.parametrize('override', ['seed=9', 'logger.root={}/elsewhere'])
def test_resume_that_would_be_named_otherwise_starts_a_folder(tmp_path: Path, override: str) -> None:
    first = serial_pipeline(job_config(tmp_path))
    override = override.format(tmp_path)
    second = serial_pipeline(resume=first.run_dir, max_env_step=320, overrides=[override])
    assert second.run_dir != first.run_dir and override.rpartition('=')[2] in str(second.run_dir)


def test_resume_of_a_killed_run_logs_no_evaluation_twice(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, checkpoint=dict(freq=64, keep_last=9), policy=dict(eval=dict(eval_freq=64)))
    first = serial_pipeline(cfg)
    for path in (first.run_dir / 'checkpoints').glob('step_*'):
        if path.name > 'step_000000064.safetensors':
            path.unlink()  # as if it was killed before they were written
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
