"""Attention over entities: the order and what the mask leaves out change nothing; attention by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.core.spaces import Box, Dict, Discrete, MultiBinary
from zoo.model.encoder import Inherited, build_encoder
from zoo.model.entities import EntityBlock, sets_of
from zoo.model.inputs import make_input

N = 5
ITEMS = Box(np.full((N, 3), -np.inf), np.full((N, 3), np.inf))
SPACE = Dict(
    {
        'own': Box(np.full(2, -1.0), np.ones(2)),
        'seen': Dict({'items': ITEMS, 'mask': MultiBinary((N,))}),
        'kind': Discrete(3),
    }
)


def features(obs: dict, space: Dict = SPACE, **options: int) -> Tensor:
    torch.manual_seed(0)
    spec = {'type': 'entities', 'hidden_size': 8, 'n_head': 2, 'n_layer': 2, **options}
    encoder = build_encoder(spec, space, Inherited(), 'policy.model.encoder')
    return encoder(make_input(space)(obs))


def observation(n_row: int = 4) -> dict:
    generator = torch.Generator().manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.int8)[:n_row]
    return {
        'own': torch.randn(n_row, 2, generator=generator),
        'seen': {'items': torch.randn(n_row, N, 3, generator=generator), 'mask': mask},
        'kind': torch.tensor([0, 2, 1, 1])[:n_row],
    }


def with_set(obs: dict, items: Tensor, mask: Tensor) -> dict:
    return {**obs, 'seen': {'items': items, 'mask': mask}}


def test_order_of_entities_changes_nothing() -> None:
    obs = observation()
    order = torch.tensor([3, 0, 4, 2, 1])
    items, mask = obs['seen']['items'], obs['seen']['mask']
    torch.testing.assert_close(features(with_set(obs, items[:, order], mask[:, order])), features(obs))


def test_entities_that_the_mask_leaves_out_change_nothing_to_the_bit_and_others_do() -> None:
    obs = observation()
    items, mask = obs['seen']['items'], obs['seen']['mask']
    is_real = mask.bool().unsqueeze(-1)
    before = features(obs)
    assert torch.equal(features(with_set(obs, torch.where(is_real, items, 99.0), mask)), before)
    after = features(with_set(obs, torch.where(is_real, items + 1, items), mask))
    changed = (after - before).abs().amax(-1)
    assert (changed[:3] > 1e-3).all() and changed[3] == 0  # the last set is empty


def test_empty_set_has_finite_features_and_gradients() -> None:
    obs = observation()
    items = obs['seen']['items'].requires_grad_()
    found = features(obs)
    assert found.shape == (4, 8) and found.isfinite().all()
    (gradient,) = torch.autograd.grad(found.square().sum(), items)
    assert gradient.isfinite().all() and not gradient[3].any() and not gradient[0, 3:].any() and gradient[0, :3].any()


def test_leading_dimensions_are_kept() -> None:
    obs = observation()
    whole = features(obs)
    block = {
        'own': obs['own'].view(2, 2, 2),
        'seen': {'items': obs['seen']['items'].view(2, 2, N, 3), 'mask': obs['seen']['mask'].view(2, 2, N)},
        'kind': obs['kind'].view(2, 2),
    }
    torch.testing.assert_close(features(block), whole.view(2, 2, 8))


def test_attention_worked_by_hand() -> None:
    block = EntityBlock(2, 1)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        block.norm_attention.weight.fill_(1.0)
        block.query_key_value.weight.copy_(torch.cat([torch.eye(2)] * 3))  # query, key and value are the tokens
        block.out.weight.copy_(torch.eye(2))
    x = torch.tensor([[[3.0, 1.0], [1.0, 3.0], [5.0, 5.0]]])  # normalised: (1, -1), (-1, 1); the third is left out
    found = block(x, torch.tensor([[True, True, False]]))
    # scores of the first token: (1 + 1) / sqrt(2) and -2 / sqrt(2); weights p and 1 - p, p = 1 / (1 + exp(-4 / sqrt(2)))
    p = 1 / (1 + math.exp(-4 / math.sqrt(2)))
    mixed = 2 * p - 1  # p * (1, -1) + (1 - p) * (-1, 1)
    assert found[0, 0].tolist() == pytest.approx([3 + mixed, 1 - mixed], abs=1e-4)


def test_sets_of_a_dict_are_found_by_their_names_and_shapes() -> None:
    mask = MultiBinary((N,))
    assert sets_of(SPACE) == {'seen.': (N, 3)}
    assert sets_of(Dict({'items': ITEMS, 'mask': mask})) == {'': (N, 3)}
    assert sets_of(Dict({'items': ITEMS, 'mask': MultiBinary((4,))})) == {}
    assert sets_of(Dict({'my_items': ITEMS, 'mask': mask})) == {}
    assert sets_of(ITEMS) == {}


def test_heads_that_do_not_fit_and_observations_without_a_set_are_refused() -> None:
    with pytest.raises(ValueError, match='n_head is 2 but hidden_size is 9, .* use a divisor, e.g. n_head 1'):
        features(observation(), hidden_size=9)
    with pytest.raises(ValueError, match="'entities'"):
        build_encoder('entities', Dict({'own': ITEMS}), Inherited(), 'policy.model.encoder')
