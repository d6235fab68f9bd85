"""Nested dicts by dotted keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def put_at(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the entry at a dotted path of nested dicts; those on the way are made."""
    *parents, last = path.split('.')
    for key in parents:
        data = data.setdefault(key, {})
    data[last] = value


def short_keys(keys: Sequence[str]) -> list[str]:
    """The last words of dotted keys, or the whole key where two end in the same one."""
    lasts = [key.rpartition('.')[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]
