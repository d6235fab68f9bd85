"""The inputs and outputs of an exported policy: names, number types and shapes, as the env has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.spaces import Box, Dict, Discrete, Leaf, MultiDiscrete, Space, obs_dtype

BATCH = 'batch'
"""Name of the leading dimension of every input and output; any number."""

Tree = Any
"""A tensor, or a nested dict of tensors."""


class Port(NamedTuple):
    """An input or output of an exported policy.

    dtype: as numpy names it. shape: with 'batch' for the dimension that may have any size.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


def port_of_leaf(name: str, leaf: Leaf) -> Port:
    """What an env gives or takes for a leaf of a space."""
    return Port(name, str(env_dtype(leaf)), (BATCH, *leaf.shape))


def port_of_tensor(name: str, x: Tensor) -> Port:
    """x: [1, ...]."""
    return Port(name, str(np.empty(0, numpy_dtype(x.dtype)).dtype), (BATCH, *x.shape[1:]))


def env_dtype(leaf: Leaf) -> np.dtype[Any]:
    """The number type of what an env gives or takes for a leaf of a space, as gymnasium has it."""
    if isinstance(leaf, Box):
        return np.dtype(leaf.dtype)
    return np.dtype(np.int64 if isinstance(leaf, Discrete | MultiDiscrete) else np.int8)


def torch_dtype(dtype: np.dtype[Any] | str) -> torch.dtype:
    """The tensors' name of a number type of numpy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The inverse of `torch_dtype`."""
    return torch.empty(0, dtype=dtype).numpy().dtype


def raw_to_model(leaf: Leaf, x: Tensor) -> Tensor:
    """Raw observations [B, ...] of a leaf as zoo holds them, in operations of tensors; see `leaf_to_array`."""
    if isinstance(leaf, Discrete | MultiDiscrete):
        return x - torch.as_tensor(leaf.start).reshape(leaf.shape) if np.any(leaf.start) else x
    dtype = obs_dtype(leaf)
    return x != 0 if dtype == torch.bool else x.to(dtype)


def tree_leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The tensors of nested dicts with the names that lead to each, in order."""
    if isinstance(tree, dict):
        for name, each in tree.items():
            yield from tree_leaves(each, (*path, str(name)))
    else:
        yield path, tree


def rebuilt(like: Tree, leaves: Iterator[Tensor]) -> Tree:
    """Nested dicts as `like`, of other tensors."""
    return {name: rebuilt(each, leaves) for name, each in like.items()} if isinstance(like, dict) else next(leaves)


def nested_obs(space: Space, leaves: dict[str, Any], path: str = '') -> Any:
    """Observations from what is at the dotted path of each leaf; entries without any are left out."""
    if not isinstance(space, Dict):
        return leaves[path]
    found = {}
    for name, each in space.spaces.items():
        where = f'{path}.{name}' if path else name
        if any(key == where or key.startswith(f'{where}.') for key in leaves):
            found[name] = nested_obs(each, leaves, where)
    return found


def distinct(name: str, taken: Collection[str]) -> str:
    """The name, with '_' at its end as often as others have it already."""
    while name in taken:
        name += '_'
    return name
