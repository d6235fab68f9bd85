"""Observations outside of the bounds of their Box: rounded ones are inside, others are one warning, at any part of a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from tests.envs import LimitEnv
from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.core import spaces
from zoo.env import EnvConfig, EnvContractError, check_env, inspect_env
from zoo.env.obs_bounds import N_NUMBER, BoundsWatch, widened_bounds


class BoundedEnv(LimitEnv):
    """Shows `value` from its step `start` on, counted over all episodes, and before that the lower bound of its space."""

    def __init__(self, space: gymnasium.Space, value: Any, start: int = 0) -> None:
        super().__init__()
        self.observation_space, self._value, self._start, self._n_all = space, value, start, 0

    def reset(self, **kwargs: Any) -> Any:
        return self._shown(), super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        self._n_all += 1
        return (self._shown(), *super().step(action)[1:])

    def _shown(self) -> Any:
        space: Any = self.observation_space
        if isinstance(space, Dict):
            return {'x': np.full((), self._value, np.float32), 'n': 1}
        filled = space.low if self._n_all < self._start else np.full(space.shape, self._value)
        return filled.astype(space.dtype)


def maker(space: gymnasium.Space, value: Any, start: int = 0) -> Callable[[], gymnasium.Env]:
    def make() -> gymnasium.Env:
        return BoundedEnv(space, value, start)

    return make


UNIT = Box(0, 1, (2,), np.float32)
PI = Box(-np.pi, np.pi, (1,), np.float32)
ROUNDED = [
    (Box(0, 1, (2,), np.float64), 1.0000000000000002),
    (UNIT, np.float32(1.0000001)),
    (Box(-np.pi, np.pi, (1,), np.float64), -3.1415927410125732),  # pi as float32
    (Box(0, 1, (2,), np.float16), 1.001),  # the next number of float16 after 1
    (Box(-1000, 1000, (1,), np.float32), 1000.0001),
]


@pytest.mark.parametrize(('space', 'value'), ROUNDED, ids=str)
def test_observation_that_is_rounded_beyond_its_bound_is_inside(space: gymnasium.Space, value: float) -> None:
    assert check_env(EnvConfig(id=maker(space, value))) == []


SAID = "env '{}:maker.<locals>.make'{}: {}, wanted {} as in observation_space; a policy takes it as it is: correct it, or widen the space."
OUTSIDE = [
    (UNIT, 1.5, 'the observation of reset has 1.5 at [0]', '0 to 1'),
    (Box(0, np.inf, (1,), np.float32), -1.13, 'the observation of reset has -1.1299999952316284 at [0]', '0 to inf'),
    (Box(0, 0, (1,), np.float64), 0.4, 'the observation of reset has 0.4 at [0]', '0 to 0'),
    (Box(-1, -1, (2, 3), np.int64), -2, 'the observation of reset has -2 at [0, 0]', '-1 to -1'),
    (Box(0, 1, (2, 2, 3), np.float32), 255, 'the observation of reset has 255.0 at [0, 0, 0]', '0 to 1'),
    (Dict(x=Box(0, 1, (), np.float32), n=Discrete(3)), 2, "the observation 'x' of reset is 2.0", '0 to 1'),
]


@pytest.mark.parametrize(('space', 'value', 'got', 'wanted'), OUTSIDE, ids=str)
@pytest.mark.slow(ci=True)
def test_observation_outside_of_its_bounds_is_a_warning_of_the_check(
    space: gymnasium.Space, value: float, got: str, wanted: str
) -> None:
    cfg = EnvConfig(id=maker(space, value))
    (sentence,) = check_env(cfg)
    assert sentence == SAID.format(__name__, ', index 0, step 0', got, wanted)
    assert check_env(cfg, before_run=True) == []  # the run says it
    report = inspect_env(cfg, n_step=20)
    assert report.problems == [] and sentence in report.warnings


@pytest.mark.slow
@pytest.mark.parametrize('start', [0, 100])
@pytest.mark.parametrize('n_group', [1, 2])
def test_run_whose_observations_leave_their_bounds_at_any_time_warns_once_and_trains(
    start: int, n_group: int, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = dict(check=True, collector_env_num=2, collector_group_num=n_group)
    with caplog.at_level(logging.WARNING):
        result = serial_pipeline(job_config(tmp_path, maker(UNIT, 2.0, start), env=env, max_env_step=512))
    assert result.last_return == 5.0 and result.env_step == 512
    said = [text for text in caplog.messages if 'as in observation_space' in text]
    name = '' if n_group == 1 else '[0:1]'
    assert said == [SAID.format(__name__, '', 'an observation has 2 at [0]', '0 to 1').replace("make'", f"make{name}'")]


@pytest.mark.slow
def test_run_without_the_check_is_silent(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = dict(check=False)
    serial_pipeline(job_config(tmp_path, maker(UNIT, 2.0), env=env, max_env_step=64))
    assert 'observation_space' not in caplog.text


@pytest.mark.slow
def test_bytes_of_an_image_beyond_the_bound_that_scales_them_end_the_run_at_any_step(tmp_path: Any) -> None:
    dark = Box(0, 8, (8, 8, 3), np.uint8)
    with pytest.raises(EnvContractError, match='step 0: .*has 9 at .*wanted 0 to 8 as in observation_space'):
        check_env(EnvConfig(id=maker(dark, 9)))
    env = dict(check=True, collector_env_num=2)
    with pytest.raises(
        EnvContractError, match='has 9 at .*wanted 0 to 8 as in .*, by which images of bytes are scaled'
    ):
        serial_pipeline(job_config(tmp_path, maker(dark, 9, start=40), env=env, max_env_step=512))


@pytest.mark.long
def test_bytes_of_an_image_below_their_lower_bound_are_one_warning(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The lower bound scales nothing: 5 / 255 is the same number whether the space begins at 0 or at 9."""
    bright = Box(9, 255, (8, 8, 3), np.uint8)
    words = 'has 5 at [0, 0, 0], wanted 9 to 255 as in observation_space'
    cfg = EnvConfig(id=maker(bright, 5))
    (sentence,) = check_env(cfg)
    assert words in sentence and 'scaled by their upper bound alone' in sentence
    assert check_env(cfg, before_run=True) == []  # the run says it
    caplog.clear()
    env = dict(check=True, collector_env_num=2)
    serial_pipeline(job_config(tmp_path, maker(bright, 5, start=40), env=env, max_env_step=512))
    assert caplog.text.count(words) == 1


def test_watch_of_an_image_below_its_lower_bound_still_looks_at_the_upper_one() -> None:
    said: list[str] = []
    space = spaces.Box(np.full((1, 1, 3), 3), np.full((1, 1, 3), 8), dtype='uint8')
    for warns in (True, False):
        said.clear()
        watch = BoundsWatch(space, 'dim', warns, say=said.append)
        obs = torch.full((2, 1, 1, 1, 3), 5, dtype=torch.uint8)
        obs[0, 0, 0, 0, 1] = 2
        watch.see(obs)
        watch.see(obs)
        sentence = (
            "env 'dim': an observation has 2 at [0, 0, 1], wanted 3 to 8 as in observation_space; images of bytes are "
        )
        assert said == [f'{sentence}scaled by their upper bound alone: correct it, or widen the space.'] * warns
        obs[1, 0, 0, 0, 2] = 9
        with pytest.raises(EnvContractError, match=r'has 9 at \[0, 0, 2\]'):
            watch.see(obs)


def test_watch_looks_at_every_step_of_a_long_rollout_within_some_rollouts() -> None:
    """4 million numbers: every 4th step is looked at, from another one on in each rollout."""
    said: list[str] = []
    n_step, n_number = 8, N_NUMBER // 2
    watch = BoundsWatch(spaces.Box(np.zeros(n_number), np.ones(n_number)), 'wide', say=said.append)
    obs = torch.zeros(n_step, 1, n_number)
    obs[5, 0, 7] = 3.0  # 5 % 4 = 1: the first rollout sees the steps 1 and 5
    watch.see(obs)
    assert said == [
        "env 'wide': an observation has 3 at [7], wanted 0 to 1 as in observation_space; a policy takes it as it is: correct "
        'it, or widen the space.'
    ]
    said.clear()
    watch = BoundsWatch(spaces.Box(np.zeros(n_number), np.ones(n_number)), 'wide', say=said.append)
    obs = torch.zeros(n_step, 1, n_number)
    obs[3, 0, 0] = -1.0
    n_rollout = 0
    while not said:
        watch.see(obs)
        n_rollout += 1
    assert n_rollout == 3  # which begins with step 3


def test_watch_looks_at_the_first_rollouts_and_later_at_every_8th() -> None:
    inside, outside = torch.zeros(4, 2, 1), torch.full((4, 2, 1), 3.0)
    for n_inside, n_found in [(0, 1), (7, 8), (8, 16), (15, 16), (16, 24), (9_999, 10_000), (10_000, 10_008)]:
        said: list[str] = []
        watch = BoundsWatch(spaces.Box(np.zeros(1), np.ones(1)), 'e', say=said.append)
        for _ in range(n_inside):
            watch.see(inside)
        n_seen = n_inside
        while not said:
            watch.see(outside)
            n_seen += 1
        assert n_seen == n_found and len(said) == 1 and 'has 3 at [0], wanted 0 to 1' in said[0]


def test_watch_of_a_check_looks_at_every_step() -> None:
    said: list[str] = []
    watch = BoundsWatch(spaces.Box(np.zeros(1), np.ones(1)), 'e', say=said.append, n_first=math.inf)
    for _ in range(8):
        watch.see(torch.zeros(1, 1, 1))
    watch.see(torch.full((1, 1, 1), 3.0))
    assert len(said) == 1


def test_bytes_that_are_too_bright_are_refused_in_the_rollout_that_has_them() -> None:
    watch = BoundsWatch(spaces.Box(np.zeros((1, 1, 3)), np.full((1, 1, 3), 8), dtype='uint8'), 'dim')
    for _ in range(9):
        watch.see(torch.full((2, 1, 1, 1, 3), 8, dtype=torch.uint8))
    with pytest.raises(EnvContractError, match=r'has 9 at \[0, 0, 0\]'):
        watch.see(torch.full((2, 1, 1, 1, 3), 9, dtype=torch.uint8))


def test_large_rollouts_of_which_every_8th_is_looked_at_are_seen_at_every_step() -> None:
    """Of 900,000 numbers every 9th step is looked at, and each of the 9 looks in 72 rollouts begins with another step."""
    n_number = N_NUMBER
    space = spaces.Box(np.zeros(n_number), np.ones(n_number))
    for step in range(9):
        said: list[str] = []
        watch = BoundsWatch(space, 'wide', say=said.append)
        obs = torch.zeros(9, 1, n_number)
        for _ in range(8):
            watch.see(obs)
        obs[step, 0, 7] = 3.0
        for _ in range(72):
            watch.see(obs)
        assert len(said) == 1


def test_bounds_are_widened_by_rounding_alone() -> None:
    low, high = widened_bounds(spaces.Box(np.array([-np.inf, 0.0]), np.array([1.0, 500.0])))
    assert low.tolist() == [-np.inf, -1e-6] and high.tolist() == [1 + 1e-6, 500 + 500e-6]
    pixels = spaces.Box(np.zeros((1, 1, 1)), np.full((1, 1, 1), 8.0), 'uint8')
    assert widened_bounds(pixels).high.tolist() == [[[8.0]]]


@pytest.mark.parametrize(
    ('dtype', 'high'),
    [(np.float32, float(np.finfo(np.float32).max)), (np.float64, float(np.finfo(np.float64).max)), (np.float64, 1e300)],
)
@pytest.mark.filterwarnings('error')
def test_bounds_at_the_largest_number_of_their_type_are_not_left_and_warn_of_no_overflow(
    dtype: Any, high: float
) -> None:
    """Many envs write 'no bound' so; the largest float32 is 3.4028e38."""
    said: list[str] = []
    watch = BoundsWatch(spaces.Box(np.array([-high]), np.array([high]), np.dtype(dtype).name), 'e', say=said.append)
    watch.see(torch.full((2, 1, 1), 3.4028e38))
    assert said == []
