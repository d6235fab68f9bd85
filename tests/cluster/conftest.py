"""One Ray cluster for the tests of a file."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest

N_CPU = 4  # two ranks with a runner each


@pytest.fixture(scope='module')
def session() -> Iterator[str]:
    """Starts one cluster for all tests of a file, since a start takes seconds; gives its address as an override, for other
    processes.
    """
    ray = pytest.importorskip('ray')
    from zoo.cluster import ray_cluster

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter('ignore')
        patch.setattr(ray_cluster, '_alone', contextlib.nullcontext)
        assert ray_cluster.join(None, {'CPU': N_CPU, 'GPU': 0}, None)
        yield f'cluster.address={ray.get_runtime_context().gcs_address}'
        ray_cluster.leave()
