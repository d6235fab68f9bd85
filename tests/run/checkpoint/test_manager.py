"""A run that cannot save: a warning in the middle of the run; at its end an error that names what is lost and what is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.envs import LimitEnv
from tests.policy_envs import differing, job_config
from tests.run.processes import config_file, small_disk, small_files
from zoo.env import EnvError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.checkpoint.manager import SaveError
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.result import TrainResult
from zoo.tools.cli.command import main

LIMIT = 16_000  # largest size of a file in bytes: config.yaml and the log are smaller, a checkpoint is larger
LARGE = dict(model=dict(hidden_sizes=[64, 64]))


def run_dir_in(root: Path) -> Path:
    (run_dir,) = (root / 'run').iterdir()
    return run_dir


def temporary_files(run_dir: Path) -> list[Path]:
    return list(run_dir.rglob('*.tmp'))


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the last line on stderr."""
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_end_that_does_not_fit_on_the_disk_is_a_failed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path / 'disk', '2m') as disk:
        policy = dict(model=dict(hidden_sizes=[512, 512]))  # 1 MB per network, 3 MB with Adam's two means
        code = main(['train', str(config_file(tmp_path / 'config.yaml', disk, policy=policy))])
        run_dir = run_dir_in(disk)
        assert (code, told(capsys)) == (
            1,
            f'zoo: error: the end of the run, env step 256, is lost: checkpoint {run_dir}/checkpoints/step_000000256.'
            'safetensors could not be saved (No space left on device); no other one is saved',
        )
        assert not temporary_files(run_dir) and not list((run_dir / 'checkpoints').iterdir())


def test_end_over_the_file_size_limit_names_what_was_saved_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = serial_pipeline(job_config(tmp_path, max_env_step=128, policy=LARGE))
    saved = first.run_dir / 'checkpoints' / 'step_000000128.safetensors'
    with small_files(LIMIT):
        assert main(['train', '--resume', str(first.run_dir), 'max_env_step=256']) == 1
    assert told(capsys) == (
        f'zoo: error: the end of the run, env step 256, is lost: checkpoint {first.run_dir}/checkpoints/step_000000256.'
        f'safetensors could not be saved (File too large); saved last was env step 128, in {saved}'
    )
    assert load_checkpoint(first.run_dir).path == saved and not temporary_files(first.run_dir)


class StoppingEnv(LimitEnv):
    """LimitEnv in whose third step the process is asked to end by a signal."""

    n_step = 0

    def step(self, action: Any) -> Any:
        StoppingEnv.n_step += 1
        if StoppingEnv.n_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


stopping_env = StoppingEnv


def test_stopped_run_that_cannot_save_exits_as_failed_not_as_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StoppingEnv.n_step = 0
    env = dict(vectorization='sync')
    words = config_file(
        tmp_path / 'a.yaml', tmp_path, f'{__name__}:stopping_env', max_env_step=10**9, policy=LARGE, env=env
    )
    with small_files(LIMIT):
        assert main(['train', str(words)]) == 1
    last = told(capsys)
    assert 'is lost: checkpoint' in last and 'continue with' not in last


def test_save_that_fails_in_mid_run_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = job_config(tmp_path, checkpoint=dict(freq=64), policy=dict(eval=dict(eval_freq=64)))
    with SerialJob(resolve_config(cfg)) as job:
        blocker = job.run_dir / 'checkpoints'
        blocker.touch()
        job.iteration()
        assert [record.levelname for record in caplog.records] == ['WARNING', 'WARNING']  # the best, and the last
        assert all('training continues' in message for message in caplog.messages)
        blocker.unlink()
        job.iteration()
        job.finish()
    assert load_checkpoint(job.run_dir).meta['env_step'] == 128


def test_end_that_cannot_be_saved_gives_the_trained_policy(tmp_path: Path) -> None:
    with SerialJob(resolve_config(job_config(tmp_path))) as job:
        job.iteration()
        (job.run_dir / 'checkpoints').touch()
        with pytest.raises(SaveError, match='env step 64, is lost: .*no other one is saved') as caught:
            job.finish()
    result = caught.value.result
    assert isinstance(result, TrainResult) and result.policy is job.policy and result.env_step == 64


def test_pipeline_that_cannot_save_its_end_gives_the_trained_policy(tmp_path: Path) -> None:
    whole = serial_pipeline(job_config(tmp_path / 'a', policy=LARGE))
    with small_disk(tmp_path / 'disk', '32k') as disk:
        with pytest.raises(SaveError) as caught:
            serial_pipeline(job_config(disk, policy=LARGE))
    assert not differing(caught.value.result.policy.state_dict(), whole.policy.state_dict())


def test_error_that_is_not_of_a_run_is_raised_though_the_save_fails_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = SerialJob(resolve_config(job_config(tmp_path)))
    (job.run_dir / 'checkpoints').touch()
    with pytest.raises(ZeroDivisionError), job:
        job.iteration()
        _ = 1 / 0
    assert 'the end of the run is lost: checkpoint' in caplog.text


def test_save_that_fails_after_an_env_error_has_it_as_its_cause(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, 'tests.policy_envs:nan_env', env=dict(kwargs={'at': 20}))
    with pytest.raises(SaveError, match='it had failed: .*reward is nan') as caught:
        with SerialJob(resolve_config(cfg)) as job:
            (job.run_dir / 'checkpoints').touch()
            for _ in range(2):
                job.iteration()
    assert isinstance(caught.value.__cause__, EnvError)
