"""What contradicts the rollouts and minibatches of a run in the section of a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.buffer.multi import PARTS


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
        has_own = path == 'buffer.value' and critic_batch_size is not None
        size_of = ('critic_batch_size', critic_batch_size) if has_own else ('batch_size', batch_size)
        yield from _problems_of_draw(draw, path, n_rollout, *size_of)
        size = f'{path}.size' if draw['size'] is not None else 'buffer.size'
        yield from _problems_of_supply(draw, path, n_rollout, size, draw['size'] or buffer['size'], max_env_step)


def _problems_of_draw(
    draw: dict[str, Any], path: str, n_rollout: int, key: str, batch_size: int | None
) -> Iterator[str]:
    n_sample, n_draw, max_use, max_staleness = (
        draw[key] for key in ('n_sample', 'update_per_collect', 'max_use', 'max_staleness')
    )
    if batch_size is not None and n_sample % batch_size:
        yield (
            f'{path}.n_sample is {n_sample} but policy.learn.{key} is {batch_size}: {n_sample} % {batch_size} '
            f'= {n_sample % batch_size} would be dropped; use a multiple, e.g. '
            f'{max(n_sample // batch_size, 1) * batch_size}.'
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


def _problems_of_supply(
    draw: dict[str, Any],
    path: str,
    n_rollout: int,
    size_key: str,
    size: int,
    max_env_step: int,
) -> Iterator[str]:
    """What a draw wants that the run never collects, or the buffer never keeps."""
    n_sample, max_staleness, n_round = draw['n_sample'], draw['max_staleness'], max_env_step // n_rollout
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
