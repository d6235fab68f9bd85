"""Bounds of Box actions against the numbers from -1 to 1 with which a policy begins."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.core.spaces import Box, Dict, Discrete
from zoo.env.inspection.bounds import far_bounds

INF = np.inf


def box(*bounds: tuple[float, float]) -> Box:
    low, high = np.array(bounds).T
    return Box(low, high)


@pytest.mark.parametrize(
    ('bounds', 'far_in_clip', 'far_in_rescale'),
    [
        ((-1, 1), False, False),
        ((-10, 10), True, False),  # half the width is 10
        ((-0.1, 0.1), True, False),
        ((0, 2), False, False),
        ((3, 5), True, False),  # half the width is 1, but the middle is 4
        ((0, 512), True, False),
        ((-INF, INF), False, False),
        ((0, INF), False, False),
        ((300, INF), True, True),  # every number from -1 to 1 becomes 300, and no mode maps it elsewhere
        ((-INF, -2), True, True),
        ((-INF, 1), False, False),
        ((-1.7e308, 1.7e308), True, False),  # their difference is no float
    ],
)
def test_far_bounds_are_those_that_the_first_actions_miss(
    bounds: tuple[float, float], far_in_clip: bool, far_in_rescale: bool
) -> None:
    space = box((-1, 1), bounds)
    for mode, is_far in (('clip', far_in_clip), ('rescale', far_in_rescale)):
        expected = [('', *map(float, bounds))] if is_far else []
        assert [tuple(far) for far in far_bounds(space, mode)] == expected


def test_far_bounds_name_the_first_of_each_leaf_of_a_hybrid_space() -> None:
    inner = Dict({'0': Discrete(3), '1': box((-1, 1), (0, 720), (0, 30))}, is_tuple=True)
    far = far_bounds(Dict({'move': inner, 'push': box((300, 500)), 'turn': box((-1, 1))}))
    assert [tuple(bounds) for bounds in far] == [('move.1', 0.0, 720.0), ('push', 300.0, 500.0)]


def test_far_bounds_sentence_has_the_bounds_and_the_key_that_helps() -> None:
    (finite,) = far_bounds(Dict({'push': box((300, 500))}))
    assert finite.sentence() == (
        "the actions 'push' are from 300 to 500, and a policy begins with numbers near -1 to 1; set "
        'env.action_mode=rescale, or scale them in the env'
    )
    (open_above,) = far_bounds(box((300, INF)))
    assert 'all of which are clipped to 300; give action_space finite bounds' in open_above.sentence()
