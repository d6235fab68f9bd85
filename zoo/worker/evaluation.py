"""What an evaluation found: returns, lengths and the env's own numbers, one of each per episode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zoo.worker.episode_infos import success_of


class Evaluation(NamedTuple):
    """Undiscounted returns of raw rewards and lengths in env steps, one per episode, those of the first env first."""

    returns: list[float]
    lengths: list[int]
    cut: Sequence[bool] = ()
    """Which episodes were cut off, see `Evaluator`; empty: none."""
    infos: dict[str, list[float]] = {}  # noqa: RUF012
    """The env's own numbers by key of its info, one per episode; nan where an episode had none."""
    sets: dict[str, Evaluation] = {}  # noqa: RUF012
    """The evaluations of policy.eval.sets, by name."""

    @property
    def n_cut(self) -> int:
        """Episodes that were cut off."""
        return sum(self.cut)

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))

    @property
    def return_min(self) -> float:
        """The lowest return."""
        return min(self.returns)

    @property
    def return_max(self) -> float:
        """The highest return."""
        return max(self.returns)

    @property
    def length_mean(self) -> float:
        """Mean length, env steps."""
        return float(np.mean(self.lengths))

    @property
    def success_rate(self) -> float | None:
        """Share of episodes whose last info says `is_success` (or `success`); None if none says either."""
        return success_of({key: found for key in self.infos if (found := self.info_mean(key)) is not None})

    def return_quantile(self, q: float) -> float:
        """The return that a share q of the episodes, in [0, 1], does not exceed; between two returns on a straight line."""
        return float(np.quantile(self.returns, q))

    def info_mean(self, key: str) -> float | None:
        """Mean of one of the env's own numbers, over the episodes that had it; None if none had."""
        values = [value for value in self.infos.get(key, []) if not math.isnan(value)]
        return float(np.mean(values)) if values else None

    def rows(self) -> list[dict[str, Any]]:
        """One dict per episode: episode, return, length, cut, and the env's own numbers by key, all with the same keys."""
        cut = self.cut or [False] * len(self.returns)
        return [
            episode_row(i, self.returns[i], self.lengths[i], cut[i], {key: x[i] for key, x in self.infos.items()})
            for i in range(len(self.returns))
        ]

    def metrics(self) -> dict[str, float]:
        """What the log has of it, without the group's name 'eval/', the sets as 'name/return_mean' and so on."""
        return dict(self._metrics())

    def _metrics(self) -> Iterator[tuple[str, float]]:
        yield 'return_mean', self.return_mean
        yield 'return_std', self.return_std
        yield 'return_min', self.return_min
        yield 'return_max', self.return_max
        yield 'episode_len_mean', self.length_mean
        yield 'episode_cut', self.n_cut
        for key in self.infos:
            mean = self.info_mean(key)
            if mean is not None:
                yield f'info/{key}_mean', mean
        if self.success_rate is not None:
            yield 'success_rate', self.success_rate
        for name, evaluation in self.sets.items():
            yield from ((f'{name}/{metric}', value) for metric, value in evaluation.metrics().items())


def episode_row(episode: int, return_: float, length: int, cut: bool, infos: Mapping[str, float]) -> dict[str, Any]:
    """The row of one episode; an entry of the info whose key is one of the first four is 'info/key'."""
    row: dict[str, Any] = {'episode': episode, 'return': return_, 'length': length, 'cut': bool(cut)}
    return row | {f'info/{key}' if key in row else key: value for key, value in infos.items()}
