"""What the losses ask of their inputs: a ValueError that names the tensor, before anything is computed.

These run with every minibatch: they are kept to a few microseconds, and none makes the host wait for a device.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from zoo.rl_utils.distribution import Logit, logit_parts

_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_KEYS = {1: ('',), 2: ("['mu']", "['sigma']")}


def check_shape(name: str, tensor: Tensor | None, other: str, shape: torch.Size) -> None:
    """The tensor, if there is one, has the shape of `other`."""
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f'{name} has shape {tuple(tensor.shape)} but {other} {tuple(shape)}; they must be equal')


def check_floating(name: str, tensor: Tensor) -> None:
    """The tensor holds real numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f'{name} has dtype {tensor.dtype} but must be floating; convert it, e.g. with .float()')


def check_not_empty(name: str, tensor: Tensor) -> None:
    """The tensor has elements: a mean over none is no number."""
    if not tensor.numel():
        raise ValueError(f'{name} has shape {tuple(tensor.shape)} and so no elements; give at least one sample')


def check_clip_ratio(clip_ratio: float | Tensor) -> None:
    """clip_ratio > 0; one in a tensor is taken as it is, since to look at it would be to wait for it."""
    if not isinstance(clip_ratio, Tensor) and not clip_ratio > 0:
        raise ValueError(f'clip_ratio is {clip_ratio} but must be above 0 (0.1 to 0.3 is usual)')


def check_policies(logit_new: Logit, logit_old: Logit, logit_pretrained: Logit | None = None) -> torch.Size:
    """All of one kind and shape, which has a last dimension, floating. Returns: that shape."""
    first = logit_parts(logit_new)[0]
    shape = first.shape
    if not shape:
        raise ValueError('logit_new has shape () but its last dimension is that of the choices; give [..., A]')
    check_not_empty('logit_new', first)
    _check_policy('logit_new', logit_new, logit_new, shape)
    _check_policy('logit_old', logit_old, logit_new, shape)
    if logit_pretrained is not None:
        _check_policy('logit_pretrained', logit_pretrained, logit_new, shape)
    return shape


def check_action(action: Tensor, logit_new: Logit, shape: torch.Size) -> None:
    """One index below A per row (categorical), or one number per dimension (Gaussian); shape: that of logit_new.

    The range is left to torch on a CPU (see `check_range`); on other devices it is checked, and so waited for, only if
    ZOO_DEBUG is 1.
    """
    if not isinstance(logit_new, Tensor):
        check_shape('action', action, 'what logit_new asks for', shape)
        check_floating('action', action)
        return
    check_shape('action', action, 'what logit_new asks for', shape[:-1])
    if action.dtype not in _INTEGERS:
        raise ValueError(f'action has dtype {action.dtype} but is an index into the choices; convert it with .long()')
    if not action.is_cpu and not torch.compiler.is_compiling() and os.environ.get('ZOO_DEBUG') == '1':
        check_range(action, shape[-1])


def check_range(action: Tensor, n_choice: int) -> None:
    """Each index is one of n_choice. On a CPU it is called once torch refused an index: good ones cost nothing."""
    low, high = action.aminmax()
    if low < 0 or high >= n_choice:
        raise ValueError(
            f'action holds {low} to {high} but logit_new has {n_choice} choices; give indices in 0..{n_choice - 1}'
        )


def check_surrogate(
    logit_new: Logit,
    logit_old: Logit,
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    logit_pretrained: Logit | None,
) -> None:
    """The fields of `ppo_policy_data`."""
    shape = check_policies(logit_new, logit_old, logit_pretrained)
    check_shape('adv', adv, 'logit_new without its last dimension', shape[:-1])
    check_shape('weight', weight, 'adv', adv.shape)
    check_floating('adv', adv)
    check_action(action, logit_new, shape)


def check_surrogate_options(clip_ratio: float | Tensor, dual_clip: float | Tensor | None, kl_type: str) -> None:
    """clip_ratio > 0, dual_clip > 1 (as `check_clip_ratio`), a known kl_type."""
    check_clip_ratio(clip_ratio)
    if dual_clip is not None and not isinstance(dual_clip, Tensor) and not dual_clip > 1:
        raise ValueError(f'dual_clip is {dual_clip} but must be above 1 (3 to 5 is usual); None turns it off')
    if kl_type not in ('k1', 'k2', 'k3'):
        raise ValueError(f"kl_type is {kl_type!r}; use 'k1', 'k2' or 'k3'")


def check_values(value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None) -> None:
    """All of one shape, and floating."""
    shape = value_new.shape
    check_shape('value_old', value_old, 'value_new', shape)
    check_shape('return_', return_, 'value_new', shape)
    check_shape('weight', weight, 'value_new', shape)
    check_floating('value_new', value_new)
    check_floating('value_old', value_old)
    check_floating('return_', return_)
    check_not_empty('value_new', value_new)


def _check_policy(name: str, logit: Logit, logit_new: Logit, shape: torch.Size) -> None:
    if isinstance(logit, Tensor) != isinstance(logit_new, Tensor):
        raise ValueError(f'{name} is {_kind(logit)} but logit_new {_kind(logit_new)}; give both as one kind')
    parts = logit_parts(logit)
    for key, part in zip(_KEYS[len(parts)], parts, strict=True):
        if part.shape != shape or not part.is_floating_point():
            check_shape(name + key, part, 'logit_new' + _KEYS[len(parts)][0], shape)
            check_floating(name + key, part)


def _kind(logit: Logit) -> str:
    return 'a tensor of logits' if isinstance(logit, Tensor) else "a mapping {'mu', 'sigma'}"
