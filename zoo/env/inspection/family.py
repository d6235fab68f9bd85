"""Checks of env families, which make only vector envs; a record of steps; wrappers with statistics; random actions."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from numpy.typing import ArrayLike
from torch import Tensor

from zoo.core.data import Obs, leaves, map_tensors
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiDiscrete, Space, leaf_spaces, mask_size, mask_space
from zoo.env.config import EnvConfig
from zoo.env.errors import Place, show_value
from zoo.env.families.family import OwnVector
from zoo.env.infos import end_infos, numbers_of
from zoo.env.interface import AnyVectorEnv
from zoo.env.make import find_env
from zoo.env.obs_bounds import BoundsWatch

N_ENV = 2
SEED = 0
LONG = 1000  # steps; a check of this length or more warns if no episode ended
MAX_REPLAY = 20
"""Limit of the steps taken twice; BipedalWalker's reset keeps its Box2D world, so that its episodes differ from step 61 on."""
INNER = ('env', '_env', 'venv')
"""The attribute with the wrapped env, in wrappers of gymnasium and old gym, zoo's adapters, wrappers of SB3's vector envs."""
Stream = Literal['observation', 'reward']


class Statistics(NamedTuple):
    """A wrapper that normalises by running statistics."""

    stream: Stream  # what it normalises
    wrapper: str  # its class
    is_sure: bool  # it has such statistics; false: only its name says so
    key: str  # of zoo's config, for the same normalisation

    def sentence(self, name: str) -> str:
        """The warning about it. name: of the env."""
        return (
            f'env {name!r} has the wrapper {self.wrapper}, which normalises {self.stream}s by statistics of what this one '
            'env has seen: each training and evaluation env has others, no checkpoint has them, and no seed repeats them; '
            f'leave the wrapper out and set {self.key}=true.'
        )


class _Kind(NamedTuple):
    stream: Stream
    key: str
    attributes: tuple[str, ...]  # that hold the statistics
    switch: str  # attribute of a wrapper for both streams that is false if it does not normalise this one
    name: re.Pattern[str]


KINDS = (
    _Kind(
        'observation',
        'policy.model.obs_norm',
        ('obs_rms', 'ob_rms', 'obs_stats', 'running_obs'),
        'norm_obs',
        re.compile(r'norm\w*(obs|state)|(obs|state)\w*norm|vecnorm', re.IGNORECASE),
    ),
    _Kind(
        'reward',
        'policy.learn.reward_norm',
        ('return_rms', 'ret_rms', 'reward_rms', 'rew_rms', 'return_stats', 'reward_stats'),
        'norm_reward',
        re.compile(r'norm\w*(reward|return)|(reward|return)\w*norm|vecnorm', re.IGNORECASE),
    ),
)


def layers(env: object) -> Iterator[Any]:
    """Yields an env, then the env inside each wrapper; for a vector of envs in this process, then the first of them."""
    seen = set()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        attributes = getattr(env, '__dict__', {})
        inner = [attributes[key] for key in INNER if attributes.get(key) is not None]
        several = attributes.get('envs')
        if isinstance(several, list | tuple):
            inner += several
        env = None
        if inner:
            env = inner[0]


def running_statistics(env: object) -> list[Statistics]:
    """The wrappers with running statistics that still change: gymnasium's, old gym's, SB3's, and any like them."""
    statistics = [_statistics(layer, kind) for layer in layers(env) for kind in KINDS]
    return [wrapper for wrapper in statistics if wrapper is not None]


def _statistics(layer: object, kind: _Kind) -> Statistics | None:
    held = getattr(layer, '__dict__', {})
    is_still = held.get('_update_running_mean') is False or held.get('training') is False
    if is_still or held.get(kind.switch) is False:
        return None
    wrapper = type(layer).__name__
    is_wrapper = any(held.get(key) is not None for key in INNER)
    is_sure = is_wrapper and any(held.get(key) is not None for key in kind.attributes)
    if not is_sure and not (is_wrapper and kind.name.search(wrapper)):
        return None
    return Statistics(kind.stream, wrapper, is_sure, kind.key)


def step_limit(env: object) -> int | None:
    """The steps after which a TimeLimit (gymnasium's, or old gym's) ends an episode; None without one."""
    limits = [
        vars(layer).get('_max_episode_steps')
        for layer in layers(env)
        if any(kind.__name__ == 'TimeLimit' for kind in type(layer).__mro__)
    ]
    return min((int(limit) for limit in limits if limit is not None), default=None)


def step_limit_of(cfg: EnvConfig) -> int | None:
    """The steps after which the config, or the registered id, ends the episodes of a batched env; None without a limit."""
    source = find_env(cfg.id, cfg.game)
    of_id = None
    if isinstance(source, EnvSpec):
        of_id = source.max_episode_steps
    if cfg.max_episode_steps is None:
        return of_id
    return cfg.max_episode_steps


def random_actions(space: Space, n: int, rng: torch.Generator, mask: Tensor | None = None) -> Tensor:
    """n actions, each in the form that ActionMap takes; for a Box, numbers from -1 to 1.

    Args: mask: [n, n_mask] bool, the actions that are legal; None: all.
    """
    parts = list(_parts(space, n, rng, mask))
    if isinstance(space, Dict):
        return torch.cat([part.reshape(n, -1).float() for part in parts], 1)
    return parts[0]


def _parts(space: Space, n: int, rng: torch.Generator, mask: Tensor | None) -> Iterator[Tensor]:
    found_leaves = [leaf for _, leaf in leaf_spaces(space)]
    bits = mask
    if bits is None:
        bits = torch.ones((n, mask_size(space)), dtype=torch.bool)
    for leaf, legal in zip(found_leaves, bits.split(list(map(mask_size, found_leaves)), 1), strict=True):
        if isinstance(leaf, Box):
            yield torch.rand((n, int(np.prod(leaf.shape))), generator=rng) * 2 - 1
        elif isinstance(leaf, Discrete):
            yield _choice(legal, rng)
        elif isinstance(leaf, MultiDiscrete):
            yield torch.stack([_choice(part, rng) for part in legal.split(list(leaf.nvec), 1)], 1)
        else:
            yield torch.randint(2, legal.shape, generator=rng) * legal


def _choice(legal: Tensor, rng: torch.Generator) -> Tensor:
    """[n] int64, one of the legal entries of each row with equal chances."""
    return torch.rand(legal.shape, generator=rng).masked_fill(~legal, -1.0).argmax(1)


def seed_actions(env: gymnasium.Env, seed: int) -> None:
    """Seeds the action space of an env, which some envs draw from; some put a number in the place of the method `seed`."""
    seed_space = env.action_space.seed
    if callable(seed_space):
        seed_space(seed)


class Finding(NamedTuple):
    """A warning."""

    sentence: str
    is_chance: bool = False  # whether it says that no seed repeats the episodes
    is_of_runs: bool = False  # whether a run in such envs says the same by itself, after its first rollout


Flags = bool | np.ndarray  # of one env, or [B] of several


class Range:
    """Minimum, maximum, mean and standard deviation of numbers."""

    def __init__(self) -> None:
        self.low = np.inf
        self.high = -np.inf
        self._n = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, values: ArrayLike) -> None:
        """Takes one or more numbers into account; those that are not finite are left out."""
        array = np.asarray(values, dtype=np.float64)
        array = array[np.isfinite(array)]
        if array.size:
            self.low = min(self.low, float(array.min()))
            self.high = max(self.high, float(array.max()))
            self._n += array.size
            self._sum += float(array.sum())
            self._squares += float((array**2).sum())

    @property
    def largest(self) -> float:
        """The largest absolute value; 0 if there are no numbers."""
        if self._n:
            return max(abs(self.low), abs(self.high))
        return 0.0

    def to_json(self) -> dict[str, float | None]:
        """min, max, mean and std; all None if there are no numbers."""
        if not self._n:
            return dict.fromkeys(('min', 'max', 'mean', 'std'))
        mean = self._sum / self._n
        std = float(np.sqrt(max(self._squares / self._n - mean**2, 0.0)))
        return {'min': self.low, 'max': self.high, 'mean': mean, 'std': std}


def entry_name(what: str, path: str) -> str:
    """'<what>.<path>', or '<what>' for the path '' of a space without entries."""
    if not path:
        return what
    return f'{what}.{path}'


class Recorder:
    """Records the steps of a check, of one env or of B envs [B, ...] that step together, and summarises them.

    Args: autoreset: of the vector of envs, None for one env;   limit_s: seconds after which it has seen enough.
    """

    def __init__(self, autoreset: str | None, limit_s: float = math.inf) -> None:
        self._autoreset = autoreset
        self._deadline = time.monotonic() + limit_s
        self.n_env = 1
        self.n_step = 0
        self.n_reset = 0
        self.step_s = 0.0
        self.reset_s = 0.0
        self.reward = Range()
        self.obs: dict[str, Range] = {}
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.n_terminated = 0
        self.info_keys: dict[str, bool] = {}  # keys of the last infos of episodes; whether the value is a number
        self._return = np.zeros(1)
        self._length = np.zeros(1, dtype=int)

    def is_over(self) -> bool:
        """Whether it has seen enough."""
        return time.monotonic() > self._deadline

    def began(self, seconds: float, obs: Mapping[str, ArrayLike]) -> None:
        self.n_reset += 1
        self.reset_s += seconds
        self._add_obs(obs)

    def stepped(
        self,
        seconds: float,
        obs: Mapping[str, ArrayLike],
        reward: ArrayLike,
        terminated: Flags,
        truncated: Flags,
        info: object,
        is_reset: ArrayLike | None = None,
    ) -> None:
        """Records a step. seconds: of the call; obs: the leaves by their paths; info: as the env or the vector env gave it;
        is_reset: [B] bool, rows that are no step of an episode."""
        self.n_step += 1
        self.step_s += seconds
        self._add_obs(obs)
        earned = np.atleast_1d(np.asarray(reward))
        if earned.dtype.kind not in 'biuf':
            earned = np.zeros(1)
        earned = np.nan_to_num(earned.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        fails = np.atleast_1d(terminated)
        ends = fails | np.atleast_1d(truncated)
        self.n_env = len(ends)
        is_step = np.ones_like(ends)
        if is_reset is None:
            self.reward.add(earned)
        else:
            is_step = ~np.asarray(is_reset)
            self.reward.add(earned[is_step])
        self._return = self._return + earned
        self._length = self._length + is_step
        index = np.flatnonzero(ends)
        if len(index):
            self.returns += self._return[index].tolist()
            self.lengths += self._length[index].tolist()
            self.n_terminated += int(fails.sum())
            self._return = np.where(ends, 0.0, self._return)
            self._length = np.where(ends, 0, self._length)
            self._add_info(info, index)

    def facts(self) -> dict[str, Any]:
        """The summary of the steps, in numbers, lists and text."""
        n = len(self.lengths)
        lengths = self.lengths
        returns = self.returns
        calls_s = self.step_s
        if self._autoreset is None:
            calls_s += self.reset_s
        steps_per_s = None
        if calls_s:
            steps_per_s = self.n_step * self.n_env / calls_s
        episodes: dict[str, float] = {'count': n, 'terminated': self.n_terminated, 'truncated': n - self.n_terminated}
        if n:
            episodes |= {'length_mean': float(np.mean(lengths)), 'length_max': max(lengths)}
            episodes |= {'return_mean': float(np.mean(returns)), 'return_min': min(returns), 'return_max': max(returns)}
        return {
            'steps': self.n_step,
            'envs': self.n_env,
            'step_ms': 1e3 * (self.step_s / max(self.n_step, 1)) / self.n_env,
            'reset_ms': 1e3 * (self.reset_s / max(self.n_reset, 1)),
            'steps_per_s': steps_per_s,
            'episodes': episodes,
            'reward': self.reward.to_json(),
            'obs': {entry_name('obs', path): seen.to_json() for path, seen in self.obs.items()},
            'info_keys': sorted(self.info_keys),
            'info_numbers': sorted(key for key, is_number in self.info_keys.items() if is_number),
        }

    def _add_obs(self, obs: Mapping[str, Any]) -> None:
        for path, values in obs.items():
            if path != ACTION_MASK:
                self.obs.setdefault(path, Range()).add(values)

    def _add_info(self, info: object, index: np.ndarray) -> None:
        if not isinstance(info, Mapping):
            return
        if self._autoreset is not None:
            for numbers_of_env in end_infos(info, index, self._autoreset):
                self.info_keys |= dict.fromkeys(numbers_of_env, True)
        else:
            numbers = numbers_of(info)
            self.info_keys |= {str(key): str(key) in numbers for key in info}


def check_vector(env: AnyVectorEnv, cfg: EnvConfig, n_step: int, recorder: Recorder | None = None) -> list[Finding]:
    """Takes random steps with envs that step together, the first steps twice; VectorEnv checks the results.

    Raises: as `check_env`.
    """
    seen = recorder or Recorder(env.autoreset)
    known = running_statistics(env)
    outside: list[str] = []
    watch = BoundsWatch(env.obs_space, env.name, say=outside.append, n_first=math.inf)  # each step

    def rollout(n: int, again: bool) -> Iterator[Leaves]:
        recorder_of_rollout = seen
        if again:
            recorder_of_rollout = Recorder(env.autoreset)
        return _vector_rollout(env, n, recorder_of_rollout, watch)

    difference = first_difference(lambda: {'the observations': _arrays(env.reset(SEED))}, rollout, n_step, known)
    unlike = None
    if difference is not None:
        unlike = _unlike(env.name, difference)
    return [
        *findings(env.name, known, unlike, n_step, seen, _has_limit(cfg, env)),
        *(Finding(sentence, is_of_runs=not env.is_tensor_program) for sentence in outside),
    ]


Leaves = Mapping[str, Mapping[str, Any]]
"""The values that a step or reset returned, by name, such as 'reward', and by the path of each leaf."""


class Difference(NamedTuple):
    """The first value that differed when the same steps were taken again."""

    step: int  # 0 for a reset
    values: str  # the name of the values, such as 'reward'
    path: str  # of the leaf
    was: Any
    now: Any


def first_difference(
    reset: Callable[[], Leaves],
    rollout: Callable[[int, bool], Iterator[Leaves]],
    n_step: int,
    statistics: Sequence[Statistics],
) -> Difference | None:
    """Resets twice, takes `n_step` steps, and the first of them again; returns the first difference.

    Args: rollout: yields steps after a reset. Its arguments: the number of steps; whether to repeat the first rollout.
      statistics: wrappers that may make values differ; values for which this is sure are left out.
    """
    explained = [wrapper.stream for wrapper in statistics if wrapper.is_sure]
    first = reset()
    again = reset()
    once = [seen for step, seen in enumerate(rollout(n_step, False)) if step < MAX_REPLAY]
    for step, (was, now) in enumerate(chain([(first, again)], zip(once, rollout(len(once), True), strict=False))):
        for what, values in was.items():
            if any(stream in what for stream in explained):
                continue
            other = now.get(what, {})
            path = different_path(values, other)
            if path is not None:
                return Difference(step, what, path, values[path], other.get(path))
    return None


def different_path(was: Mapping[str, ArrayLike], now: Mapping[str, ArrayLike]) -> str | None:
    """The path of the first leaf that differs, or is missing."""
    return next((path for path in was if path not in now or not _equal(was[path], now[path])), None)


def _equal(a: ArrayLike, b: ArrayLike) -> bool:
    return bool(np.array_equal(a, b, equal_nan=all(np.asarray(x).dtype.kind == 'f' for x in (a, b))))


def findings(
    name: str, statistics: Sequence[Statistics], unlike: str | None, n_step: int, recorder: Recorder, has_limit: bool
) -> list[Finding]:
    """The warnings about running statistics, about the first value that differs, and about episodes without an end."""
    sentences = [wrapper.sentence(name) for wrapper in statistics if wrapper.is_sure]
    if unlike:
        sentences.append(unlike)
    of_steps = [Finding(sentence, is_chance=True) for sentence in sentences]
    if n_step >= LONG and not recorder.lengths and not has_limit:
        of_steps.append(
            Finding(
                f'env {name!r}: no episode ended in {n_step} random steps and it has no time limit, so an evaluation may '
                'never end; set env.max_episode_steps, or end the episodes in step.'
            )
        )
    return of_steps


def _vector_rollout(env: AnyVectorEnv, n_step: int, recorder: Recorder, watch: BoundsWatch) -> Iterator[Leaves]:
    start = time.perf_counter()
    obs = env.reset(SEED)
    recorder.began(time.perf_counter() - start, _arrays(obs))
    rng = torch.Generator().manual_seed(SEED)
    for _ in range(n_step):
        mask = None
        if mask_space(env.obs_space) is not None:
            mask = obs[ACTION_MASK]
        action = random_actions(env.action_space, env.n_env, rng, mask)
        start = time.perf_counter()
        step = env.step(action)
        seconds = time.perf_counter() - start
        obs = step.obs
        seen = _arrays(obs)
        watch.see(map_tensors(lambda x: x[None], obs))
        reward = step.reward.numpy().copy()
        terminated = step.terminated.numpy().copy()
        truncated = step.truncated.numpy().copy()
        recorder.stepped(seconds, seen, reward, terminated, truncated, step.info, step.is_reset)
        values = {'the rewards': reward, 'terminated': terminated, 'truncated': truncated}
        yield {'the observations': seen, **{key: {'': x} for key, x in values.items()}}
        if recorder.is_over():
            break
    env.check()


def _arrays(obs: Obs) -> dict[str, np.ndarray]:
    """Copies of the leaves by their paths."""
    return {path: leaf.numpy().copy() for path, leaf in leaves(obs)}


def _has_limit(cfg: EnvConfig, env: AnyVectorEnv) -> bool:
    """Whether something limits the episodes; in env families the game itself does."""
    source = find_env(cfg.id, cfg.game)
    if isinstance(source, EnvSpec):  # its batched version
        return step_limit_of(cfg) is not None
    if cfg.max_episode_steps is not None or not isinstance(source, OwnVector):
        return True
    specs = [getattr(layer, 'spec', None) for layer in layers(env)]
    return any(getattr(spec, 'max_episode_steps', None) is not None for spec in specs)


def _unlike(name: str, difference: Difference) -> str:
    """The warning about the first value that differs between two runs of a vector env."""
    step, what, path, was, now = difference
    index = int((was != now).reshape(len(was), -1).any(1).argmax())
    rollouts = 'two resets'
    if step:
        rollouts = 'two runs with the same actions'
    entry = ''
    if path:
        entry = f', {path!r},'
    pair = f'{show_value(was[index, ...])} and {show_value(now[index, ...])}'
    got = f'{what} of {rollouts}{entry} with seed={SEED} differ: {pair}'
    return not_repeated(Place(name, step).of(index), got, 'seed all random numbers in reset')


def not_repeated(where: str, got: str, do: str) -> str:
    """The warning about an env whose episodes no seed repeats."""
    return f'{where}: {got}, so no run with this env can be repeated; {do}, or set env.check=false.'
