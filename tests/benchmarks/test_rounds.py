"""benchmarks/rounds.py: the pairs of rounds of two checkouts, and the ratio that it computes from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rounds
from speed_works import WORKS


class Watched:
    """A trainer whose rounds take `seconds`; adds its name to `calls` at each round."""

    def __init__(self, name: str, seconds: float, calls: list[str]) -> None:
        self.name, self.seconds, self.calls = name, seconds, calls

    def round_s(self) -> float:
        self.calls.append(self.name)
        return self.seconds


def test_pairs_of_alternates_who_goes_first_and_keeps_sides():
    calls: list[str] = []
    sides: tuple[Any, Any] = Watched('before', 2.0, calls), Watched('now', 1.0, calls)
    assert rounds.pairs_of(*sides, 3) == [(2.0, 1.0)] * 3
    assert calls == ['before', 'now', 'now', 'before', 'before', 'now']


def test_turn_of_several_rounds_is_their_mean_without_the_first():
    times = iter([9.0, 1.0, 2.0, 3.0])
    trainer: Any = Watched('now', 0.0, [])
    trainer.round_s = lambda: next(times)
    assert rounds.turn_s(trainer, 4) == 2.0


def test_summary_is_the_median_ratio_of_pairs_with_its_interval():
    # before/now: 100 pairs of ratios .51 to 1.50; median (1.00 + 1.01) / 2; ranks 49.5 -+ 9.8 -> 39 and 60
    pairs = [(51 + index, 100) for index in range(100)]
    found = rounds.summary(pairs)
    assert (found['ratio'], found['low'], found['high']) == (1.005, 0.90, 1.11)


def test_a_slow_pair_moves_no_ratio():
    assert rounds.summary([(1.0, 1.0)] * 9 + [(50.0, 1.0)])['ratio'] == 1.0


def test_round_in_which_the_other_may_still_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    class Busy:
        """A trainer whose first round is slow."""

        def __init__(self, checkout: Path, *_: Any) -> None:
            self.seconds = iter([9.0] + [2.0 if checkout.name == 'before' else 1.0] * 3)

        def round_s(self) -> float:
            return next(self.seconds)

        def close(self) -> None:
            """Nothing to end."""

    monkeypatch.setattr(rounds, 'Trainer', Busy)
    found = rounds.compare(WORKS[0], WORKS[0].eager[0], Path('before'), 3)
    assert (found['rounds'], found['low'], found['ratio'], found['high']) == (3, 2.0, 2.0, 2.0)
    assert (found['before_ms'], found['now_ms']) == (2000, 1000)


@pytest.mark.long
def test_trainer_that_is_closed_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('TMPDIR', str(tmp_path))
    work = WORKS[0]._replace(num_envs=1, rollout=32, minibatch=32, epochs=1, warmup=1)
    trainer = rounds.Trainer(rounds.HERE.parent, work, work.eager[1], 5)
    try:
        assert trainer.round_s() > 0
        assert list(tmp_path.iterdir())
    finally:
        trainer.close()  # after one of the five rounds
    assert not list(tmp_path.iterdir()) and trainer.process.returncode == 0
