"""Divisors of a number, for messages about uneven splits."""

from __future__ import annotations

import math


def around(n: int, wanted: int) -> str:
    """'64 or 128': the nearest divisors of n on both sides of a number; one of them where it is the only one."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = {*small, *(n // d for d in small)}
    below = max(d for d in divisors if d <= wanted)
    above = min((d for d in divisors if d >= wanted), default=None)
    return f'{below}' if above in (None, below) else f'{below} or {above}'
