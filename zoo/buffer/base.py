"""What every buffer promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from pydantic import Field

from zoo.config.section import Section
from zoo.core.data import Columns

Batch = Columns
"""Samples [n] for one call of a policy's `learn_mode.forward`, or {'policy': samples, 'value': samples} where these parts
of the update get samples of their own."""


class BufferConfig(Section):
    """Section `buffer`."""

    type: str = Field('rollout', description='registered name of the buffer')


def in_sequences(cfg: Any, length: int, stride: int) -> Any:
    """A resolved section `buffer` with `size` and `n_sample`, at any depth, counted in sequences.

    Args: length: steps of a sequence; stride: from the start of one to that of the next, less where they overlap.
    """
    if length == stride == 1:
        return cfg
    counted = {key: in_sequences(x, length, stride) if isinstance(x, dict) else x for key, x in cfg.items()}
    per = {'size': stride, 'n_sample': length}
    return type(cfg)({key: x // per[key] if key in per and x else x for key, x in counted.items()})


class Buffer(Protocol):
    """Decides what is learned from; write a class like this and register it with `@BUFFER_REGISTRY.register(name)`.

    It is constructed as `cls(cfg, seed=seed)`: its resolved section, and the run's seed for draws of its own.
    """

    config: ClassVar[type[Section]]

    def push(self, samples: Columns) -> None:
        """Takes the samples [N] of one rollout; they are the caller's again when the next rollout is collected."""

    def batches(self) -> Iterator[Batch]:
        """What the learner trains on now, one batch after the other; called once after each push."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs: nested dicts of tensors and JSON values, valid until the next push."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in, before the first push; an empty one leaves a buffer empty."""
