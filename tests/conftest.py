"""What holds for all tests: one torch thread, since the networks are small; kernels without a GPU are interpreted."""

from __future__ import annotations

import os

import pytest
import torch

from zoo.backend.native.build import build
from zoo.backend.native.library import Library, load

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before triton is imported; only tests that ask for it use kernels on a CPU


@pytest.fixture(scope='session')
def native() -> Library:
    """The compiled library of the native executor, built in its place where it is not there."""
    if load()[0] is None:
        try:
            build()
        except RuntimeError as error:
            pytest.skip(str(error))
        load.cache_clear()
    library, why = load()
    assert library is not None, why
    return library
