"""Messages between two processes of one machine, with file descriptors; POSIX."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct('<QI')  # bytes of the pickle that follows, and descriptors that come with it
_PART = 1 << 20  # bytes to read at once
_MAX_FDS = 16  # in one part; a message has one or two


class Channel:
    """One end of a stream socket that carries pickled messages. Both ends trust each other."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._bytes = end, bytearray()
        self._fds: list[int] = []  # received, of messages that are not complete yet

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._socket.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Sends all of a message; the descriptors stay open here. Raises: OSError; TimeoutError if the socket has one."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        data = _HEAD.pack(len(data), len(fds)) + data
        n_sent = socket.send_fds(self._socket, [data], fds) if fds else 0
        self._socket.sendall(memoryview(data)[n_sent:])

    def receive(self) -> tuple[Any, list[int]]:
        """Waits for the next message. Raises: EOFError if the other end is closed."""
        while not (message := self._next()):
            self._read()
        return message

    def read(self) -> list[tuple[Any, list[int]]]:
        """The messages that are complete after one read of the socket; for one that is ready. Raises: EOFError."""
        self._read()
        messages = []
        while message := self._next():
            messages.append(message)
        return messages

    def close(self) -> None:
        """Closes this end, and what was received and not taken. May be called again."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.pop())

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _PART, _MAX_FDS)
        except ConnectionResetError as error:  # the other end was closed before it had read all
            raise EOFError from error
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds += fds
        if not data:
            raise EOFError
        self._bytes += data

    def _next(self) -> tuple[Any, list[int]] | None:
        """The first message and its descriptors, if it is complete."""
        if len(self._bytes) < _HEAD.size:
            return None
        n_byte, n_fd = _HEAD.unpack_from(self._bytes)
        end = _HEAD.size + n_byte
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view:
            message = pickle.loads(view[_HEAD.size : end])
        del self._bytes[:end]
        fds, self._fds = self._fds[:n_fd], self._fds[n_fd:]
        return message, fds
