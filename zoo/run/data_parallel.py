"""Data-parallel runs: what all ranks agree on, so that they do the same next; a single process agrees with itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from zoo.core.ranks import Ranks
from zoo.core.seeding import stream
from zoo.policy.metrics import over_ranks
from zoo.run.build import MAIN, Parts
from zoo.worker.evaluator import Evaluation
from zoo.worker.infos import InfoTally


class Agreement:
    """Counters, stops and evaluations over all ranks.

    After `count` every rank has the counters of the whole run: env steps, episodes, resets, samples. All ranks call each
    method at the same place of their loops, and have the same counters when this is made.
    """

    def __init__(self, ranks: Ranks, parts: Parts) -> None:
        self._ranks, self._parts = ranks, parts
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
        return next(filter(None, self._ranks.gather(text)), '')

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


def play_evaluations(
    parts: Parts, seed: int, env_step: int, stop: Callable[[], bool], ranks: Ranks
) -> Evaluation | None:
    """This rank's share of the episodes of all evaluations, from seeds that depend on the run's seed and the env step.

    Args: stop: asked during the episodes, of one process alone: one of several ranks would leave the others waiting.
    Returns: None if `stop` said so before all episodes had ended.
    """
    is_alone = ranks.size == 1
    found: dict[str, Evaluation] = {}
    for name, evaluator in {MAIN: parts.evaluator, **parts.evaluation_sets}.items():
        words = *((name,) if name != MAIN else ()), *(() if is_alone else (ranks.rank,))
        part = evaluator.evaluate(stream(seed, 'evaluate', env_step, *words), stop if is_alone else lambda: False)
        if part is None:
            return None
        found[name] = part
    return found.pop(MAIN)._replace(sets=found)
