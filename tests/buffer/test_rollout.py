"""Buffer 'rollout': every block once and in order, and copies of blocks that are about to be overwritten."""

from __future__ import annotations

import pytest
import torch

from zoo.buffer import RolloutBuffer


@pytest.mark.parametrize('n', [1, 3])
def test_rollout_buffer_yields_what_was_pushed_once_and_in_order(n: int) -> None:
    buffer, blocks = RolloutBuffer(), [{'adv': torch.full((4,), float(k))} for k in range(n)]
    for _ in range(2):  # it still works after it was emptied
        for samples in blocks:
            buffer.push(samples)
        assert buffer.state_dict() == {} and not buffer.is_empty
        got = list(buffer.batches())
        assert len(got) == n and all(x is y for x, y in zip(got, blocks, strict=True))  # not copied
        assert list(buffer.batches()) == [] and buffer.is_empty


def test_block_pushed_while_batches_are_read_waits_for_the_next_round() -> None:
    buffer, (first, second) = RolloutBuffer(), [{'adv': torch.full((4,), float(k))} for k in range(2)]
    buffer.push(first)
    for batch in buffer.batches():
        buffer.push(second)
        assert batch is first
    assert [batch is second for batch in buffer.batches()] == [True]


def test_rollout_buffer_keeps_a_copy_of_what_is_about_to_be_overwritten() -> None:
    buffer, block = RolloutBuffer(), {'obs': {'x': torch.zeros(3)}, 'adv': torch.zeros(3)}
    buffer.keep()  # the buffer is empty
    buffer.push(block)
    buffer.keep()
    block['obs']['x'].fill_(1)
    block['adv'].fill_(1)
    buffer.push(block)
    first, second = buffer.batches()
    assert first['obs']['x'].sum() == first['adv'].sum() == 0 and second['adv'] is block['adv']
