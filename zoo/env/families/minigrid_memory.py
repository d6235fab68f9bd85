"""The env 'minigrid_memory_s7': MiniGrid's MemoryS7 by envpool, with a view so narrow that it needs a memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from zoo.core.registry import ENV_REGISTRY
from zoo.env.families.envpool import EXTRA, N_KIND, make_pool
from zoo.env.families.family import EnvRequest, env_family

WIDTH, SEEN, N_CELL = 7, 3, sum(N_KIND)  # width of MiniGrid's view and of this one, in cells; numbers for each cell
N_ACTION = 3  # turn left, turn right, go forward: the first of MiniGrid's


class NarrowView(gymnasium.vector.VectorObservationWrapper):
    """MiniGrid with a view of 3x3 cells in place of 7x7, without the direction, and with three actions."""

    def __init__(self, env: gymnasium.vector.VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = gymnasium.spaces.Box(0.0, 1.0, (SEEN * SEEN * N_CELL,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.single_action_space = gymnasium.spaces.Discrete(N_ACTION)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def observations(self, observations: np.ndarray) -> np.ndarray:
        """The cells around the agent, which stands in the middle of the last row: [B, 984] -> [B, 180]."""
        side = (WIDTH - SEEN) // 2
        cells = observations[:, : WIDTH * WIDTH * N_CELL].reshape(-1, WIDTH, WIDTH, N_CELL)  # [B, W, H, 20]
        return cells[:, side : side + SEEN, -SEEN:].reshape(len(observations), -1)


@ENV_REGISTRY.register('minigrid_memory_s7')
@env_family(summary='MiniGrid MemoryS7 with a view of 3x3 cells: without memory half of the episodes succeed.')
def make_minigrid_memory_s7(request: EnvRequest, /, **options: Any) -> gymnasium.vector.VectorEnv:
    """`request.n_env` games: see a key or a ball, walk away, and go to the one of two others that is the same.

    Observations are one-hot vectors of 3x3 cells, 20 numbers each: its object (11), colour (6) and state (3). The reward
    of success is 1 - 0.9 * n_step / 245. In MiniGrid's own view of 7x7 cells all three objects are seen at once from
    where the agent has to choose. `options` are those of the family 'envpool' for this game.

    Source: the narrow view and the three actions as in github.com/MarcoMeter/recurrent-ppo-truncated-bptt.
    """
    return NarrowView(make_pool(request, 'MiniGrid-MemoryS7-v0', EXTRA, options))
