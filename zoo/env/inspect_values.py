"""What an env shows in its first episodes: ranges of observations and rewards, ends, infos, and the time it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, Space, leaf_spaces
from zoo.env.config import EnvConfig
from zoo.env.infos import end_infos, numbers_of

LARGE_OBS, LARGE_REWARD, LARGE_RETURN = 100.0, 100.0, 1000.0
"""Sizes from which on networks, whose inputs and outputs are best near 1, learn visibly slower."""
WIDE, NARROW = 10.0, 0.1
"""Half the distance of an action's bounds, beyond which a Gaussian of deviation 1 misses most of what is between them."""


class Range:
    """Minimum, maximum, mean and standard deviation of numbers."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self._n, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, values: Any) -> None:
        """Takes one or more numbers into account; those that are not finite are left out."""
        array = np.asarray(values, dtype=np.float64)
        array = array[np.isfinite(array)]
        if array.size:
            self.low, self.high = min(self.low, float(array.min())), max(self.high, float(array.max()))
            self._n += array.size
            self._sum += float(array.sum())
            self._squares += float((array**2).sum())

    @property
    def largest(self) -> float:
        """The largest absolute value, 0 of none."""
        return max(abs(self.low), abs(self.high)) if self._n else 0.0

    def to_json(self) -> dict[str, float | None]:
        """min, max, mean and std; all None of no numbers."""
        if not self._n:
            return dict.fromkeys(('min', 'max', 'mean', 'std'))
        mean = self._sum / self._n
        std = float(np.sqrt(max(self._squares / self._n - mean**2, 0.0)))
        return {'min': self.low, 'max': self.high, 'mean': mean, 'std': std}


class Recorder:
    """Watches the steps of a check, of one env or of several that step together.

    Args: autoreset: of the vector of envs, None of one env;   limit_s: seconds after which it has seen enough.
    """

    def __init__(self, autoreset: str | None, limit_s: float) -> None:
        self._autoreset = autoreset
        self._deadline = time.monotonic() + limit_s
        self.n_env, self.n_step, self.n_reset, self.step_s, self.reset_s = 1, 0, 0, 0.0, 0.0
        self.reward = Range()
        self.obs: dict[str, Range] = {}
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.n_terminated = 0
        self.info_keys: dict[str, bool] = {}  # of the last steps of episodes; whether it is a number
        self._return: Any = 0.0
        self._length: Any = 0

    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def began(self, seconds: float, obs: Mapping[str, Any]) -> None:
        self.n_reset += 1
        self.reset_s += seconds
        self._add_obs(obs)

    def stepped(
        self, seconds: float, obs: Mapping[str, Any], reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> None:
        self.n_step += 1
        self.step_s += seconds
        self._add_obs(obs)
        earned = np.atleast_1d(np.asarray(reward)) if np.asarray(reward).dtype.kind in 'biuf' else np.zeros(1)
        earned = np.nan_to_num(earned.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        self.reward.add(earned)
        fails = np.atleast_1d(terminated)
        ends = fails | np.atleast_1d(truncated)
        self.n_env = len(ends)
        self._return, self._length = self._return + earned, self._length + np.ones(self.n_env, dtype=int)
        index = np.flatnonzero(ends)
        if len(index):
            self.returns += self._return[index].tolist()
            self.lengths += self._length[index].tolist()
            self.n_terminated += int(fails.sum())
            self._return, self._length = np.where(ends, 0.0, self._return), np.where(ends, 0, self._length)
            self._add_info(info, index)

    def facts(self) -> dict[str, Any]:
        """What was seen, in numbers, lists and text."""
        n, lengths, returns = len(self.lengths), self.lengths, self.returns
        each = self.step_s / max(self.n_step, 1)
        first = self.reset_s / max(self.n_reset, 1)
        calls = self.step_s + (self.reset_s if self._autoreset is None else 0.0)
        episodes: dict[str, float] = {'count': n, 'terminated': self.n_terminated, 'truncated': n - self.n_terminated}
        if n:
            episodes |= {'length_mean': float(np.mean(lengths)), 'length_max': max(lengths)}
            episodes |= {'return_mean': float(np.mean(returns)), 'return_min': min(returns), 'return_max': max(returns)}
        return {
            'steps': self.n_step,
            'envs': self.n_env,
            'step_ms': 1e3 * each / self.n_env,
            'reset_ms': 1e3 * first,
            'steps_per_s': self.n_step * self.n_env / calls if calls else None,
            'episodes': episodes,
            'reward': self.reward.to_json(),
            'obs': {f'obs.{path}' if path else 'obs': seen.to_json() for path, seen in self.obs.items()},
            'info_keys': sorted(self.info_keys),
            'info_numbers': sorted(key for key, is_number in self.info_keys.items() if is_number),
        }

    def _add_obs(self, obs: Mapping[str, Any]) -> None:
        for path, values in obs.items():
            if path == ACTION_MASK:
                continue
            self.obs.setdefault(path, Range()).add(values)

    def _add_info(self, info: Any, index: np.ndarray) -> None:
        if self._autoreset is not None:
            for each in end_infos(info, index, self._autoreset):
                self.info_keys |= dict.fromkeys(each, True)
        elif isinstance(info, Mapping):
            numbers = numbers_of(info)
            self.info_keys |= {str(key): str(key) in numbers for key in info}


def scale_warnings(cfg: EnvConfig, name: str, seen: Recorder, obs_space: Space, action_space: Space) -> list[str]:
    """Sentences about observations, rewards and action bounds that are far from 1."""
    found = [_obs_warning(path, leaf, seen) for path, leaf in leaf_spaces(obs_space)]
    found += [_reward_warning(seen)]
    found += [_action_warning(cfg, path, leaf) for path, leaf in leaf_spaces(action_space)]
    return [f'env {name!r}: {sentence}.' for sentence in found if sentence is not None]


def _obs_warning(path: str, leaf: Any, seen: Recorder) -> str | None:
    largest = seen.obs[path].largest if path in seen.obs else 0.0
    if not isinstance(leaf, Box) or len(leaf.shape) > 2 or largest <= LARGE_OBS:  # images are scaled by the model
        return None
    of = f' {path!r}' if path else ''
    return (
        f'the observations{of} reach {largest:.4g}, and networks learn slowly from numbers far beyond 1; set '
        'policy.model.obs_norm=true, or scale them in the env'
    )


def _reward_warning(seen: Recorder) -> str | None:
    largest = max(map(abs, seen.returns), default=0.0)
    if seen.reward.largest > LARGE_REWARD or largest > LARGE_RETURN:
        which = f'rewards reach {seen.reward.largest:.4g}'
        which = f'returns reach {largest:.4g}' if largest > LARGE_RETURN else which
        return (
            f'the {which}, and a critic learns numbers of that size slowly; set policy.learn.reward_norm=true, or scale '
            'them in the env'
        )
    if seen.n_step and seen.reward.largest == 0:
        return (
            f'all rewards of {seen.n_step} random steps are 0, so a policy has nothing to begin with; reward steps on '
            'the way, or begin some episodes near the goal'
        )
    return None


def _action_warning(cfg: EnvConfig, path: str, leaf: Any) -> str | None:
    if not isinstance(leaf, Box) or cfg.action_bins is not None:
        return None
    of = f' {path!r}' if path else ''
    if not np.isfinite([leaf.low, leaf.high]).all():
        return (
            f'the actions{of} have no bounds on a side, so that a policy may send numbers of any size; give action_space '
            'finite bounds'
        )
    if cfg.action_mode == 'rescale':
        return None
    half = (leaf.high - leaf.low) / 2
    fits = (half < WIDE) & (half > NARROW) & (np.abs(leaf.low + leaf.high) / 2 <= half)
    if fits.all():
        return None
    at = np.argwhere(~fits)[0]
    bounds = f'{leaf.low[tuple(at)]:g} to {leaf.high[tuple(at)]:g}'
    return (
        f'the actions{of} are from {bounds}, and a policy begins with numbers near -1 to 1; set env.action_mode=rescale, '
        'or scale them in the env'
    )


def space_words(space: Space) -> str:
    """A space in a few words, e.g. 'Box (4,) float32 in -1 .. 1'."""
    if isinstance(space, Dict):
        parts = [f'{name}: {space_words(part)}' for name, part in space.spaces.items()]
        return f'({", ".join(parts)})' if space.is_tuple else f'{{{", ".join(parts)}}}'
    if isinstance(space, Discrete):
        return f'Discrete({space.n})' if space.start == 0 else f'Discrete({space.n}, start={space.start})'
    if isinstance(space, MultiBinary):
        return f'MultiBinary {space.shape}'
    if isinstance(space, Box):
        return f'Box {space.shape} {space.dtype} in {space.low.min():.4g} .. {space.high.max():.4g}'
    return f'MultiDiscrete {list(space.nvec)}'


def unbounded(space: Space, what: str) -> list[str]:
    """The paths of the Box leaves that lack a bound, '<what>' or '<what>.<entry>'."""
    leaves = [(path, leaf) for path, leaf in leaf_spaces(space) if isinstance(leaf, Box) and path != ACTION_MASK]
    return [f'{what}.{path}' if path else what for path, leaf in leaves if not np.isfinite([leaf.low, leaf.high]).all()]
