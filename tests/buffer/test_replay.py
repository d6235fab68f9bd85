"""The replay buffer: its config, its state, and a run that learns from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.buffer.samples import is_whole, multi, numbered, push_numbered, replay, same
from tests.policy_envs import differing, job_config
from zoo.buffer import Buffer, ReplayBuffer, ReplayConfig
from zoo.config.section import ConfigError
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

LIMITED = dict(size=50, n_sample=8, update_per_collect=5, max_use=3, max_staleness=4)


def refused(**buffer: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve_config({'env': {'id': 'CartPole-v1'}, 'buffer': {'type': 'replay', **buffer}})
    return error.value.problems


def test_replay_buffer_is_registered_with_its_config():
    assert BUFFER_REGISTRY.get('replay') is ReplayBuffer and ReplayBuffer.config is ReplayConfig
    buffer: Buffer = replay()
    assert list(buffer.batches()) == []


@pytest.mark.parametrize(
    ('buffer', 'problem'),
    [
        (
            {'size': 100, 'n_sample': 256},
            'buffer: size is 100 but n_sample is 256: the buffer would never hold enough for '
            'a draw; use size 256 or more, or a smaller n_sample.',
        ),
        (
            {'max_use': 0},
            'buffer.max_use is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.',
        ),
        (
            {'max_staleness': -1},
            'buffer.max_staleness is -1 (integer) but must be an integer >= 0 or null; leave it out for null, the default.',
        ),
        (
            {'n_sample': 0},
            'buffer.n_sample is 0 (integer) but must be an integer >= 1; leave it out for 1024, the default.',
        ),
        (
            {'update_per_collect': 0},
            'buffer.update_per_collect is 0 (integer) but must be an integer >= 1; leave it out for 1, the default.',
        ),
        (
            {'device': 'gpu'},
            "buffer.device is 'gpu' (text) but must be one of 'auto', 'cpu'; leave it out for 'auto', the default.",
        ),
        ({'max_uses': 2}, 'unknown key buffer.max_uses: did you mean buffer.max_use?'),
    ],
)
def test_a_bad_section_is_refused_with_the_remedy(buffer: dict[str, Any], problem: str) -> None:
    assert refused(**buffer) == [problem]


@pytest.mark.parametrize('n_push', [0, 1, 4, 9])
def test_a_buffer_restored_from_a_file_draws_the_same_ever_after(tmp_path: Path, n_push: int) -> None:
    one, two = replay(1, **LIMITED), replay(2, **LIMITED)
    push_numbered(one, [16] * n_push)
    next(one.batches(), None)
    save_checkpoint(tmp_path / 'a.safetensors', {'buffer': one.state_dict()}, {})
    two.load_state_dict(load_checkpoint(tmp_path / 'a.safetensors').state['buffer'])
    n_batch = 0
    for k in range(8):
        if k:
            for buffer in (one, two):
                push_numbered(buffer, [11], first=1000 * k)
        for a, b in zip(one.batches(), two.batches(), strict=True):
            assert same(a, b) and is_whole(b)
            n_batch += 1
    assert n_batch >= 20
    assert not differing(one.state_dict(), two.state_dict())


def test_a_buffer_restored_into_a_smaller_one_keeps_the_use_counts_of_the_newest():
    one, two = (replay(size=size, n_sample=4, update_per_collect=1, max_use=1) for size in (12, 8))
    push_numbered(one, [8])
    used = next(one.batches())['id'].tolist()
    push_numbered(one, [6], first=8)  # 2 .. 13 are kept, 6 .. 13 fit
    two.load_state_dict(one.state_dict())
    left = set(range(6, 14)) - set(used)
    drawn = [i for _ in range(2) for batch in two.batches() for i in batch['id'].tolist()]
    assert len(drawn) == len(set(drawn)) == len(left) // 4 * 4 and set(drawn) <= left


def test_a_restored_buffer_shares_no_memory_with_the_state():
    one, two = replay(**LIMITED), replay(**LIMITED)
    push_numbered(one, [50])
    two.load_state_dict(one.state_dict())
    list(one.batches())
    push_numbered(one, [50], first=50)
    assert all(max(batch['id']) < 50 for batch in two.batches())
    assert two.state_dict()['draws']['all']['n_use'].sum() == 40  # its own 5 draws of 8


def test_state_holds_the_samples_once_and_only_those_pushed():
    buffer = replay(size=1000, n_sample=8)
    push_numbered(buffer, [7])
    data = buffer.state_dict()['ring']['data']
    assert [len(leaf) for _, leaf in leaves(data)] == [7] * 5
    assert data['adv'].data_ptr() == buffer._ring._data['adv'].data_ptr()  # views: saving copies nothing


def test_the_empty_state_of_a_rollout_buffer_leaves_it_empty():
    buffer = replay(size=8, n_sample=4)
    buffer.load_state_dict({})
    assert list(buffer.batches()) == []
    push_numbered(buffer, [4])
    assert len(list(buffer.batches())) == 1


def test_the_state_of_another_kind_of_buffer_is_refused():
    with pytest.raises(UserError, match=r"draws for \['policy', 'value'\] but this one draws for \['all'\]; resume"):
        replay().load_state_dict(multi().state_dict())


def test_samples_pushed_while_batches_are_read_are_drawn_from_at_once():
    buffer = replay(size=4, n_sample=4, update_per_collect=2)
    push_numbered(buffer, [4])
    batches = buffer.batches()
    first = next(batches)
    buffer.push(numbered(4, 4))
    assert sorted(next(batches)['id'].tolist()) == [4, 5, 6, 7]
    assert sorted(first['id'].tolist()) == [0, 1, 2, 3]


REPLAY = dict(type='replay', size=160, n_sample=64, update_per_collect=3)


def test_a_run_makes_the_draws_of_its_config(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path, 'CartPole-v1', max_env_step=256, buffer=REPLAY))
    # 4 rollouts x 3 draws x 2 epochs x 64 / 32 minibatches
    assert result.train_iter == 48


@pytest.mark.slow
@pytest.mark.parametrize(
    ('env_id', 'buffer'), [('CartPole-v1', REPLAY), ('Pendulum-v1', {**REPLAY, 'max_use': 4, 'max_staleness': 1})]
)
def test_a_resumed_run_equals_one_that_went_straight_on(tmp_path: Path, env_id: str, buffer: dict[str, Any]) -> None:
    cfg = job_config(tmp_path, env_id, max_env_step=400, buffer=buffer)
    with SerialJob(resolve_config(cfg)) as job:
        for i in range(6):
            if i == 3:
                job.reset_env()  # a resume starts new episodes
            job.iteration()
        straight = job.state_dict()
        straight = {key: straight[key] for key in ('policy', 'buffer')}
    with SerialJob(resolve_config(cfg)) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        run_dir = job.run_dir
    checkpoint = load_checkpoint(run_dir)
    with SerialJob(resolve_config(checkpoint.meta['config']), checkpoint=checkpoint) as job:
        for _ in range(3):
            job.iteration()
        resumed = job.state_dict()
        assert not differing({key: resumed[key] for key in straight}, straight)
