"""Builds the table of ONNX operations once for all of these tests; torch builds it again for each export, in 0.3 s."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest


@pytest.fixture(scope='session', autouse=True)
def one_table_of_operations() -> Iterator[None]:
    registration: Any = pytest.importorskip('torch.onnx._internal.exporter._registration')
    make = getattr(getattr(registration, 'ONNXRegistry', None), 'from_torchlib', None)
    if make is None:  # the name is not public: in a torch without it, the tests only take longer
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        once = staticmethod(cache(lambda **kwargs: make(**kwargs)))
        patch.setattr(registration.ONNXRegistry, 'from_torchlib', once)
        yield
