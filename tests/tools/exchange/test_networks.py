"""Towers of layers become encoders where they are equal, and heads where they differ."""

from __future__ import annotations

from typing import Any

import torch

from zoo.tools.exchange.networks import Tower, head_name, numbered_layers, put_towers

TENSORS = {
    **{f'pi.{i}.weight': torch.zeros(n, 4) for i, n in ((0, 6), (2, 5), (10, 3))},
    'pi.1.weight': torch.zeros(6),  # a normalisation
    'vf.0.weight': torch.zeros(6, 4),
}


def test_layers_are_in_the_order_of_their_numbers() -> None:
    assert numbered_layers(TENSORS, 'pi') == ['pi.0', 'pi.2', 'pi.10']
    assert Tower.of(TENSORS, ['pi.0', 'pi.2']).widths == (6, 5)


def test_equal_towers_are_encoders_and_others_heads() -> None:
    actor, critic = Tower(('pi.0',), (6,)), Tower(('vf.0',), (6,))
    equal: dict[str, Any] = {}
    assert put_towers(equal, actor, critic, None)['vf.0.weight'].name == 'critic_encoder.layers.0.weight'
    assert equal == {'hidden_sizes': [6]} and head_name(equal, 'policy') == 'policy_head'
    other: dict[str, Any] = {}
    places = put_towers(other, actor, Tower((), ()), None)
    assert other == {'encoder': 'flat', 'actor_head': [6], 'critic_head': []}
    assert places['pi.0.bias'].name == 'policy_head.0.layers.0.bias'
    assert head_name(other, 'policy') == 'policy_head.1' and head_name(other, 'value') == 'value_head'
