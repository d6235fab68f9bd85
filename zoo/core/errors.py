"""The two kinds of error a user can meet, which the command line turns into exit codes 2 and 1; words of their messages."""

from __future__ import annotations

import importlib.util
import math
import reprlib
import traceback
from pathlib import Path


class UserError(ValueError):
    """What was asked for cannot be done as asked: a config, a name, a file."""


class RunError(RuntimeError):
    """A run that began well and failed: its env, its gradient, its disk."""


def place_of(error: BaseException) -> str:
    """'file:line' of the last line that ran before an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{Path(last.filename).name}:{last.lineno}'


def show_error(error: BaseException, n_max: int | None = None) -> str:
    """The type of an exception, and its message on one line, cut after n_max characters."""
    text = ' '.join(str(error).split())[:n_max]
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def brief(value: object) -> str:
    """A value in one short line, for a sentence about it."""
    return ' '.join(reprlib.repr(value).split())


def shown(value: object, n: int = 60) -> str:
    """The start of a value's repr."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = 'an integer too long to show' if isinstance(value, int) else f'a {type(value).__name__} too long to show'
    return text if len(text) <= n else f'{text[: n - 3]}...'


def around(n: int, wanted: int) -> str:
    """'64 or 128': the nearest divisors of n on both sides of a number; one of them where it is the only one."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = {*small, *(n // d for d in small)}
    below = max(d for d in divisors if d <= wanted)
    above = min((d for d in divisors if d >= wanted), default=None)
    return f'{below}' if above in (None, below) else f'{below} or {above}'


def of_entry(path: str) -> str:
    """How messages name the entry of an observation after the word; '' for one that is no Dict."""
    return f' {path!r}' if path else ''


def env_failure(error: BaseException) -> str | None:
    """What an env's own code raised, as a sentence with env, index, step and line; None for all other exceptions."""
    where, at = getattr(error, 'env_place', (None, None))
    return (
        None if where is None else f'{where}: its code raised {show_error(error)} ({at}); --debug shows the traceback'
    )


def need(module: str, extra: str, what: str) -> None:
    """Raises: UserError if a package is not installed, which says what needs it and how to install it.

    Args: module: 'matplotlib'; extra: of setup.py, 'plot'; what: that needs it, 'zoo plot'.
    """
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it is a part of
        is_there = False
    if not is_there:
        raise UserError(missing_extra(what, extra, module))


def missing_extra(what: str, extra: str, module: str | None = None) -> str:
    """The message for something that needs an extra, an optional dependency, which is not installed.

    Args: module: of the extra, where one is known to be missing.
    """
    needed = f'the {extra} extra' if module is None else module
    return f'{what} needs {needed}, which is not installed; run: {install_extra(extra)}'


def install_extra(extra: str) -> str:
    """The command that installs an extra: zoo is on no package index, so that its name there may be anybody's."""
    return f"pip install '.[{extra}]' in the checkout of zoo"
