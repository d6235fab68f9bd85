"""What is said when the parts of a run are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from tests.envs import LimitEnv, LimitVectorEnv
from tests.policy_envs import job_config
from zoo import serial_pipeline


class ActionsEnv(LimitEnv):
    """LimitEnv with given actions."""

    def __init__(self, actions: gymnasium.Space) -> None:
        super().__init__()
        self.action_space = actions


def far_env() -> gymnasium.Env:
    return ActionsEnv(Box(300, 500, (1,), np.float32))


def hybrid_env() -> gymnasium.Env:
    return ActionsEnv(Dict(move=Discrete(2), push=Box(0, 720, (2,), np.float32)))


def far_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    vector = LimitVectorEnv(num_envs, action='box')
    vector.single_action_space = Box(300, 500, (1,), np.float32)
    vector.action_space = gymnasium.vector.utils.batch_space(vector.single_action_space, num_envs)
    return vector


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('make', 'env', 'model', 'said'),
    [
        (far_env, dict(check=True), {}, 'the actions are from 300 to 500, '),
        (hybrid_env, dict(check=True), {}, "the actions 'push' are from 0 to 720, "),
        (far_vector, dict(check=True), {}, 'the actions are from 300 to 500, '),
        (far_env, dict(check=True, action_mode='rescale'), {}, ''),
        (far_env, dict(check=True), dict(distribution='beta'), ''),  # its actions are within the bounds
        (far_env, dict(check=False), {}, ''),
    ],
)
def test_run_warns_once_of_bounds_that_the_first_actions_miss(
    make: Any, env: dict[str, Any], model: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serial_pipeline(job_config(tmp_path, make, max_env_step=64, env=env, policy=dict(model=model)))
    warnings = [text for text in caplog.messages if 'a policy begins with numbers near -1 to 1' in text]
    assert len(warnings) == bool(said) and all(said in text for text in warnings)
