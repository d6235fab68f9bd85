"""Bindings of the compiled library: the structures of zoo_native.h, the tensors that they describe, and its functions."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from enum import IntEnum, IntFlag
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.core.errors import UserError
from zoo.rl_utils.optimizer import FlatAdam

ABI = 8
MAX_LAYER = 8
MAX_ENTRY = 16
MAX_CELL = 2


Level = IntEnum('Level', 'BASE V3 V4', start=0)  # instruction set of the kernels: SSE2 or NEON, AVX2, AVX-512
Input = IntEnum(
    'Input', 'FLOAT NORMALIZED INDEX BOOL', start=0
)  # of an entry of the observations; an index becomes one-hot
Activation = IntEnum('Activation', 'TANH RELU', start=0)  # after each layer of a trunk
CellKind = IntEnum('CellKind', 'LSTM GRU MINGRU', start=0)  # a layer of memory
Dist = IntEnum('Dist', 'CATEGORICAL GAUSSIAN', start=0)  # the action distribution
Std = IntEnum('Std', 'NONE FREE LAYER', start=0)  # where a Gaussian's log standard deviation comes from
Kind = IntEnum('Kind', 'PPO POLICY VALUE AUX', start=0)  # the step that an epoch consists of
# the surrogate of the policy; clip_low and clip_high are its bounds; clip_low also divides SPO's pull
Surrogate = IntEnum('Surrogate', 'CLIP UNCLIPPED SPO', start=0)
ValueLoss = IntEnum('ValueLoss', 'MSE CLIPPED_VALUE CLIPPED_ERROR HUBER', start=0)  # all but the first have a range
Output = IntFlag('Output', 'LOGIT VALUE AUX')  # outputs of a forward pass
SumKind = IntEnum('SumKind', 'FLOAT DOUBLE INT64', start=0)  # type of numbers that are summed over ranks
# columns of an epoch's metrics; NaN if the step does not compute one
Column = IntEnum(
    'Column',
    'POLICY_LOSS VALUE_LOSS ENTROPY APPROX_KL CLIPFRAC KL GRAD_NORM GRAD_NORM_0 GRAD_NORM_1 AUXILIARY_LOSS '
    'BEHAVIORAL_CLONING_LOSS AUX_VALUE_LOSS PENALTY_KL RATIO_MAX VALUE_CLIPFRAC',
    start=0,
)


def _struct(name: str, *fields: tuple[Any, str]) -> type[ctypes.Structure]:
    """A structure of zoo_native.h. Args: fields: each a type with the names of successive fields."""
    of_type = [(field, kind) for kind, names in fields for field in names.split()]
    return type(name, (ctypes.Structure,), {'_fields_': of_type})


LinearStruct = _struct('zoo_linear', (c_int32, 'n_in n_out'), (c_void_p, 'weight bias weight_grad bias_grad'))
EntryStruct = _struct('zoo_entry', (c_int32, 'kind width'), (c_float, 'clip'), (c_void_p, 'shift scale'))
TrunkStruct = _struct(
    'zoo_trunk',
    (c_int32, 'n_layer activation n_entry'),
    (c_int32 * MAX_ENTRY, 'entry'),
    (LinearStruct * MAX_LAYER, 'layer'),
)
CellStruct = _struct('zoo_cell', (c_int32, 'kind n_hidden'), (LinearStruct, 'x h'))
CoreStruct = _struct('zoo_core', (c_int32, 'n_layer'), (CellStruct * MAX_CELL, 'layer'))
ModelStruct = _struct(
    'zoo_model',
    (c_int32, 'n_entry shared stop_value_gradient distribution n_action std n_choice'),
    (c_float, 'log_std_min log_std_max'),
    (c_void_p, 'nvec log_std log_std_grad'),
    (EntryStruct * MAX_ENTRY, 'entry'),
    (TrunkStruct, 'actor critic'),
    (CoreStruct, 'actor_core critic_core'),
    (LinearStruct, 'policy_head std_head value_head aux_head'),
)
StepStruct = _struct(
    'zoo_step',
    (c_int32, 'kind normalize_adv measure_kl surrogate value_loss has_dual_clip has_kl_penalty has_grad_clip'),
    (c_double, 'clip_low clip_high value_range value_weight entropy_weight dual_clip kl_penalty bc_weight grad_clip'),
)
BatchStruct = _struct(
    'zoo_batch',
    (c_int64, 'n_row'),
    (c_int32, 'n_step n_burn'),
    (c_void_p, 'is_first is_burned actor_state critic_state'),
    (c_void_p * MAX_ENTRY, 'obs'),
    (c_void_p, 'mask action logit value adv return_ weight'),
)
AdamStruct = _struct(
    'zoo_adam',
    (c_int64, 'size'),
    (c_void_p, 'param grad exp_avg exp_avg_sq step_count'),
    (c_double, 'lr beta1 beta2 eps'),
)
RolloutStruct = _struct(
    'zoo_rollout',
    (c_int32, 'n_row has_value'),
    (c_void_p * MAX_ENTRY, 'obs'),
    (c_void_p, 'mask noise action logit value actor_now critic_now actor_state critic_state'),
    (c_int64 * MAX_ENTRY, 'obs_stride'),
    (c_int64, 'mask_stride noise_stride action_stride logit_stride value_stride'),
    (c_int64, 'actor_state_stride critic_state_stride'),
    (c_void_p * 2, 'begins'),
    (c_int64 * 2, 'begins_stride'),
)
Across = ctypes.CFUNCTYPE(c_int32, c_void_p, c_int64, c_int32)
"""(address of n numbers, n, their `SumKind`) -> 0: sums them over machines, in place."""
RanksStruct = _struct(
    'zoo_ranks',
    (c_int32, 'rank n_rank local n_local fd n_spin error'),
    (c_void_p, 'memory'),
    (c_int64, 'n_byte n_wait'),
    (c_double, 'timeout'),
    (Across, 'across'),
)
SequencesStruct = _struct(
    'zoo_sequences',
    (CellStruct, 'cell'),
    (c_int64, 'n_step n_sequence'),
    (c_void_p, 'keep gate of_h h h_in c_in tanh_c dh dc'),
)
STRUCTS = (
    *(LinearStruct, EntryStruct, TrunkStruct, CellStruct, CoreStruct, ModelStruct),
    *(StepStruct, BatchStruct, AdamStruct, RolloutStruct, RanksStruct, SequencesStruct),
)
"""In the order of zoo_sizes."""


Entries = Tensor | Sequence[Tensor | None]
"""Observations: a tensor for each entry, None for one that no network of the call reads; or the tensor of the only one."""


class StepSpec(NamedTuple):
    """The options of an epoch's steps; None leaves an option out."""

    kind: Kind
    normalize_adv: bool = False
    surrogate: Surrogate = Surrogate.CLIP
    clip_low: float = 0.2
    clip_high: float = 0.2
    value_loss: ValueLoss = ValueLoss.MSE
    value_range: float = 0.2
    value_weight: float = 1.0
    entropy_weight: float = 0.0
    dual_clip: float | None = None
    grad_clip: float | None = 0.5
    measure_kl: bool = False
    kl_penalty: float | None = None
    bc_weight: float = 1.0


class Entry(NamedTuple):
    """One entry of the observations, which has tensors of its own. Args: width: numbers in it, or of its indices."""

    kind: Input
    width: int
    shift: Tensor | None = None  # [width] f32, of Input.NORMALIZED
    scale: Tensor | None = None
    clip: float = 10.0


class Trunk(NamedTuple):
    """Linear layers; the input of the first is the entries that it reads, by number, side by side."""

    layers: Sequence[nn.Linear]
    entries: Sequence[int] = (0,)


class Weights(NamedTuple):
    """A linear layer, as an nn.Linear is one too."""

    weight: Tensor  # [n_out, n_in]
    bias: Tensor | None  # [n_out]


class MemoryLayer(NamedTuple):
    """A layer of memory; h: None for minGRU."""

    kind: CellKind
    x: Weights
    h: Weights | None

    @property
    def n_hidden(self) -> int:
        return len(self.x.weight) // (4, 3, 2)[self.kind]

    @property
    def n_state(self) -> int:
        """Numbers of a row of its state."""
        return self.n_hidden * (2 if self.kind == CellKind.LSTM else 1)


class Model:
    """A zoo_model, an actor-critic, with the tensors that it points to; action_shape, action_dtype: of one row's action.

    Its addresses are taken once: from then on parameters and gradients must be changed in place. A step writes the .grad of
    each parameter that has one.

    Args:
      entries: of the observations; critic: None: its head is on the actor's trunk; policy_head: gives logits, or mu; log_std: [D] a free parameter, or
        std_head: a layer; nvec: options of each of several choices, None: one choice, or real numbers.
      actor_core, critic_core: layers of memory behind each trunk.
    Attributes: n_state: numbers of a row of the state, by the name of the trunk, of those with a memory.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        activation: Activation,
        actor: Trunk,
        critic: Trunk | None,
        distribution: Dist,
        policy_head: nn.Linear,
        nvec: tuple[int, ...] | None = None,
        value_head: nn.Linear | None = None,
        aux_head: nn.Linear | None = None,
        log_std: Tensor | None = None,
        std_head: nn.Linear | None = None,
        stop_value_gradient: bool = False,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        actor_core: Sequence[MemoryLayer] = (),
        critic_core: Sequence[MemoryLayer] = (),
    ) -> None:
        self.entries = entries
        cores = {'actor': actor_core, 'critic': critic_core}
        self.n_state = {name: sum(cell.n_state for cell in cells) for name, cells in cores.items() if cells}
        n_action = policy_head.bias.numel()
        is_gaussian = distribution == Dist.GAUSSIAN
        self.n_action = n_action
        self.n_logit = n_action * (2 if is_gaussian else 1)
        if is_gaussian:
            self.action_dtype = torch.float32
        else:
            self.action_dtype = torch.int64
        choices: Sequence[int] = ()
        if not is_gaussian:
            choices = nvec or (n_action,)
        self.action_shape: tuple[int, ...]
        if nvec is None:
            self.action_shape = ()
        else:
            self.action_shape = (len(nvec),)
        if is_gaussian:
            self.action_shape = (n_action,)
        self._nvec = (c_int32 * len(choices))(*choices)
        if log_std is None:
            std = Std.NONE
        else:
            std = Std.FREE
        self.struct = ModelStruct(
            n_entry=len(entries),
            shared=critic is None,
            stop_value_gradient=stop_value_gradient,
            distribution=distribution,
            n_action=n_action,
            std=std if std_head is None else Std.LAYER,
            n_choice=len(choices),
            nvec=ctypes.addressof(self._nvec),
            log_std_min=log_std_min,
            log_std_max=log_std_max,
            log_std=_optional('log_std', log_std, (n_action,)),
            log_std_grad=_grad('log_std', log_std),
            entry=(EntryStruct * MAX_ENTRY)(*map(_entry, entries)),
            actor=_trunk(actor, activation),
            critic=_trunk(critic or Trunk((), ()), activation),
            actor_core=_core(actor_core),
            critic_core=_core(critic_core),
            policy_head=_linear(policy_head),
            std_head=_linear(std_head),
            value_head=_linear(value_head),
            aux_head=_linear(aux_head),
        )


class ActingBlocks:
    """A zoo_rollout over blocks [T, B, ...], and the tensors that it points to.

    Args: noise: None for the most likely actions; value: None leaves it out; mask [.., A] bool: which options are
      allowed, None: all; obs and mask may have more steps than the others; now, states: of a model with a memory, by the
      name of the trunk: the state [B, n] before the next step, which each step replaces, and blocks of those after the steps;
      begins: up to two blocks of bools: with the step after a row that one of them marks an episode begins, with a state of 0.
    """

    def __init__(
        self,
        model: Model,
        obs: Entries,
        noise: Tensor | None,
        action: Tensor,
        logit: Tensor,
        value: Tensor | None,
        mask: Tensor | None = None,
        now: Mapping[str, Tensor] | None = None,
        states: Mapping[str, Tensor] | None = None,
        begins: Sequence[Tensor] = (),
    ) -> None:
        entries = each_entry(obs)
        self.now = dict(now or {})
        n = next(x.shape[1] for x in entries if x is not None)
        self.noise = noise
        blocks = {
            'mask': (mask, torch.bool, (n, model.n_action)),
            'noise': (noise, torch.float32, (n, model.n_action)),
            'action': (action, model.action_dtype, (n, *model.action_shape)),
            'logit': (logit, torch.float32, (n, model.n_logit)),
            'value': (value, torch.float32, (n,)),
            **{f'{name}_state': (x, torch.float32, (n, model.n_state[name])) for name, x in (states or {}).items()},
        }
        self.model = model
        tensors = [*entries, *(x for x, *_ in blocks.values())]
        self.tensors = [x for x in tensors if x is not None and x is not noise]
        self.n_step = min(len(x) for x in tensors if x is not None)
        self.struct = RolloutStruct(
            n_row=n,
            has_value=value is not None,
            obs=obs_addresses(model, [None if x is None else x[0] for x in entries]),
        )
        for i, block in enumerate(entries):
            if block is not None:
                self.struct.obs_stride[i] = block.stride(0) * block.element_size()
        for name, (x, dtype, shape) in blocks.items():
            if x is not None:
                setattr(self.struct, name, address(name, x[0], dtype, shape))
                setattr(self.struct, f'{name}_stride', x.stride(0) * x.element_size())
        for name, x in self.now.items():
            setattr(self.struct, f'{name}_now', address('state', x, torch.float32, (n, model.n_state[name])))
        self.begins = begins
        for i, x in enumerate(begins):
            self.struct.begins[i] = address('begins', x[0], torch.bool, (n,))
            self.struct.begins_stride[i] = x.stride(0)

    def set_noise(self, noise: Tensor) -> None:
        """Takes the noise of another rollout, in the shape of that before."""
        assert self.noise is not None
        self.struct.noise = address('noise', noise, torch.float32, self.noise.shape)
        self.noise = noise


def step_struct(spec: StepSpec) -> ctypes.Structure:
    options = {name: getattr(spec, name) for name in ('dual_clip', 'kl_penalty', 'grad_clip')}
    plain = {name: value for name, value in spec._asdict().items() if name not in options}
    return StepStruct(
        **plain,
        **{name: value or 0.0 for name, value in options.items()},
        **{f'has_{name}': value is not None for name, value in options.items()},
    )


def batch_struct(model: Model, kind: Kind | None, batch: Mapping[str, Any]) -> ctypes.Structure:
    """A zoo_batch of the columns that a step of this kind reads, None: outputs; of rows, or with 'is_first' of sequences."""
    n = n_row_of(batch['obs'])
    f32 = torch.float32
    rows: tuple[int, ...] = (n,)
    seen = rows
    sequences: dict[str, Any] = {}
    if 'is_first' in batch:
        n_seen = batch['is_first'].shape[1]
        n_step = batch['return_' if 'return_' in batch else 'adv'].shape[1]
        rows = (n, n_step)
        seen = (n, n_seen)
        sequences = {'n_step': n_step, 'n_burn': n_seen - n_step}
        sequences['is_first'] = address('is_first', batch['is_first'], torch.bool, seen)
        if n_seen > n_step:
            sequences['is_burned'] = address('is_burned', batch['is_burned'], torch.bool, (n,))
        sequences |= state_addresses(model, batch['state'], n)
    columns = {
        'logit': (f32, (*rows, model.n_logit)),
        'value': (f32, rows),
        'adv': (f32, rows),
        'return_': (f32, rows),
        'weight': (f32, rows),
        'action': (model.action_dtype, (*rows, *model.action_shape)),
        'mask': (torch.bool, (*seen, model.n_action)),
    }
    wanted = {
        Kind.PPO: ('action', 'logit', 'adv', 'value', 'return_', 'mask'),
        Kind.POLICY: ('action', 'logit', 'adv', 'mask'),
        Kind.VALUE: ('value', 'return_'),
        Kind.AUX: ('logit', 'return_', 'mask'),
        None: ('mask',),
    }[kind]
    return BatchStruct(
        n_row=n,
        **sequences,
        obs=obs_addresses(model, batch['obs'], seen),
        **{
            name: address(name, batch[name], *columns[name])
            for name in (*wanted, 'weight')
            if batch.get(name) is not None
        },
    )


def adam_struct(optimizer: FlatAdam) -> ctypes.Structure:
    """A zoo_adam over the buffers of a `FlatAdam`; its rates are (lr, beta1, beta2, eps)."""
    size = optimizer.param.numel()
    buffers = {
        name: address(name, getattr(optimizer, name), torch.float32, (size,))
        for name in ('param', 'grad', 'exp_avg', 'exp_avg_sq')
    }
    rates = dict(zip(('lr', 'beta1', 'beta2', 'eps'), optimizer.rates, strict=True))
    step_count = address('step_count', optimizer.step_count, torch.float32, ())
    return AdamStruct(size=size, step_count=step_count, **buffers, **rates)


def address(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    if x.dtype != dtype or x.shape != shape or not x.is_cpu or not x.is_contiguous():
        raise ValueError(
            f'{name} is {x.dtype} {tuple(x.shape)} on {x.device}, contiguous: {x.is_contiguous()}; the '
            f'native executor takes contiguous {dtype} {shape} on the CPU'
        )
    return x.data_ptr()


def _optional(name: str, x: Tensor | None, shape: tuple[int, ...]) -> int | None:
    if x is None:
        return None
    return address(name, x, torch.float32, shape)


def _grad(name: str, x: Tensor | None) -> int | None:
    if x is None or x.grad is None or not x.requires_grad:
        return None
    return address(f'{name}.grad', x.grad, torch.float32, tuple(x.shape))


def each_entry(obs: Entries) -> Sequence[Tensor | None]:
    """The entries of observations, also of those that are one tensor."""
    if isinstance(obs, Tensor):
        return [obs]
    return obs


def n_row_of(obs: Entries) -> int:
    """The number of observations."""
    if isinstance(obs, Tensor):
        return obs.shape[0]
    return next(x.shape[0] for x in obs if x is not None)


def state_addresses(model: Model, state: Mapping[str, Tensor] | None, n: int) -> dict[str, int]:
    """The addresses of the states [N, n_state] of each trunk with a memory, by the name of their field."""
    if not state:
        return {}
    return {
        f'{name}_state': address('state', state[name], torch.float32, (n, model.n_state[name]))
        for name in state.keys() & model.n_state.keys()
    }


def obs_addresses(model: Model, obs: Entries, lead: tuple[int, ...] | None = None) -> ctypes.Array[Any]:
    """The addresses of the entries of observations, 0 for one that is missing.

    Args: lead: their leading shape, None: [N], with as many rows in each.
    """
    if lead is None:
        lead = (n_row_of(obs),)
    addresses = (c_void_p * MAX_ENTRY)()
    for i, (entry, x) in enumerate(zip(model.entries, each_entry(obs), strict=True)):
        if x is not None:
            addresses[i] = _entry_address(entry, x, lead)
    return addresses


def _entry_address(entry: Entry, x: Tensor, lead: tuple[int, ...]) -> int:
    """The address of an entry: [N] indices, or [N, ...] with `width` numbers or bools each in any shape."""
    if entry.kind == Input.INDEX:
        return address('obs', x, torch.int64, lead)
    if entry.kind == Input.BOOL:
        dtype = torch.bool
    else:
        dtype = torch.float32
    shape = (*lead, entry.width)
    of_row = x.shape[len(lead) :]
    if prod(of_row) == entry.width:  # rows of several dimensions lie in memory as flat ones do
        shape = (*lead, *of_row)
    return address('obs', x, dtype, shape)


def _entry(entry: Entry) -> ctypes.Structure:
    shape = (entry.width,)
    return EntryStruct(
        kind=entry.kind,
        width=entry.width,
        clip=entry.clip,
        shift=_optional('shift', entry.shift, shape),
        scale=_optional('scale', entry.scale, shape),
    )


def _linear(layer: nn.Linear | Weights | None) -> ctypes.Structure:
    if layer is None:
        return LinearStruct()
    weight = layer.weight
    bias = layer.bias
    n_out, n_in = weight.shape
    return LinearStruct(
        n_in=n_in,
        n_out=n_out,
        weight=address('weight', weight, torch.float32, (n_out, n_in)),
        bias=_optional('bias', bias, (n_out,)),
        weight_grad=_grad('weight', weight),
        bias_grad=_grad('bias', bias),
    )


def _core(cells: Sequence[MemoryLayer]) -> ctypes.Structure:
    if len(cells) > MAX_CELL:
        raise ValueError(f'a memory has {len(cells)} layers; the native executor takes at most {MAX_CELL}')
    found = [CellStruct(kind=cell.kind, n_hidden=cell.n_hidden, x=_linear(cell.x), h=_linear(cell.h)) for cell in cells]
    return CoreStruct(n_layer=len(found), layer=(CellStruct * MAX_CELL)(*found))


def _trunk(trunk: Trunk, activation: Activation) -> ctypes.Structure:
    layers = trunk.layers
    if len(layers) > MAX_LAYER:
        raise ValueError(f'a trunk has {len(layers)} layers; the native executor takes at most {MAX_LAYER}')
    return TrunkStruct(
        n_layer=len(layers),
        activation=activation,
        n_entry=len(trunk.entries),
        entry=(c_int32 * MAX_ENTRY)(*trunk.entries),
        layer=(LinearStruct * MAX_LAYER)(*map(_linear, layers)),
    )


_ERRORS = {
    1: (MemoryError, 'the native executor got no memory'),
    2: (
        ValueError,
        'the native executor cannot run this model: a layer, width, entry or column that the step needs is '
        'missing or does not fit',
    ),
    3: (IndexError, 'an index of a minibatch is outside the batch'),
    4: (ValueError, 'an action is outside its options'),
    5: (ValueError, 'an index in the observations is outside its space'),
}


class Workspace:
    """Scratch memory, for one call at a time; acting needs a separate one."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self.handle = dll.zoo_workspace_new()
        if not self.handle:
            raise MemoryError(_ERRORS[1][1])
        # at the exit of the process a thread may still use it
        weakref.finalize(self, dll.zoo_workspace_free, self.handle).atexit = False


class Library:
    """The opened library. Calls release the GIL."""

    empty = staticmethod(partial(torch.empty, dtype=torch.float32, device='cpu'))  # an env may change torch's defaults

    def __init__(self, dll: ctypes.CDLL) -> None:
        self.dll = dll
        _declare(dll)

    def level(self) -> Level:
        return Level(self.dll.zoo_level())

    def set_level(self, level: Level | int) -> Level:
        """Uses a level, or the best one (-1), from now on; returns the level in use, which this CPU may limit."""
        return Level(self.dll.zoo_set_level(int(level)))

    def workspace(self) -> Workspace:
        return Workspace(self.dll)

    def epoch(
        self,
        workspace: Workspace,
        model: Model,
        step: StepSpec,
        batch: Mapping[str, Any],
        optimizers: Sequence[Any],
        index: Tensor,
        batch_size: int,
        n_thread: int = 1,
        ranks: Any = None,
    ) -> Tensor:
        """Takes a step per batch_size entries of index [n_minibatch * batch_size]; returns metrics [n_minibatch, Column] f64.

        Args:
          batch: [N] rows: obs (see `Entries`) and, by kind of step, action, logit [N, P], value, adv, return_; optional: weight, and
            mask [N, P] bool, which of the options are allowed. Or N sequences [N, L], see zoo.policy.sequences, with is_first,
            state and, if obs, mask and is_first begin with a burn-in, is_burned; index and batch_size then count sequences.
          optimizers: one or two `FlatAdam`, or objects with their param, grad, exp_avg, exp_avg_sq, step_count and rates.
          ranks: `Ranks.in_c`, None: alone. The minibatches of all ranks, all of batch_size, make one.
        Raises: ValueError, IndexError if something does not fit; then nothing was changed. RanksLostError.
        """
        if index.numel() % batch_size:
            raise ValueError(f'index has {index.numel()} entries, which batch_size {batch_size} does not divide')
        n_minibatch = index.numel() // batch_size
        metrics = torch.empty((n_minibatch, len(Column)), dtype=torch.float64, device='cpu')
        adams = (AdamStruct * len(optimizers))(*map(adam_struct, optimizers))
        error = self.dll.zoo_epoch(
            workspace.handle,
            ctypes.byref(model.struct),
            ctypes.byref(step_struct(step)),
            ctypes.byref(batch_struct(model, step.kind, batch)),
            adams,
            len(adams),
            address('index', index, torch.int64, (index.numel(),)),
            n_minibatch,
            batch_size,
            metrics.data_ptr(),
            n_thread,
            None if ranks is None else ctypes.byref(ranks.struct),
        )
        if error and ranks is not None:
            ranks.check(error)
        _check(error)
        return metrics

    def forward(
        self,
        workspace: Workspace,
        model: Model,
        obs: Entries,
        output: Output,
        n_thread: int = 1,
        mask: Tensor | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """The wanted outputs of N observations: 'logit' [N, P], 'value' [N], 'aux_value' [N].

        mask [N, P] bool: the logit is -inf where it is false. state: before each, {trunk: [N, n]} of a model with a memory.
        """
        n = n_row_of(obs)
        shapes = {'logit': (n, model.n_logit), 'value': (n,), 'aux_value': (n,)}
        wanted = zip(shapes.items(), Output, strict=True)
        found = {name: self.empty(shape) for (name, shape), bit in wanted if bit & output}
        states = state_addresses(model, state, n)
        _check(
            self.dll.zoo_forward(
                workspace.handle,
                ctypes.byref(model.struct),
                n,
                obs_addresses(model, obs),
                None if mask is None else address('mask', mask, torch.bool, (n, model.n_action)),
                *(states.get(f'{name}_state') for name in ('actor', 'critic')),
                *(found[name].data_ptr() if name in found else None for name in shapes),
                n_thread,
            )
        )
        return found

    def outputs(
        self, workspace: Workspace, model: Model, batch: Mapping[str, Any], output: Output, n_thread: int = 1
    ) -> dict[str, Tensor]:
        """The wanted ones of 'logit' and 'value' for the rows of a batch, [N, ...], or [S * L, ...] of sequences; as `epoch`.

        Raises: ValueError, IndexError if something does not fit.
        """
        rows = batch['return_'].numel()
        shapes = {'logit': (rows, model.n_logit), 'value': (rows,)}
        found = {name: self.empty(shapes[name]) for name in shapes if Output[name.upper()] & output}
        _check(
            self.dll.zoo_outputs(
                workspace.handle,
                ctypes.byref(model.struct),
                ctypes.byref(batch_struct(model, None, batch)),
                *(found[name].data_ptr() if name in found else None for name in shapes),
                n_thread,
            )
        )
        return found

    def act_begin(self, workspace: Workspace, rollout: ActingBlocks) -> None:
        """Packs the current weights; must be repeated when they have changed.

        The workspace then serves `act` alone. The caller keeps the rollout alive.
        """
        _check(
            self.dll.zoo_act_begin(workspace.handle, ctypes.byref(rollout.model.struct), ctypes.byref(rollout.struct))
        )

    def actor(self, workspace: Workspace) -> Callable[[int], None]:
        """A function of t that does what `act` does, a little faster. The caller keeps the workspace alive."""
        call = self.dll.zoo_act
        handle = workspace.handle

        def act(t: int) -> None:
            error = call(handle, t)
            if error:
                _check(error)

        return act

    def act(self, workspace: Workspace, t: int) -> None:
        """Acts on obs[t] of the rollout given to `act_begin`. t is not checked."""
        self.actor(workspace)(t)

    def unroll(self, workspace: Workspace, sequences: Any) -> None:
        """Takes a `SequencesStruct` through its layer of memory. Raises: ValueError if it is of no kind or size that C has."""
        _check(self.dll.zoo_unroll(workspace.handle, ctypes.byref(sequences)))

    def unroll_back(self, sequences: Any, d: Tensor) -> None:
        """The way back after `unroll`. Args: d: gradients in the features, contiguous [L, n, H] float32, which is not checked."""
        _check(self.dll.zoo_unroll_back(ctypes.byref(sequences), d.data_ptr()))

    def zero_rows(self, x: Tensor, marked: Tensor) -> None:
        """Sets the rows of x [N, n] f32 to 0 where marked [N] bool is true; both contiguous, which is not checked."""
        self.dll.zoo_zero_rows(x.data_ptr(), *x.shape, marked.data_ptr())


def _declare(dll: ctypes.CDLL) -> None:
    signatures: dict[str, tuple[Any, list[Any]]] = {
        'zoo_abi': (c_int32, []),
        'zoo_source': (c_uint32, []),
        'zoo_sizes': (c_int32, [POINTER(c_int64)]),
        'zoo_level': (c_int32, []),
        'zoo_set_level': (c_int32, [c_int32]),
        'zoo_workspace_new': (c_void_p, []),
        'zoo_workspace_free': (None, [c_void_p]),
        'zoo_epoch': (
            c_int32,
            [
                c_void_p,
                POINTER(ModelStruct),
                POINTER(StepStruct),
                POINTER(BatchStruct),
                POINTER(AdamStruct),
                c_int32,
                c_void_p,
                c_int64,
                c_int64,
                c_void_p,
                c_int32,
                POINTER(RanksStruct),
            ],
        ),
        'zoo_ranks_bytes': (c_int64, [c_int32, c_int64]),
        'zoo_ranks_sum': (c_int32, [POINTER(RanksStruct), c_void_p, c_int64, c_int32]),
        'zoo_ranks_exchange': (c_int32, [POINTER(RanksStruct), c_void_p, c_int64, c_int64, POINTER(c_void_p)]),
        'zoo_outputs': (
            c_int32,
            [c_void_p, POINTER(ModelStruct), POINTER(BatchStruct), c_void_p, c_void_p, c_int32],
        ),
        'zoo_forward': (c_int32, [c_void_p, POINTER(ModelStruct), c_int64, *[c_void_p] * 7, c_int32]),
        'zoo_act_begin': (c_int32, [c_void_p, POINTER(ModelStruct), POINTER(RolloutStruct)]),
        'zoo_act': (c_int32, [c_void_p, c_int64]),
        'zoo_zero_rows': (None, [c_void_p, c_int64, c_int64, c_void_p]),
        'zoo_unroll': (c_int32, [c_void_p, POINTER(SequencesStruct)]),
        'zoo_unroll_back': (c_int32, [POINTER(SequencesStruct), c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(dll, name)
        function.restype = result
        function.argtypes = arguments


def _check(error: int) -> None:
    if error:
        kind, message = _ERRORS[error]
        raise kind(message)


SUFFIXES = ('.so', '.pyd', '.dylib', '.dll')


@cache
def load(folder: Path | None = None) -> tuple[Library | None, str]:
    """The library in a folder (default: this one), or None and the reason in a sentence.

    The environment variable ZOO_NATIVE_LEVEL (base, v3, v4) limits the level.
    Raises: UserError if that is none of the three.
    """
    folder = folder or Path(__file__).parent
    library = None
    why = f'the native executor is not built: {folder} has no file _native*'
    for path in sorted(folder.glob('_native*')):
        if library is None and path.suffix in SUFFIXES:
            library, why = _open(path)
    if library is None:
        return None, f"{why}; install zoo again with a C compiler, or run 'python -m zoo.backend.native.build'"
    level = os.environ.get('ZOO_NATIVE_LEVEL')
    if level:
        if level.upper() not in Level.__members__:
            raise UserError(f'the environment variable ZOO_NATIVE_LEVEL is {level!r}; use base, v3 or v4')
        library.set_level(Level[level.upper()])
    return library, ''


def _open(path: Path) -> tuple[Library | None, str]:
    from zoo.backend.native.build import source_hash  # late: `python -m` must find that module not yet imported

    if not _is_whole(path):  # opening it would end the process
        return None, f'the native executor is incomplete ({path.name})'
    try:
        library = Library(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return None, f'the native executor cannot be opened ({path.name}: {error})'
    sizes = (c_int64 * 16)()
    found = library.dll.zoo_abi(), *sizes[: library.dll.zoo_sizes(sizes)]
    wanted = ABI, *map(ctypes.sizeof, STRUCTS), len(Column)
    if found != wanted:
        return None, f'the native executor is of another version of zoo ({path.name}: {found}, not {wanted})'
    if library.dll.zoo_source() != source_hash():
        return None, f'the native executor was compiled from other sources ({path.name})'
    return library, ''


def _is_whole(path: Path) -> bool:
    """Whether a 64-bit ELF file reaches to the end of its last table; other files are left to the loader."""
    head = path.read_bytes()[:64]
    if len(head) < 64 or head[:5] != b'\x7fELF\x02':
        return True
    (offset,) = struct.unpack_from('<Q', head, 40)
    size, n = struct.unpack_from('<HH', head, 58)
    return path.stat().st_size >= offset + size * n
