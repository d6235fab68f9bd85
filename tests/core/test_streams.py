"""Standard streams that an env or a package has removed or closed."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

import pytest

from zoo.core.streams import LoadWarning, say, standard, write_line


@pytest.mark.parametrize('gone', ['removed', 'closed'])
@pytest.mark.parametrize(('name', 'write'), [('stdout', write_line), ('stderr', say)])
def test_line_goes_to_the_first_stream_if_the_present_one_is_gone(
    gone: str, name: Any, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, closed = io.StringIO(), io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, f'__{name}__', first)
    monkeypatch.setattr(sys, name, None if gone == 'removed' else closed)
    write('the run is done')
    assert first.getvalue() == 'the run is done\n'


def test_stream_that_somebody_has_put_in_its_place_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = io.StringIO()
    monkeypatch.setattr(sys, 'stdout', other)
    assert standard('stdout') is other


@pytest.mark.parametrize('name', ['stdout', 'stderr'])
def test_text_goes_nowhere_if_there_was_never_a_stream(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, name, None)
    monkeypatch.setattr(sys, f'__{name}__', None)
    with standard(name) as stream:
        assert stream.name == '/dev/null'


def test_load_warning_comes_once_for_each_load(caplog: pytest.LogCaptureFixture) -> None:
    warning = LoadWarning(logging.getLogger('zoo.test'), 'an older state')
    for _ in range(2):  # two loads, of which torch gives each its own list
        errors: list[str] = []
        for _ in range(3):
            warning.log(errors)
    assert caplog.messages == ['an older state', 'an older state']
