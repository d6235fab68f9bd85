"""Action masks: which actions may be taken, as one row of bits in the order of the action space's leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    leaf_spaces,
    mask_size,
    n_values,
)
from zoo.env.errors import BrokenContractError, UnsupportedEnvError, show_value
from zoo.env.readers import as_bits

WHAT = 'the action mask'


class _BitGroup(NamedTuple):
    """The bits in a mask of one choice of an action, or of a MultiBinary.

    none_allowed: the words for a mask in which none of them is true; must_choose: whether one of them must be true.
    """

    none_allowed: str
    start: int
    stop: int
    must_choose: bool


def _groups(space: Space) -> Iterator[_BitGroup]:
    start = 0
    for path, leaf in leaf_spaces(space):
        of_leaf = ''
        if path:
            of_leaf = f' of {path!r}'
        for i, n in enumerate(n_values(leaf) or [mask_size(leaf)]):
            if n == 0:  # a Box has no bits
                continue
            none_allowed = f'no value for entry {i}{of_leaf}'
            if isinstance(leaf, Discrete):
                none_allowed = f'no action{of_leaf}'
            yield _BitGroup(none_allowed, start, start + n, must_choose=not isinstance(leaf, MultiBinary))
            start += n


def choice_slices(space: Space) -> list[slice]:
    """For each choice of an action its bits in a mask; at least one of them must be true."""
    return [slice(group.start, group.stop) for group in _groups(space) if group.must_choose]


def masked_space(obs_space: Space, action_space: Space, source: str, name: str) -> Space:
    """The observation space with the entry 'action_mask' as a MultiBinary of `mask_size` bits; as a Box if `source` is 'off'.

    Raises: UnsupportedEnvError if the entry is no mask of these actions, or is missing with 'obs'.
    """
    entry = None
    if isinstance(obs_space, Dict) and not obs_space.is_tuple:
        entry = obs_space.spaces.get(ACTION_MASK)
    if not isinstance(obs_space, Dict) or entry is None:
        if source == 'obs':
            raise UnsupportedEnvError(
                f"env {name!r}: env.action_mask is 'obs' but the observations have no entry {ACTION_MASK!r}; "
                'give them one (a Dict), or use auto.'
            )
        return obs_space
    if source == 'off':
        if isinstance(entry, MultiBinary):
            entry = Box(np.zeros(entry.shape), np.ones(entry.shape), 'int8')
        return Dict({**obs_space.spaces, ACTION_MASK: entry})
    n = mask_size(action_space)
    if n == 0:
        raise no_mask_error(name, action_space)
    is_box_of_bits = isinstance(entry, Box) and bool((entry.low >= 0).all() and (entry.high <= 1).all())
    is_bits = isinstance(entry, MultiBinary) or is_box_of_bits
    if isinstance(entry, Dict) or not is_bits or int(np.prod(entry.shape)) != n:
        raise UnsupportedEnvError(
            f'env {name!r}: the entry {ACTION_MASK!r} of the observations is {entry}, wanted {n} zeros and ones (a '
            f'MultiBinary, or a Box from 0 to 1), one for each action of {action_space}; correct it, rename it, or '
            'use env.action_mask=off to have it as an ordinary entry.'
        )
    return Dict({**obs_space.spaces, ACTION_MASK: MultiBinary((n,))})


def no_mask_error(name: str, action_space: Space) -> UnsupportedEnvError:
    """The error for masks of actions that cannot be masked."""
    return UnsupportedEnvError(
        f'env {name!r} has an action mask but the actions are {action_space}: numbers of a Box cannot be masked, only '
        'those of Discrete, MultiDiscrete and MultiBinary; use env.action_mask=off.'
    )


def flat_mask(space: Space, mask: object) -> np.ndarray:
    """Converts a mask of an env to [n_mask] bool. mask: an array, or a dict, tuple or list with an array for each part.

    Raises: BrokenContractError if it is not made of zeros and ones, or has another number of them.
    """
    # for a Dict, a list of another length has the bits of all entries with choices, one entry after another
    if isinstance(mask, list) and (not isinstance(space, Dict) or len(mask) == len(space.spaces)):
        if any(isinstance(x, tuple | list | np.ndarray) for x in mask):
            mask = tuple(mask)
    if isinstance(space, Dict) and isinstance(mask, Mapping | tuple):
        masks: Mapping[str, object]
        if isinstance(mask, tuple):
            masks = dict(zip(space.spaces, mask, strict=False))
        else:
            masks = mask
        parts = [(key, part) for key, part in space.spaces.items() if mask_size(part)]
        missing = [key for key, _ in parts if key not in masks]
        if missing:
            raise _broken(f'{WHAT} has no entry {missing[0]!r}', f'one each for {", ".join(key for key, _ in parts)}')
        return np.concatenate([flat_mask(part, masks[key]) for key, part in parts])
    if isinstance(space, MultiDiscrete) and isinstance(mask, tuple | list):
        parts_of_list = list(_arrays(mask))
        if len(parts_of_list) == len(space.nvec):
            for i, (part, n) in enumerate(zip(parts_of_list, space.nvec, strict=True)):
                if len(part) != n:
                    raise _broken(f'{WHAT} of entry {i} has {len(part)} bits', f'{n}, one for each of its values')
        mask = np.concatenate(parts_of_list)
    array = np.asarray(mask)
    n = mask_size(space)
    if array.dtype.kind not in 'biuf':
        raise _broken(f'{WHAT} is {show_value(mask)}', f'an array of {n} zeros and ones')
    if array.size != n:
        raise _broken(f'{WHAT} has {array.size} bits', f'{n}, one for each action of {space}')
    bits = as_bits(array.reshape(n))
    if bits is None:
        wrong = array[array.astype(np.bool_) != array]
        raise _broken(f'{WHAT} has the value {wrong.flat[0]}', 'zeros and ones')
    return bits


def _arrays(mask: object) -> Iterator[np.ndarray]:
    """The arrays of nested tuples and lists, in order; a list of numbers is one array."""
    if isinstance(mask, tuple | list) and any(isinstance(x, tuple | list | np.ndarray) for x in mask):
        for x in mask:
            yield from _arrays(x)
    else:
        yield np.atleast_1d(np.asarray(mask))


def _broken(got: str, wanted: str) -> BrokenContractError:
    return BrokenContractError(got, wanted, 'make it true, or 1, for each action that may be taken')


class ChoiceCheck:
    """Finds masks that allow nothing for at least one choice of an action."""

    def __init__(self, space: Space) -> None:
        groups = list(_groups(space))
        self._space = space
        self._starts = np.array([group.start for group in groups])
        self._names = [group.none_allowed for group in groups if group.must_choose]
        self._must_choose = np.array([group.must_choose for group in groups])
        self._is_one = len(groups) == 1 and bool(self._must_choose[0])

    def bits(self, mask: object) -> np.ndarray:
        """`flat_mask` of a mask that an env gave, for this action space."""
        return flat_mask(self._space, mask)

    def empty(self, mask: np.ndarray) -> np.ndarray:
        """mask: [B, n_mask] bool. Returns: [B] bool, true where nothing is allowed for at least one choice."""
        if self._is_one:
            return np.logical_not(mask.any(1))
        return np.logical_not(self._left(mask).all(1))

    def _left(self, mask: np.ndarray) -> np.ndarray:
        return np.logical_or.reduceat(mask, self._starts, axis=1)[:, self._must_choose]

    def fault(self, mask: np.ndarray) -> tuple[str, str, str]:
        """(got, wanted, do) of one empty mask [n_mask]."""
        what = self._names[int(np.argmin(self._left(mask[None])[0]))]
        do = 'end the episode where nothing may be done, or allow an action that does nothing'
        return f'{WHAT} allows {what}', 'at least one', do
