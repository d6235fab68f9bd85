"""Contracts of every registered buffer, and a resumed run that keeps its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.buffer.samples import multi, push_numbered, replay, same
from tests.policy_envs import differing, job_config
from zoo.buffer import BufferConfig, MultiBuffer, MultiConfig, ReplayBuffer, ReplayConfig, RolloutBuffer
from zoo.config.section import validate
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY
from zoo.policy import PPOOffPolicy
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

CLASSES = {
    'rollout': (RolloutBuffer, BufferConfig),
    'replay': (ReplayBuffer, ReplayConfig),
    'multi': (MultiBuffer, MultiConfig),
}
buffers = pytest.mark.parametrize('name', sorted(BUFFER_REGISTRY.names()))
DRAW = dict(n_sample=8, update_per_collect=5, max_use=3, max_staleness=4)
PARTS = dict(policy=dict(n_sample=4, update_per_collect=2, max_staleness=0), value={**DRAW, 'n_sample': 6})
KINDS: dict[str, dict[str, Any]] = {
    'replay': dict(type='replay', size=50, **DRAW),
    'replay by priority': dict(type='replay', size=50, **DRAW, alpha=0.7),
    'multi': dict(type='multi', size=50, **PARTS),
    'multi with sizes': dict(type='multi', size=50, policy=PARTS['policy'], value={**PARTS['value'], 'size': 30}),
}


def make(seed: int, type: str, **fields: Any) -> Any:
    cls = BUFFER_REGISTRY.get(type)
    return cls(validate(cls.config, fields, 'buffer'), seed)


def drawn(buffer: Any) -> list[dict[str, Any]]:
    """All batches of a round, each part separately; writes priorities into them, in 'replay' the sample's number + 1."""
    found = []
    for batch in buffer.batches():
        parts = {'all': batch} if 'id' in batch else batch
        found += [{**each, 'part': part} for part, each in parts.items()]
        batch['priority'] = batch['id'] + 1.0 if 'id' in batch else torch.zeros(1)
    return found


@buffers
def test_buffer_is_registered_with_its_config_and_starts_empty_also_from_an_empty_state(name: str) -> None:
    buffer = make(0, name)
    assert (type(buffer), buffer.config) == CLASSES[name] and validate(buffer.config, {}).type == name
    buffer.load_state_dict({})
    assert list(buffer.batches()) == []
    push_numbered(buffer, [1024])  # the default size of a draw
    assert len(list(buffer.batches())) == 1


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('n_push', [0, 1, 9])
def test_buffer_restored_from_a_file_draws_the_same_ever_after(tmp_path: Path, kind: str, n_push: int) -> None:
    one, two = make(1, **KINDS[kind]), make(2, **KINDS[kind])
    push_numbered(one, [16] * n_push)
    next(one.batches(), None) if kind != 'replay by priority' else drawn(one)
    save_checkpoint(tmp_path / 'a.safetensors', {'buffer': one.state_dict()}, {})
    two.load_state_dict(load_checkpoint(tmp_path / 'a.safetensors').state['buffer'])
    n_batch = 0
    for k in range(6):
        if k:
            push_numbered(one, [11], first=1000 * k)
            push_numbered(two, [11], first=1000 * k)
        for a, b in zip(drawn(one), drawn(two), strict=True):
            assert a.pop('part') == b.pop('part') and same(a, b)
            n_batch += 1
    assert n_batch >= 14
    assert not differing(one.state_dict(), two.state_dict())


def test_restored_buffer_shares_no_memory_with_the_state() -> None:
    one, two = make(0, **KINDS['replay']), make(0, **KINDS['replay'])
    push_numbered(one, [50])
    two.load_state_dict(one.state_dict())
    list(one.batches())
    push_numbered(one, [50], first=50)
    assert all(max(batch['id']) < 50 for batch in two.batches())
    assert two.state_dict()['draws']['all']['n_use'].sum() == 40  # its own 5 draws of 8


def test_buffer_restored_into_a_smaller_one_keeps_the_use_counts_of_the_newest() -> None:
    one, two = (replay(size=size, n_sample=4, update_per_collect=1, max_use=1) for size in (12, 8))
    push_numbered(one, [8])
    used = next(one.batches())['id'].tolist()
    push_numbered(one, [6], first=8)  # 2 .. 13 are kept, 6 .. 13 fit
    two.load_state_dict(one.state_dict())
    left = set(range(6, 14)) - set(used)
    again = [i for _ in range(2) for batch in two.batches() for i in batch['id'].tolist()]
    assert len(again) == len(set(again)) == len(left) // 4 * 4 and set(again) <= left


@pytest.mark.parametrize('alpha', [0.0, 0.6])
def test_samples_in_the_rows_of_older_ones_have_no_uses_yet(alpha: float) -> None:
    buffer = replay(size=8, n_sample=8, update_per_collect=1, max_use=1, alpha=alpha)
    for first in (0, 8, 16):
        push_numbered(buffer, [8], first)
        drawn = []
        for batch in buffer.batches():
            drawn += batch['id'].tolist()
            batch['priority'] = torch.ones(8)
        assert sorted(drawn) == list(range(first, first + 8))


def test_state_holds_the_samples_once_and_only_those_pushed() -> None:
    for buffer in (replay(size=1000, n_sample=8), multi(size=1024, value={'n_sample': 8}, policy={'n_sample': 8})):
        push_numbered(buffer, [7])
        data, again = (buffer.state_dict()['ring']['data'] for _ in range(2))
        assert [len(leaf) for _, leaf in leaves(data)] == [7] * 5
        assert data['adv'].data_ptr() == again['adv'].data_ptr()  # views: saving copies nothing


def test_state_of_another_kind_of_buffer_is_refused() -> None:
    words = r"draws for \['policy', 'value'\] but this one draws for \['all'\]; resume"
    with pytest.raises(UserError, match=words):
        replay().load_state_dict(multi().state_dict())
    with pytest.raises(UserError, match=r"draws for \['all'\] but this one draws for \['policy', 'value'\]; resume"):
        multi().load_state_dict(replay().state_dict())


def learn_and_rank(self: Any, batch: Any) -> Any:
    """PPO's update on a draw, and the size of the advantages as priorities."""
    metrics = PPOOffPolicy._forward_learn(self, dict(batch))
    batch['priority'] = batch['adv'].abs()
    return metrics


@pytest.mark.slow
def test_resumed_run_with_priorities_equals_one_that_was_not_stopped(tmp_path: Path, forgets_policies: None) -> None:
    PPOOffPolicy.with_updates('ranking', _forward_learn=learn_and_rank, writes_priority=True)
    buffer = dict(type='replay', size=160, n_sample=64, update_per_collect=3, alpha=0.6, max_use=8, max_staleness=1)
    cfg = job_config(tmp_path, 'CartPole-v1', max_env_step=400, policy=dict(type='ranking'), buffer=buffer)
    with SerialJob(resolve_config(cfg)) as job:
        for i in range(6):
            if i == 3:
                job.reset_env()  # a resume starts new episodes
            job.iteration()
        assert job.train_iter == 72  # 6 rollouts x 3 draws x 2 epochs x 64 / 32 minibatches
        straight = {key: job.state_dict()[key] for key in ('policy', 'buffer')}
        assert len(straight['buffer']['draws']['all']['priority'].unique()) > 32  # the policy wrote them back
    with SerialJob(resolve_config(cfg)) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        run_dir = job.run_dir
    checkpoint = load_checkpoint(run_dir)
    with SerialJob(resolve_config(checkpoint.meta['config']), checkpoint=checkpoint) as job:
        for _ in range(3):
            job.iteration()
        assert not differing({key: job.state_dict()[key] for key in straight}, straight)
