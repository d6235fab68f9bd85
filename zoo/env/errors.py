"""Errors of envs: they name the env, the step, the fault and the remedy."""

from __future__ import annotations

import os
import re
import traceback
from dataclasses import dataclass
from types import FrameType

import gymnasium
import numpy as np

from zoo.core.errors import RunError, UserError, show_error
from zoo.core.processes import STOP_REQUESTS

STOPS = STOP_REQUESTS
"""Exceptions that ask the process to stop. Any other exception that leaves env code, BaseExceptions too, is the env's failure."""
_PART = re.compile(r'\[(\d+):\d+\]$')  # the envs of a group among all envs, see `make_vector_env`
_LIBRARIES = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ''),  # zoo
    *(os.path.join(os.path.dirname(str(module.__file__)), '') for module in (gymnasium, np)),
)
_STANDARD = os.path.join(os.path.dirname(os.__file__), '')
NOT_RESTARTED = ' (env.on_error=restart replaces an env that raises, hangs or dies, not one that returns a wrong value)'


class EnvError(RunError):
    """An env failed, or returned something that a run cannot continue with."""


class NoAnswerError(EnvError):
    """A call of an env did not return in time."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class BrokenContractError(Exception):
    """A result of one env breaks the interface: (got, wanted, do), without the env's name, index and step."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker: the cause of that exception when the main process raises it again.

    Attributes: at: file:line of the env's code that raised it.
    """

    def __init__(self, index: int | None, text: str, at: str = '') -> None:
        super().__init__(f'in the worker of index {index}\n{text}')
        self.at = at


class UnknownEnvError(EnvError, UserError):
    """An env id for which there is no env."""


class UnsupportedEnvError(EnvError, UserError):
    """An env whose spaces zoo does not know, or that lacks the vectorization or autoreset mode of the config."""


class SeveralAgentsError(UnsupportedEnvError):
    """An env has several agents where one is wanted."""


class EnvSettingError(UnsupportedEnvError):
    """A value of env.schedule or env.reset_options that the envs do not take.

    Args: key: such as 'schedule.wind'; said: the rest of the sentence after the key; where: the section with the key.
    """

    def __init__(self, key: str, said: str, where: str = 'env') -> None:
        self.key = key
        self.said = said
        super().__init__(f'{where}.{key}{said}')

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.key, self.said, str(self)[: -len(self.key) - len(self.said) - 1])


class EnvKwargsError(EnvError, UserError):
    """env.kwargs that the env's constructor does not take."""


class MissingExtraError(EnvError, UserError):
    """An env whose optional dependency is not installed."""


def add_place(error: BaseException, where: str) -> None:
    """Adds `where` to an exception of an env's own code, unless it has a place already; zoo's own errors name the env.

    The place becomes a note of the exception, and its attribute `env_place`: the command line makes a sentence of it.
    Raises: EnvError in place of a SystemExit, StopIteration or other exception that is no Exception: those would end the run,
      or a loop of it, without a message. A request to stop (STOPS) stays as it is.
    """
    if isinstance(error, STOPS):
        return
    at = raised_at(error)
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        env_error = EnvError(
            f'{where}: its code raised {show_error(error)} at {at}; raise an error, or end the episode.'
        )
        if isinstance(
            error, StopIteration
        ):  # contextlib takes a RuntimeError that it caused for the StopIteration itself
            raise env_error from None
        raise env_error from error
    if isinstance(error, RunError | UserError) or hasattr(error, 'env_place'):
        return
    error.env_place = where, at  # type: ignore[attr-defined]
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(f'in {where}')


def add_hint(error: BaseException, hint: str) -> None:
    """Adds a remedy to an exception of an env's own code: the command line ends its sentence with it."""
    if not hasattr(error, 'env_place'):
        return
    error.env_hint = hint  # type: ignore[attr-defined]
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(hint)


def raised_at(error: BaseException) -> str:
    """file:line in the env's code where an exception came from; the innermost line if all code is from libraries."""
    if isinstance(error.__cause__, WorkerTraceback):
        return error.__cause__.at
    lines: list[tuple[str, int]] = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    env_lines = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, '<'))]
    file, line = (env_lines or lines or [('unknown', 0)])[-1]
    return f'{file}:{line}'


def own_line(stack: FrameType | None) -> str:
    """file:line in the env's code where a running thread is; the innermost line if all code is from libraries."""
    lines: list[tuple[str, int]] = []
    while stack is not None and not (lines and stack.f_code.co_filename.startswith(_LIBRARIES[0])):
        lines.append((stack.f_code.co_filename, stack.f_lineno))
        stack = stack.f_back
    env_lines = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, _STANDARD, '<'))]
    file, line = (env_lines or lines)[0]
    return f'{file}:{line}'


def made_at(name: str, index: int | None = None) -> str:
    """The words in messages for an env that was being made."""
    return f'env {name!r}{_index_words(index)}, while it was made'


def _index_words(index: int | None) -> str:
    if index is None:
        return ''
    return f', index {index}'


def show_value(value: object) -> str:
    """A value on one line, with its type."""
    text = ' '.join(repr(value).split())
    if len(text) > 80:
        text = f'{text[:77]}...'
    return f'{text} ({type(value).__name__})'


@dataclass
class Place:
    """The name of a vector env and its current step, for messages."""

    name: str
    step: int = 0
    restarts: bool = False  # env.on_error=restart
    indices: np.ndarray | None = None  # of the envs among all, if the vector has other ones in every step

    def of(self, index: int | None) -> str:
        """The words for one env of the vector and the step; in a group 'name[4:8]' also for its index among all envs."""
        if self.indices is not None and index is not None:
            index = int(self.indices[index])
        part = _PART.search(self.name)
        of_all = ''
        if part and index is not None:
            of_all = f' ({int(part[1]) + index} of all)'
        return f'env {self.name!r}{_index_words(index)}{of_all}, step {self.step}'

    def error(self, index: int | None, got: str, wanted: str, do: str) -> EnvContractError:
        """The EnvContractError for the env at `index`, or for the whole vector if `index` is None."""
        scope = ''
        if self.restarts:
            scope = NOT_RESTARTED
        return EnvContractError(f'{self.of(index)}: {got}, wanted {wanted}; {do}{scope}.')
