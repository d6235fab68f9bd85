from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from zoo.cluster.transport import Channel


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
    assert os.read(read, 1) == b''  # no end that could write is left
    os.close(read)


def test_end_that_stops_in_a_message_or_reads_nothing_counts_as_hung() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, patience=1.0)
    theirs.send(b'\0\0\0\x09half')  # a message of 9 bytes
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(BlockingIOError):
        channel.send(bytes(3 << 20))
    channel.close()
    theirs.close()
