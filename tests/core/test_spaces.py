"""Spaces as plain data, and ActionMap, the only place that converts a policy's action into the env's action."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter

from zoo.core.action_map import ActionMap, first_row
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    empty_obs,
    is_image,
    leaf_spaces,
    mask_space,
    n_lead,
    obs_dtype,
    obs_to_tensor,
    space_words,
)
from zoo.run.checkpoint.schema import SavedSpace

INF = np.inf
SAVED_SPACE = TypeAdapter(SavedSpace)


def box(low: list[float], high: list[float], dtype: str = 'float32') -> Box:
    return Box(np.array(low, dtype=np.float64), np.array(high, dtype=np.float64), dtype)  # float64, as from an env


# ---- ActionMap


# rows of three dimensions: [-1, 3] (both bounds), [0, inf) (one), unbounded
MIXED = box([-1, 0, -INF], [3, INF, INF])
HALF = box([-INF, 1], [2, INF])
INT32, MOST = 2**31 - 1, float(np.finfo(np.float64).max)
BITS = Box(np.zeros(4), np.ones(4), 'bool')


@pytest.mark.parametrize(
    ('space', 'mode', 'action', 'want', 'dtype'),
    [
        # an index is shifted by the start
        *((Discrete(3), mode, [0, 2, 1], [0, 2, 1], 'int64') for mode in ('clip', 'rescale')),
        *((Discrete(3, 5), mode, [0, 2, 1], [5, 7, 6], 'int64') for mode in ('clip', 'rescale')),
        (Discrete(3, -1), 'clip', [0, 2, 1], [-1, 1, 0], 'int64'),
        # floats given as indices stay floats, so the env can refuse them
        (Discrete(3), 'clip', [0.5, 1.5], [0.5, 1.5], 'float32'),
        # each dimension is clamped to the bounds that it has
        (MIXED, 'clip', [[-5, -5, -5], [2, 2, 2], [9, 9, 9]], [[-1, 0, -5], [2, 2, 2], [3, 9, 9]], 'float32'),
        *((HALF, mode, [[-9, -9], [1.5, 1.5], [9, 9]], [[-9, 1], [1.5, 1.5], [2, 9]], 'float32')
          for mode in ('clip', 'rescale')),
        # [-1, 1] -> [-1, 3] is 1 + 2 * action, clamped; a dimension without a bound is treated as by 'clip'
        (MIXED, 'rescale', [[-1, -1, -1], [0, 0, 0], [0.5, 0.5, 0.5], [1, 1, 1]],
         [[-1, 0, -1], [1, 0, 0], [2, 0.5, 0.5], [3, 1, 1]], 'float32'),
        (MIXED, 'rescale', [[-7, -7, -7], [7, 7, 7]], [[-1, 0, -7], [3, 7, 7]], 'float32'),
        # integers are rounded, then clamped
        (box([-2, 0], [2, 255], 'int64'), 'clip', [[0.6, 3.4], [-9.0, 1e9], [1.4, -0.4]],
         [[1, 3], [-2, 255], [1, 0]], 'int64'),
        # [-1, 1] -> [0, 10] is 5 + 5 * action, before it is rounded; 5.5 to even
        (box([0], [10], 'uint8'), 'rescale', [[-1.0], [0.1], [1.0], [4.0]], [[0], [6], [10], [10]], 'uint8'),
        # 2^31 - 1 is not a float32: clamping in float32 would give 2^31, which is not an int32
        (box([-INT32 - 1], [INT32], 'int32'), 'clip', [[1e10], [-1e10]], [[INT32], [-INT32 - 1]], 'int32'),
        # some envs write "unbounded" as the largest float; the middle of the box is still 0
        (box([-3.4028234663852886e38], [3.4028234663852886e38]), 'rescale', [[0.0]], [[0.0]], 'float32'),
        *((box([-most], [most], 'float64'), 'rescale', [[0.0]], [[0.0]], 'float64') for most in (1e300, MOST)),
        # a bool is true for an action above zero
        *((BITS, mode, [[-0.2, 0.3, 9.0, -9.0]], [[False, True, True, False]], 'bool') for mode in ('clip', 'rescale')),
        # the action gets the shape of the env's space
        (MultiDiscrete((3, 2), (0, 5), (2,)), 'clip', [[2, 1], [0, 0]], [[2, 6], [0, 5]], 'int64'),
        (MultiDiscrete((3, 2, 2, 4), (1, 0, 0, 0), (2, 2)), 'clip', [[2, 1, 0, 3]], [[[3, 1], [0, 3]]], 'int64'),
        # integers of the type of the space: 100 + 27 is the largest int8
        (Discrete(28, 100, 'int8'), 'clip', [0, 27], [100, 127], 'int8'),
        (MultiDiscrete((3, 256), (0, 0), (2,), 'uint8'), 'clip', [[2, 255]], [[2, 255]], 'uint8'),
        (MultiDiscrete((3, 2), (-1, 5), (2,), 'int32'), 'rescale', [[2, 1]], [[1, 6]], 'int32'),
        (MultiBinary((2,)), 'clip', [[0, 1]], [[0, 1]], 'int8'),
        (MultiBinary((2,), 'bool'), 'clip', [[0, 1]], [[False, True]], 'bool'),
        (MultiBinary((2, 2)), 'clip', [[0, 1, 1, 0]], [[[0, 1], [1, 0]]], 'int8'),
        (Box(np.zeros((2, 1)), np.ones((2, 1))), 'clip', [[0.5, 7.0]], [[[0.5], [1.0]]], 'float32'),
        (Box(np.array(-1.0), np.array(1.0)), 'clip', [[0.5], [-3.0]], [0.5, -1.0], 'float32'),
    ],
)  # fmt: skip
def test_action_map_hand_worked(space, mode, action, want, dtype):
    raw = torch.tensor(action)
    before, got = raw.clone(), ActionMap(space, mode)(raw)
    assert got.dtype == np.dtype(dtype) and got.tolist() == want
    got[...] = 0
    assert torch.equal(raw, before)  # the raw action is unchanged


def test_int64_bounds_survive_the_detour_over_floats():
    # 2^63 - 1 is not a float64: as a bound it would become 2^63, which is not an int64
    high, low = ActionMap(box([-(2**63)], [2**63 - 1], 'int64'))(torch.tensor([1e30, -1e30])[:, None])[:, 0]
    assert high > 2**62 and low == -(2**63)


def test_unbounded_actions_pass_bit_for_bit_also_with_a_gradient():
    action = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), requires_grad=True) * 1e3
    assert np.array_equal(ActionMap(box([-INF, -INF], [INF, INF]))(action), action.detach().numpy())


@pytest.mark.parametrize(
    ('mode', 'dtype'), [('clip', 'float32'), ('rescale', 'float32'), ('clip', 'float64'), ('rescale', 'float16')]
)
def test_the_env_gets_its_own_dtype_and_never_leaves_its_bounds(mode, dtype):
    # .1 and .3 are not exact floats: the bounds have the precision of the env's dtype, as in gymnasium's Box
    low, high = np.array([0.1, -0.3]).astype(dtype), np.array([0.3, 0.7]).astype(dtype)
    space = Box(low.astype(np.float64), high.astype(np.float64), dtype)
    got = ActionMap(space, mode)(torch.linspace(-2, 2, 101).unsqueeze(-1).expand(-1, 2))
    assert got.dtype == np.dtype(dtype) and (got >= low).all() and (got <= high).all()
    assert (got[0] == low).all() and (got[-1] == high).all()


@pytest.mark.parametrize('mode', ['clip', 'rescale'])
def test_tensors_are_what_the_env_gets_of_each_leaf(mode):
    parts = {
        'n': Discrete(3, 5),
        'x': box([-2, 0], [2, 9], 'float64'),
        'bits': MultiBinary((2,)),
        'i': box([0], [9], 'uint8'),
        'small': Discrete(2, 0, 'int16'),
    }
    action = torch.tensor([[2, 0.3, -4, 1, 0, 0.7, 1], [0, -9, 0.5, 0, 1, 20, 0]])
    nested = ActionMap(Dict({'deep': Dict(parts)}), mode)
    wanted = nested(action)['deep']
    for got, array in zip(nested.tensors(action), wanted.values(), strict=True):
        assert got.numpy().dtype == array.dtype and np.array_equal(got, array)
    assert [array.dtype.name for array in wanted.values()] == ['int64', 'float64', 'int8', 'uint8', 'int16']
    assert torch.equal(ActionMap(Discrete(3, 5), mode).tensors(torch.tensor([0, 2]))[0], torch.tensor([5, 7]))


@pytest.mark.parametrize(('lead', 'shape'), [((), (2, 2)), ((4,), (1,)), ((2, 3), (3,))])
def test_leading_shape_is_kept(lead, shape):
    space = Box(np.full(shape, -1.0), np.full(shape, 1.0))
    assert ActionMap(space, 'rescale')(torch.zeros(*lead, math.prod(shape))).shape == (*lead, *shape)
    assert ActionMap(Discrete(3, 1))(torch.zeros(lead, dtype=torch.int64)).shape == lead


@pytest.mark.slow
@given(low=st.floats(-1e6, 1e6, width=32), width=st.floats(2**-10, 1e6, width=32), action=st.floats(-3, 3, width=32))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_rescale_is_the_straight_line_through_the_bounds(low, width, action):
    space = box([low], [low + width])
    got = ActionMap(space, 'rescale')(torch.tensor([[action]])).item()
    want = np.clip(low + (action + 1) / 2 * width, low, low + width)
    assert got == pytest.approx(want, rel=1e-6, abs=1e-6 * (abs(low) + width))  # a few roundings of float32


# ---- Box, Discrete, JSON


def test_box_equality_looks_at_bounds_shape_and_dtype():
    one = box([-1, -INF], [1, INF])
    assert one == box([-1, -INF], [1, INF])
    assert one != box([-1, -INF], [1, 2]) and one != box([-2, -INF], [1, INF])
    assert one != box([-1, -INF], [1, INF], 'float64') and one != Discrete(2)
    assert box([0], [1]) != box([0, 0], [1, 1]) and Box(np.zeros((1, 2)), np.ones((1, 2))) != box([0, 0], [1, 1])


@pytest.mark.parametrize(
    'space',
    [
        Discrete(3),
        Discrete(2, start=-5),
        box([-1, 0], [1, 2]),
        box([-INF, 0, -INF], [INF, INF, 1.5]),
        box([0], [255], 'uint8'),
        Box(np.float32([0.1, -1 / 3]), np.float32([0.3, np.finfo(np.float32).max])),
        Box(np.zeros((3, 2, 4)), np.full((3, 2, 4), 1e-300), 'float64'),
        Box(np.arange(6.0).reshape(3, 1, 2), np.full((3, 1, 2), 255.0), 'uint8'),
        Box(np.zeros((1, 1)), np.ones((1, 1))),
        Box(np.array(-1.0), np.array(1.0)),
        Box(np.zeros(0), np.zeros(0)),
        Box(np.zeros((2, 1)), np.ones((2, 1)), 'bool'),
        MultiDiscrete((3, 2), (0, -4), (2,)),
        MultiDiscrete((3, 2, 5, 6), (0,) * 4, (2, 2)),
        MultiBinary((3,)),
        MultiBinary((2, 2)),
        Discrete(3, 1, 'uint8'),
        MultiDiscrete((3, 2), (0, -4), (2,), 'int32'),
        MultiBinary((3,), 'bool'),
        Dict({'b': Discrete(2), 'a': Dict({'x': MultiBinary((1,)), 'y': box([0], [INF])})}),
        Dict({'0': Discrete(2), '1': Dict({'0': box([0], [1])}, is_tuple=True)}, is_tuple=True),
    ],
)
def test_json_round_trip_is_exact(space):
    text = json.dumps(space.to_json(), allow_nan=False)
    again = SAVED_SPACE.validate_python(json.loads(text)).space()
    assert again == space and type(again) is type(space)
    if not isinstance(space, Dict):
        assert again.shape == space.shape and again.dtype == space.dtype
    assert list(leaf_spaces(again)) == list(leaf_spaces(space))  # in the same order, although JSON may sort keys


@pytest.mark.parametrize('shape', [(600_000,), (600, 1_000)])
def test_equal_bounds_of_a_large_box_are_written_once(shape):
    space = Box(np.full(shape, -1.0), np.full(shape, 255.0))
    assert space.to_json()['low'] == ['-1.0'] and space.to_json()['high'] == ['255.0']
    assert SAVED_SPACE.validate_python(space.to_json()).space() == space


def test_spaces_of_older_checkpoints_have_the_usual_integers():
    saved = [
        {'kind': 'discrete', 'n': 3, 'start': 0},
        {'kind': 'multi_discrete', 'nvec': [2], 'start': [0], 'shape': [1]},
        {'kind': 'multi_binary', 'shape': [2]},
    ]
    spaces = [SAVED_SPACE.validate_python(each).space() for each in saved]
    assert [space.dtype for space in spaces] == ['int64', 'int64', 'int8']
    # an env with other integers is still the env of such a checkpoint
    assert spaces == [Discrete(3, 0, 'int8'), MultiDiscrete((2,), (0,), (1,), 'uint8'), MultiBinary((2,), 'bool')]
    assert [space.to_json() for space in spaces] == saved


def test_json_that_was_sorted_gives_the_same_space():
    space = Dict({'b': Discrete(2), 'a': Dict({'z': Discrete(3), 'y': box([0], [1])})})
    again = SAVED_SPACE.validate_python(json.loads(json.dumps(space.to_json(), sort_keys=True))).space()
    assert [path for path, _ in leaf_spaces(again)] == ['b', 'a.z', 'a.y']


def test_json_of_an_image_says_a_common_bound_once_and_that_of_a_vector_as_before() -> None:
    image = Box(np.zeros((4, 84, 84)), np.full((4, 84, 84), 255.0), 'uint8').to_json()
    assert (image['low'], image['high'], image['shape']) == (['0.0'], ['255.0'], [4, 84, 84])
    assert box([0, 0], [1, 1]).to_json()['low'] == ['0.0', '0.0']  # the form in existing checkpoints


HYBRID = Dict(
    {
        'kind': Discrete(3, 5),
        'rest': Dict({'0': MultiBinary((2,)), '1': Box(-np.ones((1, 2)), np.ones((1, 2)), 'float64')}, is_tuple=True),
        'more': MultiDiscrete((2, 3), (0, 1), (2,)),
    }
)


def test_action_map_of_a_dict_cuts_the_row_into_its_leaves():
    got = ActionMap(HYBRID)(torch.tensor([[2.0, 1, 0, 0.5, -9, 1, 2], [0.0, 0, 1, 0.25, 1, 0, 0]]))
    assert got['kind'].tolist() == [7, 5] and got['kind'].dtype == np.int64
    bits, numbers = got['rest']
    assert bits.tolist() == [[1, 0], [0, 1]] and bits.dtype == np.int8
    assert numbers.tolist() == [[[0.5, -1]], [[0.25, 1]]] and numbers.dtype == np.float64
    assert got['more'].tolist() == [[1, 3], [0, 1]]
    assert first_row(got)['kind'] == 7 and first_row(got)['rest'][0].tolist() == [1, 0]


def test_action_map_of_a_dict_keeps_large_indices_exact():
    space = Dict({'a': Discrete(2**24), 'b': Box(-np.ones(1), np.ones(1))})
    assert ActionMap(space)(torch.tensor([[2.0**24 - 1, 0.0]]))['a'].tolist() == [2**24 - 1]


# ---- observations


@pytest.mark.parametrize('start, obs, want', [(0, 3, 3), (2, [2, 5], [0, 3]), (-1, np.array([-1, 0]), [0, 1])])
def test_discrete_observations_become_an_index_from_zero(start, obs, want):
    got = obs_to_tensor(Discrete(9, start), obs)
    assert got.dtype == torch.int64 and got.tolist() == want


@pytest.mark.parametrize(
    'obs',
    [
        np.array([[1, 2], [3, 4]], dtype=np.float64),
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.uint8),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[2, 1], [4, 3]], dtype=np.float32)[:, ::-1],
        np.array([[3, 4], [1, 2]], dtype=np.float64)[::-1],
        np.broadcast_to(np.array([[1, 2], [3, 4]], dtype=np.float32), (2, 2)),
    ],
    ids=['float64', 'float32', 'list', 'uint8', 'tensor', 'mirrored', 'reversed', 'read-only'],
)
def test_box_observations_become_float32(obs):
    got = obs_to_tensor(box([-9, -9], [9, 9]), obs)
    assert got.dtype == torch.float32 and got.tolist() == [[1, 2], [3, 4]]


IMAGE = Box(np.zeros((1, 2, 3)), np.full((1, 2, 3), 255.0), 'uint8')
FLOAT_IMAGE = Box(np.zeros((1, 2, 3)), np.ones((1, 2, 3)))


@pytest.mark.parametrize(
    ('space', 'image', 'dtype'),
    [
        (Discrete(3), False, torch.int64),
        (box([0], [1]), False, torch.float32),
        (box([0], [255], 'uint8'), False, torch.float32),
        (Box(np.zeros((2, 2)), np.ones((2, 2))), False, torch.float32),
        (IMAGE, True, torch.uint8),
        (FLOAT_IMAGE, True, torch.float32),
    ],
)
def test_obs_dtype_is_bytes_for_images_of_bytes_alone(space, image, dtype):
    assert is_image(space) is image and obs_dtype(space) is dtype


@pytest.mark.parametrize('lead', [(), (1,), (4,)])
def test_images_of_bytes_stay_bytes_and_are_copied(lead):
    obs = np.random.default_rng(0).integers(0, 256, (*lead, 1, 2, 3)).astype(np.uint8)
    for same in (obs, obs.tolist(), torch.from_numpy(obs), obs.astype(np.int64)):
        got = obs_to_tensor(IMAGE, same)
        assert got.dtype == torch.uint8 and np.array_equal(got.numpy(), obs)
    obs_to_tensor(IMAGE, obs)[...] = 0
    assert obs.any()
    assert obs_to_tensor(FLOAT_IMAGE, obs).dtype == torch.float32


@pytest.mark.parametrize(
    ('space', 'obs', 'words'),
    [
        (IMAGE, np.full((1, 2, 3), 0.5), 'is an image of float64 but must be one of bytes, integers from 0 to 255'),
        (IMAGE, np.full((1, 2, 3), 256), 'is an image of int64 but must be'),
        (IMAGE, np.full((1, 2, 3), -1), 'is an image of int64 but must be'),
        (IMAGE, np.zeros((2, 3), np.uint8), r'has shape \(2, 3\) but must have \(1, 2, 3\)'),
        (FLOAT_IMAGE, np.full((1, 2, 3), np.inf), 'is not finite'),
        (Discrete(4, start=-2), 0.5, 'is no integer'),
        (Discrete(4, start=-2), 2, 'lies outside -2 .. 1'),
        (Discrete(4, start=-2), [[-2]], 'is no integer or batch of them'),
        (Box(-np.ones(4), np.ones(4)), [0.0, 0.0], r'has shape \(2,\) but must have \(4,\)'),
        (Box(-np.ones(4), np.ones(4)), np.zeros((2, 2, 4)), r'has shape \(2, 2, 4\) but must have \(4,\)'),
        (Box(-np.ones(4), np.ones(4)), [0.0, np.nan, 0.0, 0.0], 'is not finite'),
    ],
)
def test_observation_that_is_not_of_the_space_is_refused(space, obs, words):
    with pytest.raises(UserError, match=words):
        obs_to_tensor(space, obs)


NESTED = Dict(
    {
        'image': IMAGE,
        'own': Dict({'0': Discrete(4, 2), '1': Box(np.array(-1.0), np.array(1.0))}, is_tuple=True),
        'grid': MultiDiscrete((5, 6), (0, 1), (2,)),
        'action_mask': MultiBinary((3,)),
    }
)
ONE = {
    'image': np.full((1, 2, 3), 7, np.uint8),
    'own': (3, 0.5),
    'grid': np.array([4, 1]),
    'action_mask': np.array([1, 0, 1], np.int8),
}


def test_nested_observations_become_dicts_of_tensors():
    got = obs_to_tensor(NESTED, ONE)
    assert {path: (x.tolist(), x.dtype) for path, x in leaves(got)} == {
        'image': (np.full((1, 2, 3), 7).tolist(), torch.uint8),
        'own.0': (1, torch.int64),
        'own.1': (0.5, torch.float32),
        'grid': ([4, 0], torch.int64),
        'action_mask': ([True, False, True], torch.bool),
    }
    assert n_lead(NESTED, got) == 0


def test_nested_observations_in_a_batch_keep_it_and_may_be_dicts_of_zoo():
    batch = {
        'image': np.stack([ONE['image']] * 2),
        'own': {'0': np.array([2, 5]), '1': np.zeros(2)},
        'grid': np.array([[0, 1], [4, 6]]),
        'action_mask': np.ones((2, 3), bool),
    }
    got = obs_to_tensor(NESTED, batch)
    assert got['own']['0'].tolist() == [0, 3] and got['grid'].tolist() == [[0, 0], [4, 5]]
    assert n_lead(NESTED, got) == 1


def test_entries_that_may_be_missing_are_left_out():
    got = obs_to_tensor(NESTED, {name: x for name, x in ONE.items() if name != 'image'}, optional=('image',))
    assert sorted(got) == ['action_mask', 'grid', 'own'] and n_lead(NESTED, got) == 0


def test_entries_that_may_be_missing_are_those_of_the_outer_dict_alone():
    space = Dict({'own': Dict({'image': Discrete(2)}), 'image': Discrete(2)})
    assert list(obs_to_tensor(space, {'own': {'image': 1}}, optional=('image',))) == ['own']
    with pytest.raises(UserError, match=r"the observation 'own' has the entries \[\] but must have 'image'; pass"):
        obs_to_tensor(space, {'own': {}}, optional=('image',))


@pytest.mark.parametrize(
    'change, words',
    [
        (lambda o: {**o, 'own': 3}, "the observation 'own' is a int but must have '0', '1'"),
        (lambda o: {'image': o['image']}, r"the observation has the entries \['image'\] but must have 'image', 'own'"),
        (lambda o: o['image'], 'the observation is a ndarray but must have'),
        (lambda o: {**o, 'own': (6, 0.5)}, "the observation 'own.0' 6 lies outside 2 .. 5"),
        (lambda o: {**o, 'own': (3, np.inf)}, "the observation 'own.1' inf is not finite"),
        (lambda o: {**o, 'grid': np.array([5, 1])}, r"the observation 'grid' .* lies outside \[0 1\] .. \[4 6\]"),
        (lambda o: {**o, 'grid': np.array([0.0, 1])}, "the observation 'grid' is of float64 but must be integers"),
        (lambda o: {**o, 'grid': np.array([0])}, r"'grid' has shape \(1,\) but must have \(2,\)"),
        (lambda o: {**o, 'action_mask': np.array([1, 2, 0])}, "'action_mask' .* must be zeros and ones"),
        (lambda o: {**o, 'image': o['image'][None]}, 'leading dimensions but must agree; pass one observation, or'),
    ],
)
def test_nested_observation_that_is_not_of_the_space_names_its_leaf(change, words):
    with pytest.raises(UserError, match=words):
        obs_to_tensor(NESTED, change(ONE))


def test_empty_observations_are_zeros_with_every_action_legal():
    obs = empty_obs(NESTED, (2, 3))
    assert {path: (tuple(x.shape), x.dtype) for path, x in leaves(obs)} == {
        'image': ((2, 3, 1, 2, 3), torch.uint8),
        'own.0': ((2, 3), torch.int64),
        'own.1': ((2, 3), torch.float32),
        'grid': ((2, 3, 2), torch.int64),
        'action_mask': ((2, 3, 3), torch.bool),
    }
    assert empty_obs(NESTED)['action_mask'].all() and not any(
        x.any() for path, x in leaves(obs) if path != 'action_mask'
    )


def test_mask_space_is_that_of_the_top_entry_alone():
    assert mask_space(NESTED) == MultiBinary((3,))
    assert mask_space(Dict({'deep': NESTED})) is None and mask_space(IMAGE) is None


MASKED_DICT = Dict({'image': box([0], [1]), 'vector': box([0], [1]), 'action_mask': MultiBinary((3,))})
MASKED_ARRAY = Dict({'obs': box([0], [1]), 'action_mask': MultiBinary((3,))})


@pytest.mark.parametrize(
    ('space', 'obs', 'said'),
    [
        (
            MASKED_DICT,
            {'image': [0.0], 'vector': [0.0]},
            "add the mask of the env: {**obs, 'action_mask': mask}, where mask",
        ),
        (MASKED_ARRAY, np.zeros(1), "add the mask of the env: {'obs': obs, 'action_mask': mask}, where mask is"),
        (MASKED_ARRAY, {'obs': np.zeros(1)}, "add the mask of the env: {**obs, 'action_mask': mask}"),
        (MASKED_DICT, {'image': [0.0]}, 'pass what the env gave'),
        (
            Dict({'obs': box([0], [1]), 'prev_action': Discrete(2), 'prev_reward': box([0], [1])}),
            np.zeros(1),
            'env.prev_action and env.prev_reward of the config adds entries: pass what zoo.env.make_env gives',
        ),
        (
            Dict({'obs': Box(np.zeros((2, 1)), np.ones((2, 1))), 'window_mask': MultiBinary((2,))}),
            np.zeros(1),
            'env.window of the config adds entries',
        ),
    ],
)
def test_observation_without_entries_that_zoo_adds_is_told_how_to_get_them(space, obs, said):
    with pytest.raises(UserError) as error:
        obs_to_tensor(space, obs)
    assert said in str(error.value)


def test_spaces_in_words_are_one_line_without_arrays():
    image = Box(np.zeros((24, 24, 3)), np.full((24, 24, 3), 255.0), 'uint8')
    space = Dict({'eye': image, 'pair': Dict({'0': Discrete(3, 2), '1': MultiBinary((4,))}, is_tuple=True)})
    words = '{eye: Box (24, 24, 3) uint8 in 0 .. 255, pair: (0: Discrete(3, start=2), 1: MultiBinary (4,))}'
    assert space_words(space) == words
    assert space_words(MultiDiscrete((2, 3), (0, 0), (2,))) == 'MultiDiscrete [2, 3]'
