"""The losses of a config: their components, and the weights of penalties."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from zoo.core.errors import UserError
from zoo.policy.objective import Objective
from zoo.run.config import resolve_policy


def objective(kind: str = 'ppo', **learn: Any) -> Objective:
    return Objective(resolve_policy({'type': kind, 'learn': learn}).learn)


def test_the_kl_loss_of_ppg_is_a_surrogate_and_a_penalty() -> None:
    found = objective('ppg', policy_loss='kl', kl_weight=0.7)
    assert (
        found.surrogate.name == 'none' and [part.name for part in found.penalties] == ['kl'] and found.weights == [0.7]
    )


@pytest.mark.parametrize(
    ('learn', 'keeps'),
    [
        (dict(value_norm=True, value_loss='clip'), True),
        (dict(value_norm=True, value_loss='mse'), False),  # mse compares with no output of before
        (dict(value_loss='clip'), False),  # the column 'value' has the unit of the output
    ],
)
def test_output_before_an_update_is_kept_where_a_loss_reads_it_and_no_other_column_has_it(
    learn: dict[str, Any], keeps: bool
) -> None:
    assert objective(**learn).keeps_output is keeps


def test_critic_without_a_distribution_of_returns_is_refused_for_a_loss_that_needs_one() -> None:
    loss = {'type': 'two_hot', 'low': -1.0, 'high': 1.0, 'n_bin': 5}
    with pytest.raises(UserError, match="'two_hot', for a critic that predicts .* model Linear has no predict_dist"):
        objective(value_loss=loss).shape_critic(nn.Linear(1, 1))
