"""The parts of a loss and the weights that move: schedules, targets, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.config.section import Config, ConfigError
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE
from zoo.policy.gradient_steps import MSE, VALUE_CLIP
from zoo.policy.loss_terms import Objective
from zoo.run.config import resolve_policy


def learn_section(kind: str = 'ppo', **learn: Any) -> Config:
    return resolve_policy({'type': kind, 'learn': learn}).learn


def objective(kind: str = 'ppo', **learn: Any) -> Objective:
    return Objective(learn_section(kind, **learn))


def test_the_weight_follows_its_target_as_published() -> None:
    """RLlib: KL above 2 targets x1.5, below half a target x0.5, else as it is."""
    found = objective(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 0.01}])
    for kl, weight in ((0.021, 0.3), (0.015, 0.3), (0.004, 0.15), (0.0201, 0.225), (0.0051, 0.225)):
        found.adapt({'penalty_kl': torch.tensor(kl)})
        assert found.weights[0] == pytest.approx(weight)


def test_the_weight_stays_within_its_limits() -> None:
    found = objective(penalties=[{'type': 'kl', 'weight': 1.0, 'target': 0.01, 'min_weight': 0.5, 'max_weight': 2.0}])
    for kl, weight in (
        (1.0, 1.5),
        (1.0, 2.0),
        (1.0, 2.0),
        (0.0, 1.0),
        (0.0, 0.5),
        (0.0, 0.5),
    ):
        found.adapt({'penalty_kl': torch.tensor(kl)})
        assert found.weights[0] == pytest.approx(weight)


def test_a_resume_has_the_weight_that_the_run_had() -> None:
    penalties = [{'type': 'kl', 'weight': 0.2, 'target': 0.01}, 'value_drift']
    first, other = objective(penalties=penalties), objective(penalties=penalties)
    first.adapt({'penalty_kl': torch.tensor(1.0)})
    other.load_state_dict(first.state_dict())
    assert first.weights == [pytest.approx(0.3), 1.0] and other.weights == first.weights


def test_a_resume_with_other_numbers_takes_them() -> None:
    def adapted(**numbers: float) -> list[float]:
        first = objective(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 0.01}])
        first.adapt({'penalty_kl': torch.tensor(1.0)})
        other = objective(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 0.01, **numbers}])
        other.load_state_dict(first.state_dict())
        return other.weights

    assert adapted() == [pytest.approx(0.3)]
    assert adapted(max_weight=0.25) == [0.25]
    assert adapted(weight=0.1) == [0.1]


def test_a_weight_without_target_follows_its_schedule() -> None:
    found = objective(penalties=[{'type': 'kl', 'weight': {'start': 1.0, 'end': 0.0, 'over': 100}}])
    for env_step, weight in ((0, 1.0), (25, 0.75), (100, 0.0)):
        found.set_env_step(env_step)
        found.adapt({'penalty_kl': torch.tensor(1.0)})  # moves nothing without a target
        assert found.weights == [weight]


def test_the_kl_loss_of_ppg_is_a_surrogate_and_a_penalty() -> None:
    found = objective('ppg', policy_loss='kl', kl_weight=0.7)
    assert (
        found.surrogate.name == 'none' and [part.name for part in found.penalties] == ['kl'] and found.weights == [0.7]
    )


def test_value_clip_is_the_value_loss_clip() -> None:
    assert objective(value_clip=True).value_loss == VALUE_CLIP
    assert objective(value_loss='clip').value_loss == VALUE_CLIP
    assert objective().value_loss == MSE


@pytest.mark.parametrize(
    ('kind', 'learn', 'words'),
    [
        ('ppo', {'surrogate': 'spoo'}, "did you mean 'spo'"),
        ('ppo', {'surrogate': {'type': 'spo', 'high': 0.3}}, 'policy.learn.surrogate.high'),
        ('ppo', {'value_loss': {'type': 'huber', 'delta': -1.0}}, 'policy.learn.value_loss.delta'),
        ('ppo', {'penalties': [{'type': 'kl', 'weight': -1.0}]}, 'weight'),
        ('ppo', {'penalties': ['kl', 'kll']}, "did you mean 'kl'"),
        ('ppo', {'penalties': [{'type': 'kl', 'weight': 200.0, 'target': 0.01}]}, 'between min_weight'),
        (
            'ppo',
            {'penalties': [{'type': 'kl', 'weight': {'start': 1.0, 'end': 0.1, 'over': 9}, 'target': 0.01}]},
            'drop one',
        ),
        ('ppo', {'phase': 'distill'}, 'phase'),
        ('ppg', {'kl_weight': 0.5}, "use policy_loss 'kl'"),
        ('ppg', {'aux_window': 3, 'aux_freq': 4}, 'use 4 or more'),
    ],
)
def test_bad_parts_are_refused_at_the_door(kind: str, learn: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace('[', r'\[')):
        learn_section(kind, **learn)


@pytest.mark.parametrize(
    ('kind', 'learn', 'words'),
    [
        ('ppo', {'penalties': ['kl', {'type': 'kl', 'weight': 2.0}]}, 'each may be there once'),
        ('ppo', {'value_clip': True, 'value_loss': 'huber'}, 'drop one'),
        ('ppo', {'value_clip': True, 'value_loss': 'hl_gauss'}, 'drop one'),
        ('ppg', {'policy_loss': 'kl', 'surrogate': 'spo'}, 'drop one of the two'),
    ],
)
def test_contradicting_parts_are_refused(kind: str, learn: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        objective(kind, **learn)


class TwoRanks:
    """Of two ranks the one whose fellow always has 0.3 of everything."""

    rank, size = 0, 2

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(0.3)


def test_weight_with_a_target_follows_the_mean_over_all_ranks() -> None:
    """The own .05 is below half of the target .2 and would halve the weight; the mean .175 is within the band."""
    penalties = [{'type': 'reverse_kl', 'weight': 1.0, 'target': 0.2}]
    own = torch.tensor(0.05)
    weights = []
    for ranks in (ALONE, TwoRanks()):
        part = objective(penalties=penalties)
        part.adapt({'penalty_reverse_kl': own}, ranks)  # type: ignore[arg-type]
        weights += part.weights
    assert weights == [0.5, 1.0] and own == torch.tensor(0.05)
