"""An exception of a runner or a rank, in a form that reaches the process that started it."""

from __future__ import annotations

import pickle
import traceback
from typing import NamedTuple, NoReturn

from zoo.core.errors import RunError, UserError, show_error


class Failure(NamedTuple):
    """What a runner raised. error: the exception pickled; None if it cannot be; who: raised it, if it was no runner."""

    host: str
    words: str  # the exception's type and message
    trace: str  # its traceback as text
    is_user_error: bool = False
    error: bytes | None = None
    who: str = 'a runner'

    def raise_(self) -> NoReturn:
        """Raises the exception of the runner; one that cannot be sent as a RunError, or a UserError, with its words."""
        try:
            error = None if self.error is None else pickle.loads(self.error)
        except Exception:  # its class may not be found here, or need other arguments
            error = None
        if not isinstance(error, BaseException):
            error = (UserError if self.is_user_error else RunError)(f'{self.who} on {self.host} raised {self.words}')
        if hasattr(error, 'add_note'):  # from Python 3.11 on
            error.add_note(f'in {self.who} on {self.host}; its traceback:\n{self.trace}')
        if (place := getattr(error, 'env_place', None)) is not None:  # of which the command line makes a sentence
            error.env_place = f'{place[0]}, in {self.who} on {self.host}', place[1]  # type: ignore[attr-defined]
        raise error


def failure_of(error: BaseException, host: str, who: str = 'a runner') -> Failure:
    """An exception as a Failure."""
    trace = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # an __init__ with other arguments fails here, not at the learner
    except Exception:  # whatever its class raises
        pickled = None
    return Failure(host, show_error(error), trace, isinstance(error, UserError), pickled, who)
