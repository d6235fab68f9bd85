"""Data-parallel runs: agreement of all ranks on counters, stops and metrics; a single process agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.core.ranks import ALONE, Ranks
from zoo.policy.metrics import over_ranks
from zoo.run.observers.base import Parts, RunView
from zoo.worker.infos import InfoTally, Recent


class Agreement:
    """Agreement of the ranks on stops, metrics and counters.

    After `count` every rank has the counters of the whole run: env steps, episodes, resets, samples. All ranks call each
    method at the same place of their loops, and have the same counters when this is made.
    Attributes: is_alone: whether it may save, or break off episodes, without others; evaluation_key: further numbers
      that the seeds of evaluations depend on.
    """

    def __init__(self, ranks: Ranks, parts: Parts) -> None:
        self._ranks = ranks
        self._parts = parts
        self.is_alone = ranks is ALONE
        self.evaluation_key = () if self.is_alone else (ranks.rank,)
        self._before = self._counters()

    def count(self, *_: object) -> None:
        """Adds up what all ranks collected and learned from since the last call."""
        counters = torch.tensor(self._counters(), dtype=torch.float64)
        added = self._ranks.sum_(counters - torch.tensor(self._before, dtype=torch.float64))
        now = [before + int(n) for before, n in zip(self._before, added.tolist(), strict=True)]
        self._before = now
        collector = self._parts.collector
        collector.env_step, collector.episodes.n_episode, collector.episodes.n_reset, *n_samples = now
        for learner, n_sample in zip(self._parts.learners.values(), n_samples, strict=True):
            learner.n_sample = n_sample

    def ends(self, job: RunView, received: list[int]) -> bool:
        """Whether any rank got a signal to stop, or is done; all ranks call it between two iterations.

        Args: received: as in `stops`.
        """
        number = self.stops(job.stop_reason is not None, received)
        if number is None:
            return job.done
        if not number:
            job.stop_reason = self.first(job.stop_reason or '')
        return True

    def stops(self, wanted: bool, received: list[int]) -> int | None:
        """Returns None if no rank wants to stop, else the number of the signal that a rank got, or 0 without a signal.

        Args: wanted: whether this rank wants to; received: the signal that it got, if any; that of another rank is added.
        """
        number = received[0] if received else 0
        if not self._ranks.sum_(torch.tensor([float(wanted or number > 0)])).item():
            return None
        number = max(self._ranks.gather(number))
        if number and not received:
            received.append(number)
        return number

    def first(self, text: str) -> str:
        """The text of the first rank that has one."""
        return next(filter(None, self._ranks.gather(text)), '')

    def episodes(self) -> tuple[Sequence[float], Sequence[float], InfoTally]:
        """Returns, lengths and the env's own numbers of the last training episodes of each rank, see `Recent`."""
        own = self._parts.collector.episodes
        found = self._ranks.gather(
            (list(own.returns), list(own.lengths), {k: list(v) for k, v in own.infos.values.items()})
        )
        infos = InfoTally()
        merged: dict[str, list[float]] = {}
        for *_, values in found:
            for key, numbers in values.items():
                merged.setdefault(key, []).extend(numbers)
        for key, numbers in merged.items():
            infos.values.setdefault(key, Recent()).add(numbers)
        return [x for returns, *_ in found for x in returns], [n for _, lengths, _ in found for n in lengths], infos

    def metrics(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Merges the metrics of all ranks: means, the largest of maxima, the least of minima; over the ranks that have each."""
        if self.is_alone:  # `float` would wait for the device once for each metric
            return dict(own)
        found = self._ranks.gather({name: float(value) for name, value in own.items()})
        names = dict.fromkeys(name for each in found for name in each)
        return {
            name: over_ranks(name, torch.tensor([each[name] for each in found if name in each], dtype=torch.float64))
            for name in names
        }

    def _counters(self) -> list[int]:
        collector = self._parts.collector
        episodes = collector.episodes
        n_samples = [int(learner.n_sample) for learner in self._parts.learners.values()]
        return [collector.env_step, episodes.n_episode, episodes.n_reset, *n_samples]
