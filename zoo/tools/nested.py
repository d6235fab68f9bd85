"""Nested dicts by dotted keys."""

from __future__ import annotations

from typing import Any


def put_at(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the entry at a dotted path of nested dicts; those on the way are made."""
    *parents, last = path.split('.')
    for key in parents:
        data = data.setdefault(key, {})
    data[last] = value
