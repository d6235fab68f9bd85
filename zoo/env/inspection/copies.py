"""Comparison of several copies of an env whose constructor takes a seed: do they repeat each other, or differ?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from zoo.config.section import own_copy
from zoo.env.calls import env_call
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig
from zoo.env.inspection.family import Finding, seed_actions
from zoo.env.make import EnvMaker, env_name, reset_kwargs, seeds_constructor

N_COMPARED = 20  # steps
A_SEED = 1
OTHER_SEED = 2


def repeats_if_made_again(cfg: EnvConfig) -> bool:
    """Whether a copy that is made with the same seed repeats the episodes of another one.

    It is the case for an env that draws all random numbers from the seed of its constructor, which a run gives it. No
    reset then repeats an episode, but a second run does.
    """
    return seeds_constructor(cfg) and _are_equal(cfg, (A_SEED, A_SEED), (A_SEED, A_SEED)) is True


def equal_copies(cfg: EnvConfig) -> list[Finding]:
    """The warning about env.kwargs.seed that makes all copies play the same episodes; [] where they differ.

    Two copies whose resets get different seeds are equal then, and a copy with another env.kwargs.seed is not.
    """
    seed = cfg.kwargs.get('seed')
    if not isinstance(seed, int):
        return []
    other = cfg.model_copy(update={'kwargs': {**cfg.kwargs, 'seed': seed + 1}})
    if not _are_equal(cfg, (None, A_SEED), (None, OTHER_SEED)) or _are_equal(
        cfg, (None, A_SEED), (None, A_SEED), other
    ):
        return []
    if _takes_none(cfg):
        do = 'leave it out, and each copy gets a seed of its own'
    else:
        do = 'seed the env in its reset'
    sentence = (
        f'env {env_name(cfg)!r}: env.kwargs.seed is {seed}, and all copies of the env play the same episodes with it, those of '
        f'the evaluation too; {do}.'
    )
    return [Finding(sentence)]


def _takes_none(cfg: EnvConfig) -> bool:
    return seeds_constructor(cfg.model_copy(update={'kwargs': {k: x for k, x in cfg.kwargs.items() if k != 'seed'}}))


Seeds = tuple[int | None, int]
"""The seeds of a copy: that of its constructor (None: it gets none but env.kwargs.seed), and that of its reset."""


def _are_equal(cfg: EnvConfig, first: Seeds, second: Seeds, second_cfg: EnvConfig | None = None) -> bool | None:
    """Whether two copies return equal values for the same actions; None if one of them raises."""
    try:
        with env_call(f'env {env_name(cfg)!r}, in a comparison of its copies'):
            pairs = zip(_played(cfg, *first), _played(second_cfg or cfg, *second), strict=True)
            return all(_is_same(one, other) for one, other in pairs)
    except Exception:  # of the env's code: its check reports it
        return None


def _played(cfg: EnvConfig, made_with: int | None, reset_with: int) -> Iterator[tuple[Any, ...]]:
    """Yields what a new copy returns: its first observation, then that, the reward and the flags of each step."""
    env = EnvMaker(cfg)(made_with)
    try:
        yield from _steps(env, cfg, reset_with)
    finally:
        close_in_time({f'env {env_name(cfg)!r}': env.close}, cfg.step_timeout)


def _steps(env: gymnasium.Env, cfg: EnvConfig, reset_with: int) -> Iterator[tuple[Any, ...]]:
    seed_actions(env, A_SEED)
    obs, _ = env.reset(seed=reset_with, **own_copy(reset_kwargs(cfg, env)))
    yield (deepcopy(obs),)
    for _ in range(N_COMPARED):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        yield deepcopy(obs), reward, terminated, truncated
        if terminated or truncated:
            obs, _ = env.reset(**own_copy(reset_kwargs(cfg, env)))
            yield (deepcopy(obs),)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(np.array_equal(one, other))
