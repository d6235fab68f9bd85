"""The table of ONNX operations, which torch makes anew for each export in 0.3 s, is made once for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest


@pytest.fixture(scope='session', autouse=True)
def one_table_of_operations() -> Iterator[None]:
    registration: Any = pytest.importorskip('torch.onnx._internal.exporter._registration')
    make = getattr(getattr(registration, 'ONNXRegistry', None), 'from_torchlib', None)
    if make is None:  # it is no public name: another torch may have none, and the tests take longer
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        once = staticmethod(cache(lambda **kwargs: make(**kwargs)))
        patch.setattr(registration.ONNXRegistry, 'from_torchlib', once)
        yield
