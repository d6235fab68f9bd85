"""Files next to a checkpoint with the samples of each rank: written first, found again, left out if they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.thread_ranks import on_ranks
from zoo.core.ranks import ALONE, Ranks
from zoo.run.base_config import CheckpointConfig
from zoo.run.checkpoint.file import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.checkpoint.manager import CheckpointManager, SaveError, of_rank, rank_file, save_own


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
