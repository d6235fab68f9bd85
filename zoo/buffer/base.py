"""Protocol of every buffer, its config section, and the numbers that follow from that section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from pydantic import Field

from zoo.config.section import ConfigLike, S, Section
from zoo.core.data import Columns

Batch = Columns
"""Samples [n] for one call of `learn_mode.forward`, or {'policy': samples, 'value': samples} if these parts draw separately."""
PARTS = ('policy', 'value')


class BufferConfig(Section):
    """Section `buffer`."""

    type: str = Field('rollout', description='registered name of the buffer')


def in_sequences(cfg: S, length: int, stride: int) -> S:
    """Converts `size` and `n_sample` of a resolved section `buffer`, at any depth, from steps to sequences.

    Args: length: steps of a sequence; stride: steps from the start of one sequence to the next, fewer if they overlap.
    """
    if length == stride == 1:
        return cfg
    counted = {key: in_sequences(x, length, stride) for key, x in cfg.items() if isinstance(x, Section)}
    per = {'size': stride, 'n_sample': length}
    return cfg.model_copy(update=counted | {key: cfg[key] // n for key, n in per.items() if cfg.get(key)})


class Buffer(Protocol):
    """Protocol of buffers, which decide what the policy learns from.

    To add one, write a class with these members and register it with `@BUFFER_REGISTRY.register(name)`. It is constructed
    as `cls(cfg, seed=seed)`: its resolved section, and the seed of the run for its own random draws.
    """

    config: ClassVar[type[Section]]

    def push(self, samples: Columns) -> None:
        """Takes the samples [N] of one rollout; the caller reuses their memory for the next rollout."""

    def batches(self) -> Iterator[Batch]:
        """Yields the batches that the learner trains on now; called once after each push."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs: nested dicts of tensors and JSON values, valid until the next push."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in, before the first push; an empty one leaves a buffer empty."""


def n_draw_of(buffer: ConfigLike) -> int | None:
    """Batches per rollout that the policy part of a resolved section `buffer` draws; None: it draws nothing."""
    return buffer.get('policy', buffer).get('update_per_collect')


def n_rows_drawn(buffer: ConfigLike) -> list[int]:
    """Samples per draw, for each part of a resolved section `buffer`; [] if nothing is drawn."""
    draws = [buffer[part] for part in PARTS if part in buffer] or [buffer]
    return [draw['n_sample'] for draw in draws if 'n_sample' in draw]


def reuse_of(buffer: ConfigLike, n_rollout: int) -> dict[str, float]:
    """Average number of draws of each sample, by part of the update; 1 if nothing is drawn.

    Args: buffer: the resolved section; n_rollout: samples per rollout, policy.collect.n_sample.
    """
    draws = {part: buffer.get(part, buffer) for part in PARTS}
    return {
        part: draw['update_per_collect'] * draw['n_sample'] / n_rollout if 'n_sample' in draw else 1.0
        for part, draw in draws.items()
    }
