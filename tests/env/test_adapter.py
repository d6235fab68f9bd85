"""The adapter for envs of old gym: here plain classes without gymnasium, since gym itself breaks on numpy 2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.envs import play
from zoo.core.data import leaves
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.env import EnvConfig, EnvContractError, UnsupportedEnvError, check_env, make_env, make_vector_env
from zoo.env.adapter import convert_space, gymnasium_space, restore_seed_methods


class OldEnv:
    """gym 0.21: step returns 4 values, reset only the observation; seed() sets the seed. Counts its steps as float64.

    The 3rd step ends the episode: by a time limit, or in a terminal state if `dies`.
    """

    observation_space = SimpleNamespace(low=np.zeros(2), high=np.full(2, np.inf), shape=(2,), dtype=np.dtype('float32'))
    action_space = SimpleNamespace(n=2, shape=(), dtype=np.dtype('int64'))

    def __init__(self, dies: bool = False) -> None:
        self.dies = dies
        self.rng = np.random.default_rng()
        self.state = np.zeros(2)

    def seed(self, seed: int | None = None) -> list:
        self.rng = np.random.default_rng(seed)
        return [seed]

    def reset(self) -> np.ndarray:
        self.state[:] = 0, self.rng.random()
        return self.state  # not a copy, as in old envs

    def step(self, action: Any) -> tuple:
        self.state[0] += 1
        done = self.state[0] == 3
        return self.state, 1.0, done, {'TimeLimit.truncated': not self.dies} if done else {}


class OldWrapper:
    """gym's Wrapper: passes any keyword on, whether the env inside takes it or not."""

    def __init__(self) -> None:
        self.env = self.unwrapped = OldEnv()
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space

    def seed(self, seed: int | None = None) -> list:
        return self.env.seed(seed)

    def reset(self, **kwargs: Any) -> np.ndarray:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple:
        return self.env.step(action)


class Gym23Env(OldEnv):
    """gym 0.23: reset takes a seed and still returns only the observation. Its array has the dtype of the space."""

    def __init__(self, dies: bool = False) -> None:
        super().__init__(dies)
        self.state = self.state.astype(np.float32)

    def reset(self, *, seed: int | None = None, return_info: bool = False) -> np.ndarray:  # type: ignore[override]
        if seed is not None:
            super().seed(seed)
        return super().reset()

    def seed(self, seed: int | None = None) -> list:
        raise AssertionError('deprecated where reset takes the seed')


class Gym26Env(Gym23Env):
    """gym 0.26: step returns 5 values and reset (obs, info), as in gymnasium; only the class is not gymnasium's."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed), {'lives': 3}

    def step(self, action: Any) -> tuple:
        obs, reward, done, _ = super().step(action)
        return obs, reward, done and self.dies, done and not self.dies, {}


KINDS = [OldEnv, OldWrapper, Gym23Env, Gym26Env]


@pytest.mark.parametrize(
    ('kind', 'mode'),
    [*((kind, 'same_step') for kind in KINDS), (OldEnv, 'next_step'), (OldEnv, 'disabled'), (Gym26Env, 'disabled')],
)
def test_old_env_time_limit_is_truncated_with_the_true_final_obs(kind: Any, mode: str) -> None:
    *_, before, step = play(make_vector_env(EnvConfig(id=kind, autoreset=mode), 2), [0, 1], [0, 1], [0, 1])
    assert not before.truncated.any()
    assert step.truncated.tolist() == [True, True] and step.terminated.tolist() == [False, False]
    final = step.obs if mode == 'next_step' else step.final_obs
    assert final[:, 0].tolist() == [3, 3]  # a reset writes 0 into the same array


class NoKeyEnv(OldEnv):
    def step(self, action: Any) -> tuple:
        return (*super().step(action)[:3], {})


GOES_ON, TERMINATED, TRUNCATED = (False, False), (True, False), (False, True)
AT = 'index 0, step 1: '
DIES = [GOES_ON, GOES_ON, TERMINATED]


@pytest.mark.parametrize(
    ('fields', 'ends'),
    [
        *((dict(id=kind, kwargs={'dies': True}), DIES) for kind in (OldEnv, Gym23Env, Gym26Env)),
        (dict(id=NoKeyEnv), DIES),
        (dict(id=OldEnv, max_episode_steps=2), [GOES_ON, TRUNCATED]),
    ],
)
def test_old_env_end_is_terminated_but_for_a_time_limit(fields: dict[str, Any], ends: list[tuple[bool, bool]]) -> None:
    env = make_env(EnvConfig(**fields))
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in ends] == ends


@pytest.mark.parametrize('kind', KINDS)
def test_old_env_seed_arrives_by_whatever_way_the_env_takes_it(kind: Any) -> None:
    obs, _ = make_env(EnvConfig(id=kind)).reset(seed=5)
    assert obs[1] == np.float32(np.random.default_rng(5).random())


@pytest.mark.parametrize(
    ('returned', 'message'),
    [
        ((np.zeros(2), 1.0, False), 'step returned 3 values, wanted obs, reward, terminated, truncated'),
        (None, AT + 'step returned what cannot be used .*has no len'),
        ((np.zeros(2), 1.0, None, {}), AT + 'done is None .*, wanted a bool; return bool'),
        ((np.zeros(2), 1.0, 2.5, {}), AT + 'done is 2.5 .*, wanted a bool; return bool'),
        ((np.zeros(2), 1.0, 'no', False, {}), AT + "terminated is 'no' .*, wanted a bool; return bool"),
    ],
)
def test_old_env_step_that_returns_what_cannot_be_used_is_named(returned: Any, message: str) -> None:
    class Env(OldEnv):
        def step(self, action: Any) -> Any:
            return returned

    with pytest.raises(EnvContractError, match=message):
        play(make_vector_env(EnvConfig(id=Env), 2), [0, 0])


def test_old_env_with_a_method_action_masks_is_masked() -> None:
    class Env(OldEnv):
        def action_masks(self) -> list:
            return [True, self.state[0] < 1]

    env = make_vector_env(EnvConfig(id=Env), 2)
    assert env.reset(0)['action_mask'].tolist() == [[True, True]] * 2
    assert env.step(torch.tensor([0, 0])).obs['action_mask'].tolist() == [[True, False]] * 2


# --- nested spaces of old gym


def old_space(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


NUMBER = old_space(low=np.zeros(()), high=np.ones(()), shape=(), dtype=np.dtype('float32'))
OLD_DICT = old_space(
    shape=None,
    spaces={
        'pair': old_space(spaces=[old_space(n=4, shape=()), NUMBER], shape=None),
        'bits': old_space(n=2, shape=(2,), dtype=np.dtype('int8')),
        'many': old_space(nvec=np.array([3, 4]), shape=(2,), dtype=np.dtype('int64')),
    },
)


class OldNestedEnv(OldEnv):
    """Counts its steps in leaves of the types that old libraries return: ints, float64, lists, int32 for int64."""

    observation_space = OLD_DICT
    action_space = old_space(spaces=(old_space(n=2, shape=()), NUMBER), shape=None)

    def shown(self) -> dict:
        n = int(self.state[0])
        return {'pair': (n, self.state[0] / 10), 'bits': [n % 2, 1], 'many': np.array([n % 3, n % 4], np.int32)}

    def reset(self) -> Any:
        super().reset()
        return self.shown()

    def step(self, action: Any) -> Any:
        kind, size = action  # a tuple, as the space is one
        _, _, done, info = super().step(None)
        return self.shown(), float(kind) + float(size), done, info


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), [('sync', 'same_step'), ('async', 'next_step'), ('sync', 'disabled')])
def test_old_nested_env_is_cast_leaf_by_leaf_and_takes_tuples(how: str, mode: str) -> None:
    actions = [[1, 0.25], [0, 0.75]]
    step, _, last = play(
        make_vector_env(EnvConfig(id=OldNestedEnv, vectorization=how, autoreset=mode), 2), *[actions] * 3
    )
    assert step.reward.tolist() == [1.25, 0.75]
    found = {path: x[0].tolist() for path, x in leaves(step.obs)}
    assert found == {'bits': [True, True], 'many': [1, 1], 'pair.0': 1, 'pair.1': pytest.approx(0.1)}
    final = last.obs if mode == 'next_step' else last.final_obs
    assert final['pair']['0'].tolist() == [3, 3] and last.truncated.all()


@pytest.mark.parametrize('kind', [*KINDS, OldNestedEnv])
def test_old_env_keeps_the_contract_once_adapted(kind: Any) -> None:
    # the check covers: float32 though the env computes in float64, infos, seeds, the final observation
    assert check_env(EnvConfig(id=kind)) == []


@pytest.mark.parametrize(
    ('space', 'value', 'words'),
    [
        (spaces.Box(0, 255, (4, 4, 1), np.uint8), np.full((4, 4, 1), 0.5), r'has 0\.5 \(float64\), wanted uint8'),
        (spaces.Box(0, 255, (4, 4, 1), np.uint8), np.full((4, 4, 1), 300), r'has 300 \(int64\), wanted uint8'),
        (spaces.Box(-9, 9, (2,), np.int8), np.array([1.0, np.nan]), r'has nan \(float64\), wanted int8'),
        (spaces.MultiDiscrete([3, 3]), np.array([0.0, 1.9]), r'has 1\.9 \(float64\), wanted int64'),
    ],
)
@pytest.mark.filterwarnings('ignore:invalid value encountered in cast')
def test_old_env_whose_numbers_the_space_cannot_hold_is_refused(space: Any, value: np.ndarray, words: str) -> None:
    class Lossy(OldEnv):
        observation_space = space

        def reset(self) -> Any:
            return value

    with pytest.raises(EnvContractError, match=f'index 0, step 0: the observation {words} as in observation_space'):
        make_vector_env(EnvConfig(id=Lossy), 1).reset(0)


def test_old_env_of_pairs_returns_a_pair_as_its_observation() -> None:
    """A pair whose second entry is a Dict must not be taken for the (obs, info) of gym 0.26."""

    class Env(OldEnv):
        observation_space = old_space(spaces=(NUMBER, old_space(spaces={'n': old_space(n=4, shape=())})), shape=None)

        def reset(self) -> Any:
            super().reset()
            return (0.5, {'n': 3})

        def step(self, action: Any) -> Any:
            return (0.5, {'n': 2}), 0.0, False, {}

    env = make_vector_env(EnvConfig(id=Env), 1)
    assert env.reset(0)['1']['n'].tolist() == [3]
    assert env.step(torch.tensor([0])).obs['1']['n'].tolist() == [2]


# --- spaces


@pytest.mark.parametrize(
    ('space', 'want'),
    [
        (spaces.Box(-1.0, 1.0, (), np.float64), Box(np.array(-1.0), np.array(1.0), 'float64')),
        (spaces.Box(0, 1, (2, 1, 1, 3), bool), Box(np.zeros((2, 1, 1, 3)), np.ones((2, 1, 1, 3)), 'bool')),
        (spaces.Box(0, 9, (2, 2), np.uint8), Box(np.zeros((2, 2)), np.full((2, 2), 9.0), 'uint8')),
        (spaces.Discrete(3, start=-1), Discrete(3, -1)),
        (spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]), MultiDiscrete((2, 3), (1, 0), (1, 2))),
        (spaces.MultiBinary(3), MultiBinary((3,))),
        (spaces.MultiBinary((2, 3)), MultiBinary((2, 3))),
        (spaces.Dict(b=spaces.Discrete(2)), Dict({'b': Discrete(2)})),
        (spaces.Tuple([spaces.Discrete(2)]), Dict({'0': Discrete(2)}, is_tuple=True)),
        (OLD_DICT.spaces['many'], MultiDiscrete((3, 4), (0, 0), (2,))),
        (OldEnv.action_space, Discrete(2)),
        (OldEnv.observation_space, Box(np.zeros(2), np.full(2, np.inf), 'float32')),
    ],
    ids=str,
)
def test_convert_space_of_every_kind(space: Any, want: Any) -> None:
    assert convert_space(space, 'observation', 'x') == convert_space(space, 'action', 'x') == want


@pytest.mark.parametrize(
    'space',
    [
        spaces.Box(-1.0, np.inf, (2, 1), np.float64),
        spaces.Box(0, 1, (), bool),
        spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
        spaces.Box(0, 2**64 - 1, (1,), np.uint64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary((2, 3)),
        spaces.Dict(b=spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)])),
    ],
    ids=str,
)
def test_gymnasium_space_is_the_inverse_of_convert_space(space: Any) -> None:
    assert gymnasium_space(convert_space(space, 'observation', 'x')) == space


def box(low: Any, high: Any, shape: tuple[int, ...] = (2,)) -> Any:
    return old_space(low=np.array(low), high=np.array(high), shape=shape, dtype=np.dtype('float32'))


@pytest.mark.parametrize(
    ('space', 'message'),
    [
        (box([0, np.nan], [1, 1]), r'the observation space has the bounds nan to 1 at \[1\], wanted numbers'),
        (box([0, 2], [1, 1]), r'has the bounds 2 to 1 at \[1\], wanted numbers .*the lower one first'),
        (
            box(np.zeros((0, 3)), np.zeros((0, 3)), (0, 3)),
            r'has the shape \(0, 3\), wanted 1 or more in each dimension',
        ),
        (old_space(n=0, shape=()), 'has 0 values, wanted 1 or more'),
        (old_space(nvec=np.array([2, 0]), shape=(2,)), 'has 0 values, wanted 1 or more'),
        (old_space(n=0, shape=(0,)), r'has the shape \(0,\), wanted 1 or more'),
        (old_space(spaces={}), 'the observation space has no entries, wanted one or more'),
        (old_space(spaces={'a': old_space(spaces=())}), "the observation space has no entries at 'a', wanted one"),
        (old_space(spaces={1: NUMBER, '1': NUMBER}), "has the entries 1 and '1', which are both '1' as text"),
        (
            old_space(spaces={'a': old_space(spaces=[box([np.nan] * 2, [1, 1])])}),
            "in the entry 'a.0', has the bounds nan",
        ),
        (old_space(low=np.zeros(2), high=np.ones(2), shape=(2,), dtype=np.dtype('complex64')), 'but supported are Box'),
    ],
)
def test_convert_space_that_makes_no_sense_is_refused(space: Any, message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=message):
        convert_space(space, 'observation', 'x')


def test_number_in_the_place_of_the_method_seed_of_a_space_is_deleted_at_any_depth_and_a_method_stays() -> None:
    own = gymnasium.spaces.Discrete(3)
    space = gymnasium.spaces.Dict({'a': gymnasium.spaces.Tuple((own, gymnasium.spaces.Discrete(2)))})
    own.seed = 7  # type: ignore[assignment,method-assign]
    space.seed = 8  # type: ignore[assignment,method-assign]
    chosen = space['a'][1]
    chosen.seed = lambda seed=None: [seed]  # a user's own method
    restore_seed_methods(space)
    assert own.seed(1) and space.seed(2) and chosen.seed(5) == [5]
