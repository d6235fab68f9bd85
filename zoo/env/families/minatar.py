"""The env 'minatar': the five MinAtar games, Atari games on images of 10x10 cells."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zoo.core.errors import did_you_mean
from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvKwargsError
from zoo.env.families.family import import_extra

GAMES = ('asterix', 'breakout', 'freeway', 'seaquest', 'space_invaders')
ON = 255


@ENV_REGISTRY.register('minatar')
class MinAtar(gymnasium.Env):
    """The five MinAtar games; env.kwargs.game names one: asterix, breakout, freeway, seaquest, space_invaders.

    Observations: [10, 10, C] bytes, 0 or 255, with a channel for each kind of thing; C is 4 (asterix, breakout), 6
    (space_invaders), 7 (freeway) or 10 (seaquest). Actions: those that have an effect in the game, 3 to 6. As in the
    original, with probability `sticky_action_prob` the last action is repeated, and games get harder if `ramping`.
    Freeway ends only by its time limit, at step 2,501, so its episodes are truncated; the original ends them as done.

    Raises: EnvKwargsError for an unknown game, or no probability; MissingExtraError without the extra minatar.

    Source: Young and Tian 2019, arXiv:1903.03176.
    """

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 15}  # noqa: RUF012

    def __init__(
        self, game: str, sticky_action_prob: float = 0.1, ramping: bool = True, render_mode: str | None = None
    ) -> None:
        if game not in GAMES:
            raise EnvKwargsError(
                f'env.kwargs.game is {game!r}: {did_you_mean(str(game), GAMES, end=" ")}minatar has {", ".join(GAMES)}; '
                'use one of these.'
            )
        if not (isinstance(sticky_action_prob, int | float) and 0 <= sticky_action_prob <= 1):
            raise EnvKwargsError(
                f'env.kwargs.sticky_action_prob is {sticky_action_prob!r}: it is a probability; pass a number from 0 to 1.'
            )
        self._game = import_extra('minatar', 'minatar', 'minatar').Environment(game, sticky_action_prob, ramping)
        self._actions = self._game.minimal_action_set()
        self._ends_by_time = game == 'freeway'
        self.observation_space = Box(0, ON, tuple(self._game.state_shape()), np.uint8)
        self.action_space = Discrete(len(self._actions))
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(int(self.np_random.integers(1 << 32)))
        self._game.reset()
        self._game.last_action = 0  # an episode does not depend on the one before it
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward, is_over = self._game.act(self._actions[action])
        is_cut = is_over and self._ends_by_time
        return self._observation(), float(reward), is_over and not is_cut, is_cut, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The current state: [10, 10, 3] bytes, a hue for each channel, the first channel on top."""
        state = self._game.state()
        hues = np.linspace(0, 2 * np.pi, state.shape[-1], endpoint=False)[:, None] + np.array([0, 2, 4]) * np.pi / 3
        colors = np.vstack((np.zeros(3), 160 + 95 * np.cos(hues))).astype(np.uint8)
        top = np.where(state.any(-1), state.argmax(-1) + 1, 0)
        return colors[top]

    def _observation(self) -> np.ndarray:
        return self._game.state().astype(np.uint8) * np.uint8(ON)
