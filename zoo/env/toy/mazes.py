"""Mazes from seeds: small grids, easy and hard ones, for tests of generalisation to levels that training has not seen."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zoo.core.registry import ENV_REGISTRY

MOVES = (-1, 0), (0, 1), (1, 0), (0, -1)  # up, right, down, left
VIEW = 2  # cells that the agent sees in each direction
OWN_CELL = 2 * VIEW * (VIEW + 1)  # index in the observation: the middle of the view
MAX_LEVELS = 20_000  # that a process keeps


class Maze(NamedTuple):
    """A level, by cell of the grid. obs: [n, F]; next_cell: [n, 4], after each move; distance: to the goal, -1: no way."""

    obs: np.ndarray
    next_cell: np.ndarray
    distance: np.ndarray
    start: int
    goal: int


@lru_cache(MAX_LEVELS)
def maze(level: int, size: int, most_walls: float = 0.5, solvable: bool = True) -> Maze:
    """The maze of a level: walls at random, a goal, and a start; if `solvable`, one from which there is a way to the goal."""
    generator = np.random.default_rng([level, size])
    n = size * size
    while True:
        walls = generator.random((size, size)) < generator.uniform(0.0, most_walls)
        free = np.flatnonzero(~walls)
        if len(free) < 2:
            continue
        goal = int(generator.choice(free))
        next_cell = _moves(walls)
        distance = _distances(next_cell, goal)
        starts = np.flatnonzero(distance > 0)
        if not solvable:
            starts = free[free != goal]
        if len(starts):
            break
    padded = np.pad(walls, VIEW, constant_values=True)
    width = 2 * VIEW + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (width, width)).reshape(n, width * width)
    rows, columns = np.divmod(np.arange(n), size)
    to_goal = np.stack((goal // size - rows, goal % size - columns), 1) / (size - 1)
    obs = np.concatenate((windows, to_goal), 1).astype(np.float32)
    return Maze(obs, next_cell, distance, int(generator.choice(starts)), goal)


def _moves(walls: np.ndarray) -> np.ndarray:
    """[n, 4]: the cell after each move from each cell; a move into a wall or out of the grid changes nothing."""
    size = len(walls)
    found = np.empty((size * size, len(MOVES)), dtype=np.int64)
    for cell in range(size * size):
        for k, (down, right) in enumerate(MOVES):
            row = cell // size + down
            column = cell % size + right
            is_free = 0 <= row < size and 0 <= column < size and not walls[row, column]
            found[cell, k] = row * size + column if is_free else cell
    return found


def _distances(next_cell: np.ndarray, goal: int) -> np.ndarray:
    """[n]: moves to the goal from each cell, -1 where there is no way; walls have none, since no move leads out of one."""
    distance = np.full(len(next_cell), -1)
    distance[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for other in next_cell[cell]:  # moves between free cells go both ways
            if distance[other] < 0:
                distance[other] = distance[cell] + 1
                queue.append(int(other))
    return distance


@ENV_REGISTRY.register('mazes')
class MazeEnv(gymnasium.Env):
    """A maze of `size` x `size` cells; `reset(seed=level)` begins that level, other resets one at random.

    The agent sees the walls up to two cells around it, and the direction to the goal. It moves up, right, down or left. The reward is
    1 - 0.9 * t / limit at the goal, where the episode ends, else 0; after `limit` steps it is cut off.
    Of each level, a share of cells between 0 and `most_walls` are walls, and with `solvable: false` there may be no way to the goal.
    """

    metadata = {'render_modes': ['ansi']}  # noqa: RUF012

    def __init__(
        self,
        size: int = 9,
        limit: int = 60,
        most_walls: float = 0.5,
        solvable: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if size < 2 or not 0 <= most_walls <= 1:
            raise ValueError(
                f'size is {size} and most_walls {most_walls}, wanted a size of 2 or more and a share from 0 to 1'
            )
        self.size = size
        self.limit = limit
        self.most_walls = most_walls
        self.solvable = solvable
        self.render_mode = render_mode
        n_feature = (2 * VIEW + 1) ** 2 + 2
        self.observation_space = Box(-1.0, 1.0, (n_feature,), np.float32)
        self.action_space = Discrete(len(MOVES))
        self._level = 0
        self._cell = 0
        self._n_step = 0
        self._maze = maze(0, size, most_walls, solvable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._level = int(self.np_random.integers(1 << 31)) if seed is None else seed
        self._maze = maze(self._level, self.size, self.most_walls, self.solvable)
        self._cell = self._maze.start
        self._n_step = 0
        return self._maze.obs[self._cell], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._n_step += 1
        self._cell = int(self._maze.next_cell[self._cell, action])
        is_there = self._cell == self._maze.goal
        reward = 1.0 - 0.9 * self._n_step / self.limit if is_there else 0.0
        return self._maze.obs[self._cell], reward, is_there, not is_there and self._n_step >= self.limit, {}

    def render(self) -> str:
        """The maze as text: # walls, G the goal, A the agent."""
        is_wall = self._maze.obs[:, OWN_CELL] > 0
        text = np.where(is_wall, '#', '.')
        text[self._maze.goal] = 'G'
        text[self._cell] = 'A'
        return '\n'.join(''.join(row) for row in text.reshape(self.size, self.size))
