"""The on-policy buffer: every block once, in order, nothing kept."""

from __future__ import annotations

import pytest
import torch

from zoo.buffer import BufferConfig, RolloutBuffer
from zoo.config.section import ConfigError, validate
from zoo.core.registry import BUFFER_REGISTRY


def block(k: int) -> dict[str, torch.Tensor]:
    return {'adv': torch.full((4,), float(k))}


def test_rollout_buffer_is_registered_with_its_config():
    assert BUFFER_REGISTRY.get('rollout') is RolloutBuffer and RolloutBuffer.config is BufferConfig
    assert validate(BufferConfig, {}).type == 'rollout'
    with pytest.raises(ConfigError, match='size'):
        validate(BufferConfig, {'size': 3})


@pytest.mark.parametrize('n', [0, 1, 3])
def test_rollout_buffer_yields_what_was_pushed_once_and_in_order(n):
    buffer, blocks = RolloutBuffer(), [block(k) for k in range(n)]
    for samples in blocks:
        buffer.push(samples)
    got = list(buffer.batches())
    assert len(got) == n and all(x is y for x, y in zip(got, blocks, strict=True))  # not copied
    assert list(buffer.batches()) == []


def test_rollout_buffer_goes_on_after_it_was_emptied():
    buffer = RolloutBuffer(BufferConfig(), seed=3)
    for k in range(3):
        buffer.push(block(k))
        assert [batch['adv'][0].item() for batch in buffer.batches()] == [k]


def test_a_block_pushed_while_batches_are_read_waits_for_the_next_round():
    buffer = RolloutBuffer()
    buffer.push(block(0))
    for batch in buffer.batches():
        buffer.push(block(1))
        assert batch['adv'][0] == 0
    assert [batch['adv'][0].item() for batch in buffer.batches()] == [1]


def test_rollout_buffer_has_no_state_to_save():
    buffer = RolloutBuffer()
    assert buffer.state_dict() == {}
    buffer.load_state_dict(buffer.state_dict())
    assert list(buffer.batches()) == []


def test_rollout_buffer_keeps_a_copy_of_what_is_about_to_be_overwritten():
    buffer, block = RolloutBuffer(), {'obs': {'x': torch.zeros(3)}, 'adv': torch.zeros(3)}
    buffer.keep()  # nothing is there
    buffer.push(block)
    buffer.keep()
    block['obs']['x'].fill_(1)
    block['adv'].fill_(1)
    buffer.push(block)
    first, second = buffer.batches()
    assert first['obs']['x'].sum() == first['adv'].sum() == 0 and second['adv'] is block['adv']
