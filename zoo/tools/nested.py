"""Nested dicts by dotted keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def put_at(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the entry at a dotted path of nested dicts; creates missing dicts on the path."""
    *parents, last = path.split('.')
    for key in parents:
        data = data.setdefault(key, {})
    data[last] = value


def short_keys(keys: Sequence[str]) -> list[str]:
    """Returns the last word of each dotted key, or the whole key if another key has the same last word."""
    lasts = [key.rpartition('.')[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]
