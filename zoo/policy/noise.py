"""The noise of acting: a function of the seed, the envs and the rollout, so that any process draws the same."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.core.seeding import reseed, torch_generator
from zoo.rl_utils.distribution import ActionDist


class Noise:
    """Draws noise for groups of envs, each for a whole rollout at once.

    A group is known by the index of its first env over all envs of the run. Within one rollout each further draw for a
    group is another one, so that acting by hand, without a collector, never repeats itself.
    Args: seed: the run's; n_step: of a rollout; device: where the noise is needed.
    """

    def __init__(self, dist: ActionDist, n_step: int, seed: int, device: torch.device) -> None:
        self._dist, self._n_step, self._seed, self._device = dist, n_step, seed, device
        self._generator = torch_generator(seed, 'collect', device)
        self._collect_iter = 0
        self._n_drawn: dict[int, int] = {}
        self._rows: dict[int, list[Tensor]] = {}

    def begin(self, collect_iter: int) -> None:
        """The rollout of this number begins."""
        self._collect_iter = collect_iter
        self._n_drawn.clear()
        self._rows.clear()

    def rollout(self, n_env: int, first: int) -> Tensor:
        """For each step of a rollout of a group, [T, B, ...]."""
        n_drawn = self._n_drawn.get(first, 0)
        self._n_drawn[first] = n_drawn + 1
        again = (n_drawn,) if n_drawn else ()
        reseed(self._generator, self._seed, 'collect', first, self._collect_iter, *again)
        return self._dist.noise((self._n_step, n_env), self._generator, self._device)

    def row(self, n_env: int, first: int) -> Tensor:
        """For the next step of a group, [B, ...]; a rollout is drawn anew where its rows are used up or B changes."""
        rows = self._rows.get(first)
        if not rows or len(rows[-1]) != n_env:
            rows = self._rows[first] = list(self.rollout(n_env, first).unbind(0))[::-1]
        return rows.pop()
