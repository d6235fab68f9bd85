"""Words of messages: divisors of a number, the start of a value, text in one line for a terminal."""

from __future__ import annotations

import math
import re
from typing import Any

from zoo.core.streams import visible


def around(n: int, wanted: int) -> str:
    """'64 or 128': the nearest divisors of n on both sides of a number; one of them where it is the only one."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = {*small, *(n // d for d in small)}
    below = max(d for d in divisors if d <= wanted)
    above = min((d for d in divisors if d >= wanted), default=None)
    return f'{below}' if above in (None, below) else f'{below} or {above}'


def shown(value: Any, n: int = 60) -> str:
    """The start of a value's repr."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        text = 'an integer too long to show' if isinstance(value, int) else f'a {type(value).__name__} too long to show'
    return text if len(text) <= n else f'{text[: n - 3]}...'


def printable(text: str) -> str:
    """The text in one line for a terminal: control characters are escaped, words of over 300 characters are cut."""
    return re.sub(r'(\S{300})\S+', r'\1...', visible(text, kept=''))
