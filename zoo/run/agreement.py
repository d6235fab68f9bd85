"""What the ranks of a run agree on, so that all of them do the same next; one process agrees with itself at no cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zoo.core.ranks import Ranks
from zoo.policy.metrics import over_ranks
from zoo.run.evaluations import joined_evaluations
from zoo.run.parts import Parts
from zoo.worker.episode_infos import InfoTally
from zoo.worker.evaluation import Evaluation


class Agreement:
    """Counters, stops and evaluations over all ranks.

    After `count` every rank has the counters of the whole run: env steps, episodes, resets, samples. All ranks call each
    method at the same place of their loops.
    """

    def __init__(self, ranks: Ranks, parts: Parts) -> None:
        self._ranks, self._parts = ranks, parts
        self._before = self._counters()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone writes."""
        return self._ranks.rank == 0

    def begin(self) -> None:
        """The counters as they are now are the same on all ranks."""
        self._before = self._counters()

    def count(self) -> None:
        """Adds up what all ranks collected and learned from since the last call."""
        if self._ranks.size == 1:
            return
        own = torch.tensor(self._counters(), dtype=torch.float64) - torch.tensor(self._before, dtype=torch.float64)
        now = [before + int(n) for before, n in zip(self._before, self._ranks.sum_(own).tolist(), strict=True)]
        collector = self._parts.collector
        collector.env_step, collector.episodes.n_episode, collector.episodes.n_reset, self._parts.learner.n_sample = now
        self._before = now

    def stops(self, wanted: bool, received: list[int]) -> int | None:
        """None: no rank wants to stop. Else the number of the signal that one of them got; 0: it was no signal.

        Args: wanted: whether this rank wants to; received: the signal that it got, if any; that of another rank is added.
        """
        number = received[0] if received else 0
        if self._ranks.size == 1:
            return number if wanted or number else None
        if not self._ranks.sum_(torch.tensor([float(wanted or number > 0)])).item():
            return None
        number = max(self._ranks.gather(number))
        if number and not received:
            received.append(number)
        return number

    def first(self, text: str) -> str:
        """The text of the first rank that has one."""
        return next((each for each in self._ranks.gather(text) if each), '')

    def shared(self, value: Any) -> Any:
        """What rank 0 decided."""
        return self._ranks.share(value)

    def evaluation(self, own: Evaluation) -> Evaluation:
        """The episodes of all ranks."""
        return own if self._ranks.size == 1 else joined_evaluations(self._ranks.gather(own))

    def episodes(self) -> tuple[Sequence[float], Sequence[int], InfoTally]:
        """Returns, lengths and the env's own numbers of the last 100 training episodes of each rank."""
        own = self._parts.collector.episodes
        if self._ranks.size == 1:
            return own.returns, own.lengths, own.infos
        found = self._ranks.gather(
            (list(own.returns), list(own.lengths), {k: list(v) for k, v in own.infos.values.items()})
        )
        infos = InfoTally()
        for *_, values in found:
            for key, numbers in values.items():
                infos.values.setdefault(key, []).extend(numbers)  # type: ignore[arg-type]
        return [x for returns, *_ in found for x in returns], [n for _, lengths, _ in found for n in lengths], infos

    def metrics(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of all ranks: means, of maxima the largest, of minima the least; each over the ranks that have it."""
        if self._ranks.size == 1:
            return dict(own)
        found = self._ranks.gather({name: float(value) for name, value in own.items()})
        names = dict.fromkeys(name for each in found for name in each)
        return {
            name: over_ranks(name, torch.tensor([each[name] for each in found if name in each], dtype=torch.float64))
            for name in names
        }

    def _counters(self) -> list[int]:
        collector = self._parts.collector
        n_sample = 0 if self._ranks.size == 1 else self._parts.learner.n_sample
        return [collector.env_step, collector.episodes.n_episode, collector.episodes.n_reset, n_sample]


class OfRank(logging.Filter):
    """Of the log of another rank than 0 the warnings, with its number in front."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return False
        if not getattr(record, 'has_rank', False):
            record.msg, record.has_rank = f'rank {self._rank}: {record.msg}', True
        return True
