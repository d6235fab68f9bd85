"""make_vector_env: envs of unusual makers, and the choice between single envs and a batched version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict

from tests.envs import LimitEnv, play
from zoo.env import EnvConfig, make_vector_env


class SeedNumbersEnv(LimitEnv):
    """Writes the seed of each reset into its spaces, in the place of their method `seed`; its infos have masks."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({'own': Dict({'n': self.observation_space})})
        self.observation_space['own'].seed = 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.action_space.seed = seed
        self.observation_space.seed = seed
        return {'own': {'n': super().reset(seed=seed)[0]}}, {'action_mask': np.ones(2)}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return ({'own': {'n': obs}}, *rest[:3], {'action_mask': np.ones(2)})


@pytest.mark.parametrize('how', ['sync', pytest.param('async', marks=pytest.mark.slow)])
def test_envs_that_write_a_number_over_the_seed_methods_of_their_spaces_are_made_and_play(how: Any) -> None:
    steps = play(make_vector_env(EnvConfig(id=SeedNumbersEnv, vectorization=how), 2), [1, 1], [1, 1])
    assert [step.obs['own']['n'].tolist() for step in steps] == [[[1], [1]], [[2], [2]]]
