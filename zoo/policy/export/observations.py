"""Random raw observations of a space, to compare an exported policy on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    leaf_spaces,
    mask_space,
)
from zoo.model.inputs import DictInput, NormedVector
from zoo.policy.export.ports import env_dtype
from zoo.rl_utils.normalizer import RunningMeanStd

LARGE = 1e6
"""A bound beyond this counts as none: envs write the largest float where they know no bound."""


def draw_obs(policy: Any, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Raw observations [n, ...] by the dotted path of each leaf, in the number type of the env.

    Indices, bits and numbers between bounds: uniform. Numbers without: standard normal, times the deviation and plus the mean
    of obs_norm where the policy has it. An action mask leaves one choice at least.
    """
    norms = dict(_norms(policy._model))
    found = {path: _draw(leaf, n, rng, norms.get(path)) for path, leaf in leaf_spaces(policy.obs_space)}
    if mask_space(policy.obs_space) is not None:
        _allow_one(policy.action_space, found[ACTION_MASK], rng)
    return found


def drawn_words(policy: Any) -> str:
    """What `draw_obs` draws, in words."""
    bounded = [
        _bounded(leaf) if isinstance(leaf, Box) else np.ones(1, bool) for _, leaf in leaf_spaces(policy.obs_space)
    ]
    if all(each.all() for each in bounded):
        return 'uniform over the space'
    normal = 'normal, as the statistics of obs_norm' if dict(_norms(policy._model)) else 'standard normal'
    return f'uniform between bounds and {normal} elsewhere' if any(each.any() for each in bounded) else normal


def _draw(leaf: Leaf, n: int, rng: np.random.Generator, norm: RunningMeanStd | None) -> np.ndarray:
    shape, dtype = (n, *leaf.shape), env_dtype(leaf)
    if isinstance(leaf, MultiBinary):
        return rng.integers(2, size=shape).astype(dtype)
    if isinstance(leaf, Discrete):
        return leaf.start + rng.integers(leaf.n, size=shape)
    if isinstance(leaf, MultiDiscrete):
        nvec, start = (np.array(x, dtype=np.int64).reshape(leaf.shape) for x in (leaf.nvec, leaf.start))
        return start + rng.integers(nvec, size=shape)
    if dtype == np.uint8 and (leaf.low == 0).all() and (leaf.high == 255).all():
        return rng.integers(256, size=shape, dtype=np.uint8)  # images are many bytes
    return _draw_box(leaf, shape, rng, norm).astype(dtype)


def _draw_box(leaf: Box, shape: tuple[int, ...], rng: np.random.Generator, norm: RunningMeanStd | None) -> np.ndarray:
    is_bounded, low, high = _bounded(leaf), leaf.low.astype(np.float64), leaf.high.astype(np.float64)
    if leaf.dtype[0] in 'iub':  # whole numbers, each as likely
        drawn = np.floor(rng.uniform(np.where(is_bounded, low, 0), np.where(is_bounded, high + 1, 0), shape))
    else:
        drawn = rng.uniform(np.where(is_bounded, low, 0), np.where(is_bounded, high, 0), shape)
    if not is_bounded.all():
        mean, std = (
            (0.0, 1.0) if norm is None else (x.numpy().reshape(leaf.shape) for x in (norm.mean, norm.var.sqrt()))
        )
        drawn = np.where(is_bounded, drawn, rng.standard_normal(shape) * std + mean)
    return np.clip(np.rint(drawn) if leaf.dtype[0] in 'iub' else drawn, low, high)


def _bounded(leaf: Box) -> np.ndarray:
    return (np.abs(leaf.low.astype(np.float64)) <= LARGE) & (np.abs(leaf.high.astype(np.float64)) <= LARGE)


def _norms(model: Any) -> Iterator[tuple[str, RunningMeanStd]]:
    """The statistics of observations by the dotted path of the leaf they are of, in the models of zoo."""
    stage, only = getattr(model, 'input', None), getattr(model, 'leaf', None)
    stages: Mapping[str, Any] = {only or '': stage}
    if isinstance(stage, DictInput):
        stages = {'.'.join(path): each for path, each in stage.named_stages()}
    for path, each in stages.items():
        norm = each.norm if isinstance(each, NormedVector) else each
        if isinstance(norm, RunningMeanStd):
            yield path, norm


def _allow_one(action_space: Space, mask: np.ndarray, rng: np.random.Generator) -> None:
    """Allows a random option of each choice of the action; see `zoo.core.action_map.forbids_all`."""
    start, rows = 0, np.arange(len(mask))
    for _, leaf in leaf_spaces(action_space):
        if isinstance(leaf, MultiBinary):
            start += int(np.prod(leaf.shape))
        for n in leaf.nvec if isinstance(leaf, MultiDiscrete) else (leaf.n,) if isinstance(leaf, Discrete) else ():
            mask[rows, start + rng.integers(n, size=len(mask))] = 1
            start += n
