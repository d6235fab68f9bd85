"""Buffer 'multi': the policy and the value function learn from draws of their own, with different reuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from zoo.buffer.draws import DrawConfig
from zoo.buffer.replay import RingBuffer, check_size
from zoo.buffer.ring import RingConfig
from zoo.config.section import Section
from zoo.core.data import Columns
from zoo.core.registry import BUFFER_REGISTRY

PARTS = ('policy', 'value')


class PartConfig(DrawConfig):
    """What is drawn for one of the two parts, and of how many samples."""

    size: Annotated[int, Field(ge=1)] | None = Field(
        None, description='samples that this part draws from, the newest ones; null: buffer.size'
    )


class MultiConfig(RingConfig):
    """Section `buffer` of 'multi'."""

    type: str = Field('multi', description='registered name of the buffer')
    policy: PartConfig = Field(PartConfig(), description='what is drawn to train the policy')
    value: PartConfig = Field(PartConfig(), description='what is drawn to train the value function')

    @model_validator(mode='after')
    def _has_both(self) -> MultiConfig:
        given = [part for part in PARTS if part in self.model_fields_set]
        if len(given) == 1:
            missing = next(part for part in PARTS if part not in given)
            raise ValueError(
                f"{given[0]} is given but {missing} is missing: 'multi' draws for both; give "
                f'{missing}: {{n_sample: .., update_per_collect: ..}} too.'
            )
        for part in PARTS:
            draw = getattr(self, part)
            check_size(draw.size or self.size, f'{part}.', draw, f'{part}.' if draw.size else '')
        return self


@BUFFER_REGISTRY.register('multi')
class MultiBuffer(RingBuffer):
    """Off-policy: {'policy': batch, 'value': batch}, each drawn from the newest `size` samples, its own or the common one.

    The samples are stored once; limits, use counts and random streams are separate, so that what one part draws
    changes nothing for the other. Batches have the key 'staleness', as those of ReplayBuffer.
    """

    config: ClassVar[type[Section]] = MultiConfig

    def __init__(self, cfg: Any, seed: int = 0) -> None:
        super().__init__(cfg, {part: getattr(cfg, part) for part in PARTS}, seed)

    def batches(self) -> Iterator[dict[str, Columns]]:
        """The draws of one round, in pairs; once a part has no more draws, the dicts have the other part only."""
        for batches in zip_longest(*(draws.batches() for draws in self._draws.values())):
            yield {part: batch for part, batch in zip(self._draws, batches, strict=True) if batch is not None}


def n_draw_of(buffer: Mapping[str, Any]) -> int | None:
    """How many batches the policy's part of a buffer, a resolved section, draws per rollout; None: it draws nothing."""
    return buffer.get('policy', buffer).get('update_per_collect')


def n_rows_drawn(buffer: Mapping[str, Any]) -> list[int]:
    """Samples per draw of each part of a buffer, a resolved section; [] where nothing is drawn."""
    draws = [buffer[part] for part in PARTS if part in buffer] or [buffer]
    return [draw['n_sample'] for draw in draws if 'n_sample' in draw]


def reuse_of(buffer: Mapping[str, Any], n_rollout: int) -> dict[str, float]:
    """How often a sample of a rollout is drawn on average, for each part; once where nothing is drawn.

    Args: buffer: the resolved section; n_rollout: samples per rollout, policy.collect.n_sample.
    """
    draws = {part: buffer.get(part, buffer) for part in PARTS}
    return {
        part: draw['update_per_collect'] * draw['n_sample'] / n_rollout if 'n_sample' in draw else 1.0
        for part, draw in draws.items()
    }
