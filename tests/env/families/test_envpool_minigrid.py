"""MiniGridEncoder: grids small enough to encode by hand, and the real 7x7 view, decoded from its vector."""

from __future__ import annotations

import importlib.util
import logging

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from zoo.env import EnvConfig, make_vector_env
from zoo.env.families.envpool import N_KIND, MiniGridEncoder

needs_envpool = pytest.mark.skipif(
    importlib.util.find_spec('envpool') is None, reason='the extra envpool is not installed'
)


def encoder(height: int, width: int) -> MiniGridEncoder:
    return MiniGridEncoder(
        Dict(
            image=Box(0, 255, (height, width, 3), np.uint8), direction=Discrete(4), mission=Box(0, 255, (8,), np.uint8)
        ),
        'grid',
    )


def test_encoder_two_cells_have_their_ones_where_the_hand_puts_them() -> None:
    # a yellow closed door (4, 4, 1) and an unseen cell (0, 0, 0), the agent looks left (2):
    # cell 0: 4, 11 + 4, 17 + 1; cell 1: 20 + 0, 31 + 0, 37 + 0; direction: 40 + 2
    encode = encoder(1, 2)
    vector = encode({'image': np.array([[[[4, 4, 1], [0, 0, 0]]]], np.uint8), 'direction': np.array([2], np.int32)})
    assert vector.shape == (1, 44) and vector.dtype == np.float32
    assert np.flatnonzero(vector[0]).tolist() == [4, 15, 18, 20, 31, 37, 42]
    assert encode.space.shape == (44,) and encode.space.contains(vector[0])


def test_encoder_rows_are_those_of_the_batch() -> None:
    # the largest values there are: an agent (10), grey (5), locked (2), looking up (3): 10, 16, 19, 23
    image = np.array([[[[10, 5, 2]]], [[[1, 0, 0]]]], np.uint8)
    vector = encoder(1, 1)({'image': image, 'direction': np.array([3, 0], np.int32)})
    assert [np.flatnonzero(row).tolist() for row in vector] == [[10, 16, 19, 23], [1, 11, 17, 20]]


def test_warn_of_missions_warns_once_and_only_if_they_differ(caplog: pytest.LogCaptureFixture) -> None:
    encode = encoder(1, 1)
    one, other = (np.frombuffer(text, np.uint8) for text in (b'red\0\0', b'blue\0'))
    with caplog.at_level(logging.WARNING):
        encode.warn_of_missions({'mission': np.stack([one, one])})
        assert not caplog.records
        encode.warn_of_missions({'mission': np.stack([one, other])})
        encode.warn_of_missions({'mission': np.stack([one, other])})
    assert [record.message for record in caplog.records] == [
        "the missions of env 'grid' differ ('blue', 'red'), but its observations leave them out: the policy "
        'cannot see its mission'
    ]


def decode(vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the image and direction that a vector encodes."""
    cells = vector[:, :-4].reshape(len(vector), 7, 7, sum(N_KIND))
    parts = np.split(cells, np.cumsum(N_KIND)[:-1], axis=-1)
    assert all((part.sum(-1) == 1).all() for part in parts)
    return np.stack([part.argmax(-1) for part in parts], -1), vector[:, -4:].argmax(-1)


@needs_envpool
def test_vector_env_shows_what_the_pool_shows_one_hot() -> None:
    import envpool

    game = 'MiniGrid-DoorKey-6x6-v0'
    env = make_vector_env(EnvConfig(id='envpool', game=game), 3)
    first = env.reset(5).numpy()
    seeds = [int(child.generate_state(1)[0]) >> 1 for child in np.random.SeedSequence(5).spawn(3)]
    pool = envpool.make_gymnasium(game, num_envs=3, seed=seeds)
    assert env.obs_space.shape == (984,)
    raw, _ = pool.reset()
    for action in [None, *torch.randint(7, (40, 3), generator=torch.Generator().manual_seed(0))]:
        if action is not None:
            first, raw = env.step(action).obs.numpy(), pool.step(action.numpy())[0]
        image, direction = decode(first)
        assert np.array_equal(image, raw['image']) and np.array_equal(direction, raw['direction'])


@needs_envpool
@pytest.mark.parametrize(('game', 'n_warning'), [('MiniGrid-DoorKey-6x6-v0', 0), ('MiniGrid-Fetch-5x5-N2-v0', 1)])
def test_reset_warns_where_the_mission_matters(game: str, n_warning: int, caplog: pytest.LogCaptureFixture) -> None:
    env = make_vector_env(EnvConfig(id='envpool', game=game), 8)
    with caplog.at_level(logging.WARNING):
        env.reset(0)
    assert len(caplog.records) == n_warning
