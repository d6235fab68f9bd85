"""Settings of all tests: one torch thread, since the networks are small; without `--gpu`, Triton interprets its kernels.

`--few` runs only the first and the last case of each parametrised test, as `make test-fast` does. In a test marked slow,
the cases between them are marked soak: `make test` and CI leave those to `make test-long`, which runs tests marked long or soak.
In a test marked slow(ci=True), or many, they are marked long, so that CI runs them.
`--gpu` runs only the tests marked gpu, on the GPU. Without it no test sees a GPU, so that all other tests are the same
on every machine. `--seeds N` runs each learning test that takes an argument `seed` with N seeds instead of one.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from zoo.backend import trace
from zoo.backend.native.bindings import Library, load
from zoo.backend.native.build import build
from zoo.core.registry import POLICY_REGISTRY

EXIT = sys.exit, sys.excepthook
torch.set_num_threads(1)
os.fsync = lambda file: None  # no test cuts the power: ten waits for the disk in each run of each test are left out
os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
os.environ['XDG_STATE_HOME'] = os.devnull  # zoo records no run of a test, neither here nor in the user's own folder
# a slow example means a busy machine, not a property that fails
settings.register_profile('zoo', deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('zoo')


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--few', action='store_true', help='only the first and the last case of each parametrised test')
    parser.addoption('--gpu', action='store_true', help='only what is marked gpu, on the GPU that no other test sees')
    parser.addoption('--seeds', type=int, default=1, metavar='N', help='seeds of tests that learn from scratch')


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption('--gpu'):  # before CUDA starts, and before triton is imported
        os.environ['CUDA_VISIBLE_DEVICES'], os.environ['TRITON_INTERPRET'] = '', '1'
    elif not torch.cuda.is_available():
        raise pytest.UsageError('--gpu was given but torch sees no CUDA device; leave it out')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [mark.args[0] for mark in metafunc.definition.iter_markers('parametrize')]
    names = {name.strip() for each in given for name in (each.split(',') if isinstance(each, str) else each)}
    if 'seed' in metafunc.fixturenames and 'seed' not in names:
        metafunc.parametrize('seed', range(metafunc.config.getoption('--seeds')))


def _is_skipped(item: pytest.Item) -> bool:
    return any(mark.args and mark.args[0] is True for mark in item.iter_markers('skipif'))


def _first_and_last(items: list[pytest.Item]) -> set[int]:
    """The ids of the first and last case of each test; a skipped case counts only if the test has no case that runs."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=_is_skipped):
        if not _is_skipped(item) or item.nodeid.split('[')[0] not in cases:
            cases.setdefault(item.nodeid.split('[')[0], []).append(item)
    return {id(item) for each in cases.values() for item in (each[0], each[-1])}


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    on_gpu = config.getoption('--gpu')
    for item in items:
        mark = item.get_closest_marker('gpu')
        if mark and not on_gpu and not mark.kwargs:
            item.add_marker(pytest.mark.skipif(True, reason='needs a GPU: make gpu'))
    ends = _first_and_last(items)
    for item in items:
        slow = [mark for mark in item.own_markers if mark.name == 'slow']
        if slow and id(item) not in ends:
            if slow[0].kwargs.get('ci'):
                item.add_marker('long')
            elif not slow[0].kwargs:
                item.add_marker('soak')
        if id(item) not in ends and any(mark.name == 'many' for mark in item.own_markers):
            item.add_marker('long')
        if item.get_closest_marker('soak'):
            item.add_marker('long')
    yield  # here pytest deselects tests by their marks (-m)
    kept = _first_and_last(items) if config.getoption('--few') else set(map(id, items))
    if on_gpu:
        kept &= {id(item) for item in items if item.get_closest_marker('gpu')}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # half a million permanent objects: no garbage collection visits them again, here or in a fork


@pytest.fixture(scope='module', autouse=True)
def exit_is_that_of_python() -> Iterator[None]:
    """wandb puts functions of its own there, which errors of later tests would name."""
    yield
    sys.exit, sys.excepthook = EXIT


@pytest.fixture(scope='module', autouse=True)
def imports_are_no_garbage() -> Iterator[None]:
    n_module = len(sys.modules)
    yield
    if len(sys.modules) > n_module + 100:
        gc.collect()
        gc.freeze()


@pytest.fixture
def forgets_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the test, unregisters the policies that it registered."""
    for name in POLICY_REGISTRY.names():
        POLICY_REGISTRY.get(name)  # a module that the test loads first would lose its names after the test
    monkeypatch.setattr(POLICY_REGISTRY, 'entries', dict(POLICY_REGISTRY.entries))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Replaces the compiler, which takes seconds per program: each program is its traced graph, which this list collects."""
    found: list[torch.fx.GraphModule] = []
    monkeypatch.setattr(trace, 'inductor', lambda graph, inputs: found.append(graph) or graph)
    return found


@pytest.fixture(scope='session')
def native() -> Library:
    """The compiled library of the native executor. Builds it if it is missing; skips the test if the build fails."""
    if load()[0] is None:
        try:
            build()
        except RuntimeError as error:
            pytest.skip(str(error))
        load.cache_clear()
    library, why = load()
    assert library is not None, why
    return library


@pytest.fixture(scope='session')
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.policy_envs import job_config  # not above: they import much, and the options are not known there
    from zoo.pipeline import serial_pipeline

    return serial_pipeline(job_config(tmp_path_factory.mktemp('finished'))).run_dir


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """The folder of a finished run of `job_config(tmp_path)`: 256 env steps, with its last and its best checkpoint."""
    return shutil.copytree(_finished, tmp_path / 'run' / _finished.name)
