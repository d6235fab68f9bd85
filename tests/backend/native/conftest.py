"""Fixtures of tests of the C library: the library, and the library at each level of instructions that it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.native.reference import LEVELS
from zoo.backend.native.bindings import Library


@pytest.fixture
def lib(native: Library) -> Iterator[Library]:
    yield native
    native.set_level(-1)


@pytest.fixture(params=LEVELS, ids=lambda level: level.name.lower())
def leveled(lib: Library, request: pytest.FixtureRequest) -> Library:
    if lib.set_level(request.param) != request.param:
        pytest.skip(f'this CPU has no {request.param.name}')
    return lib
