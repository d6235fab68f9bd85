"""Evaluates a policy: whole episodes on separate envs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from zoo.config.messages import shown
from zoo.core.data import Timestep, begins_of, replace_rows
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.core.spaces import Space, leaf_spaces
from zoo.env import AnyVectorEnv, make_vector_env
from zoo.env.config import env_config
from zoo.policy.base import MAX_EPISODE_STEPS, EvalMode, Policy

CHECK_EVERY = 1000  # steps; an env whose state is nan may never end its episode

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Undiscounted returns of raw rewards and lengths in env steps, one per episode."""

    returns: list[float]
    lengths: list[int]
    n_cut: int = 0  # episodes that were cut off, see `Evaluator`

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

    Args: max_episode_steps: env steps after which an episode is cut off: it counts, with what it has earned so far.
      None: never, and an episode may last for ever.
    """

    def __init__(
        self, env: AnyVectorEnv, mode: EvalMode, n_episode: int, max_episode_steps: int | None = MAX_EPISODE_STEPS
    ) -> None:
        self._env, self._mode, self._limit = env, mode, max_episode_steps
        share, rest = divmod(n_episode, env.n_env)
        self._quota = np.array([share + (i < rest) for i in range(env.n_env)])
        self._has_warned = False

    def evaluate(self, seed: np.random.SeedSequence, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Runs all episodes on envs seeded by `seed`; returns None if `stop` became true before they had ended."""
        tally, n_round = _Tally(self._quota, self._limit), 0
        while tally.n_left.any():  # a second time only after episodes were cut off: no env can be reset alone
            if not self._play(seed if n_round == 0 else _child(seed, self._env.n_env + n_round), tally, stop):
                return None
            n_round += 1
        self._env.check()
        evaluation = tally.evaluation()
        if evaluation.n_cut and not self._has_warned:
            self._has_warned = True
            logger.warning(
                '%d of %d evaluation episodes of %s had not ended after %s steps and were cut off; if they never end, '
                'set env.max_episode_steps, else raise policy.eval.max_episode_steps',
                evaluation.n_cut,
                len(evaluation.returns),
                self._env.name,
                self._limit,
            )
        return evaluation

    def _play(self, seed: np.random.SeedSequence, tally: _Tally, stop: Callable[[], bool]) -> bool:
        """Plays from a reset until each env had its share of episodes, or one cut off; False if it was stopped."""
        n_env = self._env.n_env
        obs, n_step = self._env.reset(seed), 0
        initial = None if self._mode.initial_state is None else self._mode.initial_state(n_env)
        state, to_env = initial, self._mode.env_action
        tally.begin()
        while tally.plays.any():
            if stop():
                return False
            n_step += 1
            if n_step % CHECK_EVERY == 0:
                self._env.check()
            output = self._mode.forward(obs, state)
            action = output['action']
            timestep = self._env.step(action if to_env is None else to_env(action))
            if initial is not None:
                state = replace_rows(begins_of(timestep), initial, output['state'])
            tally.record(timestep)
            obs = timestep.obs
        return True


class _Tally:
    """Counts the episodes of each env. Attributes: n_left, plays: [B], episodes wanted still; whether to go on now."""

    def __init__(self, quota: np.ndarray, limit: int | None) -> None:
        self.n_left, self._limit = quota.copy(), limit
        self._returns: list[list[float]] = [[] for _ in quota]
        self._lengths: list[list[int]] = [[] for _ in quota]
        self._n_cut = 0
        self.begin()

    def begin(self) -> None:
        """All envs were reset."""
        self.plays = self.n_left > 0
        self._total, self._length = np.zeros(len(self.plays)), np.zeros(len(self.plays), dtype=np.int64)

    def record(self, timestep: Timestep) -> None:
        """Counts a step."""
        self._total += timestep.reward.cpu().numpy()
        self._length += 1 if timestep.is_reset is None else ~timestep.is_reset.cpu().numpy()
        for b in (timestep.terminated | timestep.truncated).nonzero().flatten().tolist():
            is_broken = timestep.is_reset is not None and bool(timestep.is_reset[b])  # another episode takes its place
            if self.plays[b] and not is_broken:
                self._count(b)
                self.plays[b] = self.n_left[b] > 0
            self._total[b], self._length[b] = 0.0, 0
        if self._limit is not None and self._length.max() >= self._limit:
            for b in (self.plays & (self._length >= self._limit)).nonzero()[0].tolist():
                self._count(b)
                self.plays[b] = False
                self._n_cut += 1

    def evaluation(self) -> Evaluation:
        """The episodes counted, those of the first env first."""
        return Evaluation(
            [r for env in self._returns for r in env], [n for env in self._lengths for n in env], self._n_cut
        )

    def _count(self, b: int) -> None:
        self._returns[b].append(float(self._total[b]))
        self._lengths[b].append(int(self._length[b]))
        self.n_left[b] -= 1


def evaluate(policy: Policy, env_cfg: Any, n_episode: int = 10, seed: int = 0) -> Evaluation:
    """Greedy episodes of a policy on new envs, no longer than its policy.eval.max_episode_steps.

    Args: env_cfg: the section `env` of a config.
    Raises: ConfigError; UserError if their spaces are not those of the policy (bounds of a Box may differ), or an
      argument is of another type.
    """
    if not isinstance(policy, Policy):
        raise UserError(f'policy is {shown(policy)} but must be a policy, e.g. of load_policy or a TrainResult')
    for name, number, least in (('n_episode', n_episode, 1), ('seed', seed, 0)):
        if not isinstance(number, Integral) or number < least:
            raise UserError(f'{name} is {shown(number)} but must be an integer >= {least}')
    env_cfg = env_config(env_cfg)
    env = make_vector_env(env_cfg, min(n_episode, env_cfg.evaluator_env_num), device=str(policy.device))
    try:
        wanted, got = ([_form(x.obs_space), _form(x.action_space)] for x in (policy, env))
        if wanted != got:
            raise UserError(
                f'the policy takes {wanted[0]} and gives {wanted[1]} but env {env.name!r} has {got[0]} and {got[1]}; '
                'evaluate it on the env that it was trained on'
            )
        evaluation = Evaluator(env, policy.eval_mode, n_episode, policy.cfg.eval.max_episode_steps).evaluate(
            stream(seed, 'evaluate')
        )
        assert evaluation is not None, 'nothing stops it'
        return evaluation
    finally:
        env.close()


def _child(seed: np.random.SeedSequence, key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, key), pool_size=seed.pool_size)


def _form(space: Space) -> str:
    """A space in words, without bounds."""
    leaves = [
        f'{path} {type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}'.strip()
        for path, leaf in leaf_spaces(space)
    ]
    return ', '.join(leaves)
