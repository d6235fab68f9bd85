"""The contract of every buffer, and buffer 'rollout': on-policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from pydantic import Field

from zoo.config.section import Keyed, S, Section
from zoo.core.data import Columns, map_tensors
from zoo.core.registry import BUFFER_REGISTRY

Batch = Columns
"""Samples [n] for one call of a policy's `learn_mode.forward`, or {'policy': samples, 'value': samples} where these parts
of the update get samples of their own."""


class BufferConfig(Section):
    """Section `buffer`."""

    type: str = Field('rollout', description='registered name of the buffer')


def in_sequences(cfg: S, length: int, stride: int) -> S:
    """A resolved section `buffer` with `size` and `n_sample`, at any depth, counted in sequences.

    Args: length: steps of a sequence; stride: from the start of one to that of the next, less where they overlap.
    """
    if length == stride == 1:
        return cfg
    counted = {key: in_sequences(x, length, stride) for key, x in cfg.items() if isinstance(x, Section)}
    per = {'size': stride, 'n_sample': length}
    return cfg.model_copy(update=counted | {key: cfg[key] // n for key, n in per.items() if cfg.get(key)})


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


@BUFFER_REGISTRY.register('rollout')
class RolloutBuffer:
    """On-policy: yields what was pushed since the last time, once, and keeps nothing."""

    config: ClassVar[type[Section]] = BufferConfig

    def __init__(self, cfg: BufferConfig | None = None, seed: int = 0) -> None:
        self._samples: list[Columns] = []

    def push(self, samples: Columns) -> None:
        """Takes samples [N]; they are not copied, so use them before the next rollout is collected, or `keep` them."""
        self._samples.append(samples)

    def keep(self) -> None:
        """Copies what was pushed last, since the next rollout is about to be written over it."""
        if self._samples:
            self._samples[-1] = map_tensors(lambda x: x.clone(), self._samples[-1])

    @property
    def is_empty(self) -> bool:
        """Whether nothing was pushed since the last time."""
        return not self._samples

    def batches(self) -> Iterator[Columns]:
        """Each pushed block, once, in order."""
        samples, self._samples = self._samples, []
        yield from samples

    def state_dict(self) -> dict[str, Any]:
        """Nothing: between updates it is empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


PARTS = ('policy', 'value')


def n_draw_of(buffer: Keyed) -> int | None:
    """How many batches the policy's part of a buffer, a resolved section, draws per rollout; None: it draws nothing."""
    return buffer.get('policy', buffer).get('update_per_collect')


def n_rows_drawn(buffer: Keyed) -> list[int]:
    """Samples per draw of each part of a buffer, a resolved section; [] where nothing is drawn."""
    draws = [buffer[part] for part in PARTS if part in buffer] or [buffer]
    return [draw['n_sample'] for draw in draws if 'n_sample' in draw]


def reuse_of(buffer: Keyed, n_rollout: int) -> dict[str, float]:
    """How often a sample of a rollout is drawn on average, for each part; once where nothing is drawn.

    Args: buffer: the resolved section; n_rollout: samples per rollout, policy.collect.n_sample.
    """
    draws = {part: buffer.get(part, buffer) for part in PARTS}
    return {
        part: draw['update_per_collect'] * draw['n_sample'] / n_rollout if 'n_sample' in draw else 1.0
        for part, draw in draws.items()
    }
