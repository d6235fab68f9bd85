"""Checks of the inputs of losses and estimators; a failed one raises a ValueError that names the tensor.

They run before anything is computed, with every minibatch. Each check takes a few microseconds; none waits for a device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.core.errors import UserError

Number = float | Tensor  # a number, or a 0-dim tensor
EACH_SAMPLE = 'one number for each sample'


def check_shape(name: str, tensor: Tensor | None, other: str, shape: torch.Size) -> None:
    """Raises ValueError unless the tensor is None or has this shape, which is that of `other`."""
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f'{name} has shape {tuple(tensor.shape)} but {other} {tuple(shape)}; they must be equal')


def check_floating(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless the tensor has a floating dtype."""
    if not tensor.is_floating_point():
        raise ValueError(f'{name} has dtype {tensor.dtype} but must be floating; convert it, e.g. with .float()')


def check_not_empty(name: str, tensor: Tensor) -> None:
    """Raises ValueError if the tensor has no elements, over which a mean is NaN."""
    if not tensor.numel():
        raise ValueError(f'{name} has shape {tuple(tensor.shape)} and so no elements; give at least one sample')


def check_clip_ratio(clip_ratio: Number) -> None:
    """Raises ValueError unless clip_ratio > 0; a tensor is not checked, since that would wait for its device."""
    if not isinstance(clip_ratio, Tensor) and not clip_ratio > 0:
        raise ValueError(f'clip_ratio is {clip_ratio} but must be above 0 (0.1 to 0.3 is usual)')


def checks_action_range() -> bool:
    """Whether the range of actions is checked, which waits for a device: only if the environment variable ZOO_DEBUG is 1."""
    return not torch.compiler.is_compiling() and os.environ.get('ZOO_DEBUG') == '1'


def check_values(value_new: Tensor, value_old: Tensor, return_: Tensor, weight: Tensor | None) -> None:
    """Raises ValueError unless all have one shape and at least one element, and values and returns are floating."""
    for name, x in (('value_old', value_old), ('return_', return_), ('weight', weight)):
        check_shape(name, x, 'value_new', value_new.shape)
    for name, x in (('value_new', value_new), ('value_old', value_old), ('return_', return_)):
        check_floating(name, x)
    check_not_empty('value_new', value_new)


def check_gae(
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor | None,
    traj_flag: Tensor | None,
    gamma: float,
    lambda_: float,
) -> None:
    """Checks the inputs of `gae`. Raises: ValueError, see there."""
    check_shape('next_value', next_value, 'value', value.shape)
    if reward.shape != value.shape and not (value.dim() == 3 and reward.shape == value.shape[:2]):
        raise ValueError(
            f'reward has shape {tuple(reward.shape)} but value {tuple(value.shape)}; '
            'give [T, B] for [T, B] or [T, B, A]'
        )
    check_shape('done', done, 'reward', reward.shape)
    check_shape('traj_flag', traj_flag, 'reward', reward.shape)
    if not value.dim():
        raise ValueError('value has shape () but its first dimension is time; give [T], [T, B] or [T, B, A]')
    check_not_empty('value', value)
    for name, tensor in (('value', value), ('next_value', next_value), ('reward', reward)):
        check_floating(name, tensor)
    if not 0 <= gamma <= 1 or not 0 <= lambda_ <= 1:
        raise ValueError(f'gamma is {gamma} and lambda_ is {lambda_}; both must lie in [0, 1]')


def check_returned(what: str, found: object, shape: Sequence[int], meaning: str, like: Tensor | None = None) -> None:
    """Checks the result of a component, perhaps a user's own: a tensor of this shape, with a gradient if `like` has one.

    Args: what: names the component in messages; meaning: names the numbers, e.g. 'one number for each sample'. Raises: UserError.
    """
    if not isinstance(found, Tensor) or found.shape != torch.Size(shape):
        returned = type(found).__name__
        if isinstance(found, Tensor):
            returned = f'a tensor of shape {tuple(found.shape)}'
        raise UserError(f'{what} returned {returned} but must return {meaning}, shape {tuple(shape)}')
    if like is not None and like.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
        raise UserError(
            f'{what} returned numbers without a gradient, so it would train nothing; compute them from the tensors that it is '
            'given, without detach() and no_grad()'
        )


def check_pair(what: str, found: object, wanted: str) -> tuple[Any, Any]:
    """Returns the two results of a component, perhaps a user's own. Raises: UserError if they are not two."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        returned = type(found).__name__
        if isinstance(found, tuple | list):
            returned = f'{len(found)} things'
        raise UserError(f'{what} returned {returned} but must return two{wanted}')
    return found[0], found[1]
