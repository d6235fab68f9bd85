"""Loads Qt 5 for envpool's Procgen from a wheel if the system has none, so that no root access is needed."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from zoo.core.extras import missing_extra
from zoo.env.errors import MissingExtraError

EXTRA = 'procgen'
LIBRARIES = ('libQt5Core.so.5', 'libQt5Gui.so.5')  # in the order of their dependence


def load_qt(name: str) -> None:
    """Load the libraries of the wheel PyQt5-Qt5 (LGPL-3), so that later loads by name find them.

    Raises: MissingExtraError if the wheel is not installed, or if a system library that it needs is missing.
    """
    spec = importlib.util.find_spec('PyQt5')
    folders = [Path(place) / 'Qt5' / 'lib' for place in (spec.submodule_search_locations or ())] if spec else []
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise MissingExtraError(missing_extra(f'env {name!r}', EXTRA))
    for library in LIBRARIES:
        try:
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise MissingExtraError(
                f'env {name!r} draws with Qt 5, whose {library} does not load here ({error}); install what is missing, '
                'on Debian and Ubuntu: apt-get install libgl1 libglib2.0-0'
            ) from error
