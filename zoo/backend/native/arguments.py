"""What the native executor is given, described in tensors, and as the structures of C.

The meaning of every field is in zoo_native.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int32
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.backend.native.structures import (
    MAX_LAYER,
    Activation,
    AdamStruct,
    BatchStruct,
    Dist,
    Input,
    Kind,
    LinearStruct,
    ModelStruct,
    RolloutStruct,
    Std,
    StepStruct,
    Surrogate,
    TrunkStruct,
    ValueLoss,
)


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
    nvec: tuple[int, ...] | None = None  # options of each of several choices; None: one choice, or real numbers
    value_head: Linear | None = None
    aux_head: Linear | None = None
    log_std: Tensor | None = None  # [D]: a free parameter
    std_head: Linear | None = None  # or a layer
    stop_value_gradient: bool = False
    shift: Tensor | None = None  # [O], Input.NORMALIZED
    scale: Tensor | None = None
    obs_clip: float = 10.0
    log_std_min: float = -10.0
    log_std_max: float = 2.0


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


class Model:
    """A zoo_model with the tensors that it points to; action_shape, action_dtype: of the action of one row.

    Its addresses are taken once: parameters and gradients must be changed in place from then on.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        n_action, is_gaussian = spec.policy_head.bias.numel(), spec.distribution == Dist.GAUSSIAN
        self.n_action, self.n_logit = n_action, n_action * (2 if is_gaussian else 1)
        self.action_dtype = torch.float32 if is_gaussian else torch.int64
        self.action_shape = (n_action,) if is_gaussian else () if spec.nvec is None else (len(spec.nvec),)
        nvec = () if is_gaussian else spec.nvec or (n_action,)
        self._nvec = (c_int32 * len(nvec))(*nvec)
        std = Std.FREE if spec.log_std is not None else Std.LAYER if spec.std_head is not None else Std.NONE
        self.struct = ModelStruct(
            input=spec.input,
            n_input=spec.n_input,
            shared=spec.critic is None,
            stop_value_gradient=spec.stop_value_gradient,
            distribution=spec.distribution,
            n_action=n_action,
            std=std,
            n_choice=len(nvec),
            nvec=ctypes.addressof(self._nvec),
            obs_clip=spec.obs_clip,
            log_std_min=spec.log_std_min,
            log_std_max=spec.log_std_max,
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

    Args: noise: None for the most likely actions; value: None leaves it out; mask [.., A] bool: which options are
      allowed, None: all; obs and mask may have more steps than the others.
    """

    def __init__(
        self,
        model: Model,
        obs: Tensor,
        noise: Tensor | None,
        action: Tensor,
        logit: Tensor,
        value: Tensor | None,
        mask: Tensor | None = None,
    ) -> None:
        n = obs.shape[1]
        blocks = {
            'mask': (mask, torch.bool, (n, model.n_action)),
            'noise': (noise, torch.float32, (n, model.n_action)),
            'action': (action, model.action_dtype, (n, *model.action_shape)),
            'logit': (logit, torch.float32, (n, model.n_logit)),
            'value': (value, torch.float32, (n,)),
        }
        self.model, self.blocks = model, [obs, *(x for x, *_ in blocks.values())]
        self.n_step = min(len(x) for x in self.blocks if x is not None)
        self.struct = RolloutStruct(
            n_row=n,
            has_value=value is not None,
            obs=obs_address(model, obs[0]),
            obs_stride=obs.stride(0) * obs.element_size(),
        )
        for name, (x, dtype, shape) in blocks.items():
            if x is not None:
                setattr(self.struct, name, address(name, x[0], dtype, shape))
                setattr(self.struct, f'{name}_stride', x.stride(0) * x.element_size())


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
    rows, f32 = (n,), torch.float32
    columns = {
        'logit': (f32, (n, model.n_logit)),
        'value': (f32, rows),
        'adv': (f32, rows),
        'return_': (f32, rows),
        'weight': (f32, rows),
        'action': (model.action_dtype, (n, *model.action_shape)),
        'mask': (torch.bool, (n, model.n_action)),
    }
    wanted = {
        Kind.PPO: ('action', 'logit', 'adv', 'value', 'return_', 'mask'),
        Kind.POLICY: ('action', 'logit', 'adv', 'mask'),
        Kind.VALUE: ('value', 'return_'),
        Kind.AUX: ('logit', 'return_', 'mask'),
    }[kind]
    return BatchStruct(
        n_row=n,
        obs=obs_address(model, batch['obs']),
        **{
            name: address(name, batch[name], *columns[name])
            for name in (*wanted, 'weight')
            if batch.get(name) is not None
        },
    )


def adam_struct(optimizer: Any) -> AdamStruct:
    """A zoo_adam over the buffers of a `FlatAdam`; its rates are (lr, beta1, beta2, eps)."""
    size = optimizer.param.numel()
    buffers = {
        name: address(name, getattr(optimizer, name), torch.float32, (size,))
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
        step_count=address('step_count', optimizer.step_count, torch.float32, ()),
    )


def address(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    if x.dtype != dtype or tuple(x.shape) != shape or not x.is_cpu or not x.is_contiguous():
        raise ValueError(
            f'{name} is {x.dtype} {tuple(x.shape)} on {x.device}, contiguous: {x.is_contiguous()}; the '
            f'native executor takes contiguous {dtype} {shape} on the CPU'
        )
    return x.data_ptr()


def _optional(name: str, x: Tensor | None, shape: tuple[int, ...]) -> int | None:
    return None if x is None else address(name, x, torch.float32, shape)


def _grad(name: str, x: Tensor | None) -> int | None:
    if x is None or x.grad is None or not x.requires_grad:
        return None
    return address(f'{name}.grad', x.grad, torch.float32, tuple(x.shape))


def obs_address(model: Model, obs: Tensor) -> int:
    """Of observations [N] of indices, or of n_input numbers or bools each in any shape."""
    if model.spec.input == Input.INDEX:
        return address('obs', obs, torch.int64, (obs.shape[0],))
    n, n_input = obs.shape[0], model.spec.n_input
    is_flat = prod(obs.shape[1:]) == n_input  # rows of several dimensions lie in memory as flat ones do
    dtype = torch.bool if model.spec.input == Input.BOOL else torch.float32
    return address('obs', obs, dtype, tuple(obs.shape) if is_flat else (n, n_input))


def _linear(layer: Linear | None) -> LinearStruct:
    if layer is None:
        return LinearStruct()
    weight, bias = layer
    n_out, n_in = weight.shape
    return LinearStruct(
        n_in=n_in,
        n_out=n_out,
        weight=address('weight', weight, torch.float32, (n_out, n_in)),
        bias=address('bias', bias, torch.float32, (n_out,)),
        weight_grad=_grad('weight', weight),
        bias_grad=_grad('bias', bias),
    )


def _trunk(layers: Sequence[Linear], activation: Activation) -> TrunkStruct:
    if len(layers) > MAX_LAYER:
        raise ValueError(f'a trunk has {len(layers)} layers; the native executor takes at most {MAX_LAYER}')
    return TrunkStruct(
        n_layer=len(layers), activation=activation, layer=(LinearStruct * MAX_LAYER)(*map(_linear, layers))
    )
