"""The parts of a loss and the weights that move: schedules, targets, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.config.section import Config, ConfigError
from zoo.core.errors import UserError
from zoo.core.registry import Part
from zoo.policy.gradient_steps import MSE
from zoo.policy.options.loss import Objective
from zoo.rl_utils import value_losses
from zoo.run.config import resolve_policy

VALUE_CLIP = Part('value loss', 'clip', value_losses.clip, (('range', None),))


def learn_section(kind: str = 'ppo', **learn: Any) -> Config:
    return resolve_policy({'type': kind, 'learn': learn}).learn


def objective(kind: str = 'ppo', **learn: Any) -> Objective:
    return Objective(learn_section(kind, **learn))


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
