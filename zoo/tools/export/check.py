"""Comparison of an exported file with its policy on random observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from zoo.backend.executor import forward_for_acting
from zoo.core.errors import RunError
from zoo.core.spaces import (
    ACTION_MASK,
    Box,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    is_image,
    leaf_names,
    leaf_spaces,
    mask_space,
    n_values,
    nested_leaves,
)
from zoo.model.cnn import computes_in_bf16
from zoo.model.inputs import DictInput, NormedVector
from zoo.policy.base import Policy
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.tools.export.acting import ActingModule, env_dtype, for_export

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""An exported file: arrays for its inputs -> arrays of its outputs."""
Arrays = list[np.ndarray]
LARGE = 1e6  # a bound beyond this is not a bound: envs write the largest float if they know no bound
N_CHECK = 1000  # observations that are compared
TOLERANCE = 1e-5  # the largest allowed difference of a number; relative for numbers above 1
N_STEP = 10  # steps over which a policy with a memory is compared, in N_CHECK / N_STEP envs in parallel
MAX_TIE = N_CHECK // 100
N_IMAGE = 125  # images in one batch: 1,000 would take GB in the layers of a large network


def draw_obs(policy: Policy, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draws random raw observations [n, ...] by the dotted path of each leaf, in the dtype of the env.

    Indices, bits and bounded numbers are uniform. Unbounded numbers are normal, with the mean and deviation of obs_norm if
    the policy has it, else standard normal. An action mask leaves at least one choice.
    """
    norms = _norms(policy._model)
    obs = {path: _draw(leaf, n, rng, norms.get(path)) for path, leaf in leaf_spaces(policy.obs_space)}
    if mask_space(policy.obs_space) is not None:
        _allow_one(policy.action_space, obs[ACTION_MASK], rng)
    return obs


def drawn_words(policy: Policy) -> str:
    """Returns a phrase that describes the distribution of `draw_obs`."""
    leaves = [leaf for _, leaf in leaf_spaces(policy.obs_space)]
    boxes = [leaf for leaf in leaves if isinstance(leaf, Box)]
    is_bounded = np.concatenate([_bounded(box).flatten() for box in boxes] or [np.ones(1, bool)])
    if is_bounded.all():
        return 'uniform over the space'
    normal = 'standard normal'
    if _norms(policy._model):
        normal = 'normal, as the statistics of obs_norm'
    if is_bounded.any() or len(boxes) < len(leaves):
        return f'uniform between bounds and {normal} elsewhere'
    return normal


def _draw(leaf: Leaf, n: int, rng: np.random.Generator, norm: RunningMeanStd | None) -> np.ndarray:
    shape = (n, *leaf.shape)
    dtype = env_dtype(leaf)
    match leaf:
        case MultiBinary():
            return rng.integers(2, size=shape).astype(dtype)
        case Discrete():
            return leaf.start + rng.integers(leaf.n, size=shape)
        case MultiDiscrete():
            nvec = np.array(leaf.nvec, dtype=np.int64).reshape(leaf.shape)
            start = np.array(leaf.start, dtype=np.int64).reshape(leaf.shape)
            return start + rng.integers(nvec, size=shape)
        case Box() if dtype == np.uint8 and (leaf.low == 0).all() and (leaf.high == 255).all():
            return rng.integers(256, size=shape, dtype=np.uint8)  # images have many bytes: drawn directly as bytes
    return _draw_box(leaf, shape, rng, norm).astype(dtype)


def _draw_box(leaf: Box, shape: tuple[int, ...], rng: np.random.Generator, norm: RunningMeanStd | None) -> np.ndarray:
    is_bounded = _bounded(leaf)
    low = leaf.low.astype(np.float64)
    high = leaf.high.astype(np.float64)
    is_whole = leaf.dtype[0] in 'iub'
    drawn = rng.uniform(np.where(is_bounded, low, 0), np.where(is_bounded, high + is_whole, 0), shape)
    if is_whole:
        drawn = np.floor(drawn)  # all numbers are equally likely
    if not is_bounded.all():
        normal = rng.standard_normal(shape)
        if norm is not None:
            normal = normal * norm.var.sqrt().numpy().reshape(leaf.shape) + norm.mean.numpy().reshape(leaf.shape)
        drawn = np.where(is_bounded, drawn, normal)
    if is_whole:
        drawn = np.rint(drawn)
    return np.clip(drawn, low, high)


def _bounded(leaf: Box) -> np.ndarray:
    return (np.abs(leaf.low.astype(np.float64)) <= LARGE) & (np.abs(leaf.high.astype(np.float64)) <= LARGE)


def _norms(model: nn.Module) -> dict[str, RunningMeanStd]:
    """Returns the statistics of observations in a model of zoo, by the name of their leaf."""
    stage = getattr(model, 'input', None)
    stages: dict[str, Any] = {getattr(model, 'leaf', None) or '': stage}
    if isinstance(stage, DictInput):
        names = leaf_names(stage.space)
        stages = {names[path]: inner for path, inner in stage.named_stages()}
    norms = {}
    for path, norm in stages.items():
        if isinstance(norm, NormedVector):
            norm = norm.norm
        if isinstance(norm, RunningMeanStd):
            norms[path] = norm
    return norms


def _allow_one(action_space: Space, mask: np.ndarray, rng: np.random.Generator) -> None:
    """Allows one random option of each choice of the action; see `zoo.core.action_map.forbids_all`."""
    start = 0
    rows = np.arange(len(mask))
    for _, leaf in leaf_spaces(action_space):
        if isinstance(leaf, MultiBinary):
            start += int(np.prod(leaf.shape))
        for n in n_values(leaf):
            mask[rows, start + rng.integers(n, size=len(mask))] = 1
            start += n


class OutputCheck(NamedTuple):
    """The comparison of an exported file with `policy.act` for the same random observations.

    n: number of observations. error: largest difference of a number of actions or values, relative for numbers above 1;
    None: all outputs are choices or states. n_differ: observations with different choices; None: no output is a choice.
    n_tie: those of them whose choices are equally good within the rounding of float32. drawn: distribution of the observations,
    in words. in_bf16: for a policy that computes images in bfloat16 on this processor, its distance from float32, in words.
    """

    n: int
    error: float | None
    n_differ: int | None
    n_tie: int
    drawn: str
    in_bf16: str | None = None

    def text(self) -> str:
        """Returns the result as readable text that continues 'compared with policy.act on'."""
        results = []
        if self.n_differ == 0:
            results.append('no choice differs')
        elif self.n_differ is not None:
            results.append(f'{self.n_differ} of the choices differ')
            if self.n_tie:
                results.append(f'{self.n_tie} of them ties within rounding')
        if self.error is not None:
            results.append(f'largest difference {self.error:.2g}')
        text = f'{self.n:,} random observations ({self.drawn}): {", ".join(results)}'
        if self.in_bf16 is None:
            return text
        return f'{text}, in float32; in bfloat16, as policy.act computes images on this processor: {self.in_bf16}'


def compare(policy: Policy, acting: ActingModule, run: Run, seed: int = 0) -> OutputCheck:
    """Compares a file with a policy from `for_export`, in large batches and batches of 1; with a memory, over episodes.

    Raises: RunError if they differ.
    """
    rng = np.random.default_rng(seed)
    played = _Played(policy, acting, run)
    if acting.initial:
        played.play(N_CHECK // N_STEP, N_STEP, rng)
    else:
        leaves = [leaf for _, leaf in leaf_spaces(policy.obs_space)]
        size = N_CHECK
        if any(is_image(leaf) or len(leaf.shape) > 3 for leaf in leaves):
            size = N_IMAGE
        for _ in range(N_CHECK // size):
            played.play(size, 1, rng)
    check = OutputCheck(
        n=N_CHECK, error=played.error, n_differ=played.n_differ, n_tie=played.n_tie, drawn=drawn_words(policy)
    )
    if not (check.error or 0.0) <= TOLERANCE or (check.n_differ or 0) > min(check.n_tie, MAX_TIE):
        raise RunError(
            f'the exported file acts otherwise than policy.act, so it was not kept: on {check.text()} (allowed '
            f'{TOLERANCE:g}); if the network is your own, look for random numbers and branches on values in it'
        )
    return check


def effect_of_bf16(policy: Policy, twin: Policy, seed: int = 0) -> str | None:
    """Compares a policy with its copy in float32 on first steps of episodes, in words; None if it computes in float32 too."""
    if not computes_in_bf16(policy.model):
        return None
    in_bf16 = for_export(policy, is_float32=False)
    rng = np.random.default_rng(seed)
    n_differ = 0
    error = 0.0
    for _ in range(N_CHECK // N_IMAGE):
        obs = nested_leaves(policy.obs_space, draw_obs(twin, N_IMAGE, rng))
        differs = np.zeros(N_IMAGE, bool)
        for x, y in zip(_leaves(in_bf16.session().act(obs)), _leaves(twin.session().act(obs)), strict=True):
            if x.dtype.kind == 'f':
                error = max(error, float(np.abs(x - y).max()))
            else:
                differs |= (x != y).reshape(N_IMAGE, -1).any(1)
        n_differ += int(differs.sum())
    effects = []
    if n_differ or not error:
        effects.append(f'{n_differ} of {N_CHECK:,} choices differ')
    if error:
        effects.append(f'numbers by up to {error:.2g}')
    return ', '.join(effects)


class _Played:
    """Plays steps with the policy and with the file, and keeps the largest difference."""

    def __init__(self, policy: Policy, acting: ActingModule, run: Run) -> None:
        self._policy = policy
        self._acting = acting
        self._run = run
        self.error: float | None = None
        self.n_differ: int | None = None
        self.n_tie = 0

    def play(self, n_env: int, n_step: int, rng: np.random.Generator) -> None:
        """Plays random observations of all envs, and of the first env alone. Halfway, every second env begins a new episode."""
        sessions = {n: self._policy.session() for n in (n_env, 1)}
        start = [row.numpy() for row in self._acting.initial.values()]
        state = [row.repeat(n_env, 0) for row in start]
        for t in range(n_step):
            begins = np.zeros(n_env, bool)
            if t and t == n_step // 2:
                begins = np.arange(n_env) % 2 == 0
            state = [
                np.where(begins.reshape(-1, *[1] * (x.ndim - 1)), row, x) for row, x in zip(start, state, strict=True)
            ]
            obs = draw_obs(self._policy, n_env, rng)
            all_inputs = [*(obs[path] for path in self._acting.leaves), *state]
            for n, session in sessions.items():
                raw = nested_leaves(self._policy.obs_space, {path: x[:n] for path, x in obs.items()})
                inputs = [x[:n] for x in all_inputs]
                outputs = self._run(inputs)
                action = session.act(raw, begins[:n] if t else None)
                wanted = [*_leaves(action), *self._values(raw, inputs, is_start=t == 0)]
                self._compare(outputs, wanted, inputs)
                if n == n_env:
                    state = outputs[len(outputs) - len(state) :]

    def _values(self, raw: object, inputs: Arrays, is_start: bool) -> Arrays:
        """Returns the values if they are outputs: `policy.value` at the start of an episode, else those of the acting module."""
        if not self._acting.with_value:
            return []
        if is_start:
            begins = None
            if self._acting.initial:  # a model with a memory
                begins = True
            return [self._policy.value(raw, begins=begins).numpy()]
        with torch.no_grad():
            outputs = self._acting(*map(torch.from_numpy, inputs))
        return [outputs[-1 - len(self._acting.initial)].numpy()]  # before the states

    def _compare(self, outputs: Arrays, wanted: Arrays, inputs: Arrays) -> None:
        differs = np.zeros(len(inputs[0]), bool)
        for x, y in zip(outputs, wanted, strict=False):
            if x.dtype != y.dtype or x.shape != y.shape:
                raise RunError(
                    f'the exported file gives {x.dtype} {x.shape} where policy.act gives {y.dtype} {y.shape}'
                )
            if x.dtype.kind == 'f':
                self.error = max(self.error or 0.0, _difference(x, y))
            else:
                self.n_differ = self.n_differ or 0
                differs |= (x != y).reshape(len(x), -1).any(1)
        if differs.any():
            self.n_differ = (self.n_differ or 0) + int(differs.sum())
            self.n_tie += int((differs & self._ties(outputs, inputs)).sum())

    @torch.no_grad()
    def _ties(self, outputs: Arrays, inputs: Arrays) -> np.ndarray:
        """Returns where the policy would make the file's choice if its logits changed by no more than their rounding."""
        dist = getattr(self._policy, 'dist', None)
        is_tie = np.zeros(len(inputs[0]), bool)
        if dist is None:
            return is_tie
        obs, state = self._acting.read([torch.from_numpy(x) for x in inputs])
        logit = forward_for_acting(self._policy._model, obs, False, state)['logit']
        width = logit.abs().clamp(1, 1 / TOLERANCE) * TOLERANCE
        generator = torch.Generator().manual_seed(0)
        for _ in range(64):
            changed = dist.mode(logit + width * (2 * torch.rand(logit.shape, generator=generator) - 1))
            pairs = zip(self._acting.env_actions(changed), outputs, strict=False)
            is_equal = [(x.numpy() == y).reshape(len(y), -1).all(1) for x, y in pairs if y.dtype.kind != 'f']
            is_tie |= np.logical_and.reduce(is_equal)
        return is_tie


def _difference(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the largest difference of two arrays, relative for numbers above 1; infinity if one is no number."""
    difference = float((np.abs(x - y) / np.maximum(np.abs(y), 1)).max(initial=0.0))
    if math.isnan(difference):
        return math.inf
    if x.dtype == np.float16:  # rounding may give either of two neighbours
        return max(difference - float(np.finfo(x.dtype).eps), 0.0)
    return difference


def _leaves(action: object) -> Arrays:
    """Returns the arrays of an action, in the order of the leaves of its space."""
    if isinstance(action, dict):
        return [leaf for part in action.values() for leaf in _leaves(part)]
    if isinstance(action, list | tuple):
        return [leaf for part in action for leaf in _leaves(part)]
    return [np.asarray(action)]
