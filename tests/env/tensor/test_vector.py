"""TensorVectorEnv with small envs whose every number is known in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.env.tensor.tracks import Lap, Track
from zoo.backend.trace import compile_function
from zoo.core.spaces import Box, Dict, Discrete
from zoo.env import (
    EnvConfig,
    EnvContractError,
    EnvError,
    TensorEnv,
    TensorVectorEnv,
    UnsupportedEnvError,
    make_env_groups,
)
from zoo.env.tensor.vector import BLOCK_ROWS, BLOCK_STEPS


class DictTrack(Track):
    def reset(self, noise: Tensor) -> Any:
        return super().reset(noise)._asdict()

    def step(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Tensor, Tensor]:
        state, reward, end = super().step(Lap(**state), action, noise)
        return state._asdict(), reward, end

    def observe(self, state: Any) -> Tensor:
        return super().observe(Lap(**state))


class TensorTrack(Track):
    def reset(self, noise: Tensor) -> Any:
        return torch.stack(super().reset(noise), 1)

    def step(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Tensor, Tensor]:
        state, reward, end = super().step(Lap(*state.unbind(1)), action, noise)
        return torch.stack(state, 1), reward, end

    def observe(self, state: Any) -> Tensor:
        return super().observe(Lap(*state.unbind(1)))


def vector(env: TensorEnv, n_env: int = 3, device: str = 'cpu', **fields: Any) -> TensorVectorEnv:
    return TensorVectorEnv(env, EnvConfig(id='torch', game='test', **fields), 'torch/test', n_env, device)


def steps(env: TensorVectorEnv, actions: list[list[int]]) -> list[Any]:
    return [env.step(torch.tensor(action)) for action in actions]


# ---- episodes


def test_step_ended_row_shows_the_next_start_and_keeps_the_true_successor() -> None:
    env = vector(Track())
    first = env.reset(0)
    start = first[:, 0]
    assert (start % 100 == 0).all() and (first[:, 1] == 0).all() and len(start.unique()) == 3
    one, two = steps(env, [[0, 1, 2], [0, 1, 2]])
    assert one.next_obs[:, 1].tolist() == [0, 1, 2] and torch.equal(one.obs, one.next_obs)
    # 2 + 2 reaches the end of 3; the next episode starts at another hundred
    assert two.terminated.tolist() == [False, False, True] and not two.truncated.any()
    assert two.next_obs[:, 1].tolist() == [0, 2, 4]
    assert torch.equal(two.reward, start + torch.tensor([0, 2, 4]))
    assert two.obs[:, 1].tolist() == [0, 2, 0] and torch.equal(two.obs[:2], two.next_obs[:2])
    assert two.obs[2, 0] % 100 == 0 and two.obs[2, 0] != start[2]
    assert two.final_obs is None and two.final_index is None and two.is_reset is None and two.info == {}
    (three,) = steps(env, [[0, 0, 1]])
    assert three.next_obs[2].tolist() == [two.obs[2, 0] + 1, 1]


@pytest.mark.parametrize(('fields', 'limit'), [({}, 5), ({'max_episode_steps': 2}, 2), ({'max_episode_steps': 7}, 7)])
def test_step_time_limit_truncates_and_counts_again(fields: dict, limit: int) -> None:
    env = vector(Track(), **fields)
    env.reset(0)
    done = steps(env, [[0, 0, 0]] * (2 * limit))
    assert [step.truncated.all().item() for step in done] == ([False] * (limit - 1) + [True]) * 2
    assert not any(step.terminated.any() for step in done)


def test_step_limit_counts_from_the_last_end_of_each_row() -> None:
    env = vector(Track(), n_env=2, max_episode_steps=3)
    env.reset(0)
    # row 0 ends at its 2nd step (2 + 2), so that its limit comes at step 5; row 1 is cut at step 3
    done = steps(env, [[2, 0], [2, 0], [0, 0], [0, 0], [0, 0]])
    assert [step.terminated.tolist()[0] for step in done] == [False, True, False, False, False]
    truncated = [step.truncated.tolist() for step in done]
    assert truncated == [[False, False], [False, False], [False, True], [False, False], [True, False]]


def test_step_terminal_state_at_the_limit_is_both() -> None:
    env = vector(Track(), n_env=1, max_episode_steps=2)
    env.reset(0)
    last = steps(env, [[2], [2]])[1]
    assert last.terminated.tolist() == last.truncated.tolist() == [True]  # as gymnasium's TimeLimit has it


def test_step_env_without_a_limit_is_never_truncated() -> None:
    class Endless(Track):
        max_episode_steps = None

    env = vector(Endless())
    env.reset(0)
    assert not any(step.truncated.any() for step in steps(env, [[0, 0, 0]] * 50))


@pytest.mark.parametrize('kind', [DictTrack, TensorTrack])
def test_step_state_may_be_a_dict_or_a_tensor(kind: type[Track]) -> None:
    actions = torch.randint(3, (40, 3), generator=torch.Generator().manual_seed(0))
    envs = [vector(Track()), vector(kind())]
    assert torch.equal(*(env.reset(0) for env in envs))
    for action in actions:
        one, other = (env.step(action) for env in envs)
        assert torch.equal(one.obs, other.obs) and torch.equal(one.next_obs, other.next_obs)
        assert torch.equal(one.reward, other.reward) and torch.equal(one.terminated, other.terminated)


# ---- randomness


class Noise(TensorEnv):
    """Every step ends an episode; the observation is a random number of the reset, the reward one of the step."""

    obs_space, action_space = Box(np.zeros(1), np.ones(1)), Discrete(2)
    n_noise, n_step_noise = 1, 2

    def reset(self, noise: Tensor) -> Tensor:
        return noise.clone()

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return state, noise[:, 1], torch.ones_like(action, dtype=torch.bool)


def noise_run(env: TensorVectorEnv, seed: Any, n_step: int) -> Tensor:
    """[2, n_step + 1, B]: the random numbers of resets and of steps; row 0 of the latter is from torch.rand."""
    obs, action = [env.reset(seed)[:, 0]], torch.zeros(env.n_env, dtype=torch.int64)
    done = [env.step(action) for _ in range(n_step)]
    return torch.stack(
        (
            torch.stack(obs + [step.obs[:, 0] for step in done]),
            torch.stack([torch.rand(env.n_env)] + [step.reward for step in done]),
        )
    )


def test_reset_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    env, twin = vector(Noise()), vector(Noise())
    torch.manual_seed(0)
    run = noise_run(env, 7, 100)
    torch.manual_seed(0)
    assert torch.equal(run, noise_run(twin, 7, 100))
    torch.manual_seed(0)
    assert torch.equal(run, noise_run(env, np.random.SeedSequence(7), 100))  # independent of earlier draws
    assert not (noise_run(env, 8, 100)[:, 1:] == run[:, 1:]).any()
    child = np.random.SeedSequence(7, spawn_key=(1,))
    assert not (noise_run(env, child, 100)[:, 1:] == run[:, 1:]).any()


def test_reset_envs_of_other_processes_begin_other_episodes() -> None:
    def starts(first: int | None) -> Tensor:
        cfg = {'id': 'torch', 'game': 'CartPole-v1', 'collector_env_num': 4}
        (env,) = make_env_groups(cfg, first=first)
        obs = env.reset(np.random.SeedSequence(3))
        assert isinstance(obs, Tensor)
        return obs

    assert starts(None).equal(starts(0)) and starts(4).equal(starts(4))
    assert not bool((starts(0) == starts(4)).any())


@pytest.mark.parametrize('n_env', [1, 7, BLOCK_ROWS + 1])
def test_step_no_number_is_drawn_twice(n_env: int) -> None:
    n_step = 2 * BLOCK_STEPS + 5 if n_env < 100 else 3
    run = noise_run(vector(Noise(), n_env), 0, n_step)
    assert run.min() >= 0 and run.max() < 1
    # of 24 bits: among n numbers about n^2 / 2^25 pairs are equal by chance
    n = run.numel()
    assert n - len(run.unique()) <= 5 + 2 * n**2 / 2**25


# ---- actions


class Echo(TensorEnv):
    """The reward is the action, or the sum of its numbers."""

    obs_space = Box(np.zeros(1), np.ones(1))

    def __init__(self, space: Box | Discrete) -> None:
        self.action_space = space

    def reset(self, noise: Tensor) -> Tensor:
        return noise.new_zeros(len(noise), 1)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = action if isinstance(self.action_space, Discrete) else action.sum(1)
        return state, total.float(), torch.zeros_like(total, dtype=torch.bool)


@pytest.mark.parametrize('mode', ['clip', 'rescale'])
def test_step_box_actions_are_mapped_as_for_any_env(mode: str) -> None:
    low, high = np.array([-1.0, 0.0, -np.inf]), np.array([3.0, np.inf, np.inf])
    env = vector(Echo(Box(low, high)), 50, action_mode=mode)
    action = 4 * torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    env.reset(0)
    wanted = action.double().numpy()
    if mode == 'rescale':  # only the first dimension, which has two bounds: 1 + 2 a
        wanted[:, 0] = 1 + 2 * wanted[:, 0]
    wanted = np.clip(wanted, low, high).astype(np.float32)
    np.testing.assert_allclose(env.step(action).reward, wanted.sum(1), rtol=1e-6)


def test_step_discrete_actions_are_shifted_by_start() -> None:
    env = vector(Echo(Discrete(3, start=5)))
    env.reset(0)
    assert env.step(torch.tensor([0, 1, 2])).reward.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ('action', 'got'),
    [
        (torch.zeros(2, dtype=torch.int64), r'torch.int64 of shape \(2,\) on cpu'),
        (torch.zeros(3), r'torch.float32 of shape \(3,\) on cpu'),
        (torch.zeros(3, dtype=torch.int64, device='meta'), r'torch.int64 of shape \(3,\) on meta'),
    ],
)
def test_step_actions_of_another_form_are_refused(action: Tensor, got: str) -> None:
    env = vector(Track())
    env.reset(0)
    with pytest.raises(
        EnvError,
        match=rf"env 'torch/test', step 1: the actions are {got}, wanted integers of shape "
        r"\(3,\) on cpu; pass the policy's output",
    ):
        env.step(action)


def test_step_before_reset_says_what_to_do() -> None:
    with pytest.raises(EnvError, match="env 'torch/test': step was called before the first reset; call reset first"):
        vector(Track()).step(torch.zeros(3, dtype=torch.int64))


# ---- what breaks the contract


class Broken(Track):
    """Returns `value` in place of the result `what`: that of reset or observe, or one of the three of step."""

    def __init__(self, what: str, value: Any) -> None:
        self.what, self.value = what, value

    def reset(self, noise: Tensor) -> Any:
        return self.value if self.what == 'reset' else super().reset(noise)

    def step(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Tensor, Tensor]:
        after, reward, end = super().step(state, action, noise)
        return (
            self.value if self.what == 'state' else after,
            self.value if self.what == 'reward' else reward,
            self.value if self.what == 'end' else end,
        )

    def observe(self, state: Any) -> Tensor:
        return self.value if self.what == 'observe' else super().observe(state)


FLAG, META = torch.zeros(3, dtype=torch.bool), torch.zeros(3, device='meta')
ENDLESS = torch.zeros(192, 2).index_put((torch.tensor(1),), torch.tensor(torch.inf))


@pytest.mark.parametrize(
    ('what', 'value', 'message'),
    [
        ('reward', torch.zeros(3, 1), r'the reward has shape \(3, 1\), wanted \(3,\); see zoo.env.TensorEnv for'),
        ('reward', torch.zeros(3).double(), r'the reward is of torch.float64, wanted torch.float32; convert it with'),
        ('reward', META, 'the reward is on meta, wanted cpu as the action; make tensors on the device of the state'),
        ('reward', 0.0, 'the reward is a float, wanted a tensor; compute it with torch'),
        ('end', torch.zeros(3), 'terminated is of torch.float32, wanted torch.bool'),
        ('end', FLAG[:2], r'terminated has shape \(2,\), wanted \(3,\)'),
        ('state', Lap(torch.zeros(3), torch.zeros(3, 1)), r'the state of step has shape \(3, 1\), wanted \(3,\)'),
        ('state', Lap(torch.zeros(3), META), 'the state of step is on meta, wanted cpu'),
        ('state', Lap(torch.zeros(3), 0.0), 'the state of step is a float, wanted a tensor; compute it with torch'),
        ('state', Lap(torch.zeros(3), FLAG), 'the state of step is of torch.bool, wanted torch.float32'),
        ('state', (torch.zeros(3), torch.zeros(3)), 'the state of step is a tuple of 2, wanted a Lap as of reset;'),
    ],
)
def test_step_tensor_of_another_form_names_env_step_and_remedy(what: str, value: Any, message: str) -> None:
    env = vector(Broken('none', None))
    env.reset(0)
    steps(env, [[0, 0, 0]])
    env.program.env.what, env.program.env.value = what, value  # type: ignore[attr-defined]
    with pytest.raises(EnvContractError, match=f"^env 'torch/test', step 2: {message}"):
        steps(env, [[0, 0, 0]])


class Pair(Track):
    """Track with a plain tuple as its state; step appends `extra` to its results and `extra_state` to the state."""

    def __init__(self, extra: tuple[Any, ...] = (), extra_state: tuple[Tensor, ...] = ()) -> None:
        self.extra, self.extra_state = extra, extra_state

    def reset(self, noise: Tensor) -> Any:
        return tuple(super().reset(noise))

    def step(self, state: Any, action: Tensor, noise: Tensor) -> Any:
        after, reward, end = super().step(Lap(*state), action, noise)
        return (*after, *self.extra_state), reward, end, *self.extra

    def observe(self, state: Any) -> Tensor:
        return super().observe(Lap(*state[:2]))


@pytest.mark.parametrize('compiled', [False, True])
@pytest.mark.parametrize(
    ('env', 'message'),
    [
        (
            Pair(extra=(FLAG, {})),
            'step returned a tuple of 5, wanted a tuple of 3: state, reward, terminated; leave time',
        ),
        (
            Pair(extra_state=(FLAG,)),
            'the state of step is a tuple of 3, wanted a tuple of 2 as of reset; return the same',
        ),
    ],
)
def test_step_wrong_number_of_values_is_refused(env: Pair, message: str, compiled: bool) -> None:
    envs = vector(env)
    if compiled:
        envs.compile(compile_function)
    envs.reset(0)
    with pytest.raises(EnvContractError, match=f"^env 'torch/test', step 1: {message}"):
        steps(envs, [[0, 0, 0]])


def test_step_dict_state_with_other_keys_is_refused() -> None:
    class Renamed(DictTrack):
        def step(self, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Tensor, Tensor]:
            after, reward, end = super().step(state, action, noise)
            return {'start': after['start'], 'spot': after['place']}, reward, end

    env = vector(Renamed())
    env.reset(0)
    with pytest.raises(EnvContractError, match='the state of step is a dict of start, spot, wanted a dict of'):
        steps(env, [[0, 0, 0]])


@pytest.mark.parametrize(
    ('what', 'value', 'message'),
    [
        # 3 * 64 = 192
        ('reset', Lap(torch.zeros(3), torch.zeros(3)), r'the state of reset has shape \(3,\), wanted \(192,\)'),
        ('reset', Lap(torch.zeros(192), 0.0), 'the state of reset is a float, wanted a tensor; compute it with torch'),
        ('reset', Lap(torch.zeros(192), torch.tensor(0.0)), r'the state of reset has shape \(\), wanted \(192,\)'),
        (
            'reset',
            None,
            'the state of reset is a NoneType, wanted a tensor, or a tuple or dict of tensors; return one of',
        ),
        ('observe', torch.zeros(192, 3), r'the observation has shape \(192, 3\), wanted \(192, 2\)'),
        ('observe', torch.zeros(192, 2).double(), 'the observation is of torch.float64, wanted torch.float32'),
        ('observe', ENDLESS, r'the observation of reset is \[inf, inf\], wanted finite numbers'),
    ],
)
def test_reset_that_breaks_the_contract_is_refused(what: str, value: Any, message: str) -> None:
    index = ', index 1' if 'inf' in message else ''
    with pytest.raises(EnvContractError, match=f"^env 'torch/test'{index}, step 0: {message}"):
        vector(Broken(what, value)).reset(0)


def test_init_env_without_spaces_is_refused() -> None:
    class NoSpace(Track):
        action_space = None  # type: ignore[assignment]

    class Nested(Track):
        action_space = Dict({'a': Discrete(2)})  # type: ignore[assignment]

    with pytest.raises(EnvContractError, match='NoSpace.action_space is None, wanted a zoo.env.Box, Discrete, Multi'):
        vector(NoSpace())
    with pytest.raises(UnsupportedEnvError, match='the action_space of a tensor env is Dict.*, wanted Box, Discrete'):
        vector(Nested())


class Sick(TensorEnv):
    """Row b is not finite in the step with number when[b], and finite again after it."""

    obs_space, action_space, n_noise = Box(np.zeros(2), np.ones(2)), Discrete(2), 0

    def __init__(self, when: list[int], in_reward: bool, value: float = torch.nan) -> None:
        self.when, self.in_reward, self.value = torch.tensor(when), in_reward, value

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise), 2)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ill = self.when == action  # the test gives the number of the step as the action
        value, zero = torch.where(ill, self.value, 0.0), torch.zeros(len(ill))
        spoilt, whole = torch.stack((zero, value), 1), torch.zeros(len(ill), 2)
        return (whole, value, zero > 0) if self.in_reward else (spoilt, zero, zero > 0)


@pytest.mark.parametrize(
    ('in_reward', 'value', 'when', 'index', 'step'),
    [
        (True, torch.nan, [9, 9, 4], 2, 4),
        (False, torch.nan, [5, 3, 3], 1, 3),
        (True, torch.inf, [5, 3, 3], 1, 3),
        (False, torch.inf, [1, 9, 9], 0, 1),
        (True, -torch.inf, [1, 9, 9], 0, 1),
        (False, -torch.inf, [9, 9, 4], 2, 4),
    ],
)
def test_check_names_the_first_env_and_step_that_were_not_finite(
    in_reward: bool, value: float, when: list[int], index: int, step: int
) -> None:
    env = vector(Sick(when, in_reward, value))
    env.reset(0)
    for t in range(1, 8):
        env.step(torch.full((3,), t))  # raises nothing: `check` looks later
    with pytest.raises(
        EnvContractError,
        match=f"^env 'torch/test', index {index}, step {step}: the observation or the "
        'reward is not finite, wanted finite numbers; fix the env',
    ):
        env.check()
    env.reset(0)
    env.check()  # the reset has removed the mark


def test_check_finds_nothing_in_large_numbers() -> None:
    env = vector(Echo(Box(np.full(1, -np.inf), np.full(1, np.inf))))
    env.reset(0)
    reward = env.step(torch.full((3, 1), 1e37)).reward
    env.check()  # raises nothing
    np.testing.assert_array_equal(reward, np.full(3, 1e37, np.float32))


class Index(TensorEnv):
    """Adds up its actions."""

    obs_space, action_space = Discrete(4), Discrete(4)

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise), dtype=torch.int64)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return state + action, torch.zeros(len(state)), torch.zeros(len(state), dtype=torch.bool)


def test_check_discrete_observation_outside_of_its_space_is_found() -> None:
    env = vector(Index())
    assert env.reset(0).tolist() == [0, 0, 0] and env.obs_space == Discrete(4)
    assert steps(env, [[3, 2, 1], [0, 1, 2]])[1].obs.tolist() == [3, 3, 3]
    env.check()
    steps(env, [[0, 1, 0]])
    with pytest.raises(EnvContractError, match='index 1, step 3: the observation or the reward is not finite, or'):
        env.check()


@pytest.mark.parametrize('start', [4, -1])
def test_reset_discrete_observation_outside_of_its_space_is_refused(start: int) -> None:
    class Outside(Index):
        def reset(self, noise: Tensor) -> Tensor:
            return torch.where(torch.arange(len(noise)) == 1, start, 0)

    with pytest.raises(EnvContractError, match=f'index 1, step 0: the observation of reset is {start}, wanted finite'):
        vector(Outside()).reset(0)


class SickStart(TensorEnv):
    """The new episode number `row` starts with `value`, all others with 0; every step leads to state 0."""

    action_space = Discrete(2)

    def __init__(self, obs_space: Box | Discrete, value: float, row: int) -> None:
        self.obs_space, self.value, self.row = obs_space, value, row

    def reset(self, noise: Tensor) -> Tensor:
        start = torch.where(torch.arange(len(noise)) == self.row, self.value, 0)
        return start if isinstance(self.obs_space, Discrete) else start[:, None].float()

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.zeros_like(state), torch.zeros(len(state)), action == 1  # the action says where an episode ends


@pytest.mark.usefixtures('graphs')
@pytest.mark.parametrize(
    ('space', 'value', 'compiled'),
    [
        (Box(np.zeros(1), np.ones(1)), torch.nan, True),
        (Box(np.zeros(1), np.ones(1)), -torch.inf, False),
        (Discrete(4), 4, True),
        (Discrete(4), -1, False),
    ],
)
def test_check_finds_a_first_observation_if_its_episode_begins(
    space: Box | Discrete, value: float, compiled: bool
) -> None:
    # the reset and each step get 3 new episodes: number 10 is that of row 1, used if its episode ends at step 3
    env = vector(SickStart(space, value, row=10))
    if compiled:
        env.compile(compile_function)
    env.reset(0)
    steps(env, [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]])
    env.check()  # number 10 was not used
    env.reset(0)
    steps(env, [[0, 1, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]])
    with pytest.raises(EnvContractError, match="^env 'torch/test', index 1, step 3: the observation or the reward is"):
        env.check()
