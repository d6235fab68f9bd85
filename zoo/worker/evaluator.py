"""Evaluates a policy: whole episodes on separate envs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from zoo.core.data import replace_rows
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.core.spaces import Space, leaf_spaces
from zoo.env import AnyVectorEnv, make_vector_env
from zoo.policy.base import EvalMode, Policy

LONG_EPISODE = 100_000  # env steps after which a warning is logged
CHECK_EVERY = 1000  # steps; an env whose state is nan may never end its episode

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Undiscounted returns of raw rewards and lengths in env steps, one per episode."""

    returns: list[float]
    lengths: list[int]

    @property
    def return_mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))


class Evaluator:
    """Runs n_episode whole episodes, a fixed share of them in each env.

    The share is fixed because taking the first n_episode that end would favour short episodes.
    """

    def __init__(self, env: AnyVectorEnv, mode: EvalMode, n_episode: int) -> None:
        self._env, self._mode = env, mode
        share, rest = divmod(n_episode, env.n_env)
        self._quota = np.array([share + (i < rest) for i in range(env.n_env)])

    def evaluate(self, seed: np.random.SeedSequence, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Runs all episodes on envs seeded by `seed`; returns None if `stop` became true before they had ended."""
        n_env = self._env.n_env
        returns: list[list[float]] = [[] for _ in range(n_env)]
        lengths: list[list[int]] = [[] for _ in range(n_env)]
        total, length, n_left = np.zeros(n_env), np.zeros(n_env, dtype=np.int64), self._quota.copy()
        obs, n_step = self._env.reset(seed), 0
        initial = None if self._mode.initial_state is None else self._mode.initial_state(n_env)
        state, to_env = initial, self._mode.env_action
        while n_left.any():
            if stop():
                return None
            n_step += 1
            if n_step % CHECK_EVERY == 0:
                self._env.check()
            if length.max() == LONG_EPISODE:
                logger.warning(
                    'an evaluation episode of %s has not ended after %d steps; set env.max_episode_steps if '
                    'it never does',
                    self._env.name,
                    LONG_EPISODE,
                )
            output = self._mode.forward(obs, state)
            action = output['action']
            timestep = self._env.step(action if to_env is None else to_env(action))
            ended = timestep.terminated | timestep.truncated
            if initial is not None:
                begins = ended if timestep.is_reset is None else timestep.is_reset
                state = replace_rows(begins, initial, output['state'])
            total += timestep.reward.cpu().numpy()
            length += 1 if timestep.is_reset is None else ~timestep.is_reset.cpu().numpy()
            for b in ended.nonzero().flatten().tolist():
                if n_left[b]:
                    returns[b].append(float(total[b]))
                    lengths[b].append(int(length[b]))
                    n_left[b] -= 1
                total[b], length[b] = 0.0, 0
            obs = timestep.obs
        self._env.check()
        return Evaluation([r for env in returns for r in env], [n for env in lengths for n in env])


def evaluate(policy: Policy, env_cfg: Any, n_episode: int = 10, seed: int = 0) -> Evaluation:
    """Greedy episodes of a policy on new envs (env_cfg: the section `env` of a config).

    Raises: UserError if their spaces are not those of the policy; bounds of a Box may differ.
    """
    env = make_vector_env(env_cfg, min(n_episode, env_cfg.evaluator_env_num), device=str(policy.device))
    try:
        wanted, got = ([_form(x.obs_space), _form(x.action_space)] for x in (policy, env))
        if wanted != got:
            raise UserError(
                f'the policy takes {wanted[0]} and gives {wanted[1]} but env {env.name!r} has {got[0]} and {got[1]}; '
                'evaluate it on the env that it was trained on'
            )
        evaluation = Evaluator(env, policy.eval_mode, n_episode).evaluate(stream(seed, 'evaluate'))
        assert evaluation is not None, 'nothing stops it'
        return evaluation
    finally:
        env.close()


def _form(space: Space) -> str:
    """A space in words, without bounds."""
    leaves = [
        f'{path} {type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}'.strip()
        for path, leaf in leaf_spaces(space)
    ]
    return ', '.join(leaves)
