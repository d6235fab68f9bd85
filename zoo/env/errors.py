"""Exceptions about envs; each message says which env, where, and what to do."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gymnasium
import numpy as np

from zoo.core.errors import RunError, UserError, show_error
from zoo.env.calls import CONSTRUCTION_CALLS, env_call

RESET_DO = 'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`'
_PART = re.compile(r'\[(\d+):\d+\]$')  # of all envs, see `make_vector_env`
STEP_DO = '`return obs, reward, terminated, truncated, info`'


class EnvError(RunError):
    """An env failed, or returned something that a run cannot continue with."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class BrokenContractError(Exception):
    """What one env returned breaks the interface: (got, wanted, do), without the env's name, index and step."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as its cause when it is raised again in the main process.

    Attributes: at: file:line of the env's code that raised it.
    """

    def __init__(self, index: int | None, text: str, at: str = '') -> None:
        super().__init__(f'in the worker of index {index}\n{text}')
        self.at = at


class UnknownEnvError(EnvError, UserError):
    """An env id that leads to no env."""


class UnsupportedEnvError(EnvError, UserError):
    """An env whose spaces zoo does not know, or that lacks the vectorization or autoreset mode of the config."""


class EnvSettingError(UnsupportedEnvError):
    """A value of env.schedule or env.reset_options that the envs do not take.

    Args: key: such as 'schedule.wind'; said: what follows the key in the sentence; where: the section that has it.
    """

    def __init__(self, key: str, said: str, where: str = 'env') -> None:
        self.key, self.said = key, said
        super().__init__(f'{where}.{key}{said}')

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.said, str(self)[: -len(self.key) - len(self.said) - 1])


class EnvKwargsError(EnvError, UserError):
    """env.kwargs that the env's constructor does not take."""


class MissingExtraError(EnvError, UserError):
    """An env whose optional dependency is not installed."""


def contract_error(name: str, index: int | None, step: int, got: str, wanted: str, do: str) -> EnvContractError:
    """The EnvContractError of the env at `index` of a vector, or of the whole vector where that is None."""
    return EnvContractError(f'{location_of(name, index, step)}: {got}, wanted {wanted}; {do}.')


def location_of(name: str, index: int | None, step: int) -> str:
    """How messages say which env of a vector it was, and when; of a group 'name[4:8]' also its index over all envs."""
    part = _PART.search(name)
    of_all = f' ({int(part[1]) + index} of all)' if part and index is not None else ''
    return f'env {name!r}{"" if index is None else f", index {index}{of_all}"}, step {step}'


@contextmanager
def locate(where: str) -> Iterator[None]:
    """For the construction of envs: what their code raises says where that was, see `add_place`."""
    try:
        with env_call(where, CONSTRUCTION_CALLS):
            yield
    except (Exception, SystemExit) as error:
        add_place(error, where)
        raise


def add_place(error: BaseException, where: str) -> None:
    """Say on an exception of an env's own code which env it was, if nothing said it yet: errors of zoo do.

    It becomes a note of the exception, and its attribute `env_place`, of which the command line makes a sentence.
    Raises: EnvError in place of a SystemExit, which would end the run without a word.
    """
    at = raised_at(error)
    if isinstance(error, SystemExit):
        raise EnvError(
            f'{where}: its code raised {show_error(error)} at {at}; raise an error, or end the episode.'
        ) from error
    if not isinstance(error, Exception) or isinstance(error, RunError | UserError) or hasattr(error, 'env_place'):
        return
    error.env_place = where, at  # type: ignore[attr-defined]
    if hasattr(error, 'add_note'):  # from Python 3.11 on
        error.add_note(f'in {where}')


_LIBRARIES = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ''),  # zoo
    *(os.path.join(os.path.dirname(str(module.__file__)), '') for module in (gymnasium, np)),
)

_STANDARD = os.path.join(os.path.dirname(os.__file__), '')


def raised_at(error: BaseException) -> str:
    """file:line of the env's code from which an exception came; of the innermost code if all of it is of libraries."""
    if isinstance(error.__cause__, WorkerTraceback):
        return error.__cause__.at
    lines: list[tuple[str, int]] = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, '<'))]
    return ':'.join(map(str, (own or lines or [('unknown', 0)])[-1]))


def own_line(stack: FrameType | None) -> str:
    """file:line of the env's code on the stack of a running thread; of the innermost code if all is of libraries."""
    lines: list[tuple[str, int]] = []
    while stack is not None and not (lines and stack.f_code.co_filename.startswith(_LIBRARIES[0])):
        lines.append((stack.f_code.co_filename, stack.f_lineno))
        stack = stack.f_back
    own = [(file, line) for file, line in lines if not file.startswith((*_LIBRARIES, _STANDARD, '<'))]
    return ':'.join(map(str, (own or lines)[0]))


def made_at(name: str, index: int | None = None) -> str:
    """How messages say that it was while an env was made."""
    return f'env {name!r}{"" if index is None else f", index {index}"}, while it was made'


def show_value(value: Any) -> str:
    """A value on one line, with its type."""
    text = ' '.join(repr(value).split())
    return f'{text if len(text) <= 80 else text[:77] + "..."} ({type(value).__name__})'


class Place:
    """Where a vector env is, for messages: its name, and the step it takes."""

    def __init__(self, name: str) -> None:
        self.name, self.step = name, 0

    def of(self, index: int | None) -> str:
        return location_of(self.name, index, self.step)

    def error(self, index: int | None, got: str, wanted: str, do: str) -> EnvContractError:
        """The EnvContractError of the env at `index`, or of the whole vector where that is None."""
        return contract_error(self.name, index, self.step, got, wanted, do)


def of_entry(path: str) -> str:
    """How messages name the entry of an observation after the word; '' for one that is no Dict."""
    return f' {path!r}' if path else ''
