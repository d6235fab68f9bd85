"""Heads of Q-networks: quantiles and Q-values worked by hand, hidden layers of the streams, models that have no such head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.core.errors import UserError
from zoo.core.spaces import Box
from zoo.model.q_head import QHead, quantiles_of, use_q_head


def constant_head(has_value_stream: bool) -> QHead:
    """A head whose streams give the same for any features: advantages [[1, 2], [3, 6]], values [10, 20]."""
    head = QHead(3, 2, 2, has_value_stream)
    with torch.no_grad():
        for layer, bias in ((head.advantage, [1.0, 2.0, 3.0, 6.0]), (head.value, [10.0, 20.0])):
            if layer is not None:
                layer.weight.zero_()
                layer.bias.copy_(torch.tensor(bias))
    return head


def test_q_values_are_means_of_quantiles_and_advantages_have_mean_zero_in_a_dueling_head() -> None:
    feature = torch.randn(5, 4, 3)
    plain = constant_head(False)
    assert plain.quantiles(feature)[2, 3].tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert plain(feature)[2, 3].tolist() == [1.5, 4.5]
    # the mean advantages are 2 and 4: action 0 has 10 + 1 - 2 and 20 + 2 - 4, action 1 has 10 + 3 - 2 and 20 + 6 - 4
    dueling = constant_head(True)
    assert dueling.quantiles(feature)[2, 3].tolist() == [[9.0, 18.0], [11.0, 22.0]]
    assert dueling(feature)[2, 3].tolist() == [13.5, 16.5]


def test_each_stream_has_the_hidden_layers_of_actor_head() -> None:
    box = Box(-torch.ones(3).numpy(), torch.ones(3).numpy())
    policy = make_policy(
        box,
        TWO_ACTIONS,
        type='dqn',
        model=dict(hidden_sizes=[8], actor_head=[5]),
        learn=dict(dueling=True, n_quantile=4),
    )
    shapes = {name: tuple(x.shape) for name, x in policy.model.policy_head.named_parameters() if x.dim() > 1}
    assert shapes == {
        'advantage.0.layers.0.weight': (5, 8),
        'advantage.1.weight': (8, 5),
        'value.0.layers.0.weight': (5, 8),
        'value.1.weight': (4, 5),
    }
    obs = torch.randn(7, 3)
    torch.testing.assert_close(policy.model.compute_actor(obs), quantiles_of(policy.model, obs).mean(-1))


def test_model_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match='replace the last layer of a model of zoo, got Linear; leave them out'):
        use_q_head(nn.Linear(2, 2), 2, 4, True)
