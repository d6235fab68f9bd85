"""A small game on pixels: a ball, a paddle, a wall of bricks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zoo.core.registry import ENV_REGISTRY

SIZE = 10
ROWS = 3  # of bricks
PADDLE, BALL, TRAIL, BRICK = range(4)  # channels
ON = 255
COLORS = {
    TRAIL: (70, 70, 70),
    BRICK: (200, 90, 60),
    PADDLE: (90, 150, 240),
    BALL: (255, 255, 255),
}  # the last one on top


@ENV_REGISTRY.register('tiny_bricks')
class TinyBricks(gymnasium.Env):
    """A ball breaks bricks in images of 10x10 pixels: reward 1 for each brick; the episode ends when the ball is missed.

    The ball moves diagonally, one cell a step. Side walls, the top and bricks reflect it, and a brick that it hits breaks.
    The paddle is two cells of the lowest row and moves one cell a step. Its left cell sends the ball to the left, its right
    cell to the right. A wall has 30 bricks, in rows 1 to 3. When it is broken, the next wall comes, with a new ball. The
    episode ends when all walls are broken: the best return is 30 * n_wall, 60 by default.
    Actions: 0 stay, 1 left, 2 right. Observations: [10, 10, 4] bytes, 0 or 255. The channels are the paddle, the ball, the
    cell behind the ball (which shows its direction), and the bricks.

    Args: n_wall: walls of an episode;  max_step: steps after which an episode is truncated;  render_mode: 'rgb_array'.
    """

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 15}  # noqa: RUF012

    def __init__(self, n_wall: int = 2, max_step: int = 2000, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0, ON, (SIZE, SIZE, 4), np.uint8)
        self.action_space = Discrete(3)
        self.n_wall = n_wall
        self._max_step = max_step
        self.pixels = np.zeros((SIZE, SIZE, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.pixels[:] = 0
        self._t = 0
        self.n_left = self.n_wall
        self.paddle = SIZE // 2 - 1
        self.pixels[-1, self.paddle : self.paddle + 2, PADDLE] = ON
        self._serve()
        return self.pixels.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        place = min(max(self.paddle + (0, -1, 1)[int(action)], 0), SIZE - 2)
        if place != self.paddle:
            self.pixels[-1, :, PADDLE] = 0
            self.pixels[-1, place : place + 2, PADDLE] = ON
            self.paddle = place
        self.draw_ball(0)
        reward, is_over = self._move_ball()
        if self.n_brick == 0:
            self.n_left -= 1
            is_over = self.n_left == 0
            if not is_over:
                self._serve()
        self.draw_ball(ON)
        return self.pixels.copy(), reward, is_over, self._t >= self._max_step, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The current state: [10, 10, 3] bytes, a pixel for each cell."""
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        for channel, color in COLORS.items():
            picture[self.pixels[:, :, channel] == ON] = color
        return picture

    def _serve(self) -> None:
        """Places a new wall and a new ball, which falls from below the wall."""
        self.pixels[1 : 1 + ROWS, :, BRICK] = ON
        self.n_brick = ROWS * SIZE
        self.row = ROWS + 1
        self.column = int(self.np_random.integers(1, SIZE - 1))
        self.down = 1
        self.right = int(self.np_random.integers(2)) * 2 - 1
        self.draw_ball(ON)

    def _move_ball(self) -> tuple[float, bool]:
        """Returns: the reward, and whether the ball is missed. A ball that breaks a brick turns back in its own cell."""
        if self.row == 0:
            down = 1
        else:
            down = self.down
        if 0 <= self.column + self.right < SIZE:
            right = self.right
        else:
            right = -self.right
        row = self.row + down
        column = self.column + right
        if self.pixels[row, column, BRICK]:
            self.pixels[row, column, BRICK] = 0
            self.n_brick -= 1
            self.down = -down
            return 1.0, False
        self.down = down
        self.right = right
        self.column = column
        if row < SIZE - 1:
            self.row = row
            return 0.0, False
        half = column - self.paddle
        if half not in (0, 1):
            self.row = row
            return 0.0, True
        # the ball stays one row above the paddle
        self.down = -1
        self.right = 2 * half - 1
        return 0.0, False

    def draw_ball(self, value: int) -> None:
        self.pixels[self.row, self.column, BALL] = value
        self.pixels[self.row - self.down, self.column - self.right, TRAIL] = value
