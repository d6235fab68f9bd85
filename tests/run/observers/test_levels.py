"""Prioritized level replay: scores and probabilities by hand; runs that resume with their scores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import job_config, rows
from tests.thread_ranks import on_ranks
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.env.levels import LevelsConfig
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.observers.levels import Levels, LevelScores

JOB: Any = SimpleNamespace(cfg=SimpleNamespace(policy=SimpleNamespace(type='ppo')))


def config(**levels: Any) -> LevelsConfig:
    return LevelsConfig(**{'n_level': 4, 'draw': 'plr', **levels})


def samples(level: list[float], adv: list[float], episode: list[float] | None = None, **columns: Any) -> dict[str, Any]:
    """Samples; without `episode` all steps of a level are of one episode."""
    found = {'info/level': torch.tensor(level), 'adv': torch.tensor(adv)}
    found['info/level_episode'] = torch.zeros(len(level)) if episode is None else torch.tensor(episode)
    return found | {name: torch.tensor(x) for name, x in columns.items()}


# --- probabilities ---


def test_without_scores_every_level_is_as_likely() -> None:
    assert LevelScores(config()).probabilities().tolist() == [0.25] * 4
    uniform = LevelScores(config(draw='uniform'))
    uniform.add({0: (5.0, 1)})
    assert uniform.probabilities().tolist() == [0.25] * 4


def test_replay_by_rank_worked_by_hand() -> None:
    scores = LevelScores(config(temperature=0.5, staleness=0.0, replay=0.6))
    scores.add({0: (2.0, 2), 3: (9.0, 3), 1: (0.4, 2)})  # means 1, 3, .2: ranks 2, 1, 3
    # rank ** -2: 1/4, 1, 1/9, sum 49/36; of these .6 are replayed; the one new level has the other .4
    expected = [0.6 * 9 / 49, 0.6 * 4 / 49, 0.4, 0.6 * 36 / 49]
    assert scores.probabilities() == pytest.approx(expected)


def test_replay_by_score_worked_by_hand() -> None:
    scores = LevelScores(config(temperature=0.5, staleness=0.0, replay=0.6, priority='score'))
    scores.add({0: (2.0, 2), 3: (9.0, 3), 1: (0.0, 2)})  # means 1, 3, 0: squares 1, 9, 0, sum 10
    assert scores.probabilities() == pytest.approx([0.06, 0.0, 0.4, 0.54])
    scores.add({0: (0.0, 2), 3: (0.0, 3)})  # nothing to tell them apart: by rank, the first one first
    assert scores.probabilities() == pytest.approx([0.6 * 36 / 49, 0.6 * 9 / 49, 0.4, 0.6 * 4 / 49])


def test_proportionate_replay_is_the_share_of_levels_seen() -> None:
    scores = LevelScores(config(staleness=0.0))
    scores.add({2: (1.0, 1)})
    assert scores.probabilities() == pytest.approx(
        [0.25, 0.25, 0.25, 0.25]
    )  # 1/4 for the one, 3/4 for the three others
    scores.add({3: (1.0, 1)})
    assert scores.probabilities()[:2] == pytest.approx([0.25, 0.25])


def test_staleness_worked_by_hand() -> None:
    scores = LevelScores(config(n_level=3, temperature=1.0, staleness=0.5))
    scores.add({0: (3.0, 1), 1: (2.0, 1)})
    scores.add({1: (2.0, 1), 2: (1.0, 1)})
    scores.add({2: (1.0, 1)})
    # rollouts since: 2, 1, 0, shares 2/3, 1/3, 0; by rank 1, 1/2, 1/3: shares 6/11, 3/11, 2/11; half of each
    assert scores.probabilities() == pytest.approx([0.5 * (2 / 3 + 6 / 11), 0.5 * (1 / 3 + 3 / 11), 1 / 11])


def test_scores_go_on_from_their_state_and_fit_another_number_of_levels() -> None:
    scores = LevelScores(config())
    scores.add({0: (3.0, 1), 2: (2.0, 1)})
    again = LevelScores(config())
    again.load_state_dict(scores.state_dict())
    assert np.array_equal(again.probabilities(), scores.probabilities())
    fewer, more = LevelScores(config(n_level=1)), LevelScores(config(n_level=6))
    for each in (fewer, more):
        each.load_state_dict(scores.state_dict())
    assert fewer.score.tolist() == [3.0] and np.isnan(more.score[[1, 3, 4, 5]]).all()


# --- scores ---


@pytest.mark.parametrize(('kind', 'expected'), [('positive_value_loss', [1.0, 2.0]), ('gae', [2.0, 2.0])])
def test_scores_of_samples_worked_by_hand(kind: Any, expected: list[float]) -> None:
    levels = Levels(config(score=kind), ALONE)
    nan = float('nan')
    # level 1: advantages 2 and -2; level 3: 2, and one row of weight 0; a row without a level
    levels.on_samples(JOB, samples([1, 1, 3, 3, nan], [2.0, -2.0, 2.0, 9.0, 7.0], weight=[1.0, 1.0, 1.0, 0.0, 1.0]))
    assert levels.scores.score[[1, 3]].tolist() == expected
    assert np.isnan(levels.scores.score[[0, 2]]).all()


def test_score_of_an_episode_is_the_mean_over_all_its_steps_in_several_rollouts() -> None:
    levels = Levels(config(), ALONE)
    levels.on_samples(JOB, samples([1, 1, 1, 2], [1.0, 1.0, 7.0, 2.0], episode=[5, 5, 8, 5]))
    assert levels.scores.score[[1, 2]].tolist() == [3.0, 2.0]
    # episode 5 of level 1 continues: (1 + 1 + 4) / 3; episode 8 is over. A new one of level 2: its mean alone
    levels.on_samples(JOB, samples([1, 2, 2], [4.0, 5.0, 7.0], episode=[5, 3, 3]))
    assert levels.scores.score[[1, 2]].tolist() == [2.0, 6.0]
    # with the whole of episode 5 and a new one: (1 + 1 + 4 + 2 + 12) / 5; level 2 was not played, so its episode was lost
    levels.on_samples(JOB, samples([1, 1], [2.0, 12.0], episode=[5, 6]))
    levels.on_samples(JOB, samples([2], [1.0], episode=[3]))
    assert levels.scores.score[[1, 2]].tolist() == [4.0, 1.0]


def test_ranks_score_levels_by_the_samples_of_all() -> None:
    def score_on(ranks: Ranks) -> list[float]:
        levels = Levels(config(), ranks)
        levels.on_samples(JOB, [samples([0, 0, 1], [4.0, 2.0, 1.0]), samples([0], [0.0])][ranks.rank])
        return levels.scores.score[:2].tolist()

    assert on_ranks(score_on) == [[2.0, 1.0]] * 2  # (4 + 2 + 0) / 3


def test_robust_replay_gives_samples_of_new_levels_weight_0() -> None:
    levels = Levels(config(train_on_new=False), ALONE)
    found = samples([0, 1, 2, 2], [1.0] * 4, **{'info/level_is_new': [1.0, 0.0, 0.0, 1.0]})
    levels.on_samples(JOB, found)
    assert found['weight'].tolist() == [0.0, 2.0, 2.0, 0.0]  # mean 1
    assert not np.isnan(levels.scores.score[:3]).any()  # but all are scored


def test_policy_without_advantages_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"env.levels.draw is 'plr', which scores levels by advantages, but policy 'ppo' has"
    ):
        Levels(config(), ALONE).on_samples(JOB, {'info/level': torch.zeros(2), 'info/level_episode': torch.zeros(2)})


@pytest.mark.parametrize(
    ('levels', 'words'),
    [
        ({'draw': 'plr'}, 'n_level'),
        ({'n_level': 0}, 'env.levels.n_level is 0'),
        ({'n_level': 4, 'train_on_new': False}, "train_on_new is false but draw is 'uniform'"),
        ({'n_level': 4, 'draw': 'plr', 'replay': 1.5}, 'replay'),
        ({'n_level': 4, 'draw': 'plr', 'train_on_new': False, 'replay': 0.0}, 'nothing would be learned'),
    ],
)
def test_config_of_levels_that_cannot_be_is_refused(levels: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resolve_config(job_config('runs', 'mazes', env={'levels': levels}))


# --- runs ---


def run_of(root: Path, **levels: Any) -> dict[str, Any]:
    env = {'kwargs': {'size': 5, 'limit': 6}, 'levels': {'n_level': 20, 'draw': 'plr', 'first': 50, **levels}}
    return job_config(root, 'mazes', env=env)


@pytest.mark.slow
def test_run_plays_only_its_levels_and_names_them_right_at_ends(tmp_path: Path) -> None:
    from zoo.env.toy.mazes import maze

    seen: set[int] = set()

    class Watch:
        def on_rollout(self, job: Any, rollout: Any) -> None:
            level = rollout.data['info/level']
            is_step = ~rollout.data.get('is_reset', torch.zeros_like(rollout.data['done']))
            for t, b in is_step.nonzero().tolist():
                cells = maze(50 + int(level[t, b]), 5).obs
                assert (cells == rollout.data['obs'][t, b].numpy()).all(1).any()  # the observation is of that maze
            seen.update(level[is_step].int().tolist())

    result = serial_pipeline(run_of(tmp_path), callbacks=[Watch])
    assert seen <= set(range(20)) and len(seen) > 10
    assert [row for row in rows(result.run_dir) if row.get('env/levels/seen') == len(seen)]


@pytest.mark.slow
def test_resume_continues_the_scores_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    first = serial_pipeline(run_of(tmp_path))
    found = []
    for name in 'ab':
        with SerialJob(
            resolve_config(run_of(tmp_path / name) | {'max_env_step': 512}), checkpoint=first_of(first)
        ) as job:
            before = job.state_dict()['levels']
            while not job.done:
                job.iteration()
            found.append((before, job.state_dict()))
    saved = first_of(first).state['levels']
    for before, _ in found:
        assert torch.equal(before['score'], saved['score']) or torch.equal(
            before['score'].isnan(), saved['score'].isnan()
        )
        assert before['n_rollout'] == saved['n_rollout'] == 4
    a, b = found[0][1], found[1][1]
    assert a['levels']['n_rollout'] == 8
    assert torch.equal(a['levels']['score'].nan_to_num(-1), b['levels']['score'].nan_to_num(-1))
    for name, x in a['policy']['model'].items():
        assert torch.equal(x, b['policy']['model'][name]), name


def first_of(result: Any) -> Any:
    """The checkpoint of a run."""
    from zoo.run.checkpoint.file import load_checkpoint

    return load_checkpoint(max(result.run_dir.glob('checkpoints/step_*.safetensors')))
