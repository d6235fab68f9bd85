"""The compiled library as Python objects: structures, checks of what is passed, and one method per C function.

`load()` finds and opens the library; the meaning of every field is in zoo_native.h.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.backend.native.structures import (
    ABI,
    MAX_LAYER,
    STRUCTS,
    Activation,
    AdamStruct,
    BatchStruct,
    Column,
    Dist,
    Input,
    Kind,
    Level,
    LinearStruct,
    ModelStruct,
    Output,
    RolloutStruct,
    Std,
    StepStruct,
    TrunkStruct,
)
from zoo.core.errors import UserError

SUFFIXES = ('.so', '.pyd', '.dylib', '.dll')

_ERRORS = {
    1: (MemoryError, 'the native executor got no memory'),
    2: (
        ValueError,
        'the native executor cannot run this model: a layer, width or column that the step needs is '
        'missing or does not fit',
    ),
    3: (IndexError, 'an index of a minibatch is outside the batch'),
    4: (ValueError, 'an action is outside [0, n_action)'),
    5: (ValueError, 'an observation index is outside [0, n_input)'),
}


class Linear(NamedTuple):
    """A linear layer's parameters; their .grad, where they have one, is what a step writes."""

    weight: Tensor  # [n_out, n_in] f32
    bias: Tensor  # [n_out] f32


class ModelSpec(NamedTuple):
    """An actor-critic in terms of its tensors; critic None: its head is on the actor's trunk."""

    input: Input
    n_input: int
    activation: Activation
    actor: Sequence[Linear]
    critic: Sequence[Linear] | None
    distribution: Dist
    policy_head: Linear  # -> logits, or mu
    value_head: Linear | None = None
    aux_head: Linear | None = None
    log_std: Tensor | None = None  # [D]: a free parameter
    std_head: Linear | None = None  # or a layer
    stop_value_gradient: bool = False
    shift: Tensor | None = None  # [O], Input.NORMALIZED
    scale: Tensor | None = None
    obs_clip: float = 10.0


class StepSpec(NamedTuple):
    """The options of an epoch's steps; None leaves an option out."""

    kind: Kind
    normalize_adv: bool = False
    clip_ratio: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    use_value_clip: bool = False
    dual_clip: float | None = None
    grad_clip: float | None = 0.5
    measure_kl: bool = False
    kl_penalty: float | None = None
    bc_weight: float = 1.0


class Model:
    """A zoo_model with the tensors that it points to.

    Its addresses are taken once: parameters and gradients must be changed in place from then on.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        n_action = spec.policy_head.bias.numel()
        self.n_action = n_action
        self.n_logit = n_action * (2 if spec.distribution == Dist.GAUSSIAN else 1)
        std = Std.FREE if spec.log_std is not None else Std.LAYER if spec.std_head is not None else Std.NONE
        self.struct = ModelStruct(
            input=spec.input,
            n_input=spec.n_input,
            shared=spec.critic is None,
            stop_value_gradient=spec.stop_value_gradient,
            distribution=spec.distribution,
            n_action=n_action,
            std=std,
            obs_clip=spec.obs_clip,
            shift=_optional('shift', spec.shift, (spec.n_input,)),
            scale=_optional('scale', spec.scale, (spec.n_input,)),
            log_std=_optional('log_std', spec.log_std, (n_action,)),
            log_std_grad=_grad('log_std', spec.log_std),
            actor=_trunk(spec.actor, spec.activation),
            critic=_trunk(spec.critic or (), spec.activation),
            policy_head=_linear(spec.policy_head),
            std_head=_linear(spec.std_head),
            value_head=_linear(spec.value_head),
            aux_head=_linear(spec.aux_head),
        )


class Rollout:
    """A zoo_rollout over blocks [T, B, ...], and the tensors that it points to.

    Args: noise: None for the most likely actions; value: None leaves it out; obs may have more steps than the others.
    """

    def __init__(
        self, model: Model, obs: Tensor, noise: Tensor | None, action: Tensor, logit: Tensor, value: Tensor | None
    ) -> None:
        n, index = obs.shape[1], model.spec.input == Input.INDEX
        gaussian = model.spec.distribution == Dist.GAUSSIAN
        blocks = {
            'obs': (obs, torch.int64 if index else torch.float32, (n,) if index else (n, model.spec.n_input)),
            'noise': (noise, torch.float32, (n, model.n_action)),
            'action': (action, torch.float32 if gaussian else torch.int64, (n, model.n_action) if gaussian else (n,)),
            'logit': (logit, torch.float32, (n, model.n_logit)),
            'value': (value, torch.float32, (n,)),
        }
        self.model, self.blocks = model, [x for x, *_ in blocks.values()]
        self.n_step = min(len(x) for x in self.blocks if x is not None)
        self.struct = RolloutStruct(n_row=n, has_value=value is not None)
        for name, (x, dtype, shape) in blocks.items():
            if x is not None:
                setattr(self.struct, name, _address(name, x[0], dtype, shape))
                setattr(self.struct, f'{name}_stride', x.stride(0) * x.element_size())


class Workspace:
    """Scratch memory, for one call at a time; acting needs one of its own."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self._free = dll.zoo_workspace_free
        self.handle = dll.zoo_workspace_new()
        if not self.handle:
            raise MemoryError(_ERRORS[1][1])

    def __del__(self) -> None:
        if getattr(self, 'handle', None):
            self._free(self.handle)
            self.handle = None


class Library:
    """The opened library. Calls release the GIL."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self._dll = dll
        _declare(dll)

    def level(self) -> Level:
        """The level in use."""
        return Level(self._dll.zoo_level())

    def set_level(self, level: Level | int) -> Level:
        """Uses a level, or the best one (-1), from now on; returns what is in use, which this CPU may limit."""
        return Level(self._dll.zoo_set_level(int(level)))

    def workspace(self) -> Workspace:
        """New scratch memory."""
        return Workspace(self._dll)

    def epoch(
        self,
        workspace: Workspace,
        model: Model,
        step: StepSpec,
        batch: Mapping[str, Tensor],
        optimizers: Sequence[Any],
        index: Tensor,
        batch_size: int,
        n_thread: int = 1,
    ) -> Tensor:
        """One step for each batch_size entries of index [n_minibatch * batch_size]; metrics [n_minibatch, Column] f64.

        Args:
          batch: [N] rows: obs and, by kind of step, action, logit [N, P], value, adv, return_, weight (optional).
          optimizers: one or two `FlatAdam`, or what has their param, grad, exp_avg, exp_avg_sq, step_count and rates.
        Raises: ValueError, IndexError if something does not fit; then nothing was changed.
        """
        if index.numel() % batch_size:
            raise ValueError(f'index has {index.numel()} entries, which batch_size {batch_size} does not divide')
        n_minibatch = index.numel() // batch_size
        metrics = torch.empty((n_minibatch, len(Column)), dtype=torch.float64)
        adams = (AdamStruct * len(optimizers))(*map(adam_struct, optimizers))
        _check(
            self._dll.zoo_epoch(
                workspace.handle,
                ctypes.byref(model.struct),
                ctypes.byref(step_struct(step)),
                ctypes.byref(batch_struct(model, step.kind, batch)),
                adams,
                len(adams),
                _address('index', index, torch.int64, (index.numel(),)),
                n_minibatch,
                batch_size,
                metrics.data_ptr(),
                n_thread,
            )
        )
        return metrics

    def forward(
        self,
        workspace: Workspace,
        model: Model,
        obs: Tensor,
        output: Output,
        n_thread: int = 1,
    ) -> dict[str, Tensor]:
        """The wanted outputs of obs [N, ...]: 'logit' [N, P], 'value' [N], 'aux_value' [N]."""
        n = obs.shape[0]
        shapes = {'logit': (n, model.n_logit), 'value': (n,), 'aux_value': (n,)}
        found = {
            name: torch.empty(shape) for (name, shape), bit in zip(shapes.items(), Output, strict=True) if bit & output
        }
        _check(
            self._dll.zoo_forward(
                workspace.handle,
                ctypes.byref(model.struct),
                n,
                _obs_address(model, obs),
                *(found[name].data_ptr() if name in found else None for name in shapes),
                n_thread,
            )
        )
        return found

    def act_begin(self, workspace: Workspace, rollout: Rollout) -> None:
        """Packs the weights as they are now; to be repeated when they have changed.

        The workspace then serves `act` alone. The caller keeps the rollout alive.
        """
        _check(
            self._dll.zoo_act_begin(workspace.handle, ctypes.byref(rollout.model.struct), ctypes.byref(rollout.struct))
        )

    def act(self, workspace: Workspace, t: int) -> None:
        """Acts on obs[t] of the rollout given to `act_begin`. t is not checked."""
        error = self._dll.zoo_act(workspace.handle, t)
        if error:
            _check(error)


@cache
def load(folder: Path | None = None) -> tuple[Library | None, str]:
    """The library in a folder (default: this one), or None and the reason in a sentence.

    The environment variable ZOO_NATIVE_LEVEL (base, v3, v4) limits the level.
    Raises: UserError if that is none of the three.
    """
    folder = folder or Path(__file__).parent
    library, why = None, f'the native executor is not built: {folder} has no file _native*'
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


def step_struct(spec: StepSpec) -> StepStruct:
    """A zoo_step."""
    options = {name: getattr(spec, name) for name in ('dual_clip', 'kl_penalty', 'grad_clip')}
    plain = {name: value for name, value in spec._asdict().items() if name not in options}
    return StepStruct(
        **plain,
        **{name: value or 0.0 for name, value in options.items()},
        **{f'has_{name}': value is not None for name, value in options.items()},
    )


def batch_struct(model: Model, kind: Kind, batch: Mapping[str, Tensor]) -> BatchStruct:
    """A zoo_batch of the columns that such a step reads."""
    n = batch['obs'].shape[0]
    gaussian = model.spec.distribution == Dist.GAUSSIAN
    rows, f32 = (n,), torch.float32
    columns = {
        'logit': (f32, (n, model.n_logit)),
        'value': (f32, rows),
        'adv': (f32, rows),
        'return_': (f32, rows),
        'weight': (f32, rows),
        'action': (f32, (n, model.n_action)) if gaussian else (torch.int64, rows),
    }
    wanted = {
        Kind.PPO: ('action', 'logit', 'adv', 'value', 'return_'),
        Kind.POLICY: ('action', 'logit', 'adv'),
        Kind.VALUE: ('value', 'return_'),
        Kind.AUX: ('logit', 'return_'),
    }[kind]
    return BatchStruct(
        n_row=n,
        obs=_obs_address(model, batch['obs']),
        **{
            name: _address(name, batch[name], *columns[name])
            for name in (*wanted, 'weight')
            if batch.get(name) is not None
        },
    )


def adam_struct(optimizer: Any) -> AdamStruct:
    """A zoo_adam over the buffers of a `FlatAdam`; its rates are (lr, beta1, beta2, eps)."""
    size = optimizer.param.numel()
    buffers = {
        name: _address(name, getattr(optimizer, name), torch.float32, (size,))
        for name in ('param', 'grad', 'exp_avg', 'exp_avg_sq')
    }
    lr, beta1, beta2, eps = optimizer.rates
    return AdamStruct(
        size=size,
        **buffers,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        step_count=_address('step_count', optimizer.step_count, torch.float32, ()),
    )


def _open(path: Path) -> tuple[Library | None, str]:
    from zoo.backend.native.build import source_hash  # late: `python -m` must find that module not yet imported

    if not _is_whole(path):  # opened, it would end the process
        return None, f'the native executor is incomplete ({path.name})'
    try:
        library = Library(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return None, f'the native executor cannot be opened ({path.name}: {error})'
    found, wanted = _abi(library._dll), (ABI, *map(ctypes.sizeof, STRUCTS), len(Column))
    if found != wanted:
        return None, f'the native executor is of another version of zoo ({path.name}: {found}, not {wanted})'
    if library._dll.zoo_source() != source_hash():
        return None, f'the native executor was compiled from other sources ({path.name})'
    return library, ''


def _is_whole(path: Path) -> bool:
    """Whether a 64-bit ELF file reaches to the end of its last table; other files are left to the loader."""
    head = path.read_bytes()[:64]
    if len(head) < 64 or head[:5] != b'\x7fELF\x02':
        return True
    (offset,), (size, n) = struct.unpack_from('<Q', head, 40), struct.unpack_from('<HH', head, 58)
    return path.stat().st_size >= offset + size * n


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
            ],
        ),
        'zoo_forward': (c_int32, [c_void_p, POINTER(ModelStruct), c_int64, *[c_void_p] * 4, c_int32]),
        'zoo_act_begin': (c_int32, [c_void_p, POINTER(ModelStruct), POINTER(RolloutStruct)]),
        'zoo_act': (c_int32, [c_void_p, c_int64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments


def _abi(dll: ctypes.CDLL) -> tuple[int, ...]:
    sizes = (c_int64 * 16)()
    return dll.zoo_abi(), *sizes[: dll.zoo_sizes(sizes)]


def _check(error: int) -> None:
    if error:
        kind, message = _ERRORS[error]
        raise kind(message)


def _address(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    if x.dtype != dtype or tuple(x.shape) != shape or not x.is_cpu or not x.is_contiguous():
        raise ValueError(
            f'{name} is {x.dtype} {tuple(x.shape)} on {x.device}, contiguous: {x.is_contiguous()}; the '
            f'native executor takes contiguous {dtype} {shape} on the CPU'
        )
    return x.data_ptr()


def _optional(name: str, x: Tensor | None, shape: tuple[int, ...]) -> int | None:
    return None if x is None else _address(name, x, torch.float32, shape)


def _grad(name: str, x: Tensor | None) -> int | None:
    if x is None or x.grad is None or not x.requires_grad:
        return None
    return _address(f'{name}.grad', x.grad, torch.float32, tuple(x.shape))


def _obs_address(model: Model, obs: Tensor) -> int:
    if model.spec.input == Input.INDEX:
        return _address('obs', obs, torch.int64, (obs.shape[0],))
    return _address('obs', obs, torch.float32, (obs.shape[0], model.spec.n_input))


def _linear(layer: Linear | None) -> LinearStruct:
    if layer is None:
        return LinearStruct()
    weight, bias = layer
    n_out, n_in = weight.shape
    return LinearStruct(
        n_in=n_in,
        n_out=n_out,
        weight=_address('weight', weight, torch.float32, (n_out, n_in)),
        bias=_address('bias', bias, torch.float32, (n_out,)),
        weight_grad=_grad('weight', weight),
        bias_grad=_grad('bias', bias),
    )


def _trunk(layers: Sequence[Linear], activation: Activation) -> TrunkStruct:
    if len(layers) > MAX_LAYER:
        raise ValueError(f'a trunk has {len(layers)} layers; the native executor takes at most {MAX_LAYER}')
    return TrunkStruct(
        n_layer=len(layers), activation=activation, layer=(LinearStruct * MAX_LAYER)(*map(_linear, layers))
    )
