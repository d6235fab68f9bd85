"""What can be wrong with an env, as exceptions; each message says which env, where, and what to do."""
from __future__ import annotations

from zoo.errors import RunError, UserError


class EnvError(RunError):
    """An env did, or returned, what no run can go on with."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class UnknownEnvError(EnvError, UserError):
    """An env id that leads to no env."""


class UnsupportedEnvError(EnvError, UserError):
    """An env whose spaces zoo does not know, or that lacks the vectorization or autoreset mode of the config."""


class MissingExtraError(EnvError, UserError):
    """An env whose optional dependency is not installed."""
