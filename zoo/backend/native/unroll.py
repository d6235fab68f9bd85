"""Sequences through zoo's own layers of memory in C, in models that C cannot run as a whole: their updates run eagerly."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import linear

from zoo.backend.executor import Eager
from zoo.backend.native.bindings import CellKind, Library, SequencesStruct, load
from zoo.backend.native.memory import CELLS, MULTIPLE
from zoo.backend.places import has_hook, has_own_method
from zoo.backend.step import LossSpec, Step, StepNumbers, StepPlan
from zoo.core.data import Columns, Metrics
from zoo.model.recurrent import MemoryCell, Resets, unrolled_by
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatOptimizer

PARAMETERS = {
    CellKind.LSTM: ({'weight_x', 'bias', 'weight_h'}, {'weight_x', 'bias', 'weight_h', 'bias_h'}),
    CellKind.GRU: ({'weight_x', 'bias', 'weight_h', 'bias_h'},),
    CellKind.MINGRU: ({'weight_x', 'bias'},),
}
"""The names that the parameters of a kind may have."""


class EagerWithMemory(Eager):
    """`Eager`, but that sequences go through LSTM, GRU and minGRU in C. Args: lib: the library; the others: of `Eager`."""

    has_memory_in_c = True

    def __init__(self, model: nn.Module, dist: ActionDist, lib: Library) -> None:
        super().__init__(model, dist)
        self._unroll = NativeUnroll(lib)

    def run(
        self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, loss: LossSpec, numbers: StepNumbers
    ) -> Metrics:
        with unrolled_by(self._unroll):
            return super().run(step, optimizers, plan, loss, numbers)

    def outputs(self, method: str, columns: Columns, loss: LossSpec) -> dict[str, Tensor]:
        with unrolled_by(self._unroll):
            return super().outputs(method, columns, loss)


def eager_with_memory(model: nn.Module, dist: ActionDist) -> EagerWithMemory | None:
    """Such an executor; None: the model has no layer of memory that C has, or the library is missing."""
    lib, _ = load()
    if lib is None or not any(is_known(module) for module in model.modules()):
        return None
    return EagerWithMemory(model, dist, lib)


def is_known(cell: Any) -> bool:
    """Whether a module is a layer of memory exactly as zoo has it, of a size and in numbers that C takes."""
    kind = CELLS.get(type(cell))
    if kind is None or cell.n_hidden % MULTIPLE or has_own_method(cell) or has_hook(cell):
        return False
    parameters = cell._parameters
    if parameters.keys() not in PARAMETERS[kind] or len(set(map(id, parameters.values()))) != len(parameters):
        return False
    return all(x.is_cpu and x.dtype == torch.float32 and x.is_contiguous() for x in parameters.values())


class NativeUnroll:
    """Takes sequences through a layer of memory in C; a function for `zoo.model.recurrent.unrolled_by`."""

    def __init__(self, lib: Library) -> None:
        self.lib = lib
        self._workspace = lib.workspace()
        self._lock = Lock()  # the workspace is for one call at a time

    def __call__(self, cell: MemoryCell, x: Tensor, state: Tensor, resets: Resets) -> tuple[Tensor, Tensor] | None:
        """-> features [L, B, H] and the state after the last row; None: not in C, since cell or numbers are others."""
        are_plain = all(_is_plain(each) for each in (x, state)) and resets.first.dtype == torch.bool
        if not are_plain or not x.numel() or _is_transformed() or not is_known(cell):
            return None
        features, after = _Unrolled.apply(self, cell, resets.first, x, state, *cell.parameters())
        return features, after

    def forward(self, sequences: Sequences) -> None:
        """Takes sequences to the last row: their gates, features and states are found."""
        with self._lock:
            self.lib.unroll(self._workspace, sequences.struct())


def _is_plain(x: Tensor) -> bool:
    return type(x) is Tensor and x.is_cpu and x.dtype == torch.float32 and not x.is_inference()


def _is_transformed() -> bool:
    """Whether torch's transforms of functions, or numbers of another type, are in use: then torch does all itself."""
    in_transform = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return in_transform or torch.is_autocast_enabled('cpu')


class _Unrolled(torch.autograd.Function):
    """The features and the last state of sequences, and their gradients, all in C but for the inputs' part of the gates."""

    @staticmethod
    def forward(
        ctx: Any, unroll: NativeUnroll, cell: Any, first: Tensor, x: Tensor, state: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor]:
        n_step, n, n_hidden = *x.shape[:2], cell.n_hidden
        weights: dict[str, Tensor] = dict(cell.named_parameters())
        kind = CELLS[type(cell)]
        bias = weights['bias']
        if kind == CellKind.LSTM and 'bias_h' in weights:
            bias = bias + weights['bias_h']
        sequences = Sequences(kind, n_step, n, n_hidden, weights, first)
        sequences.gate = linear(x, weights['weight_x'], bias)
        sequences.h_in[0] = state[:, :n_hidden]
        if kind == CellKind.LSTM:
            sequences.c_in[0] = state[:, n_hidden:]
        unroll.forward(sequences)
        features = sequences.h
        # the way back does not read them, and a result that its own function holds would live until garbage is collected
        sequences.h = features.new_empty(0)
        ctx.unroll, ctx.cell, ctx.sequences = unroll, cell, sequences
        ctx.save_for_backward(x, state, *cell.parameters())
        return features, sequences.state_after()

    @staticmethod
    def backward(ctx: Any, d: Tensor, d_after: Tensor) -> tuple[Tensor | None, ...]:
        x, state, *parameters = ctx.saved_tensors
        names = ['x', 'state', *(name for name, _ in ctx.cell.named_parameters())]
        wanted = dict(zip(names, ctx.needs_input_grad[3:], strict=True))
        if torch.is_grad_enabled():
            inputs = dict(zip(names, (x, state, *parameters), strict=True))
            grads = _differentiable(ctx.cell, ctx.sequences.first(), inputs, wanted, (d, d_after))
        else:
            grads = ctx.sequences.gradients(ctx.unroll.lib, x, d.contiguous(), d_after)
        return None, None, None, *(grads[name] if is_wanted else None for name, is_wanted in wanted.items())


def _differentiable(
    cell: nn.Module, first: Tensor, inputs: dict[str, Tensor], wanted: dict[str, bool], d: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """The gradients that are wanted, with gradients of their own: torch goes all the way once more, which takes its time."""
    own = {
        name: x.view_as(x) for name, x in inputs.items()
    }  # gradients stop here, and do not run on into what came before
    x, state = own.pop('x'), own.pop('state')
    cell = copy.copy(cell)
    cell._parameters = own  # type: ignore[assignment]
    sources = {name: each for name, each in {'x': x, 'state': state, **own}.items() if wanted[name]}
    results = cell.unroll(x, state, Resets(first))  # type: ignore[operator]
    return dict(zip(sources, torch.autograd.grad(results, list(sources.values()), d, create_graph=True), strict=True))


class Sequences:
    """Sequences on their way through a layer of memory: the arrays of `SequencesStruct`, under the names that these have there.

    Args: kind: of the layer; n_step, n, n_hidden: L, B, H; weights: of the layer, by name; first: [L, B] bool.
    """

    def __init__(
        self, kind: CellKind, n_step: int, n: int, n_hidden: int, weights: dict[str, Tensor], first: Tensor
    ) -> None:
        like = weights['bias']  # an env may have changed torch's default type and device
        self.kind = kind
        self.shape = (n_step, n, n_hidden)
        self.weights = weights
        self.keep = like.new_ones(n_step + 1, n)
        self.keep[:n_step] = ~first
        self.gate = like.new_empty(0)
        self.of_h = like.new_empty(0)
        self.h = like.new_empty(self.shape)
        self.h_in = like.new_empty(n_step + 1, n, n_hidden)
        self.c_in = like.new_empty(0)
        self.tanh_c = like.new_empty(0)
        self.dh = like.new_empty(0)
        self.dc = like.new_empty(0)
        if kind == CellKind.LSTM:
            self.c_in = like.new_empty(n_step + 1, n, n_hidden)
            self.tanh_c = like.new_empty(self.shape)
        elif kind == CellKind.GRU:
            self.of_h = like.new_empty(n_step, n, 3 * n_hidden)

    def first(self) -> Tensor:
        """[L, B] bool, whether the state before a row is set to 0."""
        return self.keep[:-1] == 0

    def struct(self) -> Any:
        """As C sees it; valid as long as this lives."""
        n_step, n, n_hidden = self.shape
        struct = SequencesStruct(n_step=n_step, n_sequence=n)
        struct.cell.kind = self.kind
        struct.cell.n_hidden = n_hidden
        if 'weight_h' in self.weights:
            weight = self.weights['weight_h']
            struct.cell.h.n_out, struct.cell.h.n_in = weight.shape
            struct.cell.h.weight = weight.data_ptr()
        if self.kind == CellKind.GRU:
            struct.cell.h.bias = self.weights['bias_h'].data_ptr()
        for name in ('keep', 'gate', 'of_h', 'h', 'h_in', 'c_in', 'tanh_c', 'dh', 'dc'):
            setattr(struct, name, getattr(self, name).data_ptr())
        return struct

    def state_after(self) -> Tensor:
        """The state after the last row, [B, n_state]."""
        if self.kind == CellKind.LSTM:
            return torch.cat((self.h_in[-1], self.c_in[-1]), -1)
        return self.h_in[-1].clone()

    def gradients(self, lib: Library, x: Tensor, d: Tensor, d_after: Tensor) -> dict[str, Tensor]:
        """Gradients in x [L, B, n_in], 'state' [B, n_state] and the layer's parameters, by name.

        Args: d: gradients in the features, [L, B, H] contiguous; d_after: in the last state, [B, n_state].
        """
        n_step, n, n_hidden = self.shape
        back = copy.copy(self)  # so that it can be gone again: C changes what it is given
        back.gate = self.gate.clone()
        back.of_h = self.of_h.clone()
        back.dh = d.new_zeros(n, n_hidden)
        back.dc = d.new_zeros(n, n_hidden)
        if self.kind == CellKind.MINGRU:
            back.dc.copy_(d_after)
        else:
            back.dh.copy_(d_after[:, :n_hidden])
        if self.kind == CellKind.LSTM:
            back.dc.copy_(d_after[:, n_hidden:])
        lib.unroll_back(back.struct(), d)
        keep = self.keep[0].unsqueeze(-1)
        if self.kind == CellKind.LSTM:
            of_state = torch.cat((back.dh * keep, back.dc * keep), -1)
        elif self.kind == CellKind.GRU:
            of_state = (back.dh + back.dc) * keep
        else:
            of_state = back.dc * keep
        d_gate = back.gate.flatten(0, 1)
        grads = {
            'x': (d_gate @ self.weights['weight_x']).view_as(x),
            'state': of_state,
            'weight_x': d_gate.t() @ x.flatten(0, 1),
            'bias': d_gate.sum(0),
        }
        if self.kind != CellKind.MINGRU:
            d_h = d_gate
            if self.kind == CellKind.GRU:
                d_h = back.of_h.flatten(0, 1)
            grads['weight_h'] = d_h.t() @ self.h_in[:n_step].flatten(0, 1)
            grads['bias_h'] = d_h.sum(0)
        return grads
