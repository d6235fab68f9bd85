"""Dict and Tuple spaces in vectors: an env that counts its steps in leaves of every kind, and one that echoes actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from tests.envs import LimitEnv, play
from zoo.core.data import final_rows, leaves, map_tensors
from zoo.env import EnvConfig, EnvContractError, EnvError, VectorEnv, make_vector_env

SPACE = Dict(
    {
        'image': Box(0, 255, (2, 2, 3), np.uint8),
        'own': Tuple((Discrete(4, start=2), Box(0.0, np.inf, (), np.float64))),
        'grid': MultiDiscrete([[5, 6], [7, 8]], start=[[0, 1], [2, 3]]),
        'bits': MultiBinary((1, 2)),
        'number': Box(-9, 9, (2,), np.int16),
    }
)
MODES = [(how, mode) for how in ('sync', 'async') for mode in ('same_step', 'next_step', 'disabled')]


def raw_obs(t: int) -> dict[str, Any]:
    return {
        'image': np.full((2, 2, 3), 200 + t, np.uint8),
        'own': (2 + t, np.array(t / 2)),
        'grid': np.array([[t, 1 + t], [2 + t, 3 + t]]),
        'bits': np.array([[t % 2, 1]], np.int8),
        'number': np.array([-t, t], np.int16),
    }


def want(t: int) -> dict[str, Tensor]:
    """The leaves that zoo returns for the observation after t steps, by path."""
    return {
        'image': torch.full((2, 2, 3), 200 + t, dtype=torch.uint8),
        'own.0': torch.tensor(t),
        'own.1': torch.tensor(t / 2),
        'grid': torch.full((2, 2), t),
        'bits': torch.tensor([[t % 2 == 1, True]]),
        'number': torch.tensor([-t, t]).float(),
    }


class NestedEnv(LimitEnv):
    """The observation counts the steps; an episode has 3. Every observation is written into the same arrays.

    `change` replaces the observation of the 2nd step if the action is 1.
    """

    def __init__(self, change: Any = None) -> None:
        super().__init__(limit=3)
        self.observation_space = SPACE
        self.change, self.own = change, raw_obs(0)

    def reset(self, **kwargs: Any) -> Any:
        return self.shown(0), super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        obs = self.shown(self._n_step)
        return (self.change(obs) if self.change and self._n_step == 2 and action == 1 else obs, *rest)

    def shown(self, t: int) -> Any:
        for name, x in raw_obs(t).items():
            if name == 'own':
                self.own['own'][1][...] = x[1]
                self.own['own'] = (x[0], self.own['own'][1])
            else:
                self.own[name][...] = x
        return self.own


def make(env_id: Any, n_env: int = 2, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id=env_id, **fields), n_env)


def is_step(obs: Any, t: int, n_env: int = 2) -> bool:
    found = dict(leaves(obs))
    assert sorted(found) == sorted(want(t))
    for path, x in want(t).items():
        assert found[path].dtype == x.dtype, path
    return all(torch.equal(found[path], torch.stack([x] * n_env)) for path, x in want(t).items())


# --- observations


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), MODES)
def test_receive_counts_the_steps_in_leaves_of_every_kind_in_every_mode(how: str, mode: str) -> None:
    env = make(NestedEnv, vectorization=how, autoreset=mode)
    block = env.block(5)
    map_tensors(lambda rows, x: rows[0].copy_(x), block.obs, env.reset(0))
    for t in range(5):
        env.send(torch.tensor([0, 0]))
        env.receive(block, t)
    shown = [0, 1, 2, 3, 0, 1] if mode == 'next_step' else [0, 1, 2, 0, 1, 2]
    for t, count in enumerate(shown):
        assert is_step(map_tensors(lambda x, t=t: x[t], block.obs), count)
    obs, index = final_rows(block.finals, block.obs)
    if mode == 'next_step':
        assert index.tolist() == []
    else:
        assert index.tolist() == [[2, 0], [2, 1]] and is_step(obs, 3)
    env.close()


class NestedVectorEnv(gymnasium.vector.VectorEnv):
    """NestedEnv as a vector of 2; its final observations are one tree of arrays, or an array of trees if `are_objects`."""

    def __init__(self, mode: AutoresetMode, are_objects: bool) -> None:
        self.num_envs, self.are_objects, self.t = 2, are_objects, 0
        self.metadata = {'autoreset_mode': mode}
        self.single_observation_space, self.single_action_space = SPACE, Discrete(2)
        self.observation_space, self.action_space = batch_space(SPACE, 2), batch_space(Discrete(2), 2)

    def reset(self, **kwargs: Any) -> Any:
        self.t = 0
        return self.obs(), {}

    def obs(self) -> Any:
        one = raw_obs(self.t)
        twice = {name: np.stack([x, x]) for name, x in one.items() if name != 'own'}
        return {**twice, 'own': tuple(np.stack([x, x]) for x in one['own'])}

    def step(self, actions: Any) -> Any:
        self.t += 1
        ended, info = np.full(2, self.t == 3), {}
        if ended.any() and self.metadata['autoreset_mode'] is AutoresetMode.SAME_STEP:
            info = {'final_obs': np.array([raw_obs(3), raw_obs(3)], object) if self.are_objects else self.obs()}
            self.t = 0
        return self.obs(), np.ones(2), np.zeros(2, bool), ended, info


@pytest.mark.parametrize('are_objects', [False, True])
def test_step_batched_final_obs_of_either_form_are_read(are_objects: bool) -> None:
    inner = NestedVectorEnv(AutoresetMode.SAME_STEP, are_objects)
    *before, step = play(VectorEnv(inner, EnvConfig(id='x'), 'x'), *[[0, 0]] * 3)
    assert all(each.final_obs is None for each in before)
    assert is_step(step.final_obs, 3) and is_step(step.obs, 0)


def test_step_batched_leaf_of_another_shape_is_named() -> None:
    inner: Any = NestedVectorEnv(AutoresetMode.SAME_STEP, True)
    env = VectorEnv(inner, EnvConfig(id='x'), 'x')
    env.reset(0)
    good = inner.obs()
    inner.obs = lambda: {**good, 'number': np.zeros((2, 5), np.int16)}
    with pytest.raises(
        EnvContractError, match=r"step 1: step returned observations 'number' of shape \(2, 5\), wanted"
    ):
        env.step(torch.tensor([0, 0]))


# --- what an env must not return


CHANGES = {
    'a leaf is missing': (lambda o: {k: x for k, x in o.items() if k != 'bits'}, "has no entry 'bits', wanted 'bits'"),
    'no dict': (lambda o: o['image'], 'the observation is array.*, wanted a dict with '),
    'no tuple': (lambda o: {**o, 'own': 3}, r"the observation 'own' is 3 \(int\), wanted a tuple of 2"),
    'tuple of one': (lambda o: {**o, 'own': o['own'][:1]}, "the observation 'own' is .*, wanted a tuple of 2"),
    'shape': (lambda o: {**o, 'number': np.zeros(3, np.int16)}, r"the observation 'number' is of shape \(3,\)"),
    'dtype': (lambda o: {**o, 'own': (o['own'][0], 'no')}, "the observation 'own.1' is 'no'"),
    'nan': (lambda o: {**o, 'own': (2, np.array(np.nan))}, "observation 'own.1' is nan after action 1, wanted finite"),
    'index': (
        lambda o: {**o, 'grid': np.array([[0, 1], [2, 11]])},
        r"observation 'grid' has 11 at \[1, 1\], outside of the space 3 .. 10",
    ),
    'start': (lambda o: {**o, 'own': (1, o['own'][1])}, "observation 'own.0' is 1, outside of the space 2 .. 5"),
    'bit': (lambda o: {**o, 'bits': np.array([[0, 2]], np.int8)}, "'bits' has 2, wanted zeros and ones"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('how', 'case'),
    [
        *(('sync', case) for case in CHANGES),
        *(('async', case) for case in ('a leaf is missing', 'shape', 'dtype', 'nan')),
    ],
)
def test_step_leaf_that_is_not_of_its_space_is_named_with_env_and_step(how: str, case: str) -> None:
    change, message = CHANGES[case]
    with pytest.raises(EnvContractError, match='index 1, step 2: .*' + message):
        play(make(NestedEnv, 3, kwargs={'change': change}, vectorization=how), [0, 1, 0], [0, 1, 0])


@pytest.mark.parametrize('mode', ['same_step', 'disabled'])
def test_step_final_obs_with_a_bad_leaf_is_named(mode: str) -> None:
    class Env(NestedEnv):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return ({**obs, 'own': (2, np.array(np.inf))} if self._n_step == 3 and action == 1 else obs, *rest)

    with pytest.raises(EnvContractError, match="index 2, step 3: observation 'own.1' is inf after action 1"):
        play(make(Env, 3, autoreset=mode), *[[0, 0, 1]] * 3)


# --- actions


ACTIONS = Dict(
    {
        'kind': Discrete(3, start=5),
        'more': Tuple((MultiDiscrete([[2, 3]], start=[[0, 1]]), MultiBinary(2))),
        'size': Box(-1.0, 1.0, (2, 1), np.float32),
    }
)


class EchoEnv(gymnasium.Env):
    """The observation is the flattened action that the env received, which must be in its action space."""

    def __init__(self, space: gymnasium.Space = ACTIONS) -> None:
        self.action_space = space
        self.observation_space = Box(-np.inf, np.inf, (gymnasium.spaces.flatdim(space),), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action) or np.isnan(action['size']).any(), action
        return gymnasium.spaces.flatten(self.action_space, action).astype(np.float32), 0.0, False, False, {}


@pytest.mark.parametrize('how', ['sync', 'async'])
def test_step_nested_actions_arrive_in_the_form_of_the_space(how: str) -> None:
    # kind | two choices, two bits | two numbers, of which 5 and -7 lie outside
    actions = torch.tensor([[2, 1, 0, 0, 1, 0.5, 5], [0, 0, 2, 1, 1, -7, 0.25]])
    (step,) = play(make(EchoEnv, vectorization=how), actions)
    # one-hot kind (5, 6, 7) | one-hot choices (0, 1), (1, 2, 3) | bits | numbers
    assert step.obs.tolist() == [
        [0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0.5, 1],
        [1, 0, 0, 1, 0, 0, 0, 1, 1, 1, -1, 0.25],
    ]


@pytest.mark.parametrize(
    ('space', 'action', 'sent'),
    [
        (MultiDiscrete([3, 2], start=[4, 0]), [[2, 1], [0, 0]], [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0]]),
        (MultiBinary((2, 2)), [[0, 1, 1, 0], [1, 1, 0, 0]], [[0, 1, 1, 0], [1, 1, 0, 0]]),
        (Box(-1.0, 1.0, (2, 2)), [[0.5, -3, 0, 0], [1, 2, 0, 0]], [[0.5, -1, 0, 0], [1, 1, 0, 0]]),
        (Box(-3, 3, (2,), np.int64), [[0.6, -9], [1, 2]], [[1, -3], [1, 2]]),
    ],
    ids=str,
)
def test_step_actions_of_more_dimensions_and_kinds_arrive(space: gymnasium.Space, action: list, sent: list) -> None:
    is_index = not isinstance(space, Box)
    raw = torch.tensor(action, dtype=torch.int64 if is_index else torch.float32)
    (step,) = play(make(EchoEnv, kwargs={'space': space}), raw)
    assert step.obs.tolist() == sent


def test_step_nested_action_that_is_not_finite_is_the_policys_fault() -> None:
    with pytest.raises(EnvError, match='index 1, step 1: .*the action is not finite: look at the policy'):
        play(make(EchoEnv), [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, float('nan')]])


@pytest.mark.parametrize('how', ['sync', 'async'])  # a wait for processes would last until env.step_timeout
def test_step_nested_actions_for_another_number_of_envs_are_the_callers_fault(how: str) -> None:
    with pytest.raises(ValueError, match='step got 3 actions for 2 envs'):
        play(make(EchoEnv, vectorization=how), torch.zeros(3, 7))
