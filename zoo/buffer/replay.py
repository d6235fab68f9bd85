"""Buffer 'replay': off-policy, draws from the newest samples, uniform or by priority."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from zoo.buffer.draws import DrawConfig, Draws
from zoo.buffer.priority import PrioritizedDraws
from zoo.buffer.ring import Ring, RingConfig
from zoo.config.schedule import Linear, Points, greatest
from zoo.config.section import Section
from zoo.core.data import Columns
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks
from zoo.core.registry import BUFFER_REGISTRY
from zoo.core.seeding import torch_generator


class ReplayConfig(DrawConfig, RingConfig):
    """Section `buffer` of 'replay'."""

    type: str = Field('replay', description='registered name of the buffer')
    alpha: float = Field(
        0.0,
        ge=0,
        le=2,
        description='samples are drawn in proportion to priority^alpha (0.6 is usual), the priority being the column that '
        "the policy writes, batch['priority']; 0: all alike",
    )
    beta: Annotated[float, Field(ge=0, le=1)] | Linear | Points = Field(
        0.4,
        description="how far the column 'weight' corrects for draws by priority: 0 not at all, 1 fully; 0.4 to 1 is usual, "
        'as a schedule from 0.4 to 1',
    )

    @model_validator(mode='after')
    def _holds_a_draw(self) -> ReplayConfig:
        check_size(self.size, '', self)
        return self

    @model_validator(mode='after')
    def _beta_is_at_most_1(self) -> ReplayConfig:
        if (most := greatest(self.beta)) > 1:
            raise ValueError(f'beta reaches {most:g} but must be 0 to 1; use 1 for a full correction.')
        return self


class RingBuffer:
    """One ring of samples, and one or more ways to draw from it, each with its own limits, counts and random stream.

    It keeps as many samples as the largest of the draws asks for.
    Args: cfg: RingConfig; draws: DrawConfig by name, with a `size` where it is not that of cfg; seed: of the run.
    """

    def __init__(self, cfg: Any, draws: Mapping[str, Any], seed: int) -> None:
        sizes = {name: getattr(draw, 'size', None) or cfg.size for name, draw in draws.items()}
        self._seed, self._ring = seed, Ring(max(sizes.values()), cfg.device)
        self._draws = {
            name: _kind_of(draw)(self._ring, draw, torch_generator(seed, f'buffer/{name}'), sizes[name])
            for name, draw in draws.items()
        }

    def set_ranks(self, ranks: Ranks) -> None:
        """Draws beside the buffers of other ranks from now on; before the first push."""
        for name, draws in self._draws.items():
            draws.set_ranks(ranks, self._seed, f'buffer/{name}')

    def push(self, samples: Columns) -> None:
        """Copies the samples [N] of one rollout in, over the oldest ones; the last `size` of them if N is more."""
        for rows in self._ring.push(samples):
            for draws in self._draws.values():
                draws.renew(rows)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever pushed, in this process or before a resume."""
        return self._ring.n_row == 0

    def set_env_step(self, env_step: int) -> None:
        """How far the run is, for schedules; before the draws of a round."""
        for draws in self._draws.values():
            draws.set_env_step(env_step)

    def state_dict(self) -> dict[str, Any]:
        """The samples (views, valid until the next push), what is known of each, and the random streams."""
        return {
            'ring': self._ring.state_dict(),
            'draws': {name: draws.state_dict() for name, draws in self._draws.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in, also from another `size` (the newest that fit); that of a rollout buffer is empty.

        Raises: UserError if the state is of a buffer that draws for other parts of an update.
        """
        if not state:
            return
        names = list(state.get('draws', {}))
        if names != list(self._draws):
            raise UserError(
                f'the state is of a buffer that draws for {names or "nothing"} but this one draws for '
                f'{list(self._draws)}; resume with the buffer.type that the run was started with'
            )
        rows = self._ring.load_state_dict(state['ring'])
        for name, draws in self._draws.items():
            draws.load_state_dict(state['draws'][name], rows)


@BUFFER_REGISTRY.register('replay')
class ReplayBuffer(RingBuffer):
    """Off-policy: draws of `n_sample` from the newest `size` samples, `update_per_collect` of them after each push.

    Batches have the key 'staleness' [n] f32: rollouts collected since the sample. See `Draws` for what may be drawn, and
    `PrioritizedDraws` for `alpha` above 0.
    """

    config: ClassVar[type[Section]] = ReplayConfig

    def __init__(self, cfg: Any, seed: int = 0) -> None:
        super().__init__(cfg, {'all': cfg}, seed)

    def batches(self) -> Iterator[Columns]:
        """The draws of one round; fewer, or none, when fewer than `n_sample` samples may be drawn."""
        return self._draws['all'].batches()


def _kind_of(draw: Any) -> type[Draws]:
    return PrioritizedDraws if getattr(draw, 'alpha', 0) else Draws


def check_size(size: int, part: str, draw: DrawConfig, owner: str = '') -> None:
    """Raises: ValueError if `size` samples never hold a draw; `part` and `owner` come before n_sample and size."""
    if size < draw.n_sample:
        raise ValueError(
            f'{owner}size is {size} but {part}n_sample is {draw.n_sample}: the buffer would never hold enough '
            f'for a draw; use {owner}size {draw.n_sample} or more, or a smaller {part}n_sample.'
        )
