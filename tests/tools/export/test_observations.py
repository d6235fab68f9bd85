"""Random observations to compare on: of the space, with the statistics of the policy, with one allowed choice at least."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiBinary

from tests.tools.export.policies import make_policy
from zoo.core.spaces import ACTION_MASK, leaf_spaces
from zoo.env.toy.targets import OBS_SPACES
from zoo.policy.inference import read_obs
from zoo.tools.export.acting import nested_obs
from zoo.tools.export.check import draw_obs, drawn_words


@pytest.mark.parametrize('name', list(OBS_SPACES))
def test_drawn_observations_are_of_the_space_and_spread_over_it(name: str) -> None:
    policy, space = make_policy('ppo', name), OBS_SPACES[name]()
    drawn = draw_obs(policy, 200, np.random.default_rng(0))
    read_obs(policy, nested_obs(policy.obs_space, drawn))  # raises where one is not
    for path, leaf in leaf_spaces(policy.obs_space):
        assert drawn[path].shape == (200, *leaf.shape) and len(np.unique(drawn[path])) > 1
    if not isinstance(space, Dict | gymnasium.spaces.Tuple):
        assert all(space.contains(np.asarray(each) if isinstance(space, Box) else each) for each in drawn[''])


def test_whole_numbers_between_bounds_come_all_and_within() -> None:
    drawn = draw_obs(make_policy('ppo', Box(-2, 3, (2,), np.int16)), 500, np.random.default_rng(0))['']
    assert drawn.dtype == np.int16 and sorted(np.unique(drawn)) == [-2, -1, 0, 1, 2, 3]


def test_numbers_without_bounds_are_normal_as_the_statistics() -> None:
    low, high = np.array([-np.inf, -1.0, -3e38]), np.array([np.inf, 1.0, 3e38])
    policy = make_policy('ppo', Box(low.astype(np.float32), high.astype(np.float32)), obs_norm=True)
    norm = policy.model.input
    norm.mean.copy_(torch.tensor([5.0, 0.0, -7.0]))
    norm.var.copy_(torch.tensor([4.0, 1.0, 0.01]))
    drawn = draw_obs(policy, 10_000, np.random.default_rng(0))['']
    # the mean of 10,000 has a deviation of a hundredth of theirs
    assert np.abs(drawn.mean(0) - [5, 0, -7]).max() < 0.1 and np.allclose(drawn.std(0)[[0, 2]], [2, 0.1], rtol=0.05)
    assert np.abs(drawn[:, 1]).max() <= 1
    assert drawn_words(policy) == 'uniform between bounds and normal, as the statistics of obs_norm elsewhere'


def test_drawn_words_name_each_kind() -> None:
    assert drawn_words(make_policy('ppo', 'image_uint8')) == 'uniform over the space'
    assert drawn_words(make_policy('ppo', 'box_2d')) == 'standard normal'


def test_masks_allow_an_option_of_each_choice() -> None:
    space = Dict({ACTION_MASK: MultiBinary(9), 'place': Box(-1.0, 1.0, (1,))})
    mask = draw_obs(make_policy('ppo', space, 'tuple'), 500, np.random.default_rng(0))[ACTION_MASK]
    for start, stop in ((0, 2), (2, 4), (4, 7)):  # Discrete(2), MultiDiscrete([2, 3]), 2 bits
        assert mask[:, start:stop].any(1).all() and not mask[:, start:stop].all()
