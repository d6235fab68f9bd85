"""Text for terminals, in columns, without control characters and passwords; levels and warnings of loggers; closed standard streams."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TextIO

from zoo.core.errors import RunError

_USER = re.compile(r'((?:://|(?<=\w\w):/))[^/?#\s"\'<>]+@')  # a Path has one slash
HIDDEN = '***@'


def without_passwords(text: str) -> str:
    """The text with *** for user and password of each URI: 'http://***@host'; used for all text stored, sent or shown."""
    if '@' in text:
        return _USER.sub(rf'\1{HIDDEN}', text)
    return text


def visible(text: str, kept: str = '\n\t\u00a0\u3000') -> str:
    """The text for a terminal: no passwords; control characters, which other people's files may contain, are escaped."""
    text = without_passwords(text)
    if text.isprintable():
        return text
    return ''.join(c if c.isprintable() or c in kept else repr(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """The text in one line for a terminal: control characters are escaped, words of over 300 characters are cut."""
    return re.sub(r'(\S{300})\S+', r'\1...', visible(text, kept=''))


class LogFormat(logging.Formatter):
    """Formats lines of the log as 'zoo: message', see `visible`; on a terminal, 'zoo:' is yellow in warnings, red in errors."""

    def __init__(self, name: str = 'zoo:') -> None:
        super().__init__('%(message)s')
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        colors = {logging.WARNING: 'yellow', logging.ERROR: 'red', logging.CRITICAL: 'red'}
        return f'{paint(self._name, colors.get(record.levelno, ""))} {visible(super().format(record))}'


CLEAR_LINE = '\r\x1b[K'
"""Goes to the begin of a terminal's line, and empties it."""


class ClearingFormat(logging.Formatter):
    """Formats lines of the log as another formatter does, in place of what stands in the terminal's line.

    Args: inner: the other formatter; None: that of logging.
    """

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return f'{CLEAR_LINE}{self._inner.format(record)}'


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can rewrite a line."""
    return stream.isatty() and os.environ.get('TERM') != 'dumb'


@contextmanager
def log_levels(levels: Mapping[str, int]) -> Iterator[None]:
    """Sets the levels of loggers, by name, while the context lasts."""
    before = {logging.getLogger(name): logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


class LoadWarning:
    """A warning that comes once for each `load_state_dict` of torch, in however many modules of the model its cause is.

    Args: logger, text: of the warning.
    """

    def __init__(self, logger: logging.Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._load: list[str] | None = None

    def log(self, errors: list[str]) -> None:
        """Called by a module. Args: errors: the last argument of `_load_from_state_dict`, one list for all modules of a load."""
        if errors is not self._load:
            self._load = errors  # while it is kept, no later load has a list with the same id
            self._logger.warning('%s', self._text)


def open_closed_streams() -> None:
    """Opens standard streams that the caller closed on the null device: else the next file, e.g. a log, gets their number."""
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))  # the lowest free number


def standard(name: Literal['stdout', 'stderr']) -> TextIO:
    """A standard stream, for a write right now: the present one, or the first one if that was removed or closed, as by an env."""
    for stream in (getattr(sys, name), getattr(sys, f'__{name}__')):
        if stream is not None and not getattr(stream, 'closed', False):
            return stream
    return open(os.devnull, 'w')  # noqa: SIM115  # there is nobody to write to


def paint(text: str, color: str) -> str:
    """The text in a color, 'red' or 'yellow'; unmodified for another color, without a terminal, or with NO_COLOR.

    NO_COLOR is the convention of no-color.org: set to anything but the empty text, it means no colors.
    """
    codes = {'red': 31, 'yellow': 33}
    if (
        color not in codes
        or os.environ.get('NO_COLOR')
        or os.environ.get('TERM') == 'dumb'
        or not standard('stderr').isatty()
    ):
        return text
    return f'\033[{codes[color]}m{text}\033[0m'


def columns(rows: Iterable[tuple[str, ...]], indent: str = '') -> str:
    """Rows as lines with aligned columns; the last column may be of any length."""
    rows = list(rows)
    widths = [
        max((len(row[i]) for row in rows if len(row) > i + 1), default=0) for i in range(max(map(len, rows), default=0))
    ]
    lines = ['  '.join(f'{word:<{width}}' for word, width in zip(row, widths, strict=False)) for row in rows]
    return '\n'.join(f'{indent}{line}'.rstrip() for line in lines)


def write_line(text: str) -> None:
    """Writes a line to stdout and flushes it: an error of its file must not come when the interpreter exits.

    Characters that the encoding of stdout lacks are escaped, as Python does on stderr.
    Raises: RunError if the line cannot be written; not if the reader has closed the pipe, as in `zoo list envs | head`.
    """
    stdout = standard('stdout')
    encoding = getattr(stdout, 'encoding', None) or 'utf-8'  # an object of the user's may have none
    try:
        stdout.write(visible(f'{text}\n').encode(encoding, 'backslashreplace').decode(encoding))
        stdout.flush()
    except BrokenPipeError:
        _to_nowhere(stdout)
    except OSError as error:
        _to_nowhere(stdout)
        raise RunError(
            f'the output cannot be written ({error.strerror}); send it to another file, nothing else is lost'
        ) from error


def say(text: str, mark: str = '') -> None:
    """Writes a line to stderr; an empty text only flushes earlier ones. Args: mark: colored words before the text."""
    stderr = standard('stderr')
    try:
        stderr.write(text and f'{mark}{visible(text)}\n')
        stderr.flush()
    except OSError:
        _to_nowhere(stderr)


def _to_nowhere(stream: TextIO) -> None:
    """Redirects a stream to the null device, with the text that it still buffers."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
