"""The two kinds of error a user can meet; the command line turns the first into exit code 2 and the second into 1.

What the code of an env raises is neither: it passes through, and carries the place of its env, see `env_failure`.
"""

from __future__ import annotations

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


def env_failure(error: BaseException) -> str | None:
    """What an env's own code raised, as a sentence with env, index, step and line; None for all other exceptions."""
    where, at = getattr(error, 'env_place', (None, None))
    return (
        None if where is None else f'{where}: its code raised {show_error(error)} ({at}); --debug shows the traceback'
    )
