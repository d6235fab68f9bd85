"""Envs that step asynchronously: the order of their answers, and which env a message names."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs import LimitEnv
from tests.worker.ledger_env import LedgerEnv
from zoo.env import EnvConfig, EnvContractError, EnvError
from zoo.env.make_vector import make_ready_envs
from zoo.env.ready import ReadyEnvs


class FaultyEnv(LimitEnv):
    """In copy 2, the third step returns what `fault` says, or ends the process."""

    def __init__(self, fault: str) -> None:
        super().__init__(limit=100)
        self._fault = fault

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        if self._n_step == 3 and multiprocessing.current_process().name.endswith(' 2'):
            if self._fault == 'exit':
                os._exit(3)
            if self._fault == 'raise':
                raise ZeroDivisionError('raised by the env')
            if self._fault == 'shape':
                obs = np.zeros(2, np.float32)
            else:
                obs = np.full(1, np.nan, np.float32)
        return obs, *rest


@contextmanager
def ready(env_id: Any, n_ready: int, **fields: Any) -> Iterator[ReadyEnvs]:
    section = EnvConfig(**{'id': env_id, 'collector_env_num': 4, 'ready_num': n_ready, **fields})
    envs = make_ready_envs(section)
    try:
        yield envs
    finally:
        envs.close()


def steps(envs: ReadyEnvs, n: int) -> list[np.ndarray]:
    """Takes n steps of ready envs; returns the indices of the envs of each."""
    envs.reset(0)
    k = envs.n_ready
    block = envs.block(n)
    if k < envs.n_env:
        envs.open(range(k, envs.n_env), torch.zeros(envs.n_env - k, dtype=torch.int64))
    found = []
    for t in range(n):
        envs.send(torch.zeros(k, dtype=torch.int64))
        envs.receive(block, t)
        found.append(envs.view.indices)
    return found


def test_envs_that_wait_longest_are_acted_for_first_and_none_is_left_out() -> None:
    with ready(LedgerEnv, 2) as envs:
        counts = np.bincount(np.concatenate(steps(envs, 40)), minlength=4)
    # an env whose answer was left over comes first in the next step, so no env can stay out while others go on for ever
    assert counts.sum() == 80
    assert counts.min() >= 1


def test_an_env_that_does_not_answer_is_not_among_the_ready_ones(tmp_path: Path) -> None:
    gate = tmp_path / 'gate'
    with ready(LedgerEnv, 1, kwargs=dict(gate=str(gate))) as envs:
        found = np.concatenate(steps(envs, 12))
        assert set(found) == {1, 2, 3}
        gate.touch()


@pytest.mark.long
@pytest.mark.parametrize(
    'fault, kind, sentence',
    [
        ('nan', EnvError, 'index 2, step'),
        ('shape', EnvContractError, 'index 2'),
        ('exit', EnvError, 'index 2: its worker process died during step 3 (exit code 3)'),
        ('raise', ZeroDivisionError, 'raised by the env'),
    ],
)
@pytest.mark.slow(ci=True)
def test_a_fault_names_the_env_by_its_index_among_all(fault: str, kind: type, sentence: str) -> None:
    with ready(FaultyEnv, 1, kwargs=dict(fault=fault)) as envs, pytest.raises(kind) as error:
        steps(envs, 4_000)
    assert sentence in str(error.value)


@pytest.mark.long
def test_an_env_that_hangs_is_named_though_others_answer(tmp_path: Path) -> None:
    gate = tmp_path / 'gate'  # never made: copy 0 hangs
    fields = dict(kwargs=dict(gate=str(gate)), step_timeout=0.5)
    with (
        ready(LedgerEnv, 1, **fields) as envs,
        pytest.raises(EnvError, match='index 0: no answer to step 1 within 0.5 s'),
    ):
        steps(envs, 1_000_000)
