"""Old import paths of modules and names."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings

import pytest

from zoo.core.moved import GONE, MOVED, NAMES

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


@pytest.mark.parametrize(('module', 'name'), [(module, name) for module, names in GONE.items() for name in names])
def test_name_that_no_other_has_now_is_refused_with_what_takes_its_place(module: str, name: str) -> None:
    old = importlib.import_module(module)
    with pytest.raises(AttributeError) as error:
        getattr(old, name)
    assert str(error.value) == f'{module}.{name} is gone; use {GONE[module][name]} instead'
    assert not hasattr(old, 'nonexistent') and hasattr(old, '__doc__')


def test_what_takes_the_place_of_names_that_are_gone_exists() -> None:
    from zoo.core.registry import TOOL_REGISTRY
    from zoo.policy.sequences import sequences
    from zoo.policy.slots import Entries, UpdateSlots

    assert {'stop_after', 'renew', 'entries'} <= set(UpdateSlots.__annotations__)
    assert inspect.signature(sequences).return_annotation == Entries.__name__
    assert 'export_policy' in TOOL_REGISTRY.names()


@pytest.mark.parametrize('module', [*NAMES, *GONE])
def test_module_with_old_names_has_its_source(module: str) -> None:
    old = importlib.import_module(module)
    assert inspect.getsource(old).startswith('"""')
