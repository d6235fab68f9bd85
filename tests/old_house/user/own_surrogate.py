"""User code for commit 7e7fb52 that registers a name, which a checkpoint has; it is imported in other processes only."""

from __future__ import annotations

from typing import Any

from zoo import SURROGATE_REGISTRY


@SURROGATE_REGISTRY.register('old_house_soft')
def soft(log_ratio: Any, ratio: Any, adv: Any, clip_ratio: Any, *, strength: float = 1.0) -> Any:
    """As SPO, but the penalty is on the log of the ratio."""
    return log_ratio * adv - strength * adv.abs() * log_ratio.square() / (2 * clip_ratio)
