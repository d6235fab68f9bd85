"""VectorEnv: autoreset, seeds, spaces, errors. The oracles are envs that count their steps or return their action."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple

from tests.envs import LimitEnv, LimitVectorEnv, limit_env, play
from zoo.core.registry import ENV_REGISTRY
from zoo.env import EnvConfig, EnvContractError, EnvError, UnsupportedEnvError, VectorEnv, make_vector_env

BATCHED = {'same_step': 'LimitSameStep-v0', 'next_step': 'Limit-v0', 'disabled': 'LimitDisabled-v0'}
MODES = [(how, mode) for how in ('sync', 'async', 'batched') for mode in BATCHED]
ENDS = ['truncated', 'terminated'] * 5


def make(id: Any, n_env: int = 2, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id=id, **fields), n_env)


class OneArrayEnv(LimitEnv):
    """All observations are one array of the env, so that a reset overwrites the final observation."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.array = np.zeros(1, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        self.array[:], info = super().reset(**kwargs)
        return self.array, info

    def step(self, action: Any) -> Any:
        self.array[:], *rest = super().step(action)
        return (self.array, *rest)


class StopEnv(LimitEnv):
    """Counts its steps; action 1 ends the episode."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, bool(action == 1), False, {}


class NoiseEnv(LimitEnv):
    """The first observation is drawn from the env's own stream."""

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return self.np_random.random(1).astype(np.float32), {}


class EchoEnv(gymnasium.Env):
    """The observation is the action that the env received, as float64, so that it has to be cast."""

    def __init__(self) -> None:
        low = np.array([-2, 0, -np.inf, -np.inf])
        high = np.array([1, np.inf, 3, np.inf])
        self.action_space = Box(low.astype(np.float32), high.astype(np.float32))
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return np.zeros(4), {}

    def step(self, action: Any) -> Any:
        return action.astype(np.float64), 0.0, False, False, {}


class EchoDiscreteEnv(gymnasium.Env):
    """Observation and reward are the action that the env received: 5, 6 or 7; `shift` is added to the observation."""

    def __init__(self, shift: int = 0) -> None:
        self.action_space = self.observation_space = Discrete(3, start=5)
        self.shift = shift

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return 6, {}

    def step(self, action: Any) -> Any:
        return int(action) + self.shift, float(action), False, False, {}


class NanStartEnv(LimitEnv):
    def reset(self, **kwargs: Any) -> Any:
        return np.full(1, np.nan, np.float32), {}


class FaultEnv(LimitEnv):
    """Action 1: the observation is nan. 2: the reward is -inf. 3: the episode ends with inf as its observation."""

    def __init__(self) -> None:
        super().__init__(limit=100)
        self.action_space = Discrete(4)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        obs = obs * {1: np.nan, 3: np.inf}.get(int(action), 1.0)
        return obs, -np.inf if action == 2 else reward, bool(action == 3), False, {}


# --- the three autoreset modes


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode', 'end'), [(*pair, end) for pair, end in zip(MODES, ENDS, strict=False)])
def test_step_every_mode_gives_the_sequence_of_a_counting_env(how: str, mode: str, end: str) -> None:
    """The limit is 5: the 5th step ends the episode; in next_step mode the 6th row is only a reset."""
    env_id = f'tests.envs:{BATCHED[mode]}' if how == 'batched' else OneArrayEnv
    env = make(env_id, kwargs={'end': end}, vectorization=how, autoreset=mode)
    assert env.autoreset == mode
    assert env.reset(0).tolist() == [[0.0], [0.0]]
    if mode == 'next_step':
        obs_want, reward_want = [1, 2, 3, 4, 5, 0, 1], [1, 1, 1, 1, 1, 0, 1]
    else:
        obs_want, reward_want = [1, 2, 3, 4, 0, 1, 2], [1] * 7
    for t in range(7):
        obs, reward, terminated, truncated, final_obs, final_index, _, is_reset, *_ = env.step(torch.tensor([0, 1]))
        ended = t == 4
        assert obs.tolist() == [[obs_want[t]]] * 2 and obs.dtype == torch.float32
        assert reward.tolist() == [reward_want[t]] * 2 and reward.dtype == torch.float32
        assert terminated.tolist() == [ended and end == 'terminated'] * 2
        assert truncated.tolist() == [ended and end == 'truncated'] * 2
        if mode == 'next_step':
            assert is_reset.tolist() == [t == 5] * 2
            assert final_obs is None and final_index is None
        else:
            assert is_reset is None
            assert (final_obs.tolist(), final_index.tolist()) == ([[5], [5]], [0, 1]) if ended else final_obs is None
            assert final_index is None or ended
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
@pytest.mark.parametrize('mode', ['same_step', 'disabled'])
def test_step_one_env_ends_final_obs_is_of_that_env_alone(how: str, mode: str) -> None:
    env = make(StopEnv, 3, vectorization=how, autoreset=mode)
    _, *steps = play(env, [0, 0, 0], [0, 1, 0], [0, 0, 1])
    found = [(x.obs.tolist(), x.final_obs.tolist(), x.final_index.tolist()) for x in steps]
    assert found == [([[2], [0], [2]], [[2]], [1]), ([[3], [1], [0]], [[3]], [2])]
    assert steps[0].terminated.tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_step_next_step_mode_only_the_ended_env_has_a_reset_row(how: str) -> None:
    env = make(StopEnv, 3, vectorization=how, autoreset='next_step')
    steps = play(env, [0, 1, 0], [0, 1, 0], [0, 0, 0])  # the action of a reset row is not used
    no = [False] * 3
    found = [(x.obs.flatten().tolist(), x.is_reset.tolist()) for x in steps]
    assert found == [([1, 1, 1], no), ([2, 0, 2], [False, True, False]), ([3, 1, 3], no)]
    assert steps[1].reward.tolist() == [1, 0, 1] and not steps[1].terminated.any()


@pytest.mark.parametrize('how', ['sync', 'batched'])
def test_reset_in_the_middle_of_next_step_mode_leaves_no_reset_row(how: str) -> None:
    env = make('tests.envs:Limit-v0', kwargs={'limit': 1}, vectorization=how, autoreset='next_step')
    env.reset(0)
    assert env.step(torch.zeros(2, dtype=torch.int64)).truncated.all()
    env.reset(0)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert not step.is_reset.any() and step.obs.tolist() == [[1], [1]]


# --- choice of the vectorization


@pytest.mark.parametrize(
    ('fields', 'mode'),
    [
        ({'id': 'CartPole-v1'}, 'next_step'),  # registers a batched version, which knows only this mode
        ({'id': 'CartPole-v1', 'kwargs': {'sutton_barto_reward': True}}, 'next_step'),
        ({'id': 'CartPole-v1', 'autoreset': 'same_step'}, 'same_step'),
        ({'id': 'Pendulum-v1'}, 'same_step'),
        ({'id': limit_env}, 'same_step'),
        ({'id': 'tests.envs:limit_env'}, 'same_step'),
        ({'id': 'CartPole-v1', 'vectorization': 'sync'}, 'same_step'),
    ],
)
def test_make_vector_env_auto_takes_batched_where_it_fits(fields: dict, mode: str) -> None:
    env = make_vector_env(fields, 3)  # a plain mapping
    assert (env.n_env, env.autoreset) == (3, mode)


def test_make_vector_env_auto_kwarg_that_batched_lacks_takes_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(extra: int = 0, **kwargs: Any) -> gymnasium.Env:
        return LimitEnv(**kwargs)

    spec = gymnasium.envs.registration.EnvSpec('Extra-v0', entry_point=single, vector_entry_point=LimitVectorEnv)
    monkeypatch.setitem(gymnasium.registry, 'Extra-v0', spec)
    assert make('Extra-v0').autoreset == 'next_step'
    assert make('Extra-v0', kwargs={'extra': 1}).autoreset == 'same_step'


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'id': 'Pendulum-v1'}, "'batched' but 'Pendulum-v1' registers no batched version"),
        (
            {'id': 'CartPole-v1', 'autoreset': 'same_step'},
            "env.autoreset is 'same_step' but the batched 'CartPole-v1' does 'next_step'; use 'auto'",
        ),
    ],
)
def test_make_vector_env_batched_that_cannot_be_raises(fields: dict, message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=message):
        make(vectorization='batched', **fields)


def test_make_vector_env_takes_a_registered_name() -> None:
    ENV_REGISTRY.register('limit_of_two', force=True)(lambda **kwargs: limit_env(limit=2, **kwargs))
    steps = play(make('limit_of_two', kwargs={'end': 'terminated'}), *[[0, 0]] * 4)
    assert [bool(step.terminated.all()) for step in steps] == [False, True, False, True]


# --- time limits


def balance(obs: torch.Tensor) -> torch.Tensor:
    """Keeps the pole of CartPole up for more than 500 steps from every start."""
    return (obs @ torch.tensor([0.1, 0.3, 1.0, 1.0]) > 0).long()


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'limit'), [('sync', None), ('batched', None), ('batched', 20)])
def test_step_cartpole_is_truncated_at_its_limit(how: str, limit: int | None) -> None:
    env = make('CartPole-v1', 4, vectorization=how, max_episode_steps=limit)
    obs = env.reset(0)
    for t in range(1, (limit or 500) + 1):
        step = env.step(balance(obs))
        obs = step.obs
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == (limit or 500)] * 4


@pytest.mark.parametrize(
    'make_one', [lambda: limit_env(limit=100), lambda: gymnasium.wrappers.TimeLimit(limit_env(limit=100), 2)]
)
def test_step_max_episode_steps_overrides_that_of_a_callable(make_one: Any) -> None:
    steps = play(make(make_one, max_episode_steps=4), *[[0, 0]] * 8)
    assert [bool(step.truncated.all()) for step in steps] == [False, False, False, True] * 2


# --- memory


@pytest.mark.parametrize('how', ['sync', 'async', 'batched'])
def test_what_reset_and_step_returned_is_not_written_over_by_the_next_step(how: str) -> None:
    env = make('CartPole-v1', vectorization=how)
    seen = [env.reset(0), *(env.step(torch.zeros(2, dtype=torch.int64)).obs for _ in range(2))]
    env.close()
    assert not any(torch.equal(a, b) for a, b in combinations(seen, 2))


# --- seeds


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_reset_env_i_is_seeded_from_the_ith_child(how: str) -> None:
    env = make(NoiseEnv, 3, vectorization=how)
    obs = env.reset(np.random.SeedSequence(7))
    want = [
        np.random.default_rng(int(child.generate_state(1)[0]) >> 1).random(1).astype(np.float32).tolist()
        for child in np.random.SeedSequence(7).spawn(3)
    ]  # gymnasium's np_random is default_rng (PCG64) of the seed
    assert obs.tolist() == want
    env.close()


def test_reset_batched_same_seed_gives_the_same_obs_another_seed_another() -> None:
    env, seed = make('CartPole-v1'), np.random.SeedSequence(3)
    first = env.reset(seed).clone()
    assert torch.equal(env.reset(seed), first)
    assert torch.equal(make('CartPole-v1').reset(3), first)
    assert not torch.equal(env.reset(4), first)


# --- spaces


def test_step_discrete_with_start_is_an_index_inside_and_a_number_outside() -> None:
    env = make(EchoDiscreteEnv, 3)
    assert (env.obs_space.n, env.obs_space.start) == (3, 5)
    first = env.reset(0)
    assert first.tolist() == [1, 1, 1] and first.dtype == torch.int64  # 6 - 5
    step = env.step(torch.tensor([0, 1, 2]))
    assert step.reward.tolist() == [5, 6, 7]  # what the env was sent
    assert step.obs.tolist() == [0, 1, 2] and step.obs.dtype == torch.int64
    (step,) = play(make(EchoDiscreteEnv, 3, max_episode_steps=1), [0, 1, 2])
    assert step.truncated.all() and step.obs.tolist() == [1, 1, 1]
    assert step.final_obs.tolist() == [0, 1, 2] and step.final_obs.dtype == torch.int64


@pytest.mark.parametrize(
    ('mode', 'action', 'want'),
    [
        ('clip', [-5, -5, -5, -5], [-2, 0, -5, -5]),
        ('clip', [5, 5, 5, 5], [1, 5, 3, 5]),
        ('clip', [0.25, 0.5, -0.5, 9], [0.25, 0.5, -0.5, 9]),
        ('rescale', [-1, -5, -5, -5], [-2, 0, -5, -5]),  # only the first dimension has two finite bounds
        ('rescale', [0, 5, 5, 5], [-0.5, 5, 3, 5]),
        ('rescale', [4, 1, 1, 1], [1, 1, 1, 1]),
    ],
)
def test_step_box_action_is_mapped_and_the_raw_one_kept(mode: str, action: list, want: list) -> None:
    raw = torch.tensor([action], dtype=torch.float32)
    (step,) = play(make(EchoEnv, 1, action_mode=mode), raw)
    assert step.obs.tolist() == [want] and step.obs.dtype == torch.float32
    assert raw.tolist() == [action]


@pytest.mark.parametrize(
    ('role', 'space', 'message'),
    [
        (
            'observation',
            Sequence(Discrete(2)),
            r'the observation space Sequence.*: pad it by .*zoo.env.padded_sets:PaddedSets',
        ),
        ('observation', Graph(Discrete(2), None), r'the observation space Graph.*: give its nodes as a Sequence'),
        ('action', Sequence(Discrete(2)), r'the action space Sequence.*: pad the sequence to a fixed length'),
        ('action', Graph(Discrete(2), None), r'the action space Graph.*: give nodes and edges as Box arrays'),
    ],
)
def test_sets_and_graphs_are_refused_with_what_helps_in_their_role(
    role: str, space: gymnasium.Space, message: str
) -> None:
    def make_one() -> gymnasium.Env:
        env = limit_env()
        setattr(env, f'{role}_space', space)
        return env

    with pytest.raises(UnsupportedEnvError, match=message):
        make_vector_env(EnvConfig(id=make_one), 1)


@pytest.mark.parametrize('role', ['observation', 'action'])
@pytest.mark.parametrize(
    ('space', 'message'),
    [
        (Text(5), r'has the {role} space Text.*but supported are Box, Discrete, .*; wrap the env: encode the text as'),
        (OneOf([Discrete(2), Discrete(3)]), r'has the {role} space OneOf.*: use a Dict that holds a Discrete choice'),
        (
            Dict(a=Tuple([Discrete(2), Dict(word=Text(5))])),
            r"has in the entry 'a.1.word' of its {role} space Text.*: encode the text",
        ),
    ],
    ids=str,
)
def test_make_vector_env_space_that_is_not_supported_names_the_leaf_and_a_way_out(
    space: gymnasium.Space, message: str, role: str
) -> None:
    def make_one() -> gymnasium.Env:
        env = limit_env()
        setattr(env, f'{role}_space', space)
        return env

    with pytest.raises(UnsupportedEnvError, match=message.replace('{role}', role)):
        make(make_one)


# --- images


class ImageEnv(LimitEnv):
    """Every pixel of the image is 200 + the number of steps; the 2nd step returns `show(image)` instead."""

    def __init__(self, dtype: Any = np.uint8, show: Any = lambda image: image, limit: int = 3) -> None:
        super().__init__(limit)
        self.observation_space = Box(0, 255, (4, 5, 3), dtype)
        self.show = show

    def reset(self, **kwargs: Any) -> Any:
        return np.full((4, 5, 3), 200, self.observation_space.dtype), super().reset(**kwargs)[1]

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        image = np.full((4, 5, 3), 200 + obs[0], self.observation_space.dtype)
        return (self.show(image) if obs[0] == 2 else image, *rest)


@pytest.mark.parametrize(
    ('mode', 'dtype', 'want'),
    [
        ('same_step', np.uint8, torch.uint8),
        ('next_step', np.float64, torch.float32),
        ('disabled', np.uint8, torch.uint8),
        ('same_step', np.float64, torch.float32),
    ],
)
def test_step_images_of_bytes_stay_bytes_others_become_float32(mode: str, dtype: Any, want: Any) -> None:
    env = make(ImageEnv, kwargs={'dtype': dtype}, autoreset=mode)
    assert env.obs_space.shape == (4, 5, 3) and env.obs_space.dtype == np.dtype(dtype).name
    obs = env.reset(0)
    for t in range(1, 4):
        assert obs.dtype == want and obs.shape == (2, 4, 5, 3) and (obs == 199 + t).all()
        step = env.step(torch.tensor([0, 1]))
        obs = step.obs
    final = obs if mode == 'next_step' else step.final_obs
    assert step.truncated.all() and final.dtype == want and (final == 203).all()
    assert (obs == (203 if mode == 'next_step' else 200)).all()
    env.close()


def spoil(image: np.ndarray) -> np.ndarray:
    image[1, 2, 0] = np.nan
    return image


def test_step_batched_image_of_another_dtype_raises() -> None:
    """As bytes, a float image of 0 to 1 would be all black."""
    env = make(ImageEnv)
    env.reset(0)
    inner: Any = env.env
    inner.step = lambda actions: (np.full((2, 4, 5, 3), 0.5, np.float32), np.zeros(2), *np.zeros((2, 2), bool), {})
    with pytest.raises(EnvContractError, match='step 1: the observations are of float32, wanted uint8 as in observa'):
        env.step(torch.tensor([0, 0]))


# --- what an env must not return


INF = r'observation is \[inf\] after action 3, wanted finite'


@pytest.mark.parametrize(
    ('env_id', 'fields', 'actions', 'message'),
    [
        *(
            (
                FaultEnv,
                {'autoreset': mode},
                [[0, 0, 0], [0, 0, action]],
                f"env 'tests.*:FaultEnv', index 2, step 2: {said}",
            )
            for mode, action, said in (
                ('next_step', 1, r'observation is \[nan\] after action 1, wanted finite'),
                ('disabled', 2, 'reward is -inf after action 2, wanted finite'),
                *((mode, 3, INF) for mode in BATCHED),
            )
        ),
        (
            EchoEnv,
            {},
            [[[0.0] * 4, [0.0] * 3 + [np.nan]]],
            'index 1, step 1: observation .*the action is not finite: look at the policy',
        ),
        (NanStartEnv, {}, [], r'index 0, step 0: observation is \[nan\], wanted finite'),
        (
            EchoDiscreteEnv,
            {'kwargs': {'shift': 1}},
            [[0, 2, 1]],
            'index 1, step 1: observation is 8, outside of the space 5 .. 7',
        ),
        (
            ImageEnv,
            {'kwargs': dict(dtype=np.float32, show=spoil)},
            [[0, 0], [0, 0]],
            r'step 2: observation has nan at \[1, 2, 0\] after action 0, wanted',
        ),
        (
            ImageEnv,
            {'kwargs': dict(show=lambda image: image / 255, limit=2)},
            [[0, 0], [0, 0]],
            'step 2: the observations are of float64, wanted uint8',
        ),
    ],
)
def test_step_value_that_no_env_may_return_names_env_index_step_value(
    env_id: Any, fields: dict, actions: list, message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        play(make(env_id, len(actions[-1]) if actions else 2, **fields), *actions)


def test_batched_env_with_obs_of_another_shape_is_named_without_an_index() -> None:
    env = make('tests.envs:Limit-v0', 2)
    env.reset(0)
    env.env.observed = lambda: np.zeros((2, 3), np.float32)  # type: ignore[attr-defined]
    place, shape = (
        "env 'tests.envs:Limit-v0', step {}: {} returned ",
        r'observations of shape \(2, 3\), wanted \(2, 1\)',
    )
    with pytest.raises(EnvContractError, match=place.format(1, 'step') + shape):
        env.step(torch.tensor([0, 0]))
    with pytest.raises(EnvContractError, match=place.format(0, 'reset') + shape):
        env.reset(0)
