"""A part of a policy that the config chooses by name, as the code that uses it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """A registered function with its options: callable, and hashable, so that a compiled step may depend on it."""

    kind: str
    name: str
    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.options))
