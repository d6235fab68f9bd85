"""Levels of training envs: each episode is a level, a seed of the env, drawn by probabilities that a run may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium
import numpy as np
from pydantic import Field, model_validator

from zoo.config.section import Section

LEVEL = 'level'
"""Entry of the info of a step: the level of its episode, counted from the first one."""
IS_NEW = 'level_is_new'
"""Entry of the info of a step: 1.0 if no level score was known when the episode began, else 0.0."""
EPISODE = 'level_episode'
"""Entry of the info of a step: a number at random, which tells the episodes of one level apart that are played at the same time."""
MAX_EPISODE = 1 << 24  # up to here every whole number is a float32


class LevelsConfig(Section):
    """Section `env.levels`: training on a fixed set of levels, drawn with equal probabilities or by what is learned there."""

    n_level: Annotated[int, Field(ge=1, le=1 << 22)] = Field(
        description='number of levels: seeds with which training envs are reset'
    )
    first: Annotated[int, Field(ge=0, le=1 << 62)] = Field(
        0, description='seed of the first level; the others follow it'
    )
    draw: Literal['uniform', 'plr'] = Field(
        'uniform',
        description="'uniform': each level is as likely; 'plr': levels where advantages are large come more often",
    )
    score: Literal['gae', 'positive_value_loss'] = Field(
        'gae',
        description="plr: what is learned on a level, the mean over its steps of |adv|, or with 'positive_value_loss' of "
        'max(adv, 0), an estimate of regret',
    )
    priority: Literal['rank', 'score'] = Field(
        'rank',
        description="plr: probability of a level by the 'rank' of its score, or by the 'score' itself: then no single level "
        'comes very often, and levels with a score near 0 hardly ever',
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description='plr: probability of a level is rank ** (-1 / temperature), where rank 1 has the highest score, or '
        'score ** (1 / temperature)',
    )
    staleness: Annotated[float, Field(ge=0, le=1)] = Field(
        0.3, description='plr: share of replays by the rollouts since a level was last played, in place of its score'
    )
    replay: Annotated[float, Field(ge=0, le=1)] | Literal['proportionate'] = Field(
        'proportionate',
        description="plr: probability of a level seen before, in place of a new one; 'proportionate': the share of levels seen",
    )
    train_on_new: bool = Field(
        True, description='plr: false: episodes on new levels only measure their scores, and train nothing (robust PLR)'
    )

    @model_validator(mode='after')
    def _can_train(self) -> LevelsConfig:
        if not self.train_on_new and self.draw != 'plr':
            raise ValueError("train_on_new is false but draw is 'uniform', which knows no scores; use draw: plr.")
        if not self.train_on_new and self.replay == 0:
            raise ValueError('train_on_new is false and replay is 0, so nothing would be learned; raise replay.')
        return self


class LevelTable(NamedTuple):
    """Probabilities of levels. cumulative: [n_level], their cumulative sum, 1 at the end; is_new: [n_level] bool; first: seed."""

    cumulative: np.ndarray
    is_new: np.ndarray
    first: int


class LevelEnv(gymnasium.Wrapper):
    """Resets an env with the seed of a level that it draws from `level_table`; without one it changes nothing.

    The draw of an episode is a function of the seed that the env was last reset with and the number of episodes since then.
    """

    level_table: LevelTable | None = None

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._seed = 0
        self._n_episode = 0
        self._info: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        table = self.level_table
        if table is None:
            return self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._seed = seed
            self._n_episode = 0
        level, episode = drawn_level(table, self._seed, self._n_episode)
        self._n_episode += 1
        self._info = {LEVEL: float(level), IS_NEW: float(table.is_new[level]), EPISODE: float(episode)}
        obs, info = self.env.reset(seed=table.first + level, options=options)
        return obs, {**info, **self._info}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, **self._info}


def drawn_level(table: LevelTable, seed: int, n_episode: int) -> tuple[int, int]:
    """The level of an episode and a number in [0, MAX_EPISODE) for the episode: functions of the seed and the count.

    The level is the first whose cumulative probability exceeds a number at random in [0, 1).
    """
    generator = np.random.default_rng([seed, n_episode])
    found = int(np.searchsorted(table.cumulative, generator.random() * table.cumulative[-1], side='right'))
    return min(found, len(table.cumulative) - 1), int(generator.integers(MAX_EPISODE))
