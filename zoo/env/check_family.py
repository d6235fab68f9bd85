"""Checks an env family, which makes vectors only, in a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zoo.core.data import leaves, map_tensors
from zoo.core.spaces import ACTION_MASK, mask_space
from zoo.env.config import EnvConfig
from zoo.env.errors import location_of, show_value
from zoo.env.make_vector import AnyVectorEnv, make_vector_env
from zoo.env.random_actions import random_actions

N_ENV = 2
SEED = 0
MAX_REPLAY = 20
"""Steps that are taken twice; BipedalWalker keeps its Box2D world in a reset, so two of its episodes differ from step 61."""


def check_family(cfg: EnvConfig, n_step: int) -> list[str]:
    """Random steps of two envs that step together, the first of them twice; VectorEnv checks what they return.

    Returns: the warning about the first value that differs, or none. Raises: as `check_env`.
    """
    env = make_vector_env(cfg, N_ENV)
    try:
        first = map_tensors(torch.clone, env.reset(SEED))
        again = map_tensors(torch.clone, env.reset(SEED))
        once = list(_vector_rollout(env, n_step))
        if unlike := _unlike(env.name, 0, 'the observations of two resets', first, again):
            return [unlike]
        for step, (was, now) in enumerate(zip(once, _vector_rollout(env, min(n_step, MAX_REPLAY)), strict=False), 1):
            for what, value in was.items():
                if unlike := _unlike(env.name, step, f'{what} of two runs with the same actions', value, now[what]):
                    return [unlike]
        return []
    finally:
        env.close()


def _vector_rollout(env: AnyVectorEnv, n_step: int) -> Iterator[dict[str, Any]]:
    obs = env.reset(SEED)
    rng = torch.Generator().manual_seed(SEED)
    for _ in range(n_step):
        mask = obs[ACTION_MASK] if mask_space(env.obs_space) is not None else None
        step = env.step(random_actions(env.action_space, env.n_env, rng, mask))
        obs = step.obs
        yield {
            'the observations': map_tensors(torch.clone, obs),
            'the rewards': step.reward.clone(),
            'terminated': step.terminated.clone(),
            'truncated': step.truncated.clone(),
        }
    env.check()


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
