"""Packages that only a part of zoo needs: found, or named with the extra that installs them."""

from __future__ import annotations

import importlib.util

from zoo.core.errors import UserError


def need(module: str, extra: str, what: str) -> None:
    """Raises: UserError if a package is not installed, which says what needs it and how to install it.

    Args: module: 'matplotlib'; extra: of setup.py, 'plot'; what: that needs it, 'zoo plot'.
    """
    if not _is_there(module):
        raise UserError(missing_extra(what, extra, module))


def missing_extra(what: str, extra: str, module: str | None = None) -> str:
    """The message for something that needs an extra, an optional dependency, which is not installed.

    Args: module: of the extra, where one is known to be missing.
    """
    needed = f'the {extra} extra' if module is None else module
    return f"{what} needs {needed}, which is not installed; run: pip install 'policy-zoo[{extra}]'"


def _is_there(module: str) -> bool:
    """Whether a module can be imported, without importing it; of one in a package the package is imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it is a part of
        return False
