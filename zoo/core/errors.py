"""The two kinds of error a user can meet; the command line turns the first into exit code 2 and the second into 1."""

from __future__ import annotations


class UserError(ValueError):
    """What was asked for cannot be done as asked: a config, a name, a file."""


class RunError(RuntimeError):
    """A run that began well and failed: its env, its gradient, its disk."""
