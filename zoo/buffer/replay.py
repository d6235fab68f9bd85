"""Off-policy buffers: 'replay', 'multi' with draws of their own for policy and value function, and checks of draws."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from zoo.buffer.priority import PrioritizedDraws, PriorityConfig
from zoo.buffer.ring import DrawConfig, Draws, RingBuffer, RingConfig
from zoo.buffer.rollout import PARTS
from zoo.config.section import Section
from zoo.core.data import Columns
from zoo.core.registry import BUFFER_REGISTRY


class ReplayConfig(PriorityConfig, RingConfig):
    """Section `buffer` of 'replay'."""

    type: str = Field('replay', description='registered name of the buffer')

    @model_validator(mode='after')
    def _holds_a_draw(self) -> ReplayConfig:
        check_size(self.size, '', self)
        return self


@BUFFER_REGISTRY.register('replay')
class ReplayBuffer(RingBuffer):
    """Off-policy: draws of `n_sample` from the newest `size` samples, `update_per_collect` of them after each push.

    Batches have the key 'staleness' [n] f32: rollouts collected since the sample. See `Draws` for what may be drawn, and
    `PrioritizedDraws` for `alpha` above 0.
    """

    config: ClassVar[type[Section]] = ReplayConfig

    def __init__(self, cfg: ReplayConfig, seed: int = 0) -> None:
        super().__init__(cfg, {'all': cfg}, seed, PrioritizedDraws if cfg.alpha else Draws)


def check_size(size: int, part: str, draw: DrawConfig, owner: str = '') -> None:
    """Raises: ValueError if `size` samples never hold a draw; `part` and `owner` come before n_sample and size."""
    if size < draw.n_sample:
        raise ValueError(
            f'{owner}size is {size} but {part}n_sample is {draw.n_sample}: the buffer would never hold enough '
            f'for a draw; use {owner}size {draw.n_sample} or more, or a smaller {part}n_sample.'
        )


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

    def __init__(self, cfg: MultiConfig, seed: int = 0) -> None:
        super().__init__(cfg, {part: getattr(cfg, part) for part in PARTS}, seed)

    def batches(self) -> Iterator[dict[str, Columns]]:
        """The draws of one round, in pairs; once a part has no more draws, the dicts have the other part only."""
        for batches in zip_longest(*(draws.batches() for draws in self._draws.values())):
            yield {part: batch for part, batch in zip(self._draws, batches, strict=True) if batch is not None}


def draw_problems(
    buffer: dict[str, Any],
    n_rollout: int,
    batch_size: int | None,
    max_env_step: int,
    critic_batch_size: int | None = None,
) -> Iterator[str]:
    """A sentence for every draw of a resolved section `buffer` that cannot be made, or not be used in full.

    Args:
      n_rollout: samples per rollout, over all envs, policy.collect.n_sample.
      batch_size: samples per gradient step, policy.learn.batch_size; None: all of a draw.
      max_env_step: env steps of the run, of which whole rollouts are made.
      critic_batch_size: that of the value's part; None: batch_size.
    """
    rollout = f'a rollout has {n_rollout} samples'
    parts = {f'buffer.{part}': buffer[part] for part in PARTS if part in buffer} or {'buffer': buffer}
    common = buffer['size'] if len(parts) == 1 or any(draw['size'] is None for draw in parts.values()) else None
    sizes = {'buffer.size': common, **{f'{path}.size': draw['size'] for path, draw in parts.items()}}
    for key, size in sizes.items():
        if size is not None and size < n_rollout:
            yield (
                f'{key} is {size} but {rollout}: {n_rollout - size} of them would never be kept; use {n_rollout} or more.'
            )
    for path, draw in parts.items():
        is_own = path == 'buffer.value' and critic_batch_size is not None
        batch_key, n_batch = ('critic_batch_size', critic_batch_size) if is_own else ('batch_size', batch_size)
        n_sample, n_draw, max_use, max_staleness = (
            draw[key] for key in ('n_sample', 'update_per_collect', 'max_use', 'max_staleness')
        )
        if n_batch is not None and n_sample % n_batch:
            yield (
                f'{path}.n_sample is {n_sample} but policy.learn.{batch_key} is {n_batch}: {n_sample} % {n_batch} '
                f'= {n_sample % n_batch} would be dropped; use a multiple, e.g. '
                f'{max(n_sample // n_batch, 1) * n_batch}.'
            )
        if max_staleness is not None and n_sample > (max_staleness + 1) * n_rollout:
            need = -(-n_sample // n_rollout) - 1
            yield (
                f'{path}.max_staleness is {max_staleness} but a rollout has {n_rollout} samples: {max_staleness + 1} x '
                f'{n_rollout} = {(max_staleness + 1) * n_rollout} may be drawn and {path}.n_sample is {n_sample}, so '
                f'nothing would be trained; use max_staleness {need} or more, or a smaller n_sample.'
            )
        if max_use is not None and n_draw * n_sample > max_use * n_rollout:
            need = -(-n_draw * n_sample // n_rollout)
            yield (
                f'{path}.max_use is {max_use} but a rollout has {n_rollout} samples: it allows {max_use} x {n_rollout} '
                f'= {max_use * n_rollout} uses and {n_draw} draws of {n_sample} want {n_draw * n_sample}, so draws '
                f'would be left out; use max_use {need} or more, or fewer or smaller draws.'
            )
        size_key = f'{path}.size' if draw['size'] is not None else 'buffer.size'
        size, n_round = draw['size'] or buffer['size'], max_env_step // n_rollout
        if 0 < n_round * n_rollout < n_sample:
            yield (
                f'{path}.n_sample is {n_sample} but max_env_step is {max_env_step} and a rollout has {n_rollout} '
                f'samples: the run collects {n_round} x {n_rollout} = {n_round * n_rollout}, so nothing would be '
                f'trained; use max_env_step {-(-n_sample // n_rollout) * n_rollout} or more, or a smaller n_sample.'
            )
        if max_staleness is not None and n_rollout <= size < (max_staleness + 1) * n_rollout:
            yield (
                f'{path}.max_staleness is {max_staleness} but {size_key} is {size} and a rollout has {n_rollout} '
                f'samples: {max_staleness + 1} x {n_rollout} = {(max_staleness + 1) * n_rollout} would have to be '
                f'kept, so the limit excludes nothing; use {size_key} {(max_staleness + 1) * n_rollout} or more, '
                f'max_staleness {size // n_rollout - 1} or less, or null for no limit.'
            )
