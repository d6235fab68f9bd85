"""Transport between processes of one machine: shared memory, and channels for messages and descriptors."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.cluster.runners import shared_names
from zoo.cluster.transport import BlockMemory, Channel, WeightSlots, map_memory, new_memory, read_blocks


def slots_of(n_byte: int, n_slot: int) -> tuple[WeightSlots, WeightSlots]:
    """Returns a writer and a reader of the same memory."""
    fd = WeightSlots.new(n_byte, n_slot)
    try:
        return WeightSlots(fd), WeightSlots(fd)
    finally:
        os.close(fd)


def loaded(slots: WeightSlots, version: int | None) -> tuple[int, list[int]]:
    found: list[tuple[int, list[int]]] = []
    assert slots.load(version, lambda weights, held: found.append((held, weights.tolist()))) == found[-1][0]
    return found[-1]


def filled(x: int) -> np.ndarray:
    return np.full(5, x, np.uint8)


def test_memory_is_shared_and_has_no_name() -> None:
    fd = new_memory(100)
    before = shared_names()
    a, b = map_memory(os.dup(fd)), map_memory(fd)
    a[7] = 3
    assert b[7] == 3 and b.shape == (100,)
    assert shared_names() == before


def test_versions_in_use_stay_whole_and_the_oldest_other_goes() -> None:
    writer, reader = slots_of(5, 3)
    for version in (0, 1, 2):
        writer.write(filled(10 + version), version, ())
    writer.write(filled(13), 3, {0})  # 0 is in use, so it replaces version 1
    assert loaded(reader, 0) == (0, [10] * 5)
    assert loaded(reader, 2) == (2, [12] * 5)
    assert loaded(reader, None) == (3, [13] * 5)
    with pytest.raises(RuntimeError, match='version 1 are gone'):
        loaded(reader, 1)
    with pytest.raises(RuntimeError, match=r'3 versions of the weights are all in use: \[0, 2, 3\]'):
        writer.write(filled(14), 4, {0, 2, 3})


def test_version_written_again_replaces_itself() -> None:
    writer, reader = slots_of(5, 2)
    writer.write(filled(1), 0, ())
    writer.write(filled(2), 1, ())
    writer.write(filled(3), 1, {0, 1})
    assert loaded(reader, 1) == (1, [3] * 5)
    assert loaded(reader, 0) == (0, [1] * 5)


def test_weights_overwritten_while_they_are_loaded_are_loaded_again() -> None:
    writer, reader = slots_of(5, 2)
    writer.write(filled(0), 0, ())
    seen: list[int] = []

    def load(weights: np.ndarray, version: int) -> None:
        if not seen:  # with 2 slots, version 2 overwrites the weights being read
            writer.write(filled(1), 1, ())
            writer.write(filled(2), 2, ())
        seen.append(version)
        assert len(seen) == 1 or weights.tolist() == [2] * 5

    assert reader.load(None, load) == 2
    assert seen == [0, 2]


def test_blocks_come_back_as_views_and_memory_is_recreated_only_to_grow() -> None:
    blocks = {
        'obs': np.arange(12, dtype=np.float32).reshape(3, 4),
        'fortran': np.asfortranarray(np.arange(6).reshape(2, 3)),
        'strided': np.arange(10)[::2],
        'empty': np.empty((0, 2)),
        'done': np.array(True),
    }
    memory = BlockMemory()
    packed, fd = memory.write(blocks)
    assert fd is not None
    here = map_memory(fd)
    found = read_blocks(packed, here)
    assert {k: (x.dtype, x.shape, x.tolist()) for k, x in found.items()} == {
        k: (x.dtype, x.shape, x.tolist()) for k, x in blocks.items()
    }
    assert np.shares_memory(found['obs'], here) and found['obs'].flags.writeable
    packed, fd = memory.write({'obs': np.full(3, 9.0)})
    assert fd is None
    assert read_blocks(packed, here)['obs'].tolist() == [9.0] * 3
    assert memory.write({'obs': np.zeros(1000)})[1] is not None


# --- channels


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = map(Channel, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_read_gives_all_complete_messages_in_order(channels: tuple[Channel, Channel]) -> None:
    a, b = channels
    for i in range(3):
        a.send({'i': i})
    assert list(b.read()) == [({'i': 0}, []), ({'i': 1}, []), ({'i': 2}, [])]


def test_read_of_a_message_larger_than_the_socket_gives_it_whole(channels: tuple[Channel, Channel]) -> None:
    a, b = channels
    data = os.urandom(3 << 20)  # more than the socket holds
    sender = threading.Thread(target=a.send, args=(data,))
    sender.start()
    messages = list(b.read())
    sender.join()
    assert messages == [(data, [])]


def test_descriptors_come_with_their_messages(channels: tuple[Channel, Channel]) -> None:
    a, b = channels
    pipes = [os.pipe() for _ in range(3)]
    a.send('two', [pipes[0][1], pipes[1][1]])
    a.send('none')
    a.send('one', [pipes[2][1]])
    received = [b.receive() for _ in range(3)]
    assert [(message, len(fds)) for message, fds in received] == [('two', 2), ('none', 0), ('one', 1)]
    for i, fd in enumerate(fd for _, fds in received for fd in fds):
        assert not os.get_inheritable(fd)
        os.write(fd, b'%d' % i)
        assert os.read(pipes[i][0], 9) == b'%d' % i
        for each in (fd, *pipes[i]):
            os.close(each)


@pytest.mark.parametrize('n_unread', [0, 1])
def test_closed_other_end_raises_after_what_it_sent(n_unread: int, channels: tuple[Channel, Channel]) -> None:
    a, b = channels
    a.send('last')
    for _ in range(n_unread):
        b.send('never read')
    a.close()
    assert b.receive() == ('last', [])
    with pytest.raises(EOFError):
        b.receive()


def test_close_closes_descriptors_that_were_not_taken(channels: tuple[Channel, Channel]) -> None:
    a, b = channels
    read, write = os.pipe()
    a.send('x', [write])
    os.close(write)
    b.close()
    assert os.read(read, 1) == b''  # end of file: no write end is open
    os.close(read)


@pytest.mark.long
def test_end_that_stops_in_a_message_or_reads_nothing_counts_as_hung() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, patience=0.2)
    theirs.send(b'\0\0\0\x09half')  # a message of 9 bytes
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(BlockingIOError):
        channel.send(bytes(3 << 20))
    channel.close()
    theirs.close()
