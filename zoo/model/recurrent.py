"""Recurrent cells, run step by step or over sequences: LSTM, GRU and minGRU; models 'vac' and 'ppg' with such a memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from zoo.config.section import Section
from zoo.core.data import Obs, State
from zoo.core.errors import UserError
from zoo.core.registry import CELL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.actor_critic import PPG, VAC, Networks
from zoo.model.config import ActorCriticConfig, PPGModelConfig, RecurrentConfig, VACConfig
from zoo.model.layers import ValueHead
from zoo.rl_utils.gae import linear_scan

FORGET_BIAS = 1.0
"""Initial bias of the forget gate of an LSTM: a step keeps 73% of the memory, not half.

Source: Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures. With torch's 0
only 1 of 3 seeds learns a cue of 20 steps ago in 100k env steps; with 1 all do, as do GRU and minGRU with `keep_bias`.
"""
PIECE = 16  # rows of a long sequence that run at a time, so that lanes end soon after they are last read
MAX_LANES = 5
"""Lanes per sequence with which a loop in Python is as fast (16 rows of 16 sequences, 64 numbers)."""


def keep_bias(n: int) -> Tensor:
    """Biases of n gates that at the start keep from 1/2 to 31/32 of a memory, and so forget it in 2 to 32 steps.

    Source: Tallec and Ollivier 2018, arXiv:1804.11188, sec. 3. Departs: evenly spread, not drawn.
    """
    return torch.linspace(1, 31, n).log()


class Resets:
    """Resets of the state within sequences: before each row where first [L, B] bool is true."""

    def __init__(self, first: Tensor) -> None:
        self.first = first
        # whether values may be read: it must not wait for a device, nor fix them in a program that is being traced
        self.may_read_values = first.is_cpu and type(first) is Tensor and not torch.compiler.is_compiling()

    def keep(self, dtype: torch.dtype) -> list[Tensor | None]:
        """For each row the factors of its state, [B, 1] of zeros and ones; None if they are known to be all ones."""
        masks = (~self.first).to(dtype).unsqueeze(-1).unbind(0)
        if not self.may_read_values:
            return list(masks)
        return [mask if begins else None for mask, begins in zip(masks, self.first.any(1).tolist(), strict=True)]

    @cached_property
    def lanes(self) -> list[Lanes] | None:
        """Sequences without resets that replace these, piece by piece; None if a loop is cheaper, or values may not be read."""
        if not self.may_read_values:
            return None
        pieces = [Lanes(first) for first in self.first.split(PIECE)]
        n_column = self.first.shape[1]
        n_lane = sum(piece.n_lane for piece in pieces)
        if n_lane <= MAX_LANES * n_column * len(pieces):
            return pieces
        return None


class Lanes:
    """Sequences with resets, replaced by more sequences without resets: lanes.

    The rows after a reset run in a separate lane. Each lane runs over all rows. Before a lane's start its input gate is shut,
    which leaves its state at zero; its features after the next reset are not read.
    Attributes: keep: [B, 1] bool, whether the state before row 0 stays. n_lane: S lanes; without resets after row 0 it is B, and
      those below do not exist. column: [S] int64, the sequence whose inputs a lane gets. shut: [L, S, 1] bool, rows before its
      start. last: [B] int64, the lane of each sequence's last row. at: [L * B] int64, each row's index in the [L * S] of lanes.
    """

    def __init__(self, first: Tensor) -> None:
        self.keep = ~first[0].unsqueeze(-1)
        t, column = first[1:].nonzero(as_tuple=True)
        n_row, n_column = first.shape
        self.n_lane = n_column
        if not len(t):
            return
        t = t + 1  # the resets are before rows t of the sequences `column`
        n_used = n_column + len(t)
        n_spare = -n_used % 8  # a multiple of 8 lanes: oneDNN prepares separately for each number of them
        self.n_lane = n_used + n_spare
        self.column = torch.cat((torch.arange(n_column), column, column.new_zeros(n_spare)))
        start = torch.cat((t.new_zeros(n_column), t, t.new_zeros(n_spare)))
        rows = torch.arange(n_row).unsqueeze(-1)
        self.shut = (rows < start).unsqueeze(-1)
        lane = torch.zeros(n_row, n_column, dtype=torch.int64)
        lane[0] = torch.arange(n_column)
        lane[t, column] = torch.arange(n_column, n_used)
        lane = lane.cummax(0).values  # a later lane of a column has a higher number
        self.last = lane[-1]
        self.at = (rows * self.n_lane + lane).flatten()


class MemoryCell(nn.Module, ABC):
    """One layer of memory over features [.., n_in], registered in CELL_REGISTRY; its state is a row of numbers, [B, n_state].

    A state of zeros is that at the start of an episode. `Core` makes each layer by `make`. A cell that has fields of its own in
    `policy.model.recurrent` names their section class, below `RecurrentConfig`, as `config`, and reads them in `make`.
    If `keeps_whole` is false, a rollout keeps only `record(state)` of the state after each of its rows; the states with which
    sequences begin are made from these by `restore`. That is for large states of which a row changes a small part.

    Args: n_hidden: width of its features; n_state: numbers of one env's state.
    """

    config: ClassVar[type[RecurrentConfig]] = RecurrentConfig
    keeps_whole: ClassVar[bool] = True

    def __init__(self, n_hidden: int, n_state: int) -> None:
        super().__init__()
        self.n_hidden = n_hidden
        self.n_state = n_state

    @classmethod
    def make(cls, n_in: int, cfg: RecurrentConfig) -> MemoryCell:
        """A layer with inputs [.., n_in], by the section of its memory."""
        made: Callable[[int, int], MemoryCell] = cls
        return made(n_in, cfg.hidden_size)

    @abstractmethod
    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, n_in], state [B, n_state] -> features [B, n_hidden] and the next state."""

    def unroll(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        """x [L, B, n_in], state before row 0 -> features [L, B, n_hidden] and the state after the last row."""
        features = []
        for row, keep in zip(x.unbind(0), resets.keep(x.dtype), strict=True):
            feature, state = self.step(row, state if keep is None else state * keep)
            features.append(feature)
        return torch.stack(features), state

    def record(self, state: Tensor) -> Tensor:
        """The part of the state after a row that `restore` needs, [.., n_state] -> [.., n_record]."""
        return state

    def restore(self, rows: RecordedRows, t: Tensor, b: Tensor) -> Tensor:
        """The states after rows (t, b), [N] int64 each -> [N, n_state]; t is -1 for the state before row 0."""
        raise NotImplementedError(f'{type(self).__name__} has keeps_whole false, so it needs `restore`')


# (cell, x, state, resets) -> as `MemoryCell.unroll`, or None where the cell is to do it itself
Unroll = Callable[[MemoryCell, Tensor, Tensor, Resets], tuple[Tensor, Tensor] | None]
_UNROLL: ContextVar[Unroll | None] = ContextVar('unroll', default=None)


@contextmanager
def unrolled_by(unroll: Unroll) -> Iterator[None]:
    """Within the block, `Core` asks this function first, and the cell's own `unroll` where it gives None.

    It is asked only for sequences on a CPU, outside of programs that are being traced.
    """
    token = _UNROLL.set(unroll)
    try:
        yield
    finally:
        _UNROLL.reset(token)


def _unrolled(cell: MemoryCell, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
    found = None
    if resets.may_read_values:  # not in a program that is being traced
        other = _UNROLL.get()
        if other is not None:
            found = other(cell, x, state, resets)
    if found is None:
        found = cell.unroll(x, state, resets)
    return found


class RecordedRows(NamedTuple):
    """A rollout as a layer of memory recorded it: the state before row 0, and of the rows what `record` gave.

    before: [B, n_state]. records: [T, B, n_record]. is_first: [T, B] bool, an episode begins with the row.
    """

    before: Tensor
    records: Tensor
    is_first: Tensor


class Cell(MemoryCell):
    """A layer of memory with gates, made as `cls(n_in, n_hidden)`: a subclass sets the initial values of weight_x.

    Args: n_in: width of its inputs; n_hidden: width of its features; n_gate: gates, each with n_hidden rows of weight_x and bias;
      n_state: numbers of one env's state.
    """

    def __init__(self, n_in: int, n_hidden: int, n_gate: int, n_state: int) -> None:
        super().__init__(n_hidden, n_state)
        self.weight_x = nn.Parameter(torch.empty(n_gate * n_hidden, n_in))
        self.bias = nn.Parameter(torch.zeros(n_gate * n_hidden))


class GatedCell(Cell):
    """A cell whose gates read its features of the step before.

    Weights start orthogonal and biases at zero, as in CleanRL's PPO with LSTM, except the bias of the gate that keeps the memory.
    """

    def __init__(self, n_in: int, n_hidden: int, n_gate: int, n_state: int) -> None:
        super().__init__(n_in, n_hidden, n_gate, n_state)
        self.weight_h = nn.Parameter(torch.empty(n_gate * n_hidden, n_hidden))
        nn.init.orthogonal_(self.weight_x)
        nn.init.orthogonal_(self.weight_h)

    @abstractmethod
    def _next(self, of_x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As `step`, given the inputs' contribution to the gates [B, n_gate * n_hidden]."""

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self._next(linear(x, self.weight_x, self.bias), state)

    def unroll(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        features = []
        rows = linear(x, self.weight_x, self.bias).unbind(0)  # the inputs' contribution, of all rows at once
        for of_x, keep in zip(rows, resets.keep(x.dtype), strict=True):
            feature, state = self._next(of_x, state if keep is None else state * keep)
            features.append(feature)
        return torch.stack(features), state


class LSTMConfig(RecurrentConfig):
    """Section `policy.model.recurrent` of an LSTM."""

    n_bias: Literal[1, 2] = Field(
        1,
        description='bias vectors of each gate; 2: a second one is added, as in torch and the models of sb3-contrib: both '
        'take each step, so their sum moves twice as far',
    )


@CELL_REGISTRY.register('lstm')
class LSTM(GatedCell):
    """Gates i, f, g, o as in torch: c' = f * c + i * g, h' = o * tanh(c'); the state is h, then c.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. Departs: one bias, unless n_bias is 2.
    """

    config: ClassVar[type[RecurrentConfig]] = LSTMConfig
    shut: Tensor
    no_bias: Tensor

    @classmethod
    def make(cls, n_in: int, cfg: RecurrentConfig) -> LSTM:
        if getattr(cfg, 'n_bias', 1) == 2:
            return TwoBiasLSTM(n_in, cfg.hidden_size)
        return cls(n_in, cfg.hidden_size)

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden, 4, 2 * n_hidden)
        nn.init.constant_(self.bias[n_hidden : 2 * n_hidden], FORGET_BIAS)
        shut = torch.cat((torch.full((n_hidden, 1), -1e4), torch.zeros(3 * n_hidden, 1)))
        self.register_buffer('shut', shut, persistent=False)  # weight of the extra input that shuts gate i
        self.register_buffer('no_bias', torch.zeros(4 * n_hidden), persistent=False)

    def _bias_of_state(self) -> Tensor:
        """The bias that is added with the contribution of the state, [4 * n_hidden]."""
        return self.no_bias

    def _next(self, of_x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n = self.n_hidden
        h, c = state.chunk(2, -1)
        gates, g, o = torch.addmm(of_x, h, self.weight_h.t()).split((2 * n, n, n), -1)
        i, f = gates.sigmoid().chunk(2, -1)
        c = torch.addcmul(f * c, i, g.tanh())
        h = o.sigmoid() * c.tanh()
        return h, torch.cat((h, c), -1)

    def unroll(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        if resets.lanes is None:
            return super().unroll(x, state, resets)
        features = []
        for rows, lanes in zip(x.split(PIECE), resets.lanes, strict=True):
            feature, state = self._in_lanes(rows, state * lanes.keep.to(x.dtype), lanes)
            features.append(feature)
        if len(features) == 1:
            return features[0], state
        return torch.cat(features), state

    def _in_lanes(self, x: Tensor, state: Tensor, lanes: Lanes) -> tuple[Tensor, Tensor]:
        """Unrolls by torch's own LSTM, which cannot reset but takes a third of the time of a loop in Python."""
        n_row, n_column, n_lane = *x.shape[:2], lanes.n_lane
        # under autocast a float32 x would ask oneDNN for bfloat16, which some processors lack
        if torch.is_autocast_enabled('cpu'):
            x = x.to(torch.get_autocast_dtype('cpu'))
        weight: Tensor = self.weight_x
        if n_lane > n_column:
            x = torch.cat((x.index_select(1, lanes.column), lanes.shut.to(x.dtype)), -1)
            weight = torch.cat((weight, self.shut), -1)
            state = torch.cat((state, state.new_zeros(n_lane - n_column, self.n_state)))
        h, c = (part.contiguous().unsqueeze(0) for part in state.chunk(2, -1))
        weights = (weight, self.weight_h, self.bias, self._bias_of_state())
        feature, h, c = torch.lstm(x, (h, c), weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)
        state = torch.cat((h[0], c[0]), -1)
        if n_lane > n_column:
            feature = feature.flatten(0, 1).index_select(0, lanes.at).view(n_row, n_column, -1)
            state = state.index_select(0, lanes.last)
        return feature, state


class TwoBiasLSTM(LSTM):
    """An LSTM with a second bias, `bias_h`, which is equal to one with the sum of both, but for how far a step moves it."""

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden)
        self.bias_h = nn.Parameter(torch.zeros(4 * n_hidden))

    def _bias_of_state(self) -> Tensor:
        return self.bias_h

    def _next(self, of_x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return super()._next(of_x + self.bias_h, state)


@CELL_REGISTRY.register('gru')
class GRU(GatedCell):
    """Gates r, z, n as in torch: n = tanh(x_n + r * (W_n h + b_n)), h' = (1 - z) * n + z * h; the state is h.

    Source: Cho et al. 2014, arXiv:1406.1078, with the reset gate applied after the product.
    """

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden, 3, n_hidden)
        with torch.no_grad():
            self.bias[n_hidden : 2 * n_hidden] = keep_bias(n_hidden)
        self.bias_h = nn.Parameter(torch.zeros(3 * n_hidden))

    def _next(self, of_x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n = self.n_hidden
        gates_x, new_x = of_x.split((2 * n, n), -1)
        gates_h, new_h = torch.addmm(self.bias_h, state, self.weight_h.t()).split((2 * n, n), -1)
        r, z = (gates_x + gates_h).sigmoid().chunk(2, -1)
        new = torch.addcmul(new_x, r, new_h).tanh()
        state = torch.lerp(new.to(state.dtype), state, z.to(state.dtype))  # autocast leaves the memory in float32
        return state, state


@CELL_REGISTRY.register('mingru')
class MinGRU(Cell):
    """h' = (1 - z) * h + z * n, where z = sigmoid(W_z x + b_z) and n = W_n x + b_n; the state is h.

    The gates do not read h, so all rows of a sequence are computed in log2(L) passes (`linear_scan`).
    Source: Feng et al. 2024, arXiv:2410.01201, sec. 3.1.
    """

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden, 2, n_hidden)
        nn.init.orthogonal_(self.weight_x)
        with torch.no_grad():
            self.bias[:n_hidden] = -keep_bias(n_hidden)  # z is the share that is not kept

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """1 - z, and z * n."""
        z, new = linear(x, self.weight_x, self.bias).chunk(2, -1)
        z = z.sigmoid()
        return 1 - z, z * new

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        decay, new = self._gates(x)
        state = torch.addcmul(new, decay, state)
        return state, state

    def unroll(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        decay, new = self._gates(x)
        decay = decay * (~resets.first).to(x.dtype).unsqueeze(-1)
        new = torch.cat((torch.addcmul(new[:1], decay[:1], state), new[1:]))
        feature = linear_scan(new.flip(0), decay.flip(0)).flip(0)  # `linear_scan` runs from the last row to the first
        return feature, feature[-1]


class Core(nn.Module):
    """Stacked layers of memory between an encoder and its heads.

    Args: cell, hidden_size, n_layer: as in `policy.model.recurrent`; config: this section, in place of the three.
    Attributes: n_feature: width of its features. n_state: numbers of one env's state. keeps_whole: whether a rollout keeps the
      whole state after each row, see `MemoryCell`.
    """

    value_gain: ClassVar[float] = 1.0

    def __init__(
        self,
        n_in: int,
        cell: str = 'lstm',
        hidden_size: int = 64,
        n_layer: int = 1,
        config: RecurrentConfig | None = None,
    ) -> None:
        super().__init__()
        cls: type[MemoryCell] = CELL_REGISTRY.get(cell if config is None else config.cell)
        if config is None:
            config = cls.config(cell=cell, hidden_size=hidden_size, n_layer=n_layer)
        widths = [n_in, *[config.hidden_size] * (config.n_layer - 1)]
        self.layers = nn.ModuleList([cls.make(n, config) for n in widths])
        cells: Any = self.layers
        self.n_feature = config.hidden_size
        self.n_state = sum(each.n_state for each in cells)
        self.keeps_whole = cls.keeps_whole

    def initial_state(self, n_env: int) -> Tensor:
        """Zeros [n_env, n_state]."""
        like = next(self.parameters())
        return torch.zeros(n_env, self.n_state, dtype=like.dtype, device=like.device)

    def forward(self, x: Tensor, state: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features, and the state after the last row.

        Args: x: [B, n_in], one step, or with first [L, B] bool a sequence [L, B, n_in], time first; state:
          [B, n_state], before the first row. The state is set to zero before rows where `first` is true.
        """
        resets = None
        if first is not None:
            resets = Resets(first)
        states = []
        cell: Any
        for cell, part in zip(self.layers, self._by_layer(state), strict=True):
            if resets is None:
                x, part = cell.step(x, part)
            else:
                x, part = _unrolled(cell, x, part, resets)
            states.append(part)
        return x, _side_by_side(states)

    def record(self, state: Tensor) -> Tensor:
        """The part of the state after a row that a rollout keeps, [.., n_state] -> [.., n_record]."""
        cells: Any = self.layers
        return _side_by_side([cell.record(x) for cell, x in zip(cells, self._by_layer(state), strict=True)])

    def restore(self, rows: RecordedRows, t: Tensor, b: Tensor) -> Tensor:
        """The states after rows (t, b) of a rollout, [N] int64 each -> [N, n_state]; t is -1 for that before row 0."""
        cells: Any = self.layers
        parts = zip(cells, self._by_layer(rows.before), self._by_layer(rows.records), strict=True)
        return _side_by_side([cell.restore(RecordedRows(x, kept, rows.is_first), t, b) for cell, x, kept in parts])

    def _by_layer(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """The parts of a state or a record that belong to each layer."""
        if len(self.layers) == 1:
            return (numbers,)
        return numbers.chunk(len(self.layers), -1)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Concatenates numbers of all layers; those of one are not copied."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, -1)


class CoreRecorder:
    """Keeps of the states of a rollout what its cores need to make them again; a `StateRecorder`. Args: cores: by role."""

    def __init__(self, cores: Mapping[str, Core]) -> None:
        self._cores = cores

    def record(self, state: State) -> State:
        return {role: self._cores[role].record(x) for role, x in state.items()}

    def restore(self, before: State, records: State, is_first: Tensor, t: Tensor, b: Tensor) -> State:
        return {
            role: self._cores[role].restore(RecordedRows(before[role], records[role], is_first), t, b)
            for role in records
        }


class RecurrentActorCritic(Networks):
    """Actor and critic with a `Core` each, or with one for both on a shared encoder.

    The methods take the state too, and return the next one. first None: one step, obs [B, *O]. first [L, B] bool:
    sequences, obs [L, B, *O], time first; the state is set to zero before each row where it is true, and the state
    returned is that after the last row. Entries of the state that a method does not use are returned unchanged.
    """

    def _below_heads(self, cfg: ActorCriticConfig) -> tuple[Any, Any]:
        memory = cfg.recurrent
        assert memory is not None, 'the class is chosen by it'
        if not memory.critic and self.arch != 'dual':
            raise UserError(
                'policy.model.recurrent.critic is false but actor and critic share their encoder, and so its memory; '
                "set it to true, or give each an encoder: shared_encoder 'off', of ppg arch 'dual'"
            )
        self.actor_core = Core(self.actor_encoder.n_feature, config=memory)
        if self.arch != 'dual':
            self.critic_core: Core | None = self.actor_core
        else:
            if memory.critic:
                self.critic_core = Core(self.critic_encoder.n_feature, config=memory)
            else:
                self.critic_core = None
        return self.actor_core, self.critic_core or self.critic_encoder

    def initial_state(self, n_env: int) -> dict[str, Tensor]:
        """The state of n_env envs at the start of an episode: zeros [n_env, ..] for each core."""
        state = {'actor': self.actor_core.initial_state(n_env)}
        if self.arch == 'dual' and self.critic_core is not None:
            state['critic'] = self.critic_core.initial_state(n_env)
        return state

    def state_recorder(self) -> CoreRecorder | None:
        """Keeps a part of the states of a rollout, of cells with large ones; None: rollouts keep the state after each row."""
        cores = {'actor': self.actor_core}
        if self.arch == 'dual' and self.critic_core is not None:
            cores['critic'] = self.critic_core
        if self.actor_core.keeps_whole:
            return None
        return CoreRecorder(cores)

    def compute_actor(self, obs: Obs, state: State, first: Tensor | None = None) -> Any:
        """-> (logit [..., P], state)."""
        feature, state = self._feature('actor', self.encoder_input(obs), state, first)
        return self._logit(feature, obs), state

    def compute_critic(self, obs: Obs, state: State, first: Tensor | None = None) -> Any:
        """-> (value [...], state)."""
        output = self.compute_critic_output(obs, state, first)
        return output['value'], output['state']

    def compute_critic_output(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'value', 'state'}, and 'value_logit' where the critic predicts a distribution of returns."""
        x = self.encoder_input(obs)
        if self.arch == 'dual':
            feature, state = self._feature('critic', x, state, first)
        else:
            with torch.set_grad_enabled(self.arch == 'shared' and torch.is_grad_enabled()):
                feature, state = self._feature('actor', x, state, first)
        return {**self._value_outputs(feature), 'state': state}

    def compute_actor_critic(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'logit', 'value', 'state'}, each stage run once."""
        feature, critic_feature, state = self._features(obs, state, first)
        return {**self._outputs(obs, feature, critic_feature), 'state': state}

    def _features(self, obs: Obs, state: State, first: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """The features that the policy head and the value head take, and the state; no gradient is stopped."""
        x = self.encoder_input(obs)
        feature, state = self._feature('actor', x, state, first)
        if self.arch != 'dual':
            return feature, feature, state
        critic_feature, state = self._feature('critic', x, state, first)
        return feature, critic_feature, state

    def _feature(
        self, role: str, x: Tensor | dict[str, Tensor], state: State, first: Tensor | None
    ) -> tuple[Tensor, State]:
        """Features and next state of the 'actor', or of a 'critic' with its own encoder; without a memory the state stays."""
        feature = getattr(self, f'{role}_encoder')(x)
        core = getattr(self, f'{role}_core')
        if core is None:
            return feature, state
        feature, new = core(feature, state[role], first)
        return feature, {**state, role: new}


class RecurrentVAC(RecurrentActorCritic):
    """`VAC` with a memory."""

    config: ClassVar[type[Section]] = VACConfig


class RecurrentPPG(RecurrentActorCritic):
    """`PPG` with a memory."""

    config: ClassVar[type[Section]] = PPGModelConfig

    def __init__(self, cfg: PPGModelConfig, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space)
        self.aux_head = ValueHead(self.actor_core.n_feature, self.actor_core.value_gain)

    def compute_aux(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'logit', 'aux_value', 'value', 'state'}, each stage run once."""
        feature, critic_feature, state = self._features(obs, state, first)
        return {**self._outputs(obs, feature, critic_feature, self.aux_head), 'state': state}


def with_memory(cls: type[Networks], cfg: ActorCriticConfig, *spaces: Space) -> Any:
    """The model that replaces a `VAC` or `PPG` whose config asks for a memory. Raises: UserError for a subclass of them."""
    kinds: dict[type[Networks], Any] = {VAC: RecurrentVAC, PPG: RecurrentPPG}
    plain = next(each for each in kinds if issubclass(cls, each))
    if cls is not plain:
        raise UserError(
            f'policy.model.recurrent is set but model {cls.__name__} extends {plain.__name__}, which has no memory; '
            f'let it extend Recurrent{plain.__name__}, or leave recurrent out'
        )
    return kinds[plain](cfg, *spaces)
