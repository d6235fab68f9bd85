"""env.window, prev_action, prev_reward and action_bins, around an env that counts its steps and rewards the action."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import zoo.core.spaces as plain
from tests.envs import LimitEnv, play
from zoo.core.data import leaves, map_tensors
from zoo.env import EnvConfig, EnvContractError, UnsupportedEnvError, VectorEnv, check_env, make_env, make_vector_env

HOWS = [('sync', 'same_step'), ('async', 'next_step'), ('sync', 'disabled')]


class CountEnv(LimitEnv):
    """The observation is 10 + the number of steps, the reward the action; 3 steps make an episode. Actions: 2, 3, 4."""

    def __init__(self, limit: int = 3, space: Any = None, show: Any = None) -> None:
        super().__init__(limit)
        self.action_space = Discrete(3, start=2)
        self.observation_space = Box(10.0, 99.0, (1,), np.float32) if space is None else space
        self.show = show or (lambda x: x)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return self.show(obs + 10), info

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (self.show(obs + 10), float(np.sum(action)), *rest)


def make(env_id: Any = CountEnv, n_env: int = 2, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id=env_id, **fields), n_env)


def plainly(obs: Any) -> dict[str, Any]:
    """The leaves of the first env, as numbers."""
    return {path: x[0].squeeze(-1).tolist() if x.dim() > 1 else x[0].item() for path, x in leaves(obs)}


def shown(env: VectorEnv, *actions: list[int]) -> tuple[list[Any], list[Any]]:
    """The observations of the first env from its reset on, and its final observations, as numbers."""
    with closing(env):
        seen = [plainly(env.reset(0))]
        steps = [env.step(torch.tensor(action)) for action in actions]
    finals = [plainly(step.final_obs) for step in steps if step.final_obs is not None]
    return seen + [plainly(step.obs) for step in steps], finals


# --- windows


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), HOWS)
def test_window_holds_the_last_observations_of_the_episode_oldest_first(how: str, mode: str) -> None:
    seen, finals = shown(make(vectorization=how, autoreset=mode, window=3), *[[0, 0]] * 4)
    first = {'obs': [0, 0, 10], 'window_mask': [False, False, True]}
    rows = [
        first,
        {'obs': [0, 10, 11], 'window_mask': [False, True, True]},
        {'obs': [10, 11, 12], 'window_mask': [True] * 3},
    ]
    last = {'obs': [11, 12, 13], 'window_mask': [True] * 3}
    assert seen == [*rows, *([last, first] if mode == 'next_step' else [first, rows[1]])]
    assert finals == ([] if mode == 'next_step' else [last])


@pytest.mark.parametrize(
    ('space', 'windowed'),
    [
        (Box(10.0, 99.0, (1,)), plain.Box(np.zeros((2, 1)), np.full((2, 1), 99.0))),  # 0, the padding, is in it
        (Box(0, 255, (2, 3, 3), np.uint8), plain.Box(np.zeros((2, 2, 3, 3)), np.full((2, 2, 3, 3), 255.0), 'uint8')),
        (Discrete(5, start=8), plain.MultiDiscrete((5, 5), (8, 8), (2,))),
        (MultiBinary(3), plain.MultiBinary((2, 3))),
        (MultiDiscrete([[2, 3]], start=[[0, 1]]), plain.MultiDiscrete((2, 3, 2, 3), (0, 1, 0, 1), (2, 1, 2))),
    ],
    ids=str,
)
def test_window_of_each_kind_of_space(space: gymnasium.Space, windowed: Any) -> None:
    show = lambda x: space.sample()  # noqa: E731
    env = make(kwargs={'space': space, 'show': show}, window=2)
    assert env.obs_space.spaces['obs'] == windowed
    assert env.obs_space.spaces['window_mask'] == plain.MultiBinary((2,))
    obs = env.reset(0)
    assert obs['obs'].shape == (2, 2, *space.shape) and not obs['obs'][:, 0].any()  # index 0 of Discrete
    env.step(torch.tensor([0, 0]))


def test_window_of_nested_observations_has_all_leaves_but_no_mask() -> None:
    space = Dict({'a': Tuple((Box(0, 99, (1,)), Discrete(100))), 'action_mask': MultiBinary(3)})

    def show(x: Any) -> Any:
        return {'a': (x, int(x[0])), 'action_mask': np.array([1, x[0] % 2, 1], np.int8)}

    env = make(kwargs={'space': space, 'show': show}, window=2)
    (_, obs, after), _ = shown(env, [0, 0], [0, 0])
    assert obs == {'a.0': [10, 11], 'a.1': [10, 11], 'action_mask': [True] * 3, 'window_mask': [True, True]}
    assert after['action_mask'] == [True, False, True]
    off = make(kwargs={'space': space, 'show': show}, window=2, action_mask='off')
    mask = play(off, [0, 0])[0].obs['action_mask']  # an entry like the others, as numbers
    assert mask[0].tolist() == [[1, 0, 1], [1, 1, 1]] and mask.dtype == torch.float32


def test_window_of_one_array_of_the_envs_own_keeps_what_it_was() -> None:
    array = np.zeros(1, np.float32)

    def show(x: Any) -> Any:
        array[:] = x
        return array

    seen, _ = shown(make(kwargs={'show': show}, n_env=1, window=3), [0], [0])
    assert seen[-1]['obs'] == [10, 11, 12]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('show', 'message'),
    [
        (lambda x: x if x < 11 else np.zeros(3), r'the observation is of shape \(3,\) and dtype float64, wanted numb'),
        (lambda x: x if x < 11 else None, 'the observation is None'),
        (lambda x: x if x < 11 else x * np.nan, "observation 'obs' has nan at"),
    ],
)
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_window_of_an_observation_that_cannot_be_is_named(how: str, show: Any, message: str) -> None:
    with pytest.raises(EnvContractError, match='index 0, step 1: ' + message):
        play(make(kwargs={'show': show}, window=2, vectorization=how), [0, 0])


# --- the previous action and reward


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), HOWS)
def test_prev_action_and_reward_are_those_of_the_step_before(how: str, mode: str) -> None:
    env = make(vectorization=how, autoreset=mode, prev_action=True, prev_reward=True)
    assert env.obs_space.spaces['prev_action'] == plain.Discrete(3, 2)
    assert env.obs_space.spaces['prev_reward'].shape == ()
    seen, finals = shown(env, *([action, 0] for action in (2, 1, 2, 1)))
    first = {'obs': 10, 'prev_action': 0, 'prev_reward': 0}
    rows = [first, {'obs': 11, 'prev_action': 2, 'prev_reward': 4}, {'obs': 12, 'prev_action': 1, 'prev_reward': 3}]
    last = {'obs': 13, 'prev_action': 2, 'prev_reward': 4}
    after = [last, first] if mode == 'next_step' else [first, {'obs': 11, 'prev_action': 1, 'prev_reward': 3}]
    assert seen == [*rows, *after]
    assert finals == ([] if mode == 'next_step' else [last])


def test_prev_action_is_what_the_env_took_not_what_the_policy_said() -> None:
    class Env(CountEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict({'a': Box(1.0, 2.0, (2,)), 'b': Tuple((Discrete(2),))})

        def step(self, action: Any) -> Any:
            result = super().step(action['a'])
            action['a'][:] = 0  # an env may change its action
            return result

    env = make(Env, n_env=1, prev_action=True)
    first = env.reset(0)
    assert first['prev_action']['a'].tolist() == [[1, 1]] and first['prev_action']['b']['0'].tolist() == [0]
    obs = env.step(torch.tensor([[1.5, 9.0, 1.0]])).obs
    assert obs['prev_action']['a'].tolist() == [[1.5, 2]] and obs['prev_action']['b']['0'].tolist() == [1]


# --- entries of infos


class LeanEnv(CountEnv):
    """The info of step n has 100 n under 'lean', but none at step 2; a reset has -1 there. 'place' is [n, -n]."""

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {'lean': -1.0}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        n = float(obs[0]) - 10
        info = {'place': np.array([n, -n]), 'parts': {'drag': n}}
        if n != 2:
            info['lean'] = 100 * n
        return obs, reward, terminated, truncated, info


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'mode'), HOWS)
def test_info_of_a_step_is_seen_with_the_next_observation_and_never_across_an_end(how: str, mode: str) -> None:
    env = make(LeanEnv, vectorization=how, autoreset=mode, observe_info=['lean'])
    assert env.obs_space.spaces['info/lean'].shape == ()
    seen, finals = shown(env, *([2, 2] for _ in range(4)))
    first = {'obs': 10, 'info/lean': 0}
    rows = [first, {'obs': 11, 'info/lean': 100}, {'obs': 12, 'info/lean': 0}]  # step 2 has none
    last = {'obs': 13, 'info/lean': 300}
    after = [last, first] if mode == 'next_step' else [first, {'obs': 11, 'info/lean': 100}]
    assert seen == [*rows, *after]
    assert finals == ([] if mode == 'next_step' else [last])


def test_info_may_be_an_array_of_a_given_shape_or_an_entry_of_an_entry() -> None:
    env = make(LeanEnv, n_env=1, observe_info={'place': [2], 'parts/drag': []}, window=2)
    env.reset(0)
    obs = env.step(torch.tensor([2])).obs
    assert obs['info/place'].tolist() == [[[0.0, 0.0], [1.0, -1.0]]] and obs['info/parts/drag'].tolist() == [[0.0, 1.0]]


def test_info_of_another_shape_is_refused_and_one_that_never_comes_is_named_once(caplog: Any) -> None:
    with pytest.raises(
        EnvContractError, match=r"entry 'place' of its info is of shape \(2,\), wanted a number; .*\{place: \[2\]\}"
    ):
        play(make(LeanEnv, observe_info=['place']), [0, 0])
    play(make(LeanEnv, observe_info=['laen']), *([2, 2] for _ in range(6)))
    assert [record.message.partition(', but')[0] for record in caplog.records if 'laen' in record.message] == [
        "env 'tests.env.test_wrappers:LeanEnv': env.observe_info has 'laen'"
    ]


# --- together


def test_wrappers_compose_mask_then_before_then_window() -> None:
    env = make('random_masks', n_env=1, window=2, prev_action=True, prev_reward=True)
    shapes = {name: leaf.shape for name, leaf in env.obs_space.spaces.items()}
    before = {'prev_action': (2,), 'prev_reward': (2,)}
    assert shapes == {'action_mask': (8,), 'obs': (2, 1), 'window_mask': (2,), **before}
    obs = env.reset(0)
    for _ in range(3):
        lowest = obs['action_mask'].int().argmax(1)
        obs = map_tensors(torch.clone, env.step(lowest).obs)
        assert obs['prev_action'][0, 1] == lowest[0] and obs['prev_reward'][0, 1] == 1
    assert check_env(EnvConfig(id='random_masks', window=2, prev_action=True, prev_reward=True), n_step=30) == []


@pytest.mark.parametrize(
    'field', [{'window': 2}, {'prev_action': True}, {'prev_reward': True}, {'observe_info': ['lean']}]
)
def test_wrapped_env_keeps_the_contract(field: Any) -> None:
    assert check_env(EnvConfig(id=LeanEnv, **field), n_step=30) == []


# --- actions in bins


class Recorder(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, space: Any) -> None:
        self.action_space = space
        self.got: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.got = action
        return np.zeros(1, np.float32), 0.0, True, False, {}


def recorder(space: Any, n: int) -> dict[str, Any]:
    return dict(id=Recorder, kwargs=dict(space=space), action_bins=n)


BINS = 'env.action_bins is 4 but the actions of env .* leave it out'
TWO = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


@pytest.mark.parametrize(
    'space, n, choice, want',
    [
        (TWO, 5, [0, 4], [-2.0, 10.0]),
        (TWO, 5, [2, 1], [0.0, 2.5]),
        (Box(-1.0, 1.0, (1, 2), np.float64), 3, [[1, 2]], [[0.0, 1.0]]),
        (Box(-3, 3, (1,), np.int64), 7, [6], [3]),
        (Box(-1.0, 1.0, (), np.float32), 2, [1], 1.0),
    ],
)
def test_choice_is_sent_as_its_value(space: Box, n: int, choice: Any, want: Any) -> None:
    env = make_env(recorder(space, n))
    assert isinstance(env.action_space, MultiDiscrete) and (env.action_space.nvec == n).all()
    env.reset(seed=0)
    env.step(np.array(choice))
    got = env.unwrapped.got
    assert got.dtype == space.dtype and got.shape == space.shape
    np.testing.assert_allclose(got, want)


# --- what is refused


def has(entry: str) -> dict[str, Any]:
    return {'id': CountEnv, 'kwargs': {'space': Dict({entry: Discrete(2)})}}


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (
            {'id': 'CartPole-v1', 'vectorization': 'batched', 'window': 2},
            "env.window is set but env.vectorization is 'batched', .*; use env.vectorization=sync",
        ),
        (
            {'id': 'torch', 'game': 'CartPole-v1', 'prev_reward': True},
            "env.prev_reward is set but 'torch/CartPole-v1' steps all its envs at once.*; leave it out",
        ),
        ({**has('window_mask'), 'window': 2}, "an entry 'window_mask' already"),
        ({**has('prev_action'), 'prev_action': True}, "an entry 'prev_action' already"),
        (recorder(Box(-np.inf, 1.0, (2,), np.float32), 4), BINS),
        (recorder(Discrete(3), 4), BINS),
    ],
)
def test_make_vector_env_wrapper_that_cannot_be_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=message):
        make_vector_env(EnvConfig(**fields), 2)


class VectorRewardEnv(LimitEnv):
    """Every reward is a given vector."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.reward, *rest


@pytest.mark.many
@pytest.mark.parametrize('reward', [np.array([1.0, -2.0], np.float32), np.array([1, -2]), [1.0, -2.0], (1, -2)])
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_reward_weights_make_a_number_of_a_vector_reward(reward: Any, how: str) -> None:
    cfg = EnvConfig(id=VectorRewardEnv, kwargs={'reward': reward}, reward_weights=[0.5, 2.0], vectorization=how)
    (step,) = play(make_vector_env(cfg, 2), [0, 0])
    assert step.reward.tolist() == [-3.5, -3.5]  # 0.5 * 1 + 2 * -2
    assert check_env(cfg) == []


@pytest.mark.parametrize(
    ('reward', 'weights', 'message'),
    [
        (np.array([1.0, -2.0]), None, r'wanted a number; set env.reward_weights=\[1.0, 1.0\].*LinearReward'),
        ([1.0, 2.0, 3.0], None, r'wanted a number; set env.reward_weights=\[1.0, 1.0, 1.0\]'),
        (np.array([1.0]), None, r'wanted a number; return float\(reward\)'),
        ('one', None, r'wanted a number; return float\(reward\)'),
        (np.array([1.0, -2.0]), [1.0, 2.0, 3.0], 'wanted 3 numbers, one for each of env.reward_weights'),
        (1.0, [1.0], 'wanted 1 numbers, one for each of env.reward_weights'),
    ],
)
@pytest.mark.parametrize('check', [True, False])
def test_vector_reward_is_refused_with_what_helps(reward: Any, weights: Any, message: str, check: bool) -> None:
    cfg = EnvConfig(id=VectorRewardEnv, kwargs={'reward': reward}, reward_weights=weights)
    with pytest.raises(EnvContractError, match=message):
        if check:
            check_env(cfg)
        else:
            play(make_vector_env(cfg, 1), [0])


def test_reward_weights_of_a_family_are_refused() -> None:
    with pytest.raises(UnsupportedEnvError, match='env.reward_weights is set but'):
        make_vector_env(EnvConfig(id='torch', game='CartPole-v1', reward_weights=[1.0]), 1)
