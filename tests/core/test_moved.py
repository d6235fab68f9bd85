"""Old import paths of modules and names."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings

import pytest

from zoo.core.moved import MOVED, NAMES

OLD_NAMES = [
    (module, word.partition('=')[0], home, word.partition('=')[2] or word)
    for module, homes in NAMES.items()
    for home, words in homes.items()
    for word in words.split()
]


@pytest.mark.slow
def test_every_moved_module_is_where_the_table_says() -> None:
    for old, new in MOVED.items():
        with pytest.warns(DeprecationWarning, match=f'{old} has moved to {new}'):
            sys.modules.pop(old, None)
            found = importlib.import_module(old)
        assert found is importlib.import_module(new) and found.__spec__.name == new


def test_module_below_a_moved_package_is_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        importlib.import_module('zoo.sweep')  # the package has a warning of its own
    sys.modules.pop('zoo.sweep.spaces', None)
    with pytest.warns(DeprecationWarning, match='zoo.sweep.spaces has moved to zoo.tools.sweep.spaces'):
        found = importlib.import_module('zoo.sweep.spaces')
    assert found is importlib.import_module('zoo.tools.sweep.spaces')


@pytest.mark.parametrize(('module', 'name', 'home', 'new_name'), OLD_NAMES)
def test_old_name_is_that_of_its_new_home(module: str, name: str, home: str, new_name: str) -> None:
    old = importlib.import_module(module)
    assert getattr(old, name) is getattr(importlib.import_module(home), new_name)
    assert name in dir(old)


@pytest.mark.parametrize('module', NAMES)
def test_wrong_name_of_a_module_with_old_names_is_refused(module: str) -> None:
    old = importlib.import_module(module)
    name = next(name for where, name, *_ in OLD_NAMES if where == module)
    assert not hasattr(old, 'nonexistent')  # an error of another kind would break `hasattr`
    with pytest.raises(AttributeError, match=rf"module {module} has no attribute '{name}s'; did you mean {name}"):
        getattr(old, f'{name}s')


@pytest.mark.parametrize('module', NAMES)
def test_module_with_old_names_has_its_source(module: str) -> None:
    old = importlib.import_module(module)
    assert inspect.getsource(old).startswith('"""')
