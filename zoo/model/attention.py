"""Attention to the past: the memory cell 'trxl', a Transformer-XL gated as in GTrXL; the encoder 'attention' for windows."""

from __future__ import annotations

from typing import ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu

from zoo.config.section import Section
from zoo.core.registry import CELL_REGISTRY, ENCODER_REGISTRY
from zoo.core.spaces import Box, Space
from zoo.model.config import RecurrentConfig
from zoo.model.images import holds_images
from zoo.model.recurrent import MemoryCell, RecordedRows, Resets
from zoo.rl_utils.init import orthogonal

GATE_BIAS = 2.0
"""Initial bias of a gate: 88% of its output is the input of the layer, so that a new network acts by the present.

Source: Parisotto et al. 2019, arXiv:1910.06764, sec. 3.2, whose value this is.
"""
FEED_FORWARD = 4  # the hidden layer after the attention is this many times as wide as the features


def check_heads(heads: int, hidden_size: int, key: str = 'heads') -> None:
    """Raises ValueError if heads do not divide the width of a layer. Args: key: that gives their number."""
    if hidden_size % heads:
        divisors = [n for n in range(1, hidden_size + 1) if hidden_size % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - heads))
        raise ValueError(
            f'{key} is {heads} but hidden_size is {hidden_size}, which they share equally; use a divisor, e.g. {key} {nearest}'
        )


class TransformerXLConfig(RecurrentConfig):
    """Section `policy.model.recurrent` with cell 'trxl'."""

    cell: str = Field('trxl', description='kind of memory, here attention to the last inputs of each layer')
    heads: int = Field(4, ge=1, le=1_000, description='attention heads, which share hidden_size among them; 1 to 8')
    memory: int = Field(64, ge=1, le=100_000, description='env steps before the present one that a layer attends to')
    gate: Literal['gru', 'none'] = Field(
        'gru', description="a layer's input and output are joined by a gate (GTrXL) or, with 'none', added"
    )

    @model_validator(mode='after')
    def _heads_divide_the_width(self) -> TransformerXLConfig:
        check_heads(self.heads, self.hidden_size)
        return self


class GRUGate(nn.Module):
    """Joins the input x and the output y of a layer as a GRU joins a state and an input: (1 - z) * x + z * n.

    r = sigmoid(W_r y + U_r x), z = sigmoid(W_z y + U_z x - GATE_BIAS), n = tanh(W_n y + U_n (r * x)).
    Source: Parisotto et al. 2019, arXiv:1910.06764, sec. 3.2, 'gated recurrent unit type gating'.
    """

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight_y = nn.Parameter(torch.empty(3 * n, n))
        self.weight_x = nn.Parameter(torch.empty(2 * n, n))
        self.weight_new = nn.Parameter(torch.empty(n, n))
        self.bias = nn.Parameter(torch.cat((torch.zeros(n), torch.full((n,), -GATE_BIAS))))
        for weight in (self.weight_y, self.weight_x, self.weight_new):
            nn.init.orthogonal_(weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        n = x.shape[-1]
        gates_y, new_y = linear(y, self.weight_y).split((2 * n, n), -1)
        r, z = (gates_y + linear(x, self.weight_x, self.bias)).sigmoid().chunk(2, -1)
        new = (new_y + linear(r * x, self.weight_new)).tanh()
        return torch.lerp(x, new.to(x.dtype), z.to(x.dtype))


class Residual(nn.Module):
    """Adds the input and the output of a layer, which is TrXL-I of the paper on GTrXL. Args: n: width of both."""

    def __init__(self, n: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


GATES: dict[str, type[nn.Module]] = {'gru': GRUGate, 'none': Residual}


class RelativeAttention(nn.Module):
    """Attention with relative positions: of a row to itself and to the rows before it, as far as `memory`.

    The score of key k at a distance d is ((q + u) . k + (q + v) . W_r R_d) / sqrt(n_head_feature), with the sinusoids R_d of the
    distance, and u and v learnt. Source: Dai et al. 2019, arXiv:1901.02860, sec. 3.3.
    """

    sinusoids: Tensor

    def __init__(self, n: int, heads: int, memory: int) -> None:
        super().__init__()
        self._heads = heads
        self.query = orthogonal(nn.Linear(n, n, bias=False), 1.0)
        self.key = orthogonal(nn.Linear(n, n, bias=False), 1.0)
        self.value = orthogonal(nn.Linear(n, n, bias=False), 1.0)
        self.position = orthogonal(nn.Linear(n, n, bias=False), 1.0)
        self.out = orthogonal(nn.Linear(n, n), 1.0)
        self.content_bias = nn.Parameter(torch.zeros(heads, n // heads))  # u
        self.position_bias = nn.Parameter(torch.zeros(heads, n // heads))  # v
        self.register_buffer('sinusoids', distance_sinusoids(memory, n), persistent=False)

    def step(self, context: Tensor, is_seen: Tensor) -> Tensor:
        """Attends from the last of the rows context [B, M + 1, n] to those where is_seen [B, M + 1] is true -> [B, n].

        One query is multiplied with the weights of the keys, not all keys with them; and the values alike.
        """
        query = self._by_head(self.query(context[:, -1]))  # [B, H, D]
        key_weight = self._rows_by_head(self.key.weight)  # [H, D, n]
        content = torch.einsum('bhd,hdn->bhn', query + self.content_bias, key_weight)
        scores = torch.einsum('bhn,bjn->bhj', content, context)
        scores = scores + torch.einsum('bhd,jhd->bhj', query + self.position_bias, self._positions())
        weights = self._softmax(scores, is_seen.unsqueeze(1))
        mixed = torch.einsum('bhj,bjn->bhn', weights.to(context.dtype), context)
        value = torch.einsum('bhn,hdn->bhd', mixed, self._rows_by_head(self.value.weight))
        return self.out(value.flatten(-2))

    def forward(self, context: Tensor, is_seen: Tensor) -> Tensor:
        """Attends from the last L of the rows context [B, M + L, n] to those where is_seen [B, L, M + L] is true -> [B, L, n]."""
        n_row = is_seen.shape[1]
        query = self._by_head(self.query(context[:, -n_row:]))  # [B, L, H, D]
        key = self._by_head(self.key(context))
        value = self._by_head(self.value(context))
        scores = torch.einsum('bihd,bjhd->bhij', query + self.content_bias, key)
        by_distance = torch.einsum('bihd,jhd->bhij', query + self.position_bias, self._positions())
        scores = scores + in_places(by_distance)
        weights = self._softmax(scores, is_seen.unsqueeze(1))
        return self.out(torch.einsum('bhij,bjhd->bihd', weights.to(value.dtype), value).flatten(-2))

    def _positions(self) -> Tensor:
        """Keys of the distances M, M - 1, .., 0, [M + 1, H, D]."""
        return self._by_head(self.position(self.sinusoids))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self._heads, -1))

    def _rows_by_head(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (self._heads, -1))

    def _softmax(self, scores: Tensor, is_seen: Tensor) -> Tensor:
        """Weights of keys; one that is not seen has exactly 0. A row sees itself, so that no row is empty."""
        scale = self.content_bias.shape[1] ** -0.5
        return (scores * scale).masked_fill(~is_seen, float('-inf')).softmax(-1)


def distance_sinusoids(memory: int, n: int) -> Tensor:
    """Sines and cosines of the distances memory, memory - 1, .., 0 at n / 2 frequencies, [memory + 1, n].

    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.5, with the sines first, as in Transformer-XL.
    """
    distance = torch.arange(memory, -1, -1, dtype=torch.float32).unsqueeze(1)
    frequency = 10_000.0 ** -(torch.arange(0, n, 2, dtype=torch.float32) / n)
    angle = distance * frequency
    return torch.cat((angle.sin(), angle.cos()), 1)[:, :n]


def in_places(by_distance: Tensor) -> Tensor:
    """Moves row i by i columns to the right: scores by distance [.., L, M + 1] -> by place [.., L, M + L].

    Row i of a sequence has the distances M to 0 to the places i to i + M. What is left of these or right of them means nothing.
    Source: Dai et al. 2019, arXiv:1901.02860, appendix B: padding and a change of shape.
    """
    n_row, n_distance = by_distance.shape[-2:]
    n_place = n_distance + n_row - 1
    flat = pad(by_distance, (0, n_row)).flatten(-2)
    return flat[..., : n_row * n_place].unflatten(-1, (n_row, n_place))


class AttentionBlock(nn.Module):
    """Attention to a row and to those before it, then two dense layers, each after a normalisation and joined by a gate.

    e = gate(h, relu(attention(norm(rows)))),  feature = gate'(e, relu(mlp(norm'(e)))).
    Args: n: width of rows and features; heads, memory: of `RelativeAttention`; gate: a name of GATES.
    Source: Parisotto et al. 2019, arXiv:1910.06764, sec. 3.1: the input of a block passes it without a normalisation.
    """

    def __init__(self, n: int, heads: int, memory: int, gate: str) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(n)
        self.attention = RelativeAttention(n, heads, memory)
        self.gate_attention = GATES[gate](n)
        self.norm_mlp = nn.LayerNorm(n)
        self.mlp = nn.Sequential(
            orthogonal(nn.Linear(n, FEED_FORWARD * n), 2**0.5),
            nn.ReLU(),
            orthogonal(nn.Linear(FEED_FORWARD * n, n), 1.0),
        )
        self.gate_mlp = GATES[gate](n)

    def step(self, h: Tensor, context: Tensor, is_seen: Tensor) -> Tensor:
        """Features [B, n] of the last of the rows context [B, M + 1, n], which is h; is_seen: [B, M + 1]."""
        return self._joined(h, self.attention.step(self.norm_attention(context), is_seen))

    def forward(self, h: Tensor, context: Tensor, is_seen: Tensor) -> Tensor:
        """Features [B, L, n] of the last L of the rows context [B, M + L, n], which are h; is_seen: [B, L, M + L]."""
        return self._joined(h, self.attention(self.norm_attention(context), is_seen))

    def _joined(self, h: Tensor, y: Tensor) -> Tensor:
        e = self.gate_attention(h, relu(y))
        return self.gate_mlp(e, relu(self.mlp(self.norm_mlp(e))))


@CELL_REGISTRY.register('trxl')
class TransformerXL(MemoryCell):
    """An `AttentionBlock` over the present input h and the last `memory` ones of the same episode; h = x, or W x if widths differ.

    The state is the last `memory` inputs h, oldest first, and how many of them belong to the episode; the others are 0.
    Inputs of steps before a sequence are as they were when the policy acted, and get no gradient.
    Source: Parisotto et al. 2019, arXiv:1910.06764, sec. 3.1 and 3.2; Dai et al. 2019, arXiv:1901.02860. Departs: each row
    sees exactly `memory` rows before it, in a sequence too, so that acting and learning compute the same.
    """

    config: ClassVar[type[RecurrentConfig]] = TransformerXLConfig
    keeps_whole: ClassVar[bool] = False

    def __init__(self, n_in: int, cfg: TransformerXLConfig) -> None:
        n = cfg.hidden_size
        super().__init__(n, cfg.memory * n + 1)
        self.memory = cfg.memory
        self.embed: nn.Module = nn.Identity()
        if n_in != n:
            self.embed = orthogonal(nn.Linear(n_in, n), 1.0)
        self.block = AttentionBlock(n, cfg.heads, cfg.memory, cfg.gate)

    @classmethod
    def make(cls, n_in: int, cfg: RecurrentConfig) -> TransformerXL:
        return cls(n_in, cast(TransformerXLConfig, cfg))  # runners get sections as dicts with attributes

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embed(x)
        memory, count = self._parts(state)
        context = torch.cat((memory, h.unsqueeze(1).to(memory.dtype)), 1)  # [B, M + 1, n]
        is_seen = self._distance(1, x.device)[0] <= count
        feature = self.block.step(h, context, is_seen)
        return feature, self._state(context[:, 1:], (count + 1).clamp(max=self.memory))

    def unroll(self, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor]:
        n_row = len(x)
        h = self.embed(x).transpose(0, 1).contiguous()  # [B, L, n]; compiled steps view it as rows
        memory, count = self._parts(state)
        context = torch.cat((memory, h.to(memory.dtype)), 1)  # [B, M + L, n]
        n_before = rows_before(resets.first, count.squeeze(1)).clamp(max=self.memory)  # [L, B]
        distance = self._distance(n_row, x.device)
        is_seen = (distance >= 0) & (distance <= n_before.t().unsqueeze(-1))
        feature = self.block(h, context, is_seen).transpose(0, 1).contiguous()
        count = (n_before[-1] + 1).clamp(max=self.memory).unsqueeze(1)
        return feature, self._state(self._kept(context[:, n_row:], count), count)

    def record(self, state: Tensor) -> Tensor:
        return state[..., -1 - self.n_hidden : -1]  # the newest of the inputs

    def restore(self, rows: RecordedRows, t: Tensor, b: Tensor) -> Tensor:
        memory, count = self._parts(rows.before)
        context = torch.cat((memory.transpose(0, 1), rows.records))  # [M + T, B, n]
        before = rows_before(rows.is_first, count.squeeze(1)) + 1  # rows of the episode, up to this one
        counts = torch.cat((count.t(), before)).clamp(max=self.memory)  # [1 + T, B]
        place = t.unsqueeze(1) + 1 + torch.arange(self.memory, device=t.device)  # [N, M]
        count = counts[t + 1, b].unsqueeze(1)
        return self._state(self._kept(context[place, b.unsqueeze(1)], count), count)

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs [B, M, n] of a state, and the number [B, 1] of those that belong to the episode."""
        return state[:, :-1].unflatten(1, (self.memory, self.n_hidden)), state[:, -1:]

    def _state(self, memory: Tensor, count: Tensor) -> Tensor:
        return torch.cat((memory.flatten(1), count.to(memory.dtype)), 1)

    def _distance(self, n_row: int, device: torch.device) -> Tensor:
        """The rows from each place [M + L] back from each of the last L rows, [L, M + L]; below 0 for later places."""
        place = torch.arange(self.memory + n_row, device=device)
        return place[self.memory :].unsqueeze(1) - place

    def _kept(self, memory: Tensor, count: Tensor) -> Tensor:
        """The inputs [N, M, n] with zeros for all but the last `count` [N, 1]."""
        age = torch.arange(self.memory, 0, -1, device=count.device)
        return memory.masked_fill((age > count).unsqueeze(-1), 0.0)


def rows_before(first: Tensor, count: Tensor) -> Tensor:
    """The rows of the same episode before each row, [L, B]. Args: first: [L, B] bool; count: [B], of those before row 0."""
    row = torch.arange(len(first), device=first.device, dtype=count.dtype).unsqueeze(1)
    start = torch.where(first, row, -count).cummax(0).values  # the row that began the episode, below 0 for earlier ones
    return row - start


class AttentionConfig(Section):
    """Encoder 'attention' over the places of a window, or the rows of any array of numbers."""

    hidden_size: int = Field(64, ge=1, le=1_000_000, description='width of a place, and of the features; 64 to 256')
    heads: int = Field(4, ge=1, le=1_000, description='attention heads, which share hidden_size among them; 1 to 8')

    @model_validator(mode='after')
    def _heads_divide_the_width(self) -> AttentionConfig:
        check_heads(self.heads, self.hidden_size)
        return self


@ENCODER_REGISTRY.register('attention')
class WindowAttention(nn.Module):
    """For windows: the newest of the last observations attends to those before it; arrays [n, k] of numbers, one row each.

    [..., n * k] -> [..., hidden_size]: a linear layer for each row, and an `AttentionBlock` from the last row. Rows of zeros, as
    the places of a window before the start of an episode are, are not seen.
    """

    config: ClassVar[type[Section]] = AttentionConfig
    value_gain: ClassVar[float] = 1.0

    def __init__(self, cfg: AttentionConfig, space: Box) -> None:
        super().__init__()
        self.n_feature: int = cfg.hidden_size
        self._shape = space.shape
        self.embed = orthogonal(nn.Linear(space.shape[1], cfg.hidden_size), 1.0)
        self.block = AttentionBlock(cfg.hidden_size, cfg.heads, space.shape[0] - 1, 'none')

    @classmethod
    def fits(cls, space: Space) -> bool:
        return isinstance(space, Box) and len(space.shape) == 2 and not holds_images(space)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, *self._shape)  # [N, n, k]
        is_seen = (rows != 0).any(-1)
        is_last = torch.arange(self._shape[0], device=x.device) == self._shape[0] - 1
        context = self.embed(rows)
        feature = self.block.step(context[:, -1], context, is_seen | is_last)
        return feature.view(*x.shape[:-1], self.n_feature)
