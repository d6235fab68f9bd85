"""Off-policy buffers: 'replay', optionally prioritised, and 'multi', with separate draws for policy and value function.

Prioritised draws take samples with a large priority more often, and correct for this with importance weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from zoo.buffer.base import PARTS
from zoo.buffer.ring import DrawConfig, Draws, Ring, RingBuffer, RingConfig
from zoo.config.schedule import Linear, Points, greatest, schedule_value
from zoo.config.section import ConfigLike, Job, Section
from zoo.core.data import Columns, first_leaf, send
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY, POLICY_REGISTRY

LEAST = 1e-6  # lower bound of priorities: a sample with priority 0 would never be drawn again


class PriorityConfig(DrawConfig):
    """Options of prioritised draws."""

    alpha: float = Field(
        0.0,
        ge=0,
        le=2,
        description='samples are drawn in proportion to priority^alpha (0.6 is usual), the priority being the column that '
        "the policy writes, batch['priority']; 0: all samples are equally likely",
    )
    beta: Annotated[float, Field(ge=0, le=1)] | Linear | Points = Field(
        0.4,
        description="how far the column 'weight' corrects for draws by priority: 0 not at all, 1 fully; 0.4 to 1 is usual, "
        'as a schedule from 0.4 to 1',
    )

    @model_validator(mode='after')
    def _beta_is_at_most_1(self) -> PriorityConfig:
        most = greatest(self.beta)
        if most > 1:
            raise ValueError(f'beta reaches {most:g} but must be 0 to 1; use 1 for a full correction.')
        return self

    def problems(self, job: Job) -> Iterator[str]:
        name = job.policy.type
        if self.alpha > 0 and not POLICY_REGISTRY.get(name).writes_priority:
            yield (
                f'buffer.alpha is {self.alpha:g} but policy {name!r} writes no priorities to draw by; use buffer.alpha=0, or set '
                'the class attribute writes_priority = True of a policy that writes them.'
            )


class PrioritizedDraws(Draws):
    """Draws `n_sample` rows of a ring by priority: row i has probability P(i) = priority_i^alpha / sum_j priority_j^alpha.

    The summed probability is divided into `n_sample` equal ranges. Each range gives one row, so a row may occur twice or more.
    The column 'weight' of a batch is multiplied by w_i / max_j w_j with w_i = (n P(i))^-beta, n the number of eligible rows.
    The policy writes the column 'priority' [n], such as |error|, into the batch that it learns from. This column is read
    when the next draw is requested. New samples get the largest priority so far.

    `Draws` says which rows are eligible; here `max_use` counts the draws that contained a row.
    Source: Schaul et al. 2016, arXiv:1511.05952, sec. 3.3 and 3.4. Departs: a draw sums the priorities of all rows (one
    pass over 100,000 doubles for 100,000 samples), where the paper uses a sum tree; the largest weight is that of the
    batch, not of the memory.
    """

    _cfg: PriorityConfig

    def __init__(self, ring: Ring, cfg: PriorityConfig, generator: torch.Generator, size: int) -> None:
        super().__init__(ring, cfg, generator, size)
        self._beta: float | None = None  # None: a schedule, and the env step is not known yet
        if isinstance(cfg.beta, int | float):
            self._beta = float(cfg.beta)
        self._largest = 1.0
        self._priority = torch.ones(ring.size, dtype=torch.float64)
        self._mass = torch.ones(ring.size, dtype=torch.float64)  # priority^alpha

    def batches(self) -> Iterator[Columns]:
        for _ in range(self._cfg.update_per_collect):
            rows = self._draw()
            if rows is None:
                return
            batch = self._weighted(rows)
            n_push = self._ring.n_push
            yield batch
            self._take(rows, batch, self._ring.n_push - n_push)

    def renew(self, rows: slice) -> None:
        super().renew(rows)
        self._set(rows, torch.tensor(self._largest, dtype=torch.float64))

    def set_env_step(self, env_step: int) -> None:
        self._beta = schedule_value(self._cfg.beta, env_step)

    def state_dict(self) -> dict[str, Any]:
        """The state of `Draws`, and the priorities."""
        return {**super().state_dict(), 'priority': self._priority[: self._ring.n_row], 'largest': self._largest}

    def load_state_dict(self, state: dict[str, Any], rows: Tensor) -> None:
        """Copies a `state_dict` in; one of uniform draws has no priorities, so all stay 1."""
        super().load_state_dict(state, rows)
        if 'priority' not in state:
            return
        priority = state['priority']
        self._largest = float(state['largest'])
        if not (priority.isfinite().all() and (priority > 0).all() and 0 < self._largest < float('inf')):
            raise ValueError('priorities should be finite and above 0')
        self._set(slice(0, len(rows)), priority[rows].double())

    def _set(self, rows: Tensor | slice, priority: Tensor) -> None:
        self._priority[rows] = priority
        self._mass[rows] = priority**self._cfg.alpha

    def _choose(self, eligible: Tensor | None, n_eligible: int) -> Tensor:
        if eligible is None:
            mass = self._mass[:n_eligible]
        else:
            mass = self._mass[eligible]
        n = self._cfg.n_sample
        self._n_eligible = n_eligible
        total = mass.cumsum(0)
        self._sum = float(total[-1])
        at = (torch.arange(n) + torch.rand(n, generator=self._generator, dtype=torch.float64)) * (self._sum / n)
        return torch.searchsorted(total, at, right=True).clamp_(max=n_eligible - 1)

    def _weighted(self, rows: Tensor) -> dict[str, Any]:
        """Returns a copy of the rows, whose column 'weight' corrects for the probabilities of the draw."""
        if self._beta is None:
            raise UserError(
                'buffer.beta is a schedule but the buffer was not told how far the run is; call its set_env_step(env_step) '
                'before each round, or use a number'
            )
        batch = self._ring.gather(rows)
        if 'priority' in batch:
            raise UserError(
                "samples have the key 'priority', which prioritised draws take from the policy; rename it in "
                '`_get_train_sample`, or use buffer.alpha 0'
            )
        weight = (self._n_eligible * self._mass[rows] / self._sum) ** -self._beta
        weight = send((weight / weight.max()).float(), first_leaf(batch).device)
        if 'weight' in batch:  # [n], or [n, L] where samples are sequences
            weight = batch['weight'] * weight.view(-1, *(1,) * (batch['weight'].dim() - 1))
        return {**batch, 'weight': weight}

    def _take(self, rows: Tensor, batch: dict[str, Any], n_push: int) -> None:
        """Stores the priorities that the policy wrote; a row drawn several times gets the largest. Waits for the device.

        n_push: pushes since the draw; rows that they overwrote keep the priority of new samples.
        """
        if 'priority' not in batch:
            raise UserError(
                f"buffer.alpha is {self._cfg.alpha} but the policy wrote no column 'priority' into its batch; write "
                "batch['priority'] = ... [n] in `_forward_learn`, or use buffer.alpha 0"
            )
        priority = batch['priority'].detach().to('cpu', torch.float64)
        if priority.shape != rows.shape:
            raise UserError(
                f"the policy's column 'priority' has shape {list(priority.shape)} but the batch has {len(rows)} samples; "
                'write one number for each'
            )
        if not (priority.isfinite() & (priority >= 0)).all():
            raise UserError(
                "the policy's column 'priority' has numbers that are negative or not finite; use e.g. |error|"
            )
        priority = priority.clamp(min=LEAST)
        self._largest = max(self._largest, float(priority.max()))
        is_kept = self._ring.staleness(rows) >= n_push
        rows = rows[is_kept]
        priority = priority[is_kept]
        self._priority.scatter_reduce_(0, rows, priority, 'amax', include_self=False)
        self._set(rows, self._priority[rows])


class ReplayConfig(PriorityConfig, RingConfig):
    """Section `buffer` of 'replay'."""

    type: str = Field('replay', description='registered name of the buffer')

    @model_validator(mode='after')
    def _holds_a_draw(self) -> ReplayConfig:
        check_size(self.size, '', self)
        return self

    def problems(self, job: Job) -> Iterator[str]:
        if self.type == 'replay':  # a buffer of another name may draw in another way
            yield from _problems_of_run(job)
        yield from super().problems(job)


@BUFFER_REGISTRY.register('replay')
class ReplayBuffer(RingBuffer):
    """Off-policy: after each push, `update_per_collect` draws of `n_sample` samples from the newest `size`.

    Batches have the key 'staleness' [n] f32: the number of rollouts collected after the sample. `Draws` says which
    samples may be drawn, and `PrioritizedDraws` describes draws with `alpha` above 0.
    """

    config: ClassVar[type[Section]] = ReplayConfig

    def __init__(self, cfg: ReplayConfig, seed: int = 0) -> None:
        super().__init__(cfg, {'all': cfg}, seed, PrioritizedDraws if cfg.alpha else Draws)


def check_size(size: int, part: str, draw: DrawConfig, owner: str = '') -> None:
    """Raises: ValueError if `size` is below n_sample; in the message `part` precedes n_sample, and `owner` precedes size."""
    if size < draw.n_sample:
        raise ValueError(
            f'{owner}size is {size} but {part}n_sample is {draw.n_sample}: the buffer would never hold enough '
            f'for a draw; use {owner}size {draw.n_sample} or more, or a smaller {part}n_sample.'
        )


class PartConfig(DrawConfig):
    """Draws for one part of the update, 'policy' or 'value', and the number of samples to draw from."""

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
        parts_given = [part for part in PARTS if part in self.model_fields_set]
        if len(parts_given) == 1:
            missing = next(part for part in PARTS if part not in parts_given)
            raise ValueError(
                f"{parts_given[0]} is given but {missing} is missing: 'multi' draws for both; give "
                f'{missing}: {{n_sample: .., update_per_collect: ..}} too.'
            )
        for part in PARTS:
            draw = getattr(self, part)
            check_size(draw.size or self.size, f'{part}.', draw, f'{part}.' if draw.size else '')
        return self

    def problems(self, job: Job) -> Iterator[str]:
        if self.type != 'multi':
            return  # a buffer of another name may draw in another way
        yield from _problems_of_run(job)
        name = job.policy.type
        if not POLICY_REGISTRY.get(name).takes_separate_draws:
            yield (
                f"buffer.type is 'multi' but policy {name!r} learns policy and value from the same samples; use "
                "'replay' or 'rollout'."
            )
        if job.policy.model.get('arch') == 'shared':
            yield (
                "policy.model.arch is 'shared' but buffer.type is 'multi': a network that shares all parameters cannot "
                "learn policy and value from different samples; use arch 'dual' or 'detach', or buffer.type 'replay'."
            )


@BUFFER_REGISTRY.register('multi')
class MultiBuffer(RingBuffer):
    """Off-policy, with separate draws for policy and value function: it yields {'policy': batch, 'value': batch}.

    Each part draws from the newest `size` samples; `size` is its own, or that of the buffer. The samples are stored once.
    Limits, use counts and random streams are separate. Batches have the key 'staleness', like those of ReplayBuffer.
    """

    config: ClassVar[type[Section]] = MultiConfig

    def __init__(self, cfg: MultiConfig, seed: int = 0) -> None:
        super().__init__(cfg, {part: getattr(cfg, part) for part in PARTS}, seed)

    def batches(self) -> Iterator[dict[str, Columns]]:
        """The draws of one round, in pairs; once a part has no more draws, the dicts have the other part only."""
        for batches in zip_longest(*(draws.batches() for draws in self._draws.values())):
            yield {part: batch for part, batch in zip(self._draws, batches, strict=True) if batch is not None}


def _problems_of_run(job: Job) -> Iterator[str]:
    """Yields what `draw_problems` says of the buffer of a run, if its policy has rollouts and minibatches of fixed sizes."""
    learn = job.policy.learn
    n_rollout = job.policy.collect.get('n_sample')
    batch_size = learn.get('batch_size')
    if isinstance(n_rollout, int) and isinstance(batch_size, int | None):
        yield from draw_problems(job.buffer, n_rollout, batch_size, job.max_env_step, learn.get('critic_batch_size'))


def draw_problems(
    buffer: ConfigLike,
    n_rollout: int,
    batch_size: int | None,
    max_env_step: int,
    critic_batch_size: int | None = None,
) -> Iterator[str]:
    """Yields a sentence for each problem of a resolved section `buffer`, such as draws that are impossible or cut off.

    Args:
      n_rollout: samples per rollout, over all envs, policy.collect.n_sample.
      batch_size: samples per gradient step, policy.learn.batch_size; None: all of a draw.
      max_env_step: env steps of the run; it collects whole rollouts only.
      critic_batch_size: samples per gradient step of the value part; None: batch_size.
    """
    rollout = f'a rollout has {n_rollout} samples'
    parts = {f'buffer.{part}': buffer[part] for part in PARTS if part in buffer} or {'buffer': buffer}
    common = None
    if len(parts) == 1 or any(draw['size'] is None for draw in parts.values()):
        common = buffer['size']
    sizes = {'buffer.size': common, **{f'{path}.size': draw['size'] for path, draw in parts.items()}}
    for key, size in sizes.items():
        if size is not None and size < n_rollout:
            yield (
                f'{key} is {size} but {rollout}: {n_rollout - size} of them would never be kept; use {n_rollout} or more.'
            )
    for path, draw in parts.items():
        batch_key = 'batch_size'
        n_batch = batch_size
        if path == 'buffer.value' and critic_batch_size is not None:
            batch_key = 'critic_batch_size'
            n_batch = critic_batch_size
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
        size_key = 'buffer.size'
        if draw['size'] is not None:
            size_key = f'{path}.size'
        size = draw['size'] or buffer['size']
        n_round = max_env_step // n_rollout
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
