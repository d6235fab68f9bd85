"""The standard streams of a command: closed ones, full disks and readers that leave early end in no traceback."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from zoo.core.errors import RunError


def open_closed_streams() -> None:
    """Standard streams that the caller closed lead to the null device: else the next file, a log, got their number."""
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest free number


def paint(text: str, color: str) -> str:
    """The text as a terminal shows it in a color: 'red', 'yellow'; as it is without a color, a terminal, or with NO_COLOR.

    NO_COLOR is the convention of no-color.org: set to anything but the empty text, it means no colors.
    """
    codes = {'red': 31, 'yellow': 33}
    if color not in codes or os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb' or not sys.stderr.isatty():
        return text
    return f'\033[{codes[color]}m{text}\033[0m'


def write_line(text: str) -> None:
    """Writes a line to stdout, at once: an error of its file must not come when the interpreter exits.

    Nothing is said where the reader has left, as of `zoo list envs | head`.
    Raises: RunError if the line cannot be written.
    """
    try:
        sys.stdout.write(f'{text}\n')
        sys.stdout.flush()
    except BrokenPipeError:
        _to_nowhere(sys.stdout)
    except OSError as error:
        _to_nowhere(sys.stdout)
        raise RunError(
            f'the output cannot be written ({error.strerror}); send it to another file, nothing else is lost'
        ) from error


def say(text: str) -> None:
    """Writes a line, or what is left of earlier ones if it is empty, to stderr, if that takes any."""
    try:
        sys.stderr.write(text and f'{text}\n')
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: TextIO) -> None:
    """What the stream still holds, and all that it is given, goes to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
