"""Tic-tac-toe of PettingZoo that begins after two moves drawn at random, so that policies that draw nothing play many games."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pettingzoo


class RandomOpening:
    """Tic-tac-toe after one random move of each player. Attributes: seeds: of all resets that had one, in their order."""

    seeds: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.env = pettingzoo.make('aec', 'classic/tictactoe-v3')

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.seeds.append(seed)
            self.rng = np.random.default_rng(seed)
        self.env.reset(seed=seed)
        for cell in self.rng.choice(9, 2, replace=False).tolist():
            self.env.step(cell)


def first(obs: Any, mask: np.ndarray) -> np.ndarray:
    """A player that takes the first free cell."""
    return mask.argmax(1)


def last(obs: Any, mask: np.ndarray) -> np.ndarray:
    """A player that takes the last free cell."""
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
