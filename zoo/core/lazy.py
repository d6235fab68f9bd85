"""Names of a package that are imported at first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str, home: Mapping[str, str], hints: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose names are imported at first use.

    Args: package: its `__name__`; home: {name: its module}, or 'module:other' if it has another name there, or 'module:'
      for the module itself; hints: {a name that other libraries have: the expression to use in zoo}.
    """

    def find(name: str) -> Any:
        if name not in home and not name.startswith('_') and find_spec(f'{package}.{name}'):
            return importlib.import_module(f'{package}.{name}')
        if name not in home:
            from zoo.core.registry import closest

            close = [hints[name]] if name in hints else closest(name, home)
            names = sorted(home, key=lambda each: (each.isupper(), each[0].isupper(), each))  # functions first
            words = f'did you mean {" or ".join(close)}?' if close else f'it has {", ".join(names)}'
            raise AttributeError(f'module {package} has no attribute {name!r}; {words}')
        path, colon, other = home[name].partition(':')
        module = importlib.import_module(path)
        found = module if colon and not other else getattr(module, other or name)
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*home, *vars(sys.modules[package])})
