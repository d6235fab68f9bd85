"""Envs that only a policy with a memory can solve."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import batch_space

from zoo.core.registry import ENV_REGISTRY
from zoo.env.families.envpool import EXTRA, N_KIND, make_pool
from zoo.env.families.family import EnvRequest, env_family

WIDTH, SEEN, N_CELL = 7, 3, sum(N_KIND)  # width of MiniGrid's view and of NarrowView, in cells; numbers for each cell
N_ACTION = 3  # turn left, turn right, go forward: the first of MiniGrid's


@ENV_REGISTRY.register('remember_cue')
class RememberCue(gymnasium.Env):
    """The first observation shows a cue; `delay` steps later the action must be that cue: reward 1, else 0.

    The observation has one number for each cue, and a last one that is 1 when the action counts, after which the
    episode ends. Without memory the best return is 1 / n_cue.
    """

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 5}  # noqa: RUF012

    def __init__(self, n_cue: int = 2, delay: int = 20, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0.0, 1.0, (n_cue + 1,), np.float32)
        self.action_space = Discrete(n_cue)
        self._delay = delay
        self._cues = [row for row in np.eye(n_cue, n_cue + 1, dtype=np.float32)]
        self._blank = np.zeros(n_cue + 1, np.float32)
        self._question = np.eye(1, n_cue + 1, n_cue, dtype=np.float32)[0]
        self._cue = self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue, self._t = int(self.np_random.integers(len(self._cues))), 0
        return self._cues[self._cue], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        if self._t <= self._delay:
            return self._question if self._t == self._delay else self._blank, 0.0, False, False, {}
        return self._blank, float(action == self._cue), True, False, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The observation: [1, n_cue + 1, 3] bytes, a pixel for each number, white where it is 1; the last one is red."""
        shown = self._question if self._t == self._delay else self._blank
        if self._t == 0:
            shown = self._cues[self._cue]
        picture = np.repeat((255 * shown).astype(np.uint8)[None, :, None], 3, axis=2)
        picture[:, -1, 1:] = 0
        return picture


@ENV_REGISTRY.register('cartpole_no_velocity')
def cartpole_no_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """CartPole-v1, 500 steps at most, that shows position and angle but not their speeds."""
    env = gymnasium.make('CartPole-v1', render_mode=render_mode, disable_env_checker=True)
    full: Any = env.observation_space
    space = Box(full.low[::2], full.high[::2], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[::2].copy(), space)


class NarrowView(gymnasium.vector.VectorObservationWrapper):
    """MiniGrid with a view of 3x3 cells in place of 7x7, without the direction, and with three actions."""

    def __init__(self, env: gymnasium.vector.VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = Box(0.0, 1.0, (SEEN * SEEN * N_CELL,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.single_action_space = Discrete(N_ACTION)
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
