"""Divisors around a number."""

from __future__ import annotations

import pytest

from zoo.config.messages import around


@pytest.mark.parametrize(
    ('n', 'wanted', 'text'),
    [(8, 3, '2 or 4'), (8, 100, '8'), (7, 2, '1 or 7'), (12, 4, '4'), (1, 1, '1'), (256, 100, '64 or 128')],
)
def test_nearest_divisors_on_both_sides(n: int, wanted: int, text: str) -> None:
    assert around(n, wanted) == text
