"""Clocks of the parts of a run."""

from __future__ import annotations

import pytest

from zoo.core.timer import Clocks, Timer


def test_since_is_the_difference_of_two_readings() -> None:
    start = Clocks(1.0, 100, {'learn': 0.5}, {'learn': 2})
    end = Clocks(4.0, 356, {'learn': 2.5}, {'learn': 7})
    assert end.since(start) == Clocks(3.0, 256, {'learn': 2.0}, {'learn': 5})


def test_part_adds_seconds_and_a_call_to_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((10.0, 11.0, 13.5, 20.0, 20.5))  # at the start; around two parts
    monkeypatch.setattr('zoo.core.timer.time.perf_counter', lambda: next(readings))
    timer = Timer(('collect', 'learn'))
    for _ in range(2):
        with timer.part('learn'):
            pass
    assert timer.seconds == {'collect': 0.0, 'learn': 3.0}  # 2.5 + 0.5
    assert timer.calls == {'collect': 0, 'learn': 2}
