"""Uniform draws from a ring, each sample as often and as long as the limits allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from zoo.buffer.ring import Ring
from zoo.config.section import Section
from zoo.core.data import Columns
from zoo.core.ranks import ALONE, Ranks
from zoo.core.seeding import reseed, restore_generator


class DrawConfig(Section):
    """How much is drawn for one part of the update, and of which samples."""

    n_sample: int = Field(1024, ge=1, description='samples per draw; a multiple of policy.learn.batch_size')
    update_per_collect: int = Field(
        1, ge=1, description='draws after each rollout; the learner makes all its epochs over each of them'
    )
    max_use: Annotated[int, Field(ge=1)] | None = Field(
        None, description='draws that a sample may be part of; null: no limit'
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description='rollouts that may have been collected since a sample; 0: the newest only; null: no limit'
    )


class Draws:
    """Draws of `n_sample` rows of a ring without repetition, all eligible sets equally likely.

    A row is eligible until it was in `max_use` draws, while no more than `max_staleness` pushes followed its own, and
    while it is one of the newest `size`.
    With fewer than `n_sample` eligible rows there is no draw: so it is in the first rounds, until enough was collected,
    and, since chance uses samples up unevenly, it may be so for the last draws that a `max_use` above 1 would allow.
    """

    def __init__(self, ring: Ring, cfg: Any, generator: torch.Generator, size: int) -> None:
        self._ring, self._cfg, self._generator = ring, cfg, generator
        self._newest = size if size < ring.size else None
        self._n_use = torch.zeros(ring.size, dtype=torch.int32)
        self._ranks: Ranks = ALONE

    def batches(self) -> Iterator[Columns]:
        """Up to `update_per_collect` batches [n_sample], each drawn when it is asked for."""
        for _ in range(self._cfg.update_per_collect):
            rows = self._draw()
            if rows is None:
                return
            yield self._ring.gather(rows)

    def set_ranks(self, ranks: Ranks, seed: int, name: str) -> None:
        """Draws beside other ranks, each from rows of its own by an order of its own, and as many times as they."""
        self._ranks = ranks
        if ranks.rank:
            reseed(self._generator, seed, name, ranks.rank)

    def renew(self, rows: slice) -> None:
        """These rows hold new samples, never drawn."""
        self._n_use[rows] = 0

    def set_env_step(self, env_step: int) -> None:
        """How far the run is, for schedules; uniform draws have none."""

    def state_dict(self) -> dict[str, Any]:
        """How often each row was drawn, and the generator."""
        return {'n_use': self._n_use[: self._ring.n_row], 'generator': self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any], rows: Tensor) -> None:
        """Copies a `state_dict` in, of those rows that the ring took."""
        self._n_use[: len(rows)] = state['n_use'][rows]
        restore_generator(self._generator, state['generator'])

    def _draw(self) -> Tensor | None:
        eligible = self._eligible()
        n_eligible = self._ring.n_row if eligible is None else len(eligible)
        if not self._suffice(n_eligible):
            return None
        rows = distinct(n_eligible, self._cfg.n_sample, self._generator)
        rows = rows if eligible is None else eligible[rows]
        self._n_use[rows] += 1  # no row twice, so that each is counted
        return rows

    def _suffice(self, n_eligible: int) -> bool:
        """Whether so many rows suffice for a draw, on all ranks."""
        suffice = n_eligible >= self._cfg.n_sample
        # without use counts, which chance makes uneven, the ranks have equal numbers of rows
        return suffice if self._cfg.max_use is None else all(self._ranks.gather(suffice))

    def _eligible(self) -> Tensor | None:
        """The rows that may be drawn; None: all."""
        max_use, max_staleness = self._cfg.max_use, self._cfg.max_staleness
        if max_use is None and max_staleness is None and self._newest is None:
            return None
        rows = slice(0, self._ring.n_row)
        mask = torch.ones(self._ring.n_row, dtype=torch.bool)
        if max_use is not None:
            mask &= self._n_use[rows] < max_use
        if max_staleness is not None:
            mask &= self._ring.staleness(rows) <= max_staleness
        if self._newest is not None:
            mask &= self._ring.age(rows) < self._newest
        return mask.nonzero().squeeze(1)


def distinct(n_choice: int, n: int, generator: torch.Generator) -> Tensor:
    """n different integers below n_choice [n], every ordered choice equally likely.

    Few of many are the first n different ones of 2n independent draws, at a cost that does not grow with n_choice; a
    permutation makes the choice where they do not suffice. Neither prefers a number, so their mixture does not.
    """
    if n_choice >= 8 * n:
        draws = torch.randint(n_choice, (2 * n,), generator=generator)
        value, order = draws.sort(stable=True)
        is_first = torch.ones(2 * n, dtype=torch.bool)
        is_first[1:] = value[1:] != value[:-1]
        firsts = order[is_first].sort().values  # where in the draws a number comes for the first time
        if len(firsts) >= n:
            return draws[firsts[:n]]
    return torch.randperm(n_choice, generator=generator)[:n]
