"""Runners without envs, for tests of engines: the numbers that they send can be worked out by hand."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.cluster.messages import Reply, Request


def shared_names() -> list[str]:
    """Returns the names in /dev/shm, without those of multiprocessing, torch and Ray, which other tests use at the same time."""
    others = 'sem.', 'psm_', 'torch_', 'plasma', 'ray'
    folder = '/dev/shm'
    return sorted(name for name in os.listdir(folder) if not name.startswith(others)) if os.path.isdir(folder) else []


class Spec(NamedTuple):
    """Specification of a `Numbers`. words: what it does when it is made, see `_do`; n: floats of its block 'obs'."""

    group: int
    words: str = ''
    n: int = 1000


class Numbers:
    """Runner that sends n times version + collect_iter / 1000, and the first byte of its weights. `next` adds behaviour."""

    def __init__(self, spec: Spec) -> None:
        self._spec, self._weights, self._version = spec, 0, -1
        self._next, self._n = '', 0
        self._child: Any = None
        self._do(spec.words)

    def load(self, weights: np.ndarray, version: int) -> None:
        assert weights.dtype == np.uint8
        assert (weights == weights[0]).all(), 'torn'
        self._weights, self._version = int(weights[0]), version

    def collect(self, request: Request) -> Reply:
        self._do(self._next)
        self._n += 1
        value = self._version + request.collect_iter / 1000
        blocks = {
            'obs': np.full(self._spec.n, value),
            'steps.reward': np.full((2, 3), self._weights, np.int64),
            'empty': np.empty((0, 3)),
        }
        key = request.run_id, request.group, request.collect_iter, self._version
        return Reply(*key, blocks, [(1, np.array([0]), {'a': np.ones(2)})], [], {'act': 0.5})

    def next(self, words: str) -> None:
        """Sets what is done before each of the next rollouts, see `_do`."""
        self._next = words

    def grow(self, n: int) -> None:
        self._spec = self._spec._replace(n=n)

    def give(self, what: str) -> Any:
        if what == 'child':
            self._child = multiprocessing.get_context('fork').Process(target=_hang_with_gil, args=(True,), daemon=True)
            self._child.start()
            return self._child.pid
        if what == 'signals':
            return [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)]
        if what == 'threads':
            import torch

            return torch.get_num_threads()
        if what == 'rollouts':
            return self._n
        if what == 'lambda':
            return lambda: 0
        raise KeyError(what)

    def close(self) -> None:
        if self._next == 'no close':
            time.sleep(3600)

    def _do(self, words: str) -> None:
        if words == 'sleep':
            time.sleep(3600)
        elif words == 'nap':
            time.sleep(0.5)
        elif words.startswith('until '):  # waits for this file; creates FILE.begun first
            file = Path(words.removeprefix('until '))
            file.with_suffix('.begun').touch()
            while not file.exists():
                time.sleep(0.01)
        elif words == 'gil':
            _hang_with_gil()
        elif words == 'exit':
            print('no room on the moon', file=sys.stderr, flush=True)
            os._exit(7)
        elif words == 'say':
            print('a warning of mine', file=sys.stderr)
        elif words == 'raise':
            raise OSError(28, f'the moon is full, in group {self._spec.group}')
        elif words == 'import':
            import no_such_module  # noqa: F401


def _hang_with_gil(with_parent: bool = False) -> None:
    if with_parent:
        from zoo.core.processes import die_with_parent

        die_with_parent(os.getppid(), True, lambda seconds: time.sleep(seconds))
    ctypes.PyDLL(None).sleep(3600)  # PyDLL holds the GIL during the call
