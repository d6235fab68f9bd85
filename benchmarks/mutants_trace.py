"""A pytest plugin for mutants.py: records which functions of the mutated files each test calls, and its seconds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from mutants import REPO, subjects

NAMES = {str(file): str(file.relative_to(REPO / 'zoo')) for file in subjects()}
FOUND: dict[str, tuple[float, list[str]]] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Traces calls during a test and its fixtures."""
    called: set[str] = set()

    def on_call(frame: FrameType, event: str, arg: object) -> None:
        if name := NAMES.get(frame.f_code.co_filename):
            called.add(f'{name}:{frame.f_code.co_name}')

    begin = time.perf_counter()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(None)
    if called:
        FOUND[item.nodeid] = time.perf_counter() - begin, sorted(called)


def pytest_sessionfinish() -> None:
    """Writes the records, one file for each process."""
    if FOUND:
        Path(os.environ['MUTANTS_MAP']).with_suffix(f'.{os.getpid()}.part').write_text(json.dumps(FOUND))
