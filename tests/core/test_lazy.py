"""Names that are imported at first use. tests/test_package.py tests the names of zoo itself."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from types import ModuleType

import pytest

from zoo.core.lazy import lazy_names


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with the names of three others: one unchanged, one under another name, and one of a module."""
    module = ModuleType('lazy_module')
    monkeypatch.setitem(sys.modules, 'lazy_module', module)
    homes = {'collections': 'OrderedDict Count=Counter', 'fractions': 'parts='}
    hints = {'lazy_module.Count()': 'tally histogram'}
    vars(module)['__getattr__'], vars(module)['__dir__'], module.__all__ = lazy_names('lazy_module', homes, hints)
    return module


def test_name_is_the_object_of_its_home_and_is_kept_in_the_module(lazy: ModuleType) -> None:
    assert 'OrderedDict' not in vars(lazy)
    assert lazy.OrderedDict is OrderedDict
    assert vars(lazy)['OrderedDict'] is OrderedDict


def test_name_may_be_another_one_in_its_home_or_the_home_itself(lazy: ModuleType) -> None:
    assert lazy.Count is importlib.import_module('collections').Counter
    assert lazy.parts is importlib.import_module('fractions')


def test_dir_and_all_list_names_before_they_are_imported(lazy: ModuleType) -> None:
    assert lazy.__all__ == ['Count', 'OrderedDict', 'parts']
    assert {'Count', 'OrderedDict', 'parts', '__name__'} <= set(dir(lazy))


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('Counts', 'did you mean Count'),
        ('tally', r'did you mean lazy_module\.Count\(\)'),  # another library's word
        ('xyz', 'it has parts, Count, OrderedDict'),  # functions and modules first
    ],
)
def test_wrong_name_is_refused_with_the_closest_ones(lazy: ModuleType, name: str, words: str) -> None:
    assert not hasattr(lazy, name)  # an error of another kind would break `hasattr`
    with pytest.raises(AttributeError, match=f"module lazy_module has no attribute '{name}'; {words}"):
        getattr(lazy, name)


def test_name_that_python_asks_for_is_refused_without_a_search_for_close_ones(lazy: ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"^module lazy_module has no attribute '__path__'$"):
        lazy.__path__  # noqa: B018


def test_submodule_of_a_package_is_imported_at_first_use() -> None:
    rl_utils = importlib.import_module('zoo.rl_utils')
    assert rl_utils.normalizer is importlib.import_module('zoo.rl_utils.normalizer')
    assert rl_utils.gae_return is importlib.import_module('zoo.rl_utils.estimators').gae_return
