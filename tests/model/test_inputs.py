"""Input stage of a model: conversion of each kind of leaf, and normalisation of leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from zoo.core.data import leaves
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.model import make_encoder, make_input
from zoo.model.inputs import input_width, module_name, update_input, views_of
from zoo.rl_utils.normalizer import RunningMeanStd

LEADS = [(), (3, 4)]


def box(*shape: int, dtype: str = 'float32') -> Box:
    return Box(np.zeros(shape), np.full(shape, 255.0), dtype)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_indices_become_one_hot_vectors_side_by_side():
    assert make_input(Discrete(3, start=7))(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    stage = make_input(MultiDiscrete((2, 3), (0, 5), (2,)))
    #                                    entry 0, entry 1
    assert stage(torch.tensor([[1, 0], [0, 2]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


@pytest.mark.parametrize('lead', LEADS)
def test_indices_of_any_shape_are_those_of_their_entries_in_order(lead):
    space = MultiDiscrete((2, 3, 4, 5, 6, 7), (0,) * 6, (2, 3))
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(n, lead, generator=generator) for n in space.nvec]
    obs = torch.stack(parts, -1).view(*lead, 2, 3)
    want = torch.cat([make_input(Discrete(n))(x) for n, x in zip(space.nvec, parts, strict=True)], -1)
    assert torch.equal(make_input(space)(obs), want) and want.shape == (*lead, input_width(space))


@pytest.mark.parametrize('lead', LEADS)
def test_binaries_become_numbers(lead):
    obs = random(*lead, 2, 3) > 0
    x = make_input(MultiBinary((2, 3)))(obs)
    assert x.dtype == torch.float32 and torch.equal(x, obs.flatten(-2).float())


@pytest.mark.parametrize('lead', LEADS)
@pytest.mark.parametrize('space', [box(), box(1), box(2, 3), box(2, 2, 2, 2, 2), box(3, 4, 5, dtype='int32')], ids=str)
def test_boxes_that_are_no_images_become_vectors(space, lead):
    obs = random(*lead, *space.shape)
    x = make_input(space)(obs)
    assert x.shape == (*lead, input_width(space)) and torch.equal(x.flatten(), obs.flatten())


def test_vectors_pass_unchanged_or_normalised() -> None:
    assert type(make_input(box(4))) is nn.Identity and type(make_input(box(4), obs_norm=True)) is RunningMeanStd


NESTED = Dict(
    {
        'camera': Dict({'left': box(8, 9, 3, dtype='uint8'), 'right': box(2, 8, 9, 3)}),
        'position': box(2),
        'grid': box(2, 3),
        'goal': Discrete(4),
        'action_mask': MultiBinary((5,)),
    }
)


def nested_obs(*lead: int) -> dict:
    return {
        'camera': {'left': torch.full((*lead, 8, 9, 3), 7, dtype=torch.uint8), 'right': random(*lead, 2, 8, 9, 3)},
        'position': 3 + 2 * random(*lead, 2, seed=1),
        'grid': random(*lead, 2, 3, seed=2),
        'goal': torch.ones(lead, dtype=torch.int64),
        'action_mask': torch.ones(*lead, 5, dtype=torch.bool),
    }


@pytest.mark.parametrize('lead', LEADS)
def test_each_leaf_of_a_dict_goes_through_its_own_stage_and_the_mask_through_none(lead):
    obs = nested_obs(*lead)
    found = make_input(NESTED)(obs)
    shapes = {'camera.left': (3, 8, 9), 'camera.right': (6, 8, 9), 'position': (2,), 'grid': (6,), 'goal': (4,)}
    assert {name: tuple(x.shape) for name, x in found.items()} == {name: (*lead, *s) for name, s in shapes.items()}
    assert torch.equal(found['goal'], make_input(Discrete(4))(obs['goal']))
    assert torch.equal(found['camera.left'], make_input(NESTED.spaces['camera'].spaces['left'])(obs['camera']['left']))


def test_missing_entries_are_left_out():
    obs = nested_obs(2)
    del obs['camera'], obs['goal']
    assert list(make_input(NESTED)(obs)) == ['position', 'grid']


def test_obs_norm_of_a_dict_reaches_its_vectors_each_by_its_own_statistics():
    stage, obs = make_input(NESTED, obs_norm=True), nested_obs(400)
    update_input(stage, obs)
    found, plain = stage(obs), make_input(NESTED)(obs)
    for name, x in plain.items():
        if name in ('position', 'grid'):
            x = ((x - x.mean(0)) / x.std(0, correction=0)).clamp(-10, 10)
        torch.testing.assert_close(found[name], x)
    assert sum(name.endswith('.count') for name in stage.state_dict()) == 2


def test_rows_without_weight_enter_no_statistic_of_a_dict():
    one, other = make_input(NESTED, obs_norm=True), make_input(NESTED, obs_norm=True)
    obs, weight = nested_obs(6), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    update_input(one, obs, weight)
    kept = nested_obs(6)
    for name in ('position', 'grid'):
        kept[name] = kept[name][weight > 0]
    update_input(other, kept)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())


def test_names_of_leaves_that_a_module_cannot_have_are_kept_distinct():
    names = [module_name(i, path) for i, path in enumerate([('a', 'b'), ('a_b',), ('keys',), ('ä.',)])]
    assert names == ['0_a_b', '1_a_b', '2_keys', '3__']
    odd = Dict({'a': Dict({'b': box(2)}), 'a_b': box(2), 'keys': box(1), 'forward': box(1), '': box(1)})
    stage = make_input(odd, obs_norm=True)
    assert len(list(stage.stages)) == 5


FLAT, DEEP = Box(-np.ones(2), np.ones(2)), Box(-np.ones(3), np.ones(3))
SAME_TEXT = Dict({'a.b': FLAT, 'a': Dict({'b': DEEP, 'c': DEEP}), '': FLAT})


def test_entries_whose_dotted_paths_are_equal_both_reach_the_network():
    obs = {'a.b': random(4, 2), 'a': {'b': random(4, 3, seed=1), 'c': random(4, 3, seed=2)}, '': random(4, 2, seed=3)}
    x = make_input(SAME_TEXT)(obs)
    assert {name: y.shape[-1] for name, y in x.items()} == {'a.b': 2, 'a.b_': 3, 'a.c': 3, '_': 2}
    assert x['a.b_'] is obs['a']['b'] and x['a.b'] is obs['a.b'] and x['_'] is obs['']
    network = make_encoder(SAME_TEXT, {'type': 'multi', 'join': None})[0]
    want = torch.cat([obs['a.b'], obs['a']['b'], obs['a']['c'], obs['']], -1)
    assert torch.equal(network(x), want)


@pytest.mark.parametrize(('names', 'width'), [(['a'], 6), (['a.b'], 2), (['a', ''], 8)])
def test_entries_keep_their_names_where_a_network_sees_only_some(names, width):
    """Oracle: the features without any layer are the entries themselves, side by side."""
    views = views_of(SAME_TEXT, names, None)
    obs = {'a.b': random(4, 2), 'a': {'b': random(4, 3, seed=1), 'c': random(4, 3, seed=2)}, '': random(4, 2, seed=3)}
    network = make_encoder(views.actor, {'type': 'multi', 'join': None})[0]
    want = torch.cat([x for name in names for _, x in leaves(obs[name])], -1)
    assert torch.equal(network(make_input(views.input)(obs)), want) and want.shape[-1] == width


@pytest.mark.parametrize(
    'space', [Box(-np.ones(2), np.ones(2)), Box(-np.ones((1, 2)), np.ones((1, 2))), 'dict'], ids=str
)
def test_normalised_observations_are_clipped_to_the_bound_given(space):
    leaf = Box(-np.ones(2), np.ones(2)) if space == 'dict' else space
    stage = make_input(Dict({'x': leaf}) if space == 'dict' else leaf, obs_norm=True, obs_clip=0.5)
    # no data so far: mean 0, deviation 1
    obs = torch.tensor([0.25, -3.0]).view(leaf.shape)
    got = stage({'x': obs})['x'] if space == 'dict' else stage(obs)
    assert got.tolist() == [0.25, -0.5]
