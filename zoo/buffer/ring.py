"""Ring storage of replay buffers: one block that keeps the newest samples, and random draws from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.buffer.base import BufferConfig
from zoo.config.section import Section
from zoo.core.data import Columns, first_leaf, leaves, map_tensors, send
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.core.seeding import reseed, restore_generator, torch_generator

logger = logging.getLogger(__name__)


class RingConfig(BufferConfig):
    """Section `buffer` of buffers that keep samples."""

    size: int = Field(8192, ge=1, description='samples kept, the newest ones; at least a rollout and a draw')
    device: Literal['auto', 'cpu'] = Field(
        'auto', description="where samples are kept: 'auto' (where the policy computes) or 'cpu'"
    )


class Ring:
    """Block of the newest `size` samples, each with the number of the push that wrote it.

    The block is allocated at the first push, with the keys, dtypes and trailing shapes of its samples, and then stays in
    place: a push copies into it, and a gather copies out of it. Push numbers, and the counts that users of a ring keep
    for its rows, are on the CPU, so that choosing rows does not wait for a device.
    """

    def __init__(self, size: int, device: Literal['auto', 'cpu'] = 'auto') -> None:
        self.size = size
        self.n_row = 0
        self.n_push = 0
        self._device = device
        self._cursor = 0  # the next row to write
        self._data: dict[str, Any] | None = None
        self._form: dict[str, str] = {}
        self._is_loaded = False  # the samples come from a checkpoint, and nothing was pushed since
        self._batch_device = torch.device('cpu')
        self._push_number = torch.zeros(size, dtype=torch.int64)

    @torch.no_grad()
    def push(self, samples: Columns) -> list[slice]:
        """Copies samples [N] over the oldest rows, the last `size` of them if N is larger; returns the rows written.

        Samples without the column 'weight' have weight 1, where others have it: only some rollouts have rows that are no
        samples. Samples from a checkpoint are dropped, with a warning, if their columns differ from these.
        Raises: UserError if keys, dtypes or trailing shapes differ from those of the first push.
        """
        samples = self._with_weights(samples)
        data = self._fit(samples)
        self.n_push += 1
        samples = map_tensors(lambda x: x[-self.size :], samples)
        n = len(first_leaf(samples))
        start = self._cursor
        n_head = min(n, self.size - start)
        parts = [(slice(start, start + n_head), slice(0, n_head)), (slice(0, n - n_head), slice(n_head, n))]
        parts = [(rows, part) for rows, part in parts if rows.stop > rows.start]
        for rows, part in parts:
            map_tensors(lambda block, x: block[rows].copy_(x[part]), data, samples)  # noqa: B023
            self._push_number[rows] = self.n_push
        self._cursor = (start + n) % self.size
        self.n_row = min(self.n_row + n, self.size)
        return [rows for rows, _ in parts]

    def staleness(self, rows: Tensor | slice) -> Tensor:
        """Number of pushes after the one that wrote each row, int64; 0 for the newest samples."""
        return self.n_push - self._push_number[rows]

    def age(self, rows: slice) -> Tensor:
        """Number of samples that were pushed after each row, int64; 0 for the newest sample."""
        return (self._cursor - 1 - torch.arange(self.size)[rows]) % self.size

    @torch.no_grad()
    def gather(self, rows: Tensor) -> dict[str, Any]:
        """Returns a copy of rows [n], with 'staleness' [n] f32 in pushes, on the device of the pushed samples."""
        assert self._data is not None, 'there are no rows before the first push'
        index = send(rows, first_leaf(self._data).device)
        batch = map_tensors(lambda x: send(x[index], self._batch_device), self._data)
        return {**batch, 'staleness': send(self.staleness(rows).to(torch.float32), self._batch_device)}

    def state_dict(self) -> dict[str, Any]:
        """The filled rows as views, their push numbers, and the next row to write."""
        if self._data is None:
            data = {}
        else:
            data = map_tensors(lambda x: x[: self.n_row], self._data)
        return {
            'data': data,
            'push_number': self._push_number[: self.n_row],
            'n_push': self.n_push,
            'cursor': self._cursor,
            'size': self.size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> Tensor:
        """Copies a `state_dict` in; returns the indices [n] of the rows taken from it, in their new order.

        From a ring of the same size, every row keeps its place. From another size, the newest rows that fit are stored
        from row 0 on, the oldest first. Raises: ValueError if the counts or lengths of the state contradict each other.
        """
        _check_state(state)
        n = len(state['push_number'])
        cursor = state['cursor']
        rows = torch.arange(n)
        if state['size'] != self.size:
            oldest = 0
            if n == state['size']:
                oldest = cursor
            rows = ((rows + oldest) % max(n, 1))[-self.size :]
            cursor = len(rows) % self.size
        self.n_row = len(rows)
        self.n_push = state['n_push']
        self._cursor = cursor
        self._push_number[: len(rows)] = state['push_number'][rows]
        self._data = None
        self._is_loaded = bool(state['data'])
        if state['data']:
            self._allocate(state['data'], torch.device('cpu'))  # the first push moves it to the device of the samples
            map_tensors(lambda block, x: block[: len(rows)].copy_(x[rows]), self._data, state['data'])
        return rows

    def _with_weights(self, samples: Columns) -> Columns:
        """Samples with the column 'weight' if rows of the ring have it. The ring gets it with the first samples that do."""
        data = self._data
        if data is None or ('weight' in data) == ('weight' in samples):
            return samples
        if 'weight' in data:
            like = data['weight']
            place = first_leaf(samples).device
            shape = len(first_leaf(samples)), *like.shape[1:]
            return {**samples, 'weight': torch.ones(shape, dtype=like.dtype, device=place)}
        like = samples['weight']
        data['weight'] = torch.ones((self.size, *like.shape[1:]), dtype=like.dtype, device=first_leaf(data).device)
        self._form = _form_of(data)
        return samples

    def _fit(self, samples: Columns) -> dict[str, Any]:
        """Returns the block for samples of this form; allocates, empties or moves it first if necessary."""
        sizes = {len(x) if x.dim() else -1 for _, x in leaves(samples)}
        if len(sizes) != 1 or -1 in sizes:
            raise UserError(
                f'samples have columns of {sorted(sizes)} rows but a buffer takes one row for each sample; flatten '
                'time and envs in `_get_train_sample`'
            )
        form = _form_of(samples)
        self._batch_device = first_leaf(samples).device
        if self._device == 'auto':
            place = self._batch_device
        else:
            place = torch.device('cpu')
        if self._is_loaded and form != self._form:
            logger.warning(
                'samples now have %s where those of the checkpoint have %s: the replay buffer begins empty',
                _misfits(form, self._form),
                _misfits(self._form, form),
            )
            self._data = None
            self.n_row = 0
            self._cursor = 0
        self._is_loaded = False
        if self._data is None:
            if 'staleness' in form:
                raise UserError(
                    "samples have the key 'staleness', which replay buffers add to their batches; rename "
                    'it in `_get_train_sample`'
                )
            self._allocate(samples, place)
        elif form != self._form:
            raise UserError(
                f'samples have {_misfits(form, self._form)} but the buffer keeps '
                f'{_misfits(self._form, form)}; give samples of one form in `_get_train_sample`'
            )
        elif first_leaf(self._data).device != place:
            self._data = map_tensors(lambda x: x.to(place), self._data)
        assert self._data is not None
        return self._data

    def _allocate(self, like: Columns, device: torch.device) -> None:
        self._form = _form_of(like)
        self._data = map_tensors(lambda x: torch.empty((self.size, *x.shape[1:]), dtype=x.dtype, device=device), like)


def _check_state(state: dict[str, Any]) -> None:
    counts = n_push, cursor, size = [state[name] for name in ('n_push', 'cursor', 'size')]
    n_row = len(state['push_number'])
    lengths = {len(x) for _, x in leaves(state['data'])}
    if any(type(count) is not int for count in counts) or not (n_push >= 0 <= cursor <= size >= n_row):
        raise ValueError(f'a ring of {n_row} rows has n_push {n_push!r}, cursor {cursor!r} and size {size!r}')
    if lengths != ({n_row} if n_row else set()):
        raise ValueError(f'a ring of {n_row} rows has columns of {sorted(lengths)} rows')


def _form_of(samples: Columns) -> dict[str, str]:
    """dtype and shape of one sample, by path."""
    return {path: f'{str(x.dtype).removeprefix("torch.")} {list(x.shape[1:])}' for path, x in leaves(samples)}


def _misfits(form: dict[str, str], other: dict[str, str]) -> str:
    """Lists the entries in which a form differs from the other one, as text for a message."""
    return ', '.join(
        f'{key} {form[key]}' if key in form else f'no {key}'
        for key in sorted(form.keys() | other.keys())
        if form.get(key) != other.get(key)
    )


class DrawConfig(Section):
    """Size and number of the draws for one part of the update, and limits on the samples that may be drawn."""

    n_sample: int = Field(1024, ge=1, description='samples per draw; a multiple of policy.learn.batch_size')
    update_per_collect: int = Field(
        1, ge=1, description='draws after each rollout; the learner makes all its epochs over each of them'
    )
    max_use: Annotated[int, Field(ge=1)] | None = Field(
        None, description='draws that a sample may be part of; null: no limit'
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description='rollouts that may have been collected since a sample; 0: the newest only; null: no limit'
    )


class Draws:
    """Draws `n_sample` eligible rows of a ring uniformly and without replacement.

    A row is eligible if it was in fewer than `max_use` draws, if at most `max_staleness` pushes came after its own, and
    if it is one of the newest `size` rows. With fewer than `n_sample` eligible rows there is no draw. This happens in
    the first rounds, until enough samples are collected. With `max_use` above 1 it may also happen to the last draws that
    this limit would allow, since random draws use up samples unevenly.
    """

    def __init__(self, ring: Ring, cfg: DrawConfig, generator: torch.Generator, size: int) -> None:
        self._ring = ring
        self._cfg = cfg
        self._generator = generator
        self._newest: int | None = None
        if size < ring.size:
            self._newest = size
        self._n_use = torch.zeros(ring.size, dtype=torch.int32)
        self._ranks: Ranks = ALONE
        self._may_differ = cfg.max_use is not None  # in the numbers of eligible rows of ranks

    def batches(self) -> Iterator[Columns]:
        """Up to `update_per_collect` batches [n_sample], each drawn when it is asked for."""
        for _ in range(self._cfg.update_per_collect):
            rows = self._draw()
            if rows is None:
                return
            yield self._ring.gather(rows)

    def set_ranks(self, ranks: Ranks, seed: int, name: str) -> None:
        """Sets the ranks that train together: each draws from its own rows, in its own random order, and all equally often."""
        self._ranks = ranks
        if ranks.rank:
            reseed(self._generator, seed, name, ranks.rank)

    def expect_uneven_ranks(self) -> None:
        """Called where ranks push different numbers of samples: then all draw, or none does."""
        self._may_differ = True

    def renew(self, rows: slice) -> None:
        """Resets what is counted for these rows, since they hold new samples."""
        self._n_use[rows] = 0

    def set_env_step(self, env_step: int) -> None:
        """Sets the env step for schedules; uniform draws have none."""

    def state_dict(self) -> dict[str, Any]:
        """The use count of each row, and the state of the generator."""
        return {'n_use': self._n_use[: self._ring.n_row], 'generator': self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any], rows: Tensor) -> None:
        """Copies a `state_dict` in. Args: rows: indices of the rows that the ring took from its state."""
        self._n_use[: len(rows)] = state['n_use'][rows]
        restore_generator(self._generator, state['generator'])

    def _draw(self) -> Tensor | None:
        """Draws the next rows and counts their use; None: too few rows are eligible, on at least one rank."""
        eligible = self._eligible()
        if eligible is None:
            n_eligible = self._ring.n_row
        else:
            n_eligible = len(eligible)
        suffices = n_eligible >= self._cfg.n_sample
        # else all ranks have equally many eligible rows; with max_use random draws make use counts differ
        if self._may_differ:
            suffices = all(self._ranks.gather(suffices))
        if not suffices:
            return None
        rows = self._choose(eligible, n_eligible)
        if eligible is not None:
            rows = eligible[rows]
        self._n_use[rows] += 1  # a row that occurs several times is counted once
        return rows

    def _choose(self, eligible: Tensor | None, n_eligible: int) -> Tensor:
        """Chooses `n_sample` positions [n] in the list of eligible rows; None: the eligible rows are the first n_eligible."""
        return distinct(n_eligible, self._cfg.n_sample, self._generator)

    def _eligible(self) -> Tensor | None:
        """The rows that may be drawn; None: all."""
        max_use = self._cfg.max_use
        max_staleness = self._cfg.max_staleness
        if max_use is None and max_staleness is None and self._newest is None:
            return None
        rows = slice(0, self._ring.n_row)
        mask = torch.ones(self._ring.n_row, dtype=torch.bool)
        if max_use is not None:
            mask &= self._n_use[rows] < max_use
        if max_staleness is not None:
            mask &= self._ring.staleness(rows) <= max_staleness
        if self._newest is not None:
            mask &= self._ring.age(rows) < self._newest
        return mask.nonzero().squeeze(1)


class RingBuffer:
    """Base of replay buffers: one ring of samples and one or more `Draws`, each with its own limits and random stream.

    The ring keeps as many samples as the largest `size` of its draws.
    Args: cfg: RingConfig; draws: DrawConfig by name, with a `size` if it differs from that of cfg; seed: of the run;
      kind: the class of the draws.
    """

    def __init__(self, cfg: RingConfig, draws: Mapping[str, DrawConfig], seed: int, kind: type[Draws] = Draws) -> None:
        sizes = {name: getattr(draw, 'size', None) or cfg.size for name, draw in draws.items()}
        self._seed = seed
        self._ring = Ring(max(sizes.values()), cfg.device)
        self._draws = {
            name: kind(self._ring, draw, torch_generator(seed, f'buffer/{name}'), sizes[name])
            for name, draw in draws.items()
        }
        self._leaves_out_idle = False

    def leave_out_idle(self) -> None:
        """Keeps from now on no samples of weight 0, as those of agents that did not act; call it before the first push."""
        self._leaves_out_idle = True
        for draws in self._draws.values():
            draws.expect_uneven_ranks()

    def set_ranks(self, ranks: Ranks) -> None:
        """Sets the ranks that train together, each with its own buffer; call it before the first push."""
        for name, draws in self._draws.items():
            draws.set_ranks(ranks, self._seed, f'buffer/{name}')

    def push(self, samples: Columns) -> None:
        """Copies the samples [N] of one rollout over the oldest ones; the last `size` of them if N is larger."""
        if self._leaves_out_idle and 'weight' in samples:
            samples = without_idle(samples)
        for rows in self._ring.push(samples):
            for draws in self._draws.values():
                draws.renew(rows)

    def batches(self) -> Iterator[Any]:
        """The draws of one round; fewer, or none, when fewer than `n_sample` samples may be drawn."""
        return self._draws['all'].batches()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever pushed, in this process or before a resume."""
        return self._ring.n_row == 0

    def set_env_step(self, env_step: int) -> None:
        """Sets the env step for schedules; call it before the draws of a round."""
        for draws in self._draws.values():
            draws.set_env_step(env_step)

    def state_dict(self) -> dict[str, Any]:
        """The samples (views, valid until the next push), their counts and priorities, and the random streams."""
        return {
            'ring': self._ring.state_dict(),
            'draws': {name: draws.state_dict() for name, draws in self._draws.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in: the newest samples that fit. An empty one, as of a rollout buffer, changes nothing.

        Raises: UserError if the state comes from a buffer that draws for other parts of an update.
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


def without_idle(samples: Columns) -> Columns:
    """The samples with a weight above 0; of sequences, those with such a step. Weights that are equal become 1.

    The weights of a rollout have mean 1 over all its rows, so they are larger the more of them are idle. Without idle rows
    all samples count equally, whatever rollout they come from.
    """
    weight = samples['weight']
    is_real = weight > 0
    if weight.dim() > 1:
        is_real = is_real.flatten(1).any(1)
    real: dict[str, Any] = {name: map_tensors(lambda x: x[is_real], column) for name, column in samples.items()}
    weight = real['weight']
    positive = weight[weight > 0]
    if not bool((positive == positive[:1]).all()):
        return real
    if weight.dim() == 1:
        del real['weight']
    else:
        real['weight'] = (weight > 0).to(weight.dtype)
    return real


def distinct(n_choice: int, n: int, generator: torch.Generator) -> Tensor:
    """Draws n different integers below n_choice, [n]; every ordered choice is equally likely.

    For n_choice >= 8 n it takes the first n different values of 2n independent draws, whose cost does not grow with
    n_choice. Otherwise, or if these are too few, it takes a permutation. Neither prefers a number, so the mix is uniform.
    """
    if n_choice >= 8 * n:
        draws = torch.randint(n_choice, (2 * n,), generator=generator)
        value, order = draws.sort(stable=True)
        is_first = torch.ones(2 * n, dtype=torch.bool)
        is_first[1:] = value[1:] != value[:-1]
        firsts = order[is_first].sort().values  # positions where a number occurs for the first time
        if len(firsts) >= n:
            return draws[firsts[:n]]
    return torch.randperm(n_choice, generator=generator)[:n]
