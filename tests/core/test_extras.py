"""Packages of extras: nothing where they are there, else the extra is named; nothing is imported."""

import sys

import pytest

from zoo.core.errors import UserError, missing_extra, need


def test_package_that_is_there_is_found_and_not_imported() -> None:
    before = set(sys.modules)
    need('wsgiref', 'plot', 'zoo plot')
    need('json', 'plot', 'zoo plot')
    assert 'wsgiref' not in set(sys.modules) - before


@pytest.mark.parametrize('module', ['no_such_package', 'no_such_package.part', 'colorsys'])
def test_package_that_is_not_there_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'colorsys', None)  # an import of it raises ImportError
    with pytest.raises(UserError) as caught:
        need(module, 'plot', 'zoo plot')
    words = f"zoo plot needs {module}, which is not installed; run: pip install '.[plot]' in the checkout of zoo"
    assert str(caught.value) == words


def test_missing_extra_says_what_to_install() -> None:
    words = (
        "env 'atari' needs the atari extra, which is not installed; run: pip install '.[atari]' in the checkout of zoo"
    )
    assert missing_extra("env 'atari'", 'atari') == words
