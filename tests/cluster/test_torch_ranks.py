"""Joining of ranks and its error messages; training on ranks is in test_torch_ranks_runs.py."""

from __future__ import annotations

import pytest

from tests.cluster.rank_cases import free_port
from zoo.cluster.torch_ranks import join
from zoo.core.errors import RunError, UserError
from zoo.core.ranks import ALONE


@pytest.mark.parametrize('environ', [{}, {'WORLD_SIZE': '1'}, {'WORLD_SIZE': '1', 'RANK': '0'}])
def test_one_process_is_alone(environ: dict[str, str]) -> None:
    assert join('cpu', environ=environ) is ALONE


@pytest.mark.parametrize(
    ('environ', 'said'),
    [
        ({'WORLD_SIZE': '4'}, 'WORLD_SIZE=4 but no RANK, MASTER_ADDR, MASTER_PORT; start the processes with torchrun'),
        ({'WORLD_SIZE': 'four'}, "WORLD_SIZE='four', which should be the number of processes"),
        ({'WORLD_SIZE': '0'}, "WORLD_SIZE='0'"),
    ],
)
def test_environment_that_is_not_torchruns_is_one_sentence(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        join('cpu', environ=environ)
    assert said in str(error.value)


def test_rank_without_a_gpu_of_its_own_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '1'}
    monkeypatch.setattr('torch.cuda.device_count', lambda: 1)
    with pytest.raises(UserError, match='rank 1 wants the GPU cuda:1 but torch sees 1 of them.*policy.device=cpu'):
        join('cuda:1', environ=environ)


@pytest.mark.long
def test_ranks_that_nobody_meets_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=rf'rank 1 did not meet the other 1 at 127.0.0.1:{port} within 1 s'):
        join('cpu', timeout=1.0)
