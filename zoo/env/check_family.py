"""Checks an env family, which makes vectors only, in a few steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from zoo.core.data import leaves, map_tensors
from zoo.core.spaces import ACTION_MASK, mask_space
from zoo.env.check_wrappers import Statistics, layers, running_statistics
from zoo.env.config import EnvConfig
from zoo.env.errors import location_of, show_value
from zoo.env.make import find_env
from zoo.env.make_vector import AnyVectorEnv, make_vector_env
from zoo.env.own_vector import OwnVector
from zoo.env.random_actions import random_actions

N_ENV = 2
SEED = 0
LONG = 1000  # steps from which on a check in which no episode ended says so
MAX_REPLAY = 20
"""Steps that are taken twice; BipedalWalker keeps its Box2D world in a reset, so two of its episodes differ from step 61."""


class Finding(NamedTuple):
    """A warning."""

    sentence: str
    is_chance: bool = False  # it says that no seed repeats the episodes


class StepWatch(Protocol):
    """Is shown the first episodes of a check, of one env or of B envs [B, ...].

    Args: seconds: of the call; obs: the leaves by their paths; info: as the env, or the vector of envs, returned it.
    """

    def began(self, seconds: float, obs: Mapping[str, Any]) -> None: ...

    def stepped(
        self, seconds: float, obs: Mapping[str, Any], reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> None: ...

    def is_over(self) -> bool:
        """Whether it has seen enough."""


def check_family(cfg: EnvConfig, n_step: int) -> list[Finding]:
    """`check_vector` of two envs that are made for it. Raises: as `check_env`."""
    env = make_vector_env(cfg, N_ENV)
    try:
        return check_vector(env, cfg, n_step)
    finally:
        env.close()


def check_vector(env: AnyVectorEnv, cfg: EnvConfig, n_step: int, watch: StepWatch | None = None) -> list[Finding]:
    """Random steps of envs that step together, the first of them twice; VectorEnv checks what they return.

    Returns: warnings about running statistics, the first value that differs, and episodes without an end.
    Raises: as `check_env`.
    """
    sure = [each for each in running_statistics(env) if each.is_sure]
    found = [Finding(each.sentence(env.name), is_chance=True) for each in sure]
    first = map_tensors(torch.clone, env.reset(SEED))
    again = map_tensors(torch.clone, env.reset(SEED))
    once: list[dict[str, Any]] = []
    n_end = 0
    for seen in _vector_rollout(env, n_step, watch):
        n_end += int((seen['terminated'] | seen['truncated']).any())
        if len(once) < MAX_REPLAY:
            once.append(seen)
    if n_step >= LONG and not n_end and not _has_limit(cfg, env):
        found.append(Finding(endless(env.name, n_step)))
    if unlike := _first_unlike(env, first, again, once, sure):
        found.append(Finding(unlike, is_chance=True))
    return found


def _first_unlike(
    env: AnyVectorEnv, first: Any, again: Any, once: list[dict[str, Any]], sure: list[Statistics]
) -> str | None:
    """The warning about the first value that differs, and that no running statistics explain."""
    explained = {f'the {each.stream}s' for each in sure}
    if 'the observations' not in explained:
        if unlike := _unlike(env.name, 0, 'the observations of two resets', first, again):
            return unlike
    for step, (was, now) in enumerate(zip(once, _vector_rollout(env, len(once)), strict=False), 1):
        for what, value in was.items():
            if what not in explained:
                if unlike := _unlike(env.name, step, f'{what} of two runs with the same actions', value, now[what]):
                    return unlike
    return None


def _vector_rollout(env: AnyVectorEnv, n_step: int, watch: StepWatch | None = None) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    obs = env.reset(SEED)
    if watch is not None:
        watch.began(time.perf_counter() - start, _arrays(obs))
    rng = torch.Generator().manual_seed(SEED)
    for _ in range(n_step):
        mask = obs[ACTION_MASK] if mask_space(env.obs_space) is not None else None
        action = random_actions(env.action_space, env.n_env, rng, mask)
        start = time.perf_counter()
        step = env.step(action)
        obs = step.obs
        if watch is not None:
            seconds, flags = time.perf_counter() - start, (step.terminated.numpy(), step.truncated.numpy())
            watch.stepped(seconds, _arrays(obs), step.reward.numpy(), *flags, step.info)
        yield {
            'the observations': map_tensors(torch.clone, obs),
            'the rewards': step.reward.clone(),
            'terminated': step.terminated.clone(),
            'truncated': step.truncated.clone(),
        }
        if watch is not None and watch.is_over():
            break
    env.check()


def _arrays(obs: Any) -> dict[str, np.ndarray]:
    return {path: leaf.numpy() for path, leaf in leaves(obs)}


def _has_limit(cfg: EnvConfig, env: AnyVectorEnv) -> bool:
    """Whether something limits the episodes: of families with games, the game does."""
    if cfg.max_episode_steps is not None or not isinstance(find_env(cfg.id, cfg.game), OwnVector):
        return True
    specs = [getattr(layer, 'spec', None) for layer in layers(env)]
    return any(getattr(spec, 'max_episode_steps', None) is not None for spec in specs)


def endless(name: str, n_step: int) -> str:
    """The warning about an env that may never end."""
    return (
        f'env {name!r}: no episode ended in {n_step} random steps and it has no time limit, so an evaluation may never '
        'end; set env.max_episode_steps, or end the episodes in step.'
    )


def _unlike(name: str, step: int, what: str, was: Any, now: Any) -> str | None:
    """The warning about the first value that two runs of a vector do not share."""
    for (path, a), (_, b) in zip(leaves(was), leaves(now), strict=True):
        differ = (a != b).reshape(len(a), -1).any(1)
        if differ.any():
            index = int(differ.nonzero()[0])
            pair = f'{show_value(a[index].numpy())} and {show_value(b[index].numpy())}'
            got = f'{what}{f", {path!r}," if path else ""} with seed={SEED} differ: {pair}'
            return not_repeated(location_of(name, index, step), got, 'seed all random numbers in reset')
    return None


def not_repeated(where: str, got: str, do: str) -> str:
    """The warning about an env whose episodes no seed repeats."""
    return f'{where}: {got}, so no run with this env can be repeated; {do}, or set env.check=false.'
