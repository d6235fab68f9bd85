"""Four envs whose episodes have unequal lengths, in every way to reset envs; the observation is the step of the episode."""

from __future__ import annotations

import gymnasium
import numpy as np

from tests.envs import LimitEnv
from zoo.core.spaces import Box
from zoo.worker.collector import Collector

OBS = Box(np.zeros(1), np.full(1, np.inf))
MODES = {
    'same_step': dict(vectorization='sync', autoreset='same_step'),
    'next_step': dict(vectorization='sync', autoreset='next_step'),
    'disabled': dict(vectorization='sync', autoreset='disabled'),
    'async same_step': dict(vectorization='async', autoreset='same_step'),
}


class Staggered(gymnasium.Wrapper):
    """An env with episodes of 3 + k steps, where k counts the envs made before it since `n_made` was set to 0."""

    n_made = 0

    def __init__(self) -> None:
        Staggered.n_made += 1
        super().__init__(LimitEnv(2 + Staggered.n_made))


def close(collector: Collector) -> None:
    for group in collector.groups:
        group.env.close()
