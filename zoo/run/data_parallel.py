"""Data-parallel runs: agreement of all ranks on counters, stops and metrics; a single process agrees with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.core.ranks import ALONE, Ranks
from zoo.env.adapter import takes_keyword
from zoo.policy.metrics import over_ranks
from zoo.run.observers.base import Parts, RunView
from zoo.worker.infos import InfoTally, Recent
from zoo.worker.own_numbers import OwnNumbers


class Agreement:
    """Agreement of the ranks on stops, metrics and counters.

    After `count` every rank has the counters of the whole run: env steps, episodes, resets, actions of agents,
    samples. All ranks call each
    method at the same place of their loops, and have the same counters when this is made.
    Attributes: is_alone: whether it may save, or break off episodes, without others; evaluation_key: further numbers
      that the seeds of evaluations depend on.
    """

    def __init__(self, ranks: Ranks, parts: Parts) -> None:
        self._ranks = ranks
        self._parts = parts
        self.is_alone = ranks is ALONE
        self.evaluation_key: tuple[int, ...] = ()
        if not self.is_alone:
            self.evaluation_key = (ranks.rank,)
        self._before = self._counters()

    def count(self, *_: object) -> None:
        """Adds up what all ranks collected and learned from since the last call."""
        counters = torch.tensor(self._counters(), dtype=torch.float64)
        added = self._ranks.sum_(counters - torch.tensor(self._before, dtype=torch.float64))
        now = [before + int(n) for before, n in zip(self._before, added.tolist(), strict=True)]
        self._before = now
        collector = self._parts.collector
        collector.env_step, collector.episodes.n_episode, collector.episodes.n_reset, agent_step, *n_samples = now
        if collector.agent_step is not None:
            collector.agent_step = agent_step
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
        number = 0
        if received:
            number = received[0]
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
        episodes = self._parts.collector.episodes
        if self.is_alone:  # nothing to gather, so that nothing is copied
            return episodes.returns, episodes.lengths, episodes.infos
        infos_of_rank = {key: list(numbers) for key, numbers in episodes.infos.values.items()}
        all_returns: list[float] = []
        all_lengths: list[float] = []
        all_infos: dict[str, list[float]] = {}
        for returns, lengths, infos in self._ranks.gather(
            (list(episodes.returns), list(episodes.lengths), infos_of_rank)
        ):
            all_returns += returns
            all_lengths += lengths
            for key, numbers in infos.items():
                all_infos.setdefault(key, []).extend(numbers)
        tally = InfoTally()
        for key, numbers in all_infos.items():
            tally.values.setdefault(key, Recent()).add(numbers)
        return all_returns, all_lengths, tally

    def metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Merges the metrics of all ranks: means, the largest of maxima, the least of minima; over the ranks that have each."""
        if self.is_alone:  # `float` would wait for the device once for each metric
            return dict(metrics)
        values: dict[str, list[float]] = {}  # of all ranks that have it, by metric
        for metrics_of_rank in self._ranks.gather({name: float(value) for name, value in metrics.items()}):
            for name, value in metrics_of_rank.items():
                values.setdefault(name, []).append(value)
        return {name: over_ranks(name, x) for name, x in values.items()}

    def collector_metrics(self) -> dict[str, float]:
        """The collector's own metrics, see `Collector.metrics`."""
        metrics = self._parts.collector.metrics
        if self.is_alone or not takes_keyword(metrics, 'ranks'):  # a user's own collector may know of none
            return metrics()
        return metrics(ranks=self._ranks)

    def own_numbers(self, numbers: OwnNumbers) -> dict[str, float]:
        """The numbers that users' code gave all ranks since the last line of the log."""
        return numbers.take(self._ranks)

    def _counters(self) -> list[int]:
        collector = self._parts.collector
        episodes = collector.episodes
        n_samples = [int(learner.n_sample) for learner in self._parts.learners.values()]
        return [collector.env_step, episodes.n_episode, episodes.n_reset, collector.agent_step or 0, *n_samples]
