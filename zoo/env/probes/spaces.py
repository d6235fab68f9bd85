"""A space of every kind by name, and the target that an action on such a space should reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import zoo.core.spaces as plain
from zoo.core.registry import closest
from zoo.env.adapter import convert_space
from zoo.env.errors import EnvError, EnvKwargsError

IMAGE = 40  # pixels; a Nature CNN needs 36

Scale = tuple[np.ndarray, np.ndarray] | None  # of a Box: middle and half width of each dimension

ACTION_SPACES: dict[str, Callable[[], gymnasium.Space]] = {
    'discrete': lambda: Discrete(4),
    'discrete_start': lambda: Discrete(3, start=5),
    'box': lambda: Box(-1.0, 1.0, (2,), np.float32),
    'box_0d': lambda: Box(-1.0, 1.0, (), np.float32),
    'box_2d': lambda: Box(np.array([[-1.0, 0.0], [-2.0, -1.0]]), np.array([[1.0, 2.0], [2.0, 3.0]]), dtype=np.float64),
    'box_unbounded': lambda: Box(-np.inf, np.inf, (2,), np.float32),
    'box_int': lambda: Box(-3, 3, (2,), np.int64),
    'multi_discrete': lambda: MultiDiscrete([3, 2]),
    'multi_discrete_2d': lambda: MultiDiscrete(np.array([[2, 3], [3, 2]]), start=np.array([[0, 1], [0, 0]])),
    'multi_binary': lambda: MultiBinary(3),
    'dict': lambda: Dict({'kind': Discrete(3), 'amount': Box(-1.0, 1.0, (2,), np.float32)}),
    'tuple': lambda: Tuple((Discrete(2, start=1), MultiDiscrete([2, 3]), MultiBinary(2))),
}

OBS_SPACES: dict[str, Callable[[], gymnasium.Space]] = {
    'box': lambda: Box(-1.0, 1.0, (3,), np.float32),
    'box_0d': lambda: Box(-1.0, 1.0, (), np.float32),
    'box_2d': lambda: Box(-np.inf, np.inf, (2, 3), np.float64),
    'box_4d': lambda: Box(0.0, 1.0, (2, 2, 3, 2), np.float32),
    'box_int': lambda: Box(-5, 5, (4,), np.int32),
    'image_uint8': lambda: Box(0, 255, (IMAGE, IMAGE, 3), np.uint8),
    'image_float': lambda: Box(0.0, 1.0, (3, IMAGE, IMAGE), np.float32),
    'discrete': lambda: Discrete(5),
    'discrete_start': lambda: Discrete(4, start=-2),
    'multi_discrete': lambda: MultiDiscrete([3, 4]),
    'multi_discrete_2d': lambda: MultiDiscrete(np.array([[2, 3], [4, 2]])),
    'multi_binary': lambda: MultiBinary(4),
    'dict': lambda: Dict({'image': Box(0, 255, (IMAGE, IMAGE, 3), np.uint8), 'vector': Box(-1.0, 1.0, (3,))}),
    'tuple': lambda: Tuple((Box(-1.0, 1.0, (2,), np.float32), Discrete(3), MultiBinary((2, 2)))),
    'nested_mask': lambda: Dict(  # any_space adds a mask where the actions can have one
        {'own': Dict({'place': Box(-1.0, 1.0, (2,)), 'kind': Discrete(3)}), 'bits': MultiBinary(3)}
    ),
}


def make_space(spaces: dict[str, Callable[[], gymnasium.Space]], name: str, key: str) -> gymnasium.Space:
    """A space by its name. key: the argument that gave it, for the error."""
    if name not in spaces:
        close = closest(name, tuple(spaces))
        hint = f'did you mean {close[0]!r}? ' if close else ''
        raise EnvKwargsError(f'env.kwargs.{key} is {name!r}: {hint}it is one of {", ".join(spaces)}.')
    return spaces[name]()


class Target:
    """Scores actions by their distance to a target: 1 at it, -1 farthest from it; of several parts, the mean."""

    def __init__(self, space: gymnasium.Space) -> None:
        self._space = convert_space(space, 'action', 'probe')
        self._leaves = [leaf for _, leaf in plain.leaf_spaces(self._space)]
        self._scales = [_middle_and_half(leaf) if isinstance(leaf, plain.Box) else None for leaf in self._leaves]
        self.size = sum(map(_size, self._leaves))

    def draw(self, rng: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
        """[size]: for each choice a one-hot row, for each bit -1 or 1, for each number one from -0.8 to 0.8.

        Args: mask: [n_mask] bool, what may be chosen; None: everything.
        """
        parts, start = [], 0
        for leaf, scale in zip(self._leaves, self._scales, strict=True):
            for n in _choices(leaf):
                legal = np.arange(n) if mask is None else np.flatnonzero(mask[start : start + n])
                parts.append(np.eye(1, n, int(rng.choice(legal)))[0])
                start += n
            if isinstance(leaf, plain.MultiBinary):
                n = _size(leaf)
                bits = rng.integers(2, size=n) if mask is None else rng.integers(2, size=n) * mask[start : start + n]
                parts.append(bits * 2.0 - 1.0)
                start += n
            elif isinstance(leaf, plain.Box) and scale is not None:
                middle, half = scale
                number = rng.uniform(-0.8, 0.8, _size(leaf))
                parts.append((np.round(number * half + middle) - middle) / half if leaf.dtype[0] != 'f' else number)
        return np.concatenate(parts).astype(np.float32)

    def score(self, action: Any, target: np.ndarray) -> float:
        """Of an action in the env's own form."""
        scores, start = [], 0
        for leaf, scale, part in zip(self._leaves, self._scales, _parts(self._space, action), strict=True):
            stop = start + _size(leaf)
            scores.append(_score(leaf, scale, np.asarray(part), target[start:stop]))
            start = stop
        return float(np.mean(scores))

    def check_legal(self, action: Any, mask: np.ndarray) -> None:
        """Raises: EnvError if the mask [n_mask] forbids the action."""
        start = 0
        for leaf, part in zip(self._leaves, _parts(self._space, action), strict=True):
            if isinstance(leaf, plain.Box):
                continue
            choices = _choices(leaf)
            if choices:
                index = np.ravel(part) - np.ravel(getattr(leaf, 'start', 0))
                taken = start + np.cumsum((0, *choices[:-1])) + index
                is_legal = bool(mask[taken].all())
            else:
                is_legal = not np.any(np.ravel(part).astype(bool) & ~mask[start : start + _size(leaf)])
            if not is_legal:
                raise EnvError(f'the action {action!r} is illegal under the mask {mask.astype(int)}')
            start += _size(leaf)


def _choices(leaf: plain.Leaf) -> tuple[int, ...]:
    """The number of values of each choice of a leaf; none of MultiBinary and Box."""
    if isinstance(leaf, plain.Discrete):
        return (leaf.n,)
    return leaf.nvec if isinstance(leaf, plain.MultiDiscrete) else ()


def _size(leaf: plain.Leaf) -> int:
    return sum(_choices(leaf)) or int(np.prod(leaf.shape))


def _parts(space: plain.Space, action: Any) -> list[Any]:
    if not isinstance(space, plain.Dict):
        return [action]
    entries = action if space.is_tuple else [action[name] for name in space.spaces]
    return [part for each, x in zip(space.spaces.values(), entries, strict=True) for part in _parts(each, x)]


def _middle_and_half(leaf: plain.Box) -> Scale:
    """Middle and half width of each dimension; 0 and 1 where it is not bounded on both sides."""
    bounded = np.isfinite(leaf.low) & np.isfinite(leaf.high)
    low, high = np.where(bounded, leaf.low, -1.0).ravel(), np.where(bounded, leaf.high, 1.0).ravel()
    return (low + high) / 2, (high - low) / 2


def _score(leaf: plain.Leaf, scale: Scale, action: np.ndarray, target: np.ndarray) -> float:
    if scale is not None:
        middle, half = scale
        distance = np.abs((np.ravel(action) - middle) / half - target)
        return float(np.maximum(1.0 - distance, -1.0).mean())
    if isinstance(leaf, plain.MultiBinary):
        return float((np.where(np.ravel(action), 1.0, -1.0) * target).mean())
    index = np.ravel(action) - np.ravel(getattr(leaf, 'start', 0))
    starts = np.cumsum((0, *_choices(leaf)[:-1]))
    return float((target[starts + index] * 2.0 - 1.0).mean())
