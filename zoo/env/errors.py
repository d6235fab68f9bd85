"""What can be wrong with an env, as exceptions; each message says which env, where, and what to do."""
from __future__ import annotations


class EnvError(RuntimeError):
    """An env did, or returned, what no run can go on with."""


class EnvContractError(EnvError):
    """An env breaks the gymnasium interface."""


class UnknownEnvError(EnvError, ValueError):
    """An env id that leads to no env."""


class MissingExtraError(EnvError, ValueError):
    """An env whose optional dependency is not installed."""
