"""Prioritized level replay: scores of levels by what is learned on them, and the probabilities that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.ranks import Ranks, weight_scale
from zoo.env.levels import EPISODE, IS_NEW, LEVEL, MAX_EPISODE, LevelsConfig, LevelTable
from zoo.run.observers.base import Observer, RunView

SCORES = {'positive_value_loss': lambda adv: adv.clamp(min=0), 'gae': torch.abs}


class LevelScores:
    """Scores of levels, and the probabilities with which episodes draw them.

    P(level) = replay * P_replay(level) + (1 - replay) * uniform(new levels)
    P_replay = (1 - staleness) * P_score + staleness * P_stale, over the levels seen so far
    P_score ~ rank(score) ** (-1 / temperature), or score ** (1 / temperature);   P_stale ~ rollouts since the level was last played
    Source: Jiang et al. 2021, arXiv:2010.03934; robust form: Jiang et al. 2021, arXiv:2110.02439.

    Attributes: score: [n_level], nan: not seen; played_at: [n_level], rollout in which it was last played; n_rollout: so far.
    """

    def __init__(self, cfg: LevelsConfig) -> None:
        self._cfg = cfg
        self.score = np.full(cfg.n_level, np.nan)
        self.played_at = np.zeros(cfg.n_level)
        self.n_rollout = 0

    def add(self, found: Mapping[int, tuple[float, int]]) -> None:
        """Adds the levels of a rollout: sums of scores, and numbers of steps, by level."""
        self.n_rollout += 1
        for level, (total, n) in found.items():
            self.score[level] = total / n
            self.played_at[level] = self.n_rollout

    def probabilities(self) -> np.ndarray:
        """The probability of each level, [n_level]."""
        cfg = self._cfg
        n = cfg.n_level
        is_seen = ~np.isnan(self.score)
        n_seen = int(is_seen.sum())
        if cfg.draw == 'uniform' or not n_seen:
            return np.full(n, 1 / n)
        replay = n_seen / n if cfg.replay == 'proportionate' else cfg.replay
        if n_seen == n:
            replay = 1.0
        found = np.zeros(n)
        found[~is_seen] = (1 - replay) / max(n - n_seen, 1)
        found[is_seen] = replay * self._of_replay(self.score[is_seen], self.n_rollout - self.played_at[is_seen])
        return found

    def _of_replay(self, score: np.ndarray, age: np.ndarray) -> np.ndarray:
        order = np.argsort(-score, kind='stable')
        weight = np.empty(len(score))
        weight[order] = 1 / np.arange(1, len(score) + 1)
        if self._cfg.priority == 'score' and score.any():
            weight = score / score.max()
        by_score = weight ** (1 / self._cfg.temperature)
        by_score /= by_score.sum()
        if not age.any():
            return by_score
        return (1 - self._cfg.staleness) * by_score + self._cfg.staleness * age / age.sum()

    def table(self) -> LevelTable:
        """What envs draw from."""
        return LevelTable(np.cumsum(self.probabilities()), np.isnan(self.score), self._cfg.first)

    def state_dict(self) -> dict[str, Any]:
        return {
            'score': torch.from_numpy(self.score.copy()),
            'played_at': torch.from_numpy(self.played_at.copy()),
            'n_rollout': self.n_rollout,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a `state_dict` in. With another number of levels, those that both have keep their scores."""
        n = min(len(state['score']), self._cfg.n_level)
        self.score[:n] = state['score'][:n].numpy()
        self.played_at[:n] = state['played_at'][:n].numpy()
        self.n_rollout = state['n_rollout']


class Levels(Observer):
    """Gives training envs the probabilities of levels before each rollout, and scores levels by the advantages of samples.

    The score of a level is a mean over all steps of the episodes that the last rollout with that level has a part of: the parts
    of these episodes in rollouts before count too.
    """

    def __init__(self, cfg: LevelsConfig, ranks: Ranks) -> None:
        self._cfg = cfg
        self._ranks = ranks
        self._is_sent = False
        self._open: dict[int, tuple[float, int]] = {}  # by episode of the last rollout: sum of its scores so far, steps
        self.scores = LevelScores(cfg)

    def before_rollout(self, job: RunView) -> None:
        if self._cfg.draw == 'plr' or not self._is_sent:
            job.envs.set_attr('level_table', self.scores.table(), of='training')
            self._is_sent = True

    def on_samples(self, job: RunView, samples: dict[str, Any]) -> None:
        if self._cfg.draw == 'uniform':
            return
        level = samples[f'info/{LEVEL}'].flatten()
        episode = samples[f'info/{EPISODE}'].flatten()
        if 'adv' not in samples:
            raise UserError(
                f"env.levels.draw is 'plr', which scores levels by advantages, but policy {job.cfg.policy.type!r} has none; use "
                'draw: uniform, or a policy with a critic such as ppo'
            )
        counts = level.isfinite()
        if 'weight' in samples:
            counts &= samples['weight'].flatten() > 0
        score = SCORES[self._cfg.score](samples['adv'].flatten())
        key = level[counts].to(torch.int64) * MAX_EPISODE + episode[counts].to(torch.int64)
        self.scores.add(self._by_level(key, score[counts]))
        if not self._cfg.train_on_new:
            self._drop_new(samples)

    def metrics(self) -> dict[str, float]:
        """Numbers for the log."""
        if self._cfg.draw == 'uniform':
            return {}
        seen = self.scores.score[~np.isnan(self.scores.score)]
        found = {'env/levels/seen': float(len(seen))}
        if len(seen):
            found['env/levels/score_mean'] = float(seen.mean())
        return found

    def _by_level(self, key: Tensor, score: Tensor) -> dict[int, tuple[float, int]]:
        """Sums of scores and numbers of steps by level, over the samples of all ranks; key: [N], of the episode of each step."""
        episodes, index = torch.unique(key, return_inverse=True)
        totals = torch.zeros(len(episodes), dtype=torch.float64, device=score.device).index_add_(
            0, index, score.double()
        )
        counts = torch.bincount(index, minlength=len(episodes))
        before = self._open
        self._open = {}
        for episode, total, n in zip(episodes.tolist(), totals.tolist(), counts.tolist(), strict=True):
            total_before, n_before = before.get(episode, (0.0, 0))
            self._open[episode] = (total_before + total, n_before + n)
        found: dict[int, tuple[float, int]] = {}
        for part in self._ranks.gather(self._open):
            for episode, (total, n) in part.items():
                level = episode // MAX_EPISODE
                total_before, n_before = found.get(level, (0.0, 0))
                found[level] = (total_before + total, n_before + n)
        return found

    def _drop_new(self, samples: dict[str, Any]) -> None:
        """Gives the samples of new levels weight 0."""
        adv = samples['adv']
        weight = samples.get('weight', torch.ones_like(adv))
        kept = weight * (samples[f'info/{IS_NEW}'] != 1).to(adv.dtype)
        samples['weight'] = kept * weight_scale(kept, self._ranks)
