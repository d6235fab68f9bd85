"""Exceptions about envs; each message says which env, where, and what to do."""

from __future__ import annotations

from typing import Any

from zoo.core.errors import RunError, UserError

RESET_DO = 'write `def reset(self, *, seed=None, options=None)` that returns `obs, info`'
STEP_DO = '`return obs, reward, terminated, truncated, info`'


class EnvError(RunError):
    """An env failed, or returned something that a run cannot continue with."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class BrokenContractError(Exception):
    """What one env returned breaks the interface: (got, wanted, do), without the env's name, index and step."""


class UnknownEnvError(EnvError, UserError):
    """An env id that leads to no env."""


class UnsupportedEnvError(EnvError, UserError):
    """An env whose spaces zoo does not know, or that lacks the vectorization or autoreset mode of the config."""


class EnvKwargsError(EnvError, UserError):
    """env.kwargs that the env's constructor does not take."""


class MissingExtraError(EnvError, UserError):
    """An env whose optional dependency is not installed."""


def contract_error(name: str, index: int | None, step: int, got: str, wanted: str, do: str) -> EnvContractError:
    """The EnvContractError of the env at `index` of a vector, or of the whole vector where that is None."""
    return EnvContractError(f'{location_of(name, index, step)}: {got}, wanted {wanted}; {do}.')


def location_of(name: str, index: int | None, step: int) -> str:
    """How messages say which env of a vector it was, and when."""
    return f'env {name!r}{"" if index is None else f", index {index}"}, step {step}'


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
