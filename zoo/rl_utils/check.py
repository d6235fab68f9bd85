"""Checks of the inputs of losses and estimators: a ValueError that names the tensor, before anything is computed.

They run with every minibatch: each takes a few microseconds, and none makes the host wait for a device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.core.errors import UserError

if TYPE_CHECKING:
    from zoo.rl_utils.distribution import ActionDist

_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


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
    """clip_ratio > 0; one in a tensor is not checked, since that would wait for the device."""
    if not isinstance(clip_ratio, Tensor) and not clip_ratio > 0:
        raise ValueError(f'clip_ratio is {clip_ratio} but must be above 0 (0.1 to 0.3 is usual)')


def _wanted(dist: ActionDist) -> str:
    return f'but {dist.name!r} takes one tensor [..., {dist.n_param}]; give that'


def check_policies(dist: ActionDist, new: Tensor, old: Tensor, pretrained: Tensor | None = None) -> torch.Size:
    """Parameters of distributions: of one shape [..., P], floating. Returns: the shape without the last dimension."""
    if not isinstance(new, Tensor):
        raise ValueError(f'logit_new is a {type(new).__name__} {_wanted(dist)}')
    if not new.dim():
        raise ValueError('logit_new has shape () but its last dimension is that of the choices; give [..., A]')
    if new.shape[-1] != dist.n_param:
        raise ValueError(f'logit_new has shape {tuple(new.shape)} {_wanted(dist)}')
    check_not_empty('logit_new', new)
    for name, param in (('logit_new', new), ('logit_old', old), ('logit_pretrained', pretrained)):
        if param is not None:
            check_shape(name, param, 'logit_new', new.shape)
            check_floating(name, param)
    return new.shape[:-1]


def check_surrogate(
    dist: ActionDist,
    new: Tensor,
    old: Tensor,
    action: Tensor,
    adv: Tensor,
    weight: Tensor | None,
    pretrained: Tensor | None,
) -> None:
    """The fields of `ppo_policy_data`, its logits as flat parameters."""
    lead = check_policies(dist, new, old, pretrained)
    check_shape('adv', adv, 'logit_new without its last dimension', lead)
    check_shape('weight', weight, 'adv', adv.shape)
    check_floating('adv', adv)
    dist.check_action(action, lead)


def check_index_action(action: Tensor, shape: tuple[int, ...]) -> None:
    """Actions that are indices have the shape of what they belong to, and are integers."""
    _check_action_shape(action, shape)
    if action.dtype not in _INTEGERS:
        raise ValueError(f'action has dtype {action.dtype} but is an index into the choices; convert it with .long()')


def check_real_action(action: Tensor, shape: tuple[int, ...]) -> None:
    """Actions that are real numbers have the shape of what they belong to, and are floating."""
    _check_action_shape(action, shape)
    check_floating('action', action)


def _check_action_shape(action: Tensor, shape: tuple[int, ...]) -> None:
    if action.shape != shape:
        raise ValueError(
            f'action has shape {tuple(action.shape)} but what logit_new asks for {tuple(shape)}; they must be equal'
        )


def looks_at_actions() -> bool:
    """Whether the range of actions is looked at, which waits for a device: if the environment variable ZOO_DEBUG is 1."""
    return not torch.compiler.is_compiling() and os.environ.get('ZOO_DEBUG') == '1'


def check_surrogate_options(clip_ratio: float | Tensor, dual_clip: float | Tensor | None, kl_type: str) -> None:
    """clip_ratio > 0, dual_clip > 1 (tensors as in `check_clip_ratio`), a known kl_type."""
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


def wide(x: Tensor) -> Tensor:
    """In float32 at least: 8 bits of mantissa are too few for a ratio of probabilities."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def check_returned(what: str, found: Any, shape: Sequence[int], meaning: str, like: Tensor | None = None) -> None:
    """A part that may be somebody's own gave a tensor of numbers of the shape that is needed, with a gradient if `like` has one.

    Args: meaning: what the numbers are, 'one number for each sample'. Raises: UserError.
    """
    if not isinstance(found, Tensor) or found.shape != torch.Size(shape):
        got = f'a tensor of shape {tuple(found.shape)}' if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f'{what} returned {got} but must return {meaning}, shape {tuple(shape)}')
    if like is not None and like.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
        raise UserError(
            f'{what} returned numbers without a gradient, so it would train nothing; compute them from the tensors that it is '
            'given, without detach() and no_grad()'
        )
