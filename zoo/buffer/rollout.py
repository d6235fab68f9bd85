"""On-policy buffer 'rollout'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from zoo.buffer.base import Batch as Batch, Buffer as Buffer, BufferConfig
from zoo.config.section import Section
from zoo.core.data import Columns, map_tensors
from zoo.core.registry import BUFFER_REGISTRY


@BUFFER_REGISTRY.register('rollout')
class RolloutBuffer:
    """On-policy: yields each pushed rollout once, and keeps nothing."""

    config: ClassVar[type[Section]] = BufferConfig

    def __init__(self, cfg: BufferConfig | None = None, seed: int = 0) -> None:
        self._samples: list[Columns] = []

    def push(self, samples: Columns) -> None:
        """Takes samples [N]; they are not copied, so use them before the next rollout is collected, or `keep` them."""
        self._samples.append(samples)

    def keep(self) -> None:
        """Copies the samples that were pushed last, because the next rollout will overwrite their memory."""
        if self._samples:
            self._samples[-1] = map_tensors(lambda x: x.clone(), self._samples[-1])

    @property
    def is_empty(self) -> bool:
        """Whether nothing was pushed since the last call of `batches`."""
        return not self._samples

    def batches(self) -> Iterator[Columns]:
        """Each pushed block, once, in order."""
        samples = self._samples
        self._samples = []
        yield from samples

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty state, since the buffer is empty between updates."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
