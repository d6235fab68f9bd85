"""Comparison of an env with the batched version that its id registers, which may be another task."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from zoo.core.action_map import ActionMap
from zoo.core.data import Obs
from zoo.core.seeding import child_seeds
from zoo.core.spaces import Box, Discrete, Leaf, MultiBinary, Space, leaf_spaces, mask_space, obs_to_tensor
from zoo.env.adapter import creator_of, env_spaces
from zoo.env.calls import env_call
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig
from zoo.env.errors import STOPS, EnvContractError
from zoo.env.inspection.family import SEED, Finding, Range, random_actions
from zoo.env.interface import AnyVectorEnv
from zoo.env.make import env_name, find_env, make_env
from zoo.env.make_vector import make_vector_env
from zoo.env.validation import action_of

N_STEP = 50
CLOSE = 1e-3  # relative difference of numbers that are the same up to float32 and the order of sums
CLIP_OPTIONS = ('reward_clipping', 'clip_rewards', 'reward_clip')


def batched_findings(cfg: EnvConfig) -> list[Finding]:
    """Warnings about a batched version that is another task than the single env of its id; gymnasium's own are not tried.

    Raises: EnvContractError in place of a warning where env.vectorization=auto chose that version.
    """
    spec = find_env(cfg.id, cfg.game)
    if not isinstance(spec, EnvSpec) or str(spec.vector_entry_point).startswith('gymnasium.'):
        return []
    name = env_name(cfg)
    findings: list[Finding] = []
    differences = '; '.join(_differences(cfg))
    if differences:
        sentence = (
            f'env {name!r}: its batched version, which env.vectorization={cfg.vectorization} uses, is another task than the '
            f'single env: {differences}'
        )
        if cfg.vectorization == 'auto':
            raise EnvContractError(
                f'{sentence}; set env.vectorization=sync to train in the env of this id, or env.vectorization=batched for '
                'the other.'
            )
        findings.append(Finding(f'{sentence}; compare its returns only with those of the same version.'))
    option = _clipping(cfg, spec)
    if option is not None:
        findings.append(
            Finding(
                f'env {name!r}: its batched version clips rewards (env.kwargs.{option} is true), so that returns are not the '
                f"game's score; policy.eval.env.kwargs.{option}=false evaluates with the game's own rewards."
            )
        )
    return findings


def _clipping(cfg: EnvConfig, spec: EnvSpec) -> str | None:
    """The option by which a batched version clips rewards, if it is on."""
    with suppress(ImportError, AttributeError, ValueError):
        parameters = inspect.signature(creator_of(spec.vector_entry_point)).parameters
        for option in CLIP_OPTIONS:
            if option in parameters and {**spec.kwargs, **cfg.kwargs}.get(option, parameters[option].default) is True:
                return option
    return None


def _differences(cfg: EnvConfig) -> Iterator[str]:
    """Yields the differences of one env of the batched version from the single env, in words.

    Yields nothing if the single env cannot be made with the same arguments, or fails: a run does not use it.
    """
    name = env_name(cfg)
    with closing(make_vector_env(cfg, 1)) as vector:
        try:
            single = make_env(cfg)
        except STOPS:
            raise
        except BaseException:
            return
        try:
            yield from _of_two(single, vector, name)
        finally:
            close_in_time({f'env {name!r}': single.close}, cfg.step_timeout)


def _of_two(single: gymnasium.Env, vector: AnyVectorEnv, name: str) -> Iterator[str]:
    obs_space, action_space = env_spaces(single, name)
    pairs = {'observations': (vector.obs_space, obs_space), 'actions': (vector.action_space, action_space)}
    for what, (ours, theirs) in pairs.items():
        if _words(ours) != _words(theirs):
            yield f'its {what} are {_words(ours)}, not {_words(theirs)}'
    if _words(vector.action_space) != _words(action_space) or mask_space(vector.obs_space) is not None:
        return  # the same actions cannot be taken in both
    try:
        with env_call(f'env {name!r}, in its comparison with the batched version'):
            yield from _reward_difference(single, vector, obs_space)
    except STOPS:
        raise
    except BaseException:  # of the single env, which a run does not use
        return


def _reward_difference(single: gymnasium.Env, vector: AnyVectorEnv, obs_space: Space) -> Iterator[str]:
    """Yields the difference of their rewards: of one step from equal states, or of all that either env gave."""
    is_same_obs = _words(vector.obs_space) == _words(obs_space)
    to_env = ActionMap(vector.action_space)
    rng = torch.Generator().manual_seed(SEED)
    batched_obs = vector.reset(SEED)
    obs, _ = single.reset(seed=child_seeds(SEED, 0, 1)[0])
    is_equal = is_same_obs and _equal(batched_obs, obs_to_tensor(obs_space, obs))
    ours = Range()
    theirs = Range()
    for _ in range(N_STEP):
        action = random_actions(vector.action_space, 1, rng)
        step = vector.step(action)
        obs, reward, terminated, truncated, _ = single.step(action_of(to_env(action), 0))
        if step.is_reset is None or not bool(step.is_reset[0]):
            ours.add(step.reward.numpy())
        theirs.add(np.asarray(reward))
        if is_equal and not np.isclose(float(step.reward[0]), float(reward), CLOSE, CLOSE):
            yield f'a step from the same state with the same action gives the reward {float(step.reward[0]):.4g}, not {reward:.4g}'
            return
        is_over = terminated or truncated or bool(step.terminated[0]) or bool(step.truncated[0])
        is_equal = is_equal and not is_over and _equal(step.obs, obs_to_tensor(obs_space, obs))
        if terminated or truncated:
            obs, _ = single.reset()
    if ours.high < theirs.low or theirs.high < ours.low:
        yield f'its rewards are {_range(ours)}, not {_range(theirs)}'


def _range(seen: Range) -> str:
    if seen.low == seen.high:
        return f'{seen.low:.4g}'
    return f'{seen.low:.4g} to {seen.high:.4g}'


def _equal(batched: Obs, single: Any) -> bool:
    """Whether the observation of the one batched env is that of the single env."""
    if isinstance(batched, dict):
        return all(_equal(batched[key], single[key]) for key in batched)
    assert isinstance(batched, Tensor)
    return bool(torch.allclose(batched[0].double(), single.double(), CLOSE, CLOSE))


def _words(space: Space) -> str:
    """A space in words, without the bounds of Boxes and number types of choices."""
    return ', '.join(f'{path} {_leaf_words(leaf)}'.strip() for path, leaf in leaf_spaces(space))


def _leaf_words(leaf: Leaf) -> str:
    if isinstance(leaf, Box):
        return f'Box {leaf.shape} {leaf.dtype}'
    if isinstance(leaf, MultiBinary):
        return f'MultiBinary {leaf.shape}'
    if np.any(leaf.start):
        start = f' from {leaf.start}'
    else:
        start = ''
    if isinstance(leaf, Discrete):
        return f'Discrete({leaf.n}){start}'
    return f'MultiDiscrete {list(leaf.nvec)}{start}'
