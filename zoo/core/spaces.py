"""Observation and action spaces as plain data, so that models and checkpoints need no environment library.

An observation is a tensor, or where the space is a Dict (or Tuple) a nested dict of tensors, one for each leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Path, leaf_items, path_names
from zoo.core.errors import UserError, brief, of_entry

Raw = Any  # what an env gives or takes: numbers, arrays, tensors, or nested dicts and tuples of them
ACTION_MASK = 'action_mask'
WINDOW_MASK = 'window_mask'  # entry that env.window adds: which places of the windows hold observations of this episode
"""Name of the observation leaf that says which actions are allowed: a MultiBinary, true for an allowed one."""


def _dtype_field(default: str) -> Any:
    """The number type that the env uses. Two spaces with the same values are equal, whatever their number types."""
    return field(default=default, compare=False, repr=False)


@dataclass(frozen=True)
class Discrete:
    """The integers start .. start + n - 1. Inside zoo an action or observation is its index, 0 .. n - 1, of int64."""

    n: int
    start: int = 0
    dtype: str = _dtype_field('int64')

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def to_json(self) -> dict[str, Any]:
        return {'kind': 'discrete', 'n': self.n, 'start': self.start, **_dtype_to_json(self)}


@dataclass(frozen=True)
class MultiDiscrete:
    """Arrays of `shape` of integers: entry i (counted in C order) is one of start[i] .. start[i] + nvec[i] - 1.

    Inside zoo each is its index, 0 .. nvec[i] - 1, of int64.
    """

    nvec: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = _dtype_field('int64')

    def to_json(self) -> dict[str, Any]:
        numbers = {'nvec': list(self.nvec), 'start': list(self.start), 'shape': list(self.shape)}
        return {'kind': 'multi_discrete', **numbers, **_dtype_to_json(self)}


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of `shape` of zeros and ones, inside zoo of bools."""

    shape: tuple[int, ...]
    dtype: str = _dtype_field('int8')

    def to_json(self) -> dict[str, Any]:
        return {'kind': 'multi_binary', 'shape': list(self.shape), **_dtype_to_json(self)}


def _dtype_to_json(space: Discrete | MultiDiscrete | MultiBinary) -> dict[str, str]:
    """Only a number type that is not the usual one is written, so that older versions read the others."""
    if space.dtype == type(space).dtype:
        return {}
    return {'dtype': space.dtype}


MAX_LISTED = 1_000  # bounds of a Box of one dimension that are written one by one, even if they are equal


@dataclass(frozen=True, eq=False)
class Box:
    """Arrays of `shape` between `low` and `high` (arrays of that shape; infinite where unbounded)."""

    low: np.ndarray
    high: np.ndarray
    dtype: str = 'float32'

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.dtype == other.dtype
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity: bounds are written as strings that float() reads back exactly
        return {
            'kind': 'box',
            'shape': list(self.shape),
            'dtype': self.dtype,
            'low': self._bound_to_json(self.low),
            'high': self._bound_to_json(self.high),
        }

    def _bound_to_json(self, bound: np.ndarray) -> list[str]:
        values = bound.ravel()
        is_short = len(self.shape) <= 1 and len(values) <= MAX_LISTED
        if not is_short and len(values) and np.all(values == values[0]):
            values = values[:1]  # one for all: an Atari image has 28,224 of them
        return [repr(float(x)) for x in values]


@dataclass(frozen=True)
class Dict:
    """Spaces by name, in a fixed order. A Tuple is one with the names '0', '1', ..; `is_tuple` then says so.

    Attributes: leaf_names: of a part of a larger space, the names that its leaves have there; see `leaf_names`.
    """

    spaces: Mapping[str, Space]
    is_tuple: bool = False
    leaf_names: Mapping[Path, str] | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        spaces = [[name, space.to_json()] for name, space in self.spaces.items()]  # JSON objects may be sorted
        return {'kind': 'dict', 'spaces': spaces, 'is_tuple': self.is_tuple}


Leaf = Discrete | MultiDiscrete | MultiBinary | Box
Space = Leaf | Dict


def space_words(space: Space) -> str:
    """A space in a few words, e.g. 'Box (4,) float32 in -1 .. 1'."""
    match space:
        case Dict():
            parts = [f'{name}: {space_words(part)}' for name, part in space.spaces.items()]
            if space.is_tuple:
                return f'({", ".join(parts)})'
            return f'{{{", ".join(parts)}}}'
        case Discrete():
            return f'Discrete({space.n}{f", start={space.start}" if space.start else ""})'
        case MultiDiscrete():
            return f'MultiDiscrete {list(space.nvec)}'
        case MultiBinary():
            return f'MultiBinary {space.shape}'
    return f'Box {space.shape} {space.dtype} in {space.low.min():.4g} .. {space.high.max():.4g}'


def n_values(leaf: Leaf) -> tuple[int, ...]:
    """The number of values of each index of a leaf; () for MultiBinary and Box."""
    if isinstance(leaf, Discrete):
        return (leaf.n,)
    if isinstance(leaf, MultiDiscrete):
        return leaf.nvec
    return ()


def mask_size(space: Space) -> int:
    """Bits of an action mask: n for Discrete, the sum of nvec, the entries of MultiBinary, 0 for Box; summed in a Dict."""
    leaves = [leaf for _, leaf in leaf_spaces(space)]
    return sum(int(np.prod(leaf.shape)) if isinstance(leaf, MultiBinary) else sum(n_values(leaf)) for leaf in leaves)


def leaves_by_path(space: Space) -> dict[Path, Leaf]:
    """The leaves of a space by path, in order; the path of a space that is no Dict is ()."""
    if not isinstance(space, Dict):
        return {(): space}
    return {(name, *rest): leaf for name, each in space.spaces.items() for rest, leaf in leaves_by_path(each).items()}


def leaf_names(space: Space) -> dict[Path, str]:
    """The name of each leaf of a space: its dotted path, or where that is not the only one, see `path_names`."""
    paths = list(leaves_by_path(space))
    if isinstance(space, Dict) and space.leaf_names is not None:
        return {path: space.leaf_names[path] for path in paths}
    return path_names(paths)


def leaf_spaces(space: Space) -> Iterator[tuple[str, Leaf]]:
    """The leaves of a space with their names, see `leaf_names`, in order; the name of a space that is no Dict is ''."""
    names = leaf_names(space)
    for path, leaf in leaves_by_path(space).items():
        yield names[path], leaf


def nested_leaves(space: Space, values: Mapping[str, Any]) -> Any:
    """Nests values that are given by the name of each leaf, see `leaf_names`.

    Entries without any value are left out; None if there is no value at all.
    """
    return _nested_at((), space, {path: values.get(name) for path, name in leaf_names(space).items()})


def _nested_at(path: Path, space: Space, values: Mapping[Path, Any]) -> Any:
    if not isinstance(space, Dict):
        return values[path]
    entries = {name: _nested_at((*path, name), each, values) for name, each in space.spaces.items()}
    return {name: entry for name, entry in entries.items() if entry is not None} or None


def with_entries(space: Dict, names: Collection[str]) -> Dict:
    """The part of a space that has only some of its entries; their leaves keep their names."""
    spaces = {name: each for name, each in space.spaces.items() if name in names}
    part = Dict(spaces, space.is_tuple)
    whole = leaf_names(space)
    known = {path: whole[path] for path in leaves_by_path(part)}
    if known == leaf_names(part):
        return part
    return Dict(spaces, space.is_tuple, known)


def map_spaces(function: Callable[..., Any], space: Space, *trees: Any) -> Any:
    """Applies a function to each leaf and to the values of the trees at its place; returns one result or nested dicts."""
    if isinstance(space, Dict):
        return {
            name: map_spaces(function, each, *(tree[name] for tree in trees)) for name, each in space.spaces.items()
        }
    return function(space, *trees)


def is_image(space: Space) -> bool:
    """Whether observations are images: a Box of three dimensions of bytes or floats, channels first or last."""
    return isinstance(space, Box) and len(space.shape) == 3 and (space.dtype == 'uint8' or space.dtype[0] == 'f')


def mask_space(space: Space) -> MultiBinary | None:
    """The space of the observations' action mask; None if they have none."""
    found = None
    if isinstance(space, Dict):
        found = space.spaces.get(ACTION_MASK)
    if isinstance(found, MultiBinary):
        return found
    return None


def window_len(space: Space) -> int | None:
    """The number of observations in a window (env.window): each entry then begins with that dimension; None: no window."""
    found = None
    if isinstance(space, Dict) and not space.is_tuple:
        found = space.spaces.get(WINDOW_MASK)
    if isinstance(found, MultiBinary) and len(found.shape) == 1:
        return found.shape[0]
    return None


def obs_dtype(space: Leaf) -> torch.dtype:
    """The dtype in which zoo holds observations of a leaf: indices int64, binaries bool, images of bytes uint8, else f32."""
    if isinstance(space, Discrete | MultiDiscrete):
        return torch.int64
    if isinstance(space, MultiBinary):
        return torch.bool
    # three dimensions are an image, four a window of images
    if space.dtype == 'uint8' and len(space.shape) in (3, 4):
        return torch.uint8
    return torch.float32


def empty_obs(space: Space, lead: tuple[int, ...] = (), device: torch.device | str = 'cpu') -> Any:
    """Observations [*lead, *O] of zeros; an action mask is all true, so that it is legal."""

    def zeros(leaf: Leaf) -> Tensor:
        return torch.zeros((*lead, *leaf.shape), dtype=obs_dtype(leaf), device=device)

    obs = map_spaces(zeros, space)
    if mask_space(space) is not None:
        obs[ACTION_MASK].fill_(True)
    return obs


def n_lead(space: Space, obs: Raw) -> int:
    """The number of dimensions of observations before those of the space."""
    while isinstance(space, Dict):
        name = next(name for name in space.spaces if name in obs)
        space = space.spaces[name]
        obs = obs[name]
    return obs.ndim - len(space.shape)


def obs_to_tensor(space: Space, obs: Raw, optional: tuple[str, ...] = ()) -> Any:
    """Converts raw observations of an env, one or a batch, for a model: [..., *O] of dtype `obs_dtype` in each leaf.

    Args: optional: names of entries of a Dict that may be missing, and then are missing in the result too.
    Raises: UserError if they do not fit the space: names, shape, type, range, or not finite.
    """
    found = _to_tensor(space, obs, optional, '')
    if isinstance(space, Dict):
        n_dim = {path: len(leaf.shape) for path, leaf in leaves_by_path(space).items()}
        names = leaf_names(space)
        leads = {names[path]: x.ndim - n_dim[path] for path, x in leaf_items(found)}
        if len(set(leads.values())) > 1:
            raise UserError(
                f'the observations have {leads} leading dimensions but must agree; pass one observation, or a batch '
                'in every entry'
            )
    return found


PASS = 'pass what the env gave'
ADDED = {
    'prev_action': 'env.prev_action',
    'prev_reward': 'env.prev_reward',
    'window_mask': 'env.window',
    'info': 'env.observe_info',  # info/lean and so on
}
"""Entries that a config adds to the observations of an env, and the keys that do so."""


def _way_to_pass(given: Raw, required: list[str]) -> str:
    """What to pass in place of an observation that lacks entries, which may be entries that the env itself does not give."""
    if isinstance(given, Mapping):
        entries = set(given)
    else:
        entries = set()
    if not entries and set(required) - {ACTION_MASK} == {'obs'}:
        entries = {'obs'}  # an observation that is no Dict has this name beside the entries that zoo adds
    missing = [name for name in required if name not in entries]
    groups = dict.fromkeys(name.partition('/')[0] for name in missing)
    keys = [ADDED[name] for name in groups if name in ADDED]
    if keys:
        return f'{" and ".join(keys)} of the config adds entries: pass what zoo.env.make_env gives for the section env'
    if missing != [ACTION_MASK]:
        return PASS
    if isinstance(given, Mapping):
        whole = f"{{**obs, '{ACTION_MASK}': mask}}"
    else:
        whole = f"{{'obs': obs, '{ACTION_MASK}': mask}}"
    return f"add the mask of the env: {whole}, where mask is env.action_masks() or info['{ACTION_MASK}']"


def _to_tensor(space: Space, obs: Raw, optional: tuple[str, ...], path: str) -> Any:
    if isinstance(space, Dict):
        if space.is_tuple and isinstance(obs, tuple):
            given = dict(zip(space.spaces, obs, strict=False))
        else:
            given = obs
        if isinstance(given, Mapping) and not all(isinstance(key, str) for key in given):
            given = {str(key): part for key, part in given.items()}  # an env may have numbers or enums as keys
        required = [name for name in space.spaces if name not in optional]
        if not isinstance(given, Mapping) or any(name not in given for name in required):
            if isinstance(given, Mapping):
                what = f'has the entries {list(given)}'
            else:
                what = f'is a {type(obs).__name__}'
            free = ', '.join(repr(name) for name in space.spaces if name in optional)
            may = ''
            if free:
                may = f' ({free} may be missing)'
            raise UserError(
                f'the observation{of_entry(path)} {what} but must have {", ".join(map(repr, required))}{may}; '
                f'{_way_to_pass(given, required) if not path else PASS}'
            )
        return {
            name: _to_tensor(each, given[name], (), f'{path}.{name}' if path else name)
            for name, each in space.spaces.items()
            if name in given
        }
    return torch.as_tensor(leaf_to_array(space, obs, of_entry(path)))


def leaf_to_array(space: Leaf, obs: Raw, of: str = '') -> np.ndarray:
    """Copies raw observations of one leaf to zoo's form, see `obs_to_tensor`. Args: of: follows 'the observation' in errors."""
    array = np.asarray(obs)
    n_dim = len(space.shape)
    if isinstance(space, Discrete) and (array.dtype.kind not in 'iu' or array.ndim > 1):
        raise UserError(
            f'the observation{of} {brief(obs)} is no integer or batch of them, as {space} wants; pass what the env gave'
        )
    if array.ndim not in (n_dim, n_dim + 1) or array.shape[array.ndim - n_dim :] != space.shape:
        raise UserError(
            f'the observation{of} has shape {array.shape} but must have {space.shape}, or be a batch of such'
        )
    if isinstance(space, Discrete | MultiDiscrete):
        if array.dtype.kind not in 'iu':
            raise UserError(f'the observation{of} is of {array.dtype} but must be integers; pass what the env gave')
        n, start = (np.reshape(x, space.shape) for x in (n_values(space), space.start))
        if np.any(array < start) or np.any(array >= start + n):
            raise UserError(
                f'the observation{of} {brief(obs)} lies outside {start} .. {start + n - 1}; pass what the env gave'
            )
        return array.astype(np.int64) - start
    if isinstance(space, MultiBinary):
        if array.dtype.kind not in 'biuf' or not np.isin(array, (0, 1)).all():
            raise UserError(f'the observation{of} {brief(obs)} must be zeros and ones; pass what the env gave')
        return array.astype(bool)
    if obs_dtype(space) == torch.uint8:
        if array.dtype.kind not in 'iu' or np.any((array < 0) | (array > 255)):
            raise UserError(
                f'the observation{of} is an image of {array.dtype} but must be one of bytes, integers from 0 '
                'to 255; pass what the env gave'
            )
        return array.astype(np.uint8)
    array = np.array(array, dtype=np.float32)  # a copy: any strides, also of read-only arrays
    if not np.isfinite(array).all():
        raise UserError(f'the observation{of} {brief(obs)} is not finite; a policy can only act on numbers')
    return array
