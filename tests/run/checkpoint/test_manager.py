"""A run that cannot save says what is lost and what is left; each rank has a file with its own samples."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.envs import LimitEnv
from tests.policy_envs import differing, job_config
from tests.run.processes import config_file, small_disk, small_files
from tests.thread_ranks import on_ranks
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.env import EnvError
from zoo.pipeline import serial_pipeline
from zoo.run.base_config import CheckpointConfig
from zoo.run.checkpoint.file import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.checkpoint.manager import (
    CheckpointManager,
    LearnerFile,
    SaveError,
    learner_file,
    of_rank,
    rank_file,
    save_own,
)
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.policy_file import load_policy
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


class WideEnv(LimitEnv):
    """An env with a long vector as its observation. high: of its entries."""

    high: Any = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-1.0, self.high, (600_000,))

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return np.zeros(600_000, np.float32), {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.zeros(600_000, np.float32), *rest


class UnequalEnv(WideEnv):
    high = np.linspace(1.0, 2.0, 600_000, dtype=np.float32)


def wide_config(root: Path, env: type) -> dict[str, Any]:
    """Four steps of one env."""
    learn = dict(batch_size=4, epoch_per_collect=1)
    policy = dict(model=dict(hidden_sizes=[1]), learn=learn, collect=dict(n_step=4), eval=dict(n_episode=1))
    return job_config(root, env, max_env_step=4, env=dict(collector_env_num=1, evaluator_env_num=1), policy=policy)


@pytest.mark.slow
def test_long_vector_with_equal_bounds_is_saved_and_loaded(tmp_path: Path) -> None:
    result = serial_pipeline(wide_config(tmp_path, WideEnv))
    assert load_policy(result.run_dir, trust=True).obs_space == result.policy.obs_space


def test_space_that_no_checkpoint_holds_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='the observation space has bounds, or numbers of values, that differ'):
        serial_pipeline(wide_config(tmp_path, UnequalEnv))
    assert not [*tmp_path.rglob('*.safetensors')]


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


# --- files with the samples of each rank ---


def state_of(rank: int, keeps: bool = True) -> dict[str, Any]:
    """Returns a rank's state: the policy is the same on all ranks, the buffer is the rank's own."""
    return {
        'policy': {'w': torch.ones(2)},
        'buffer': {'obs': torch.full((3,), float(rank))} if keeps else {},
        'memory': {},
    }


def saved(folder: Path, steps: list[int], size: int = 2, keep_last: int = 2, keeps: bool = True) -> None:
    """Saves checkpoints at these env steps with `size` ranks."""

    def work(ranks: Ranks) -> None:
        manager = CheckpointManager(folder, CheckpointConfig(keep_last=keep_last), ranks=ranks)
        for step in steps:
            manager.save(step, state_of(ranks.rank, keeps), {'rank_num': size})
            ranks.gather(None)  # in a run, a whole rollout lies between two saves

    on_ranks(work, size)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / 'checkpoints').iterdir())


def samples(checkpoint: Checkpoint) -> list[float] | None:
    return checkpoint.state['buffer']['obs'].tolist() if checkpoint.state['buffer'] else None


def test_each_rank_finds_its_own_samples_and_the_policy_of_all(tmp_path: Path) -> None:
    saved(tmp_path, [64])
    main = load_checkpoint(tmp_path)
    found = on_ranks(lambda ranks: of_rank(main, ranks, ranks.size))
    assert [samples(each) for each in found] == [[0, 0, 0], [1, 1, 1]]
    assert all(each.state['policy'] is main.state['policy'] and each.path == main.path for each in found)


def test_files_are_removed_with_their_step_and_without_it(tmp_path: Path) -> None:
    saved(tmp_path, [64, 128])
    (tmp_path / 'checkpoints' / 'step_000000100.rank_1.safetensors').touch()  # as if killed before the main file
    saved(tmp_path, [192])
    assert names(tmp_path) == [f'step_000000{n}{part}.safetensors' for n in (128, 192) for part in ('.rank_1', '')]
    assert load_checkpoint(tmp_path).path.name == 'step_000000192.safetensors'


def test_each_learner_has_a_file_and_one_for_the_samples_of_each_further_rank(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        prey = LearnerFile(state_of(ranks.rank + 7), {'rank_num': 2})
        manager = CheckpointManager(tmp_path, CheckpointConfig(keep_last=1), ranks=ranks)
        for step in (64, 128):
            manager.save(step, state_of(ranks.rank), {'rank_num': 2}, {'prey': prey})
            ranks.gather(None)

    on_ranks(work, 2)
    parts = ('.prey.rank_1', '.prey', '.rank_1', '')
    assert names(tmp_path) == [f'step_000000128{part}.safetensors' for part in parts]
    prey = load_checkpoint(learner_file(tmp_path / 'checkpoints' / 'step_000000128.safetensors', 'prey'))
    found = on_ranks(lambda ranks: of_rank(prey, ranks, ranks.size))
    assert [samples(each) for each in found] == [[7, 7, 7], [8, 8, 8]]


def test_main_file_is_written_after_those_of_other_learners(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, CheckpointConfig())
    main = tmp_path / 'checkpoints' / 'step_000000064.safetensors'
    learner_file(main, 'prey').mkdir(parents=True)  # a folder: no file can replace it
    with pytest.raises(SaveError, match='no other one is saved'):
        manager.save(64, state_of(0), {}, {'prey': LearnerFile(state_of(1), {})})
    assert not main.exists()


def test_ranks_without_samples_write_no_files(tmp_path: Path) -> None:
    saved(tmp_path, [64], keeps=False)
    assert names(tmp_path) == ['step_000000064.safetensors']


def test_rank_that_cannot_write_leaves_the_step_out_on_all(tmp_path: Path) -> None:
    path = tmp_path / 'checkpoints' / 'step_000000064.safetensors'
    rank_file(path, 1).mkdir(parents=True)  # a folder: no file can replace it

    def work(ranks: Ranks) -> str:
        with pytest.raises(SaveError) as caught:
            CheckpointManager(tmp_path, CheckpointConfig(), ranks=ranks).save(64, state_of(ranks.rank), {})
        return str(caught.value)

    one, other = on_ranks(work)
    assert one == other and 'the part of rank 1 (' in one and 'no other one is saved' in one
    assert not path.exists()


@pytest.mark.parametrize('size', [1, 3])
def test_another_number_of_ranks_begins_without_samples(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, [64])
    main = load_checkpoint(tmp_path)
    found = [of_rank(main, ALONE, 1)] if size == 1 else on_ranks(lambda ranks: of_rank(main, ranks, ranks.size), size)
    assert [samples(each) for each in found] == [None] * size and main.state['buffer']
    assert caplog.messages == [
        f'{main.path}: it was written by 2 ranks and this run has {size}, so that its samples (buffer, auxiliary memory) are '
        'left out'
    ]


def test_missing_file_of_a_rank_leaves_the_samples_of_all_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, [64])
    main = load_checkpoint(tmp_path)
    rank_file(main.path, 1).unlink()
    assert [samples(each) for each in on_ranks(lambda ranks: of_rank(main, ranks, ranks.size))] == [None, None]
    assert len(caplog.messages) == 1 and 'there is no step_000000064.rank_1.safetensors, so that' in caplog.text


def test_checkpoint_of_one_process_or_without_samples_is_taken_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path / 'alone.safetensors', state_of(0), {})
    alone = load_checkpoint(tmp_path / 'alone.safetensors')
    assert of_rank(alone, ALONE, 1) is alone
    saved(tmp_path, [64], keeps=False)
    main = load_checkpoint(tmp_path)
    assert all(
        each is main for each in [of_rank(main, ALONE, 1), *on_ranks(lambda ranks: of_rank(main, ranks, ranks.size), 3)]
    )
    assert not caplog.messages


def test_damaged_file_of_a_rank_is_named(tmp_path: Path) -> None:
    saved(tmp_path, [64])
    main = load_checkpoint(tmp_path)
    rank_file(main.path, 1).write_bytes(b'no checkpoint')

    def work(ranks: Ranks) -> str:
        if ranks.rank == 0:
            return str(of_rank(main, ranks, ranks.size).path)
        with pytest.raises(CheckpointError) as caught:
            of_rank(main, ranks, ranks.size)
        return str(caught.value)

    assert 'step_000000064.rank_1.safetensors' in on_ranks(work)[1]


def test_only_samples_are_taken_from_the_file_of_a_rank(tmp_path: Path) -> None:
    saved(tmp_path, [64])
    main = load_checkpoint(tmp_path)
    save_checkpoint(rank_file(main.path, 1), {**state_of(5), 'policy': {'w': torch.zeros(2)}}, {})
    other = on_ranks(lambda ranks: of_rank(main, ranks, ranks.size))[1]
    assert samples(other) == [5, 5, 5] and other.state['policy']['w'].tolist() == [1, 1]


def test_rank_0_writes_no_file_of_its_own(tmp_path: Path) -> None:
    assert rank_file(tmp_path / 'step_7.safetensors', 2) == tmp_path / 'step_7.rank_2.safetensors'
    save_own(tmp_path / 'new' / 'step_7.safetensors', 2, state_of(2), {})
    assert load_checkpoint(tmp_path / 'new' / 'step_7.rank_2.safetensors').state.keys() == {'buffer'}
