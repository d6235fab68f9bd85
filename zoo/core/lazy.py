"""Names of a package or module that are imported at first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], hints: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for a package whose names are imported at first use.

    Args: package: its `__name__`; homes: {module: its names, with spaces between them}, where 'name=other' is a name that is
      `other` in the module, and 'name=' the module itself; hints: {an expression of zoo: the names that other libraries have
      for it}.
    """
    parts = [(word.partition('='), module) for module, names in homes.items() for word in names.split()]
    home = {name: (module, other if equals else name) for (name, equals, other), module in parts}

    def find(name: str) -> Any:
        is_package = '__path__' in vars(sys.modules[package])
        if is_package and name not in home and not name.startswith('_') and find_spec(f'{package}.{name}'):
            return importlib.import_module(f'{package}.{name}')
        if name not in home and name.startswith('__'):  # Python asks for __path__ at every `from module import name`
            raise AttributeError(f'module {package} has no attribute {name!r}')
        if name not in home:
            from zoo.core.errors import closest

            close = [do for do, others in hints.items() if name in others.split()] or closest(name, home)
            names = sorted(home, key=lambda each: (each.isupper(), each[0].isupper(), each))  # functions first
            words = ''
            if close:
                words = f'; did you mean {" or ".join(close)}?'
            elif names:
                words = f'; it has {", ".join(names)}'
            raise AttributeError(f'module {package} has no attribute {name!r}{words}')
        module = importlib.import_module(home[name][0])
        if home[name][1]:
            found = getattr(module, home[name][1])
        else:
            found = module
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*home, *vars(sys.modules[package])}), sorted(home)
