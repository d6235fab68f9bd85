"""Turns the actions of a policy into those that an env takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Dict, Leaf, MultiBinary, Raw, Space, leaf_spaces, n_values

ActionMode = Literal['clip', 'rescale']
Actions = np.ndarray | dict[str, Any] | tuple[Any, ...]
"""The actions for a vector of envs: an array, or for Dict and Tuple spaces a nested dict or tuple of arrays."""
Action = Actions | np.generic | int | float  # the action for one env


def action_width(space: Leaf) -> int:
    """The size of one flattened action of a leaf: 1 for Discrete, else the product of its shape."""
    return int(np.prod(space.shape, dtype=np.int64))


class ActionMap:
    """Turns the actions of a policy into those that an env takes; nothing else does this.

    Each array has the number type of its leaf.
    Discrete, MultiDiscrete: index -> index + start. MultiBinary: unmodified. Box, mode 'clip': clamped to [low, high],
    dimension by dimension, infinite bounds included. Box, mode 'rescale': where both bounds are finite, [-1, 1] ->
    [low, high] and clamped; elsewhere as 'clip'. Dict and Tuple: each leaf takes its columns of the row.
    The policy keeps the raw action: the log-probability is that of the raw action, never of the copy made here.
    """

    def __init__(self, space: Space, mode: ActionMode = 'clip', device: torch.device | str = 'cpu') -> None:
        """Args: device: that of the actions given to `map`."""
        self.space = space
        self.mode = mode
        self._leaves: list[tuple[slice, _LeafMap]] = []
        start = 0
        for _, leaf in leaf_spaces(space):
            stop = start + action_width(leaf)
            leaf_map: _LeafMap
            if isinstance(leaf, Box):
                leaf_map = _BoxMap(leaf, mode, device)
            else:
                leaf_map = _IndexMap(leaf, device)
            self._leaves.append((slice(start, stop), leaf_map))
            start = stop
        if isinstance(space, Dict):
            self._only = None
        else:
            self._only = self._leaves[0][1]

    def __call__(self, action: Tensor) -> Actions:
        """action: [B] int64 (Discrete), [B, K] int64 (MultiDiscrete, MultiBinary) or [B, D] f32 (Box, Dict, Tuple).

        Returns: an array [B, *A] for the env; for Dict and Tuple nested dicts and tuples of arrays.
        """
        if action.requires_grad or not action.is_cpu:
            action = action.detach().cpu()
        if self._only is not None:
            return self._only.to_array(action)
        assert isinstance(self.space, Dict)
        arrays = iter([leaf.to_array(_part(action, at, leaf)) for at, leaf in self._leaves])
        return _nested(self.space, arrays)

    def map(self, action: Tensor) -> Tensor:
        """As `__call__`, as a tensor on the device of the actions, for a space that is no Dict. A Box gives f32 or f64,
        another space int64."""
        return self._leaves[0][1].map(action)

    def tensors(self, action: Tensor) -> list[Tensor]:
        """As `__call__`, by tensor operations: one tensor for each leaf of the space, in the dtype that the env takes."""
        if self._only is not None:
            parts = [action]
        else:
            parts = [_part(action, at, leaf) for at, leaf in self._leaves]
        return [
            leaf.map(part).to(torch.from_numpy(np.empty(0, leaf._dtype)).dtype)
            for (_, leaf), part in zip(self._leaves, parts, strict=True)
        ]


def forbids_all(space: Space, mask: Tensor) -> Tensor:
    """Whether a mask leaves some choice of an action without any option, [...] bool. Args: mask: [..., n_mask] bool."""
    found = torch.zeros(mask.shape[:-1], dtype=torch.bool, device=mask.device)
    start = 0
    for _, leaf in leaf_spaces(space):
        for n in n_values(leaf):
            found |= ~mask[..., start : start + n].any(-1)
            start += n
        if isinstance(leaf, MultiBinary):
            start += action_width(leaf)
    return found


class _IndexMap:
    """Indices -> integers of Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, space: Leaf, device: torch.device | str) -> None:
        self.shape = space.shape
        self.is_index = True
        self._dtype = np.dtype(space.dtype)
        start = getattr(space, 'start', 0)
        self._start: Tensor | None = None
        if np.any(start):
            self._start = torch.as_tensor(start, device=device).reshape(space.shape)

    def map(self, action: Tensor) -> Tensor:
        if len(self.shape) > 1:
            action = action.view(*action.shape[:-1], *self.shape)
        if self._start is None:
            return action
        return action + self._start

    def to_array(self, action: Tensor) -> np.ndarray:
        array = self.map(action).numpy()
        # a copy: without a shift the array shares the policy's memory. Floats stay floats, so that the env can refuse them
        return array.astype(array.dtype if array.dtype.kind == 'f' else self._dtype)


class _BoxMap:
    """Real numbers -> those of a Box."""

    def __init__(self, space: Box, mode: ActionMode, device: torch.device | str) -> None:
        self.shape = space.shape
        self.is_index = False
        self._is_flat = len(space.shape) == 1
        self._dtype = np.dtype(space.dtype)
        low = space.low.astype(np.float64)
        high = space.high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high) & (mode == 'rescale')
        half_low = np.where(bounded, low / 2, -0.5)
        half_high = np.where(bounded, high / 2, 0.5)
        kind = self._dtype.kind
        self._rescale = bool(bounded.any())
        self._round = kind in 'iu' or (kind == 'b' and self._rescale)  # a bool that is not rescaled is true above 0
        if kind in 'fb':  # an env's bounds are compared in its own dtype
            low = low.astype(self._dtype)
            high = high.astype(self._dtype)
        else:  # as a float, int64's largest number is rounded up, one too many: stay below it
            largest = np.iinfo(self._dtype).max
            high = np.minimum(high, largest if int(float(largest)) == largest else np.nextafter(2.0**63, 0))
        is_double = self._rescale or self._round or self._dtype == np.float64
        if is_double:
            self._work_dtype = torch.float64
        else:
            self._work_dtype = torch.float32
        self._low, self._high, self._scale, self._shift = (
            torch.as_tensor(np.asarray(bound), device=device).to(self._work_dtype)
            for bound in (low, high, half_high - half_low, np.where(bounded, half_high + half_low, 0.0))
        )
        if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
            self._low = float(low.flat[0])  # type: ignore[assignment]  # clamps faster
            self._high = float(high.flat[0])  # type: ignore[assignment]

    def map(self, action: Tensor) -> Tensor:
        # `to` alone is slow
        if action.dtype is not self._work_dtype:
            action = action.to(self._work_dtype)
        if not self._is_flat:
            action = action.view(*action.shape[:-1], *self.shape)
        if self._rescale:
            action = action * self._scale + self._shift
        return torch.clamp(action.round() if self._round else action, self._low, self._high)

    def to_array(self, action: Tensor) -> np.ndarray:
        return self.map(action).numpy().astype(self._dtype, copy=False)


_LeafMap = _IndexMap | _BoxMap


def _part(action: Tensor, at: slice, leaf: _LeafMap) -> Tensor:
    """A leaf's columns of the actions [B, D] f32, in which indices are floats; the result has them as int64."""
    part = action[..., at]
    if not leaf.is_index:
        return part
    if leaf.shape:
        return part.long()
    return part.squeeze(-1).long()


def _nested(space: Dict, arrays: Iterator[np.ndarray]) -> Any:
    parts = {
        name: _nested(each, arrays) if isinstance(each, Dict) else next(arrays) for name, each in space.spaces.items()
    }
    if space.is_tuple:
        return tuple(parts.values())
    return parts


def first_row(actions: Raw) -> Raw:
    """The action of the first env in a result of `ActionMap`."""
    if isinstance(actions, dict):
        return {name: first_row(each) for name, each in actions.items()}
    if isinstance(actions, tuple):
        return tuple(map(first_row, actions))
    return actions[0]
