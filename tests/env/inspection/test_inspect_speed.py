"""Which vectorization pays, for steps of a known time."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from tests.envs import limit_env
from zoo.env import EnvConfig
from zoo.env.inspection.inspect import advise, worker_seconds

SPACES = Box(0.0, 1.0, (4,), np.float32), Discrete(2)


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.env.inspection.inspect.n_core', lambda: 4)


@pytest.mark.slow
@pytest.mark.usefixtures('four_cores')
@pytest.mark.parametrize(('step_s', 'wanted'), [(1e-6, 'sync'), (1e-1, 'async')])
def test_advise_weighs_the_step_against_a_worker(step_s: float, wanted: str) -> None:
    advice = advise(EnvConfig(id=limit_env, collector_env_num=8), step_s, SPACES)
    assert advice.vectorization == wanted and advice.worker_ms is not None
    # 8 steps of 100 ms in turn are 800 ms; on 4 cores 200 ms and the 8 workers
    if wanted == 'async':
        assert (
            '8 envs step in 800 ms one after the other' in advice.vectorization_why
            and 'on 4 cores' in advice.vectorization_why
        )


@pytest.mark.slow
def test_advise_on_one_core_is_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.env.inspection.inspect.n_core', lambda: 1)
    assert advise(EnvConfig(id=limit_env), 0.1, SPACES).vectorization == 'sync'


@pytest.mark.usefixtures('four_cores')
def test_advise_for_one_env_is_sync() -> None:
    assert advise(EnvConfig(id=limit_env, collector_env_num=1), 0.1, SPACES).vectorization == 'sync'


@pytest.mark.parametrize(
    'spaces',
    [SPACES, (Dict(a=Discrete(3), b=Box(0, 255, (4, 4), np.uint8)), Tuple((Discrete(2), Box(-1.0, 1.0, (1,)))))],
    ids=['box', 'nested'],
)
def test_worker_seconds_is_the_time_of_a_round_trip(spaces: tuple[Space, Space]) -> None:
    assert 1e-7 < worker_seconds(spaces, 2, timeout=60.0) < 1.0
