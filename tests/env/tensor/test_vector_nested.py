"""Tensor envs with nested observations, actions of several choices, and action masks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.backend.trace import compile_function
from zoo.core.data import leaves, map_tensors
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.env import EnvContractError, TensorEnv, TensorVectorEnv, UnsupportedEnvError
from zoo.env.config import EnvConfig as Config


class Counter(TensorEnv):
    """Counts its steps to `limit`; the reward is the sum of two choices, of which the second starts at 5.

    The first choice may be at most the number of steps, the second at most 5 + that number.
    """

    obs_space = Dict(
        {
            'own': Dict({'count': Discrete(4), 'half': Box(np.zeros(()), np.full((), np.inf))}),
            'action_mask': MultiBinary((5,)),
        }
    )
    action_space = MultiDiscrete((3, 2), (0, 5), (2,))
    limit = 3
    bad_at = -1  # number of steps at which nothing is legal

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise))

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = state + 1
        return state, action.sum(1).float(), state == self.limit

    def observe(self, state: Tensor) -> Any:
        first = torch.arange(3) <= state[:, None]
        second = torch.arange(2) <= state[:, None]
        mask = torch.cat((first, second), 1) & (state != self.bad_at)[:, None]
        # not in the order of the space
        return {'action_mask': mask, 'own': {'half': state / 2, 'count': state.long()}}


def vector(env: TensorEnv, n_env: int = 2, **fields: Any) -> TensorVectorEnv:
    return TensorVectorEnv(env, Config(id='torch', game='test', **fields), 'torch/test', n_env)


ACTION = torch.tensor([[2, 0], [1, 1]])


def test_step_of_a_dict_env_gives_its_count_and_takes_choices_with_their_start() -> None:
    env = vector(Counter())
    obs = env.reset(0)
    assert obs['own']['count'].tolist() == [0, 0] and obs['own']['count'].dtype == torch.int64
    assert obs['action_mask'].tolist() == [[True, False, False, True, False]] * 2
    for t in (1, 2, 3):
        step = env.step(ACTION)
        assert step.reward.tolist() == [2 + 5, 1 + 6]
        assert step.next_obs['own']['half'].tolist() == [t / 2] * 2
    assert step.terminated.all() and step.obs['own']['count'].tolist() == [0, 0]
    assert list(step.obs) == ['own', 'action_mask'] and list(step.obs['own']) == ['count', 'half']


def test_receive_writes_the_leaves_into_the_rows_of_a_block() -> None:
    env = vector(Counter())
    block = env.block(4)
    first = env.reset(0)
    map_tensors(lambda row, x: row.copy_(x), map_tensors(lambda x: x[0], block.obs), first)
    for t in range(4):
        env.send(ACTION)
        env.receive(block, t)
    assert block.obs['own']['count'].tolist() == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]
    assert block.steps.next_obs['own']['count'].tolist() == [[1, 1], [2, 2], [3, 3], [1, 1]]


@pytest.mark.slow
def test_step_compiled_gives_the_same(graphs: list[torch.fx.GraphModule]) -> None:
    eager, compiled = vector(Counter()), vector(Counter())
    compiled.compile(compile_function)
    for env in (eager, compiled):
        env.reset(0)
    for _ in range(5):
        one, two = (dict(leaves(env.step(ACTION)._asdict())) for env in (eager, compiled))
        for name, x in one.items():
            assert not isinstance(x, Tensor) or torch.equal(x, two[name]), name
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ('bad_at', 'limit', 'n_step', 'said'),
    [
        (2, 3, 2, 'index 0, step 2: .* or the action mask allows nothing, wanted'),
        (3, 3, 4, ''),  # a mask may be empty where the episode ends
        (-1, 6, 4, 'step 4: .* outside of its space'),  # count 4 is not in Discrete(4)
    ],
)
def test_check_names_the_step_of_an_empty_mask_or_of_an_index_outside(
    bad_at: int, limit: int, n_step: int, said: str
) -> None:
    env = Counter()
    env.bad_at, env.limit = bad_at, limit
    run = vector(env)
    run.reset(0)
    for _ in range(n_step):
        run.check()  # nothing is wrong yet
        run.step(ACTION)
    with pytest.raises(EnvContractError, match=said) if said else nullcontext():
        run.check()


def test_reset_with_an_empty_mask_is_refused() -> None:
    env = Counter()
    env.bad_at = 0
    with pytest.raises(EnvContractError, match="step 0: the observation 'action_mask' of reset .* that allows somethi"):
        vector(env).reset(0)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda obs: obs['own'], 'the observation has the entries half, count, wanted a dict with own, action_mask'),
        (
            lambda obs: {**obs, 'own': obs['own']['half']},
            "the observation 'own' is a Tensor, wanted a dict with count,",
        ),
        (
            lambda obs: {**obs, 'own': {**obs['own'], 'half': obs['own']['half'][:, None]}},
            "'own.half' has shape (128, 1), wanted",
        ),
        (lambda obs: {**obs, 'action_mask': obs['action_mask'].int()}, "'action_mask' is of torch.int32, wanted torch"),
    ],
)
def test_reset_with_leaves_that_are_not_of_the_space_is_refused(change: Any, message: str) -> None:
    class Env(Counter):
        def observe(self, state: Tensor) -> Any:
            return change(super().observe(state))

    with pytest.raises(EnvContractError) as raised:
        vector(Env()).reset(0)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ('mask', 'fields', 'message'),
    [
        (MultiBinary((4,)), {}, 'a MultiBinary of 5 bits'),
        (MultiBinary((5,)), {'action_mask': 'off'}, "env.action_mask is 'off' but the observations"),
        (None, {'action_mask': 'obs'}, "want an entry 'action_mask'"),
    ],
)
def test_init_mask_that_does_not_fit_is_refused(mask: Any, fields: dict, message: str) -> None:
    class Env(Counter):
        obs_space = Dict({'own': Counter.obs_space.spaces['own'], **({} if mask is None else {'action_mask': mask})})

    with pytest.raises(UnsupportedEnvError) as raised:
        vector(Env(), **fields)
    assert message in str(raised.value)


def test_step_bits_and_boxes_of_two_dimensions_reach_the_env_in_their_shape() -> None:
    class Bits(Counter):
        obs_space = Discrete(4)
        action_space = MultiBinary((2, 2))

        def step(self, state: Tensor, action: Tensor, noise: Tensor) -> Any:
            return state + 1, action[:, 1, 0] * 10.0 + action[:, 0, 1], state > 5

        def observe(self, state: Tensor) -> Tensor:
            return state.long()

    class Numbers(Bits):
        action_space = Box(np.zeros((2, 2)), np.full((2, 2), 3.0))

    env = vector(Bits())
    env.reset(0)
    assert env.step(torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1]])).reward.tolist() == [1, 10]
    env = vector(Numbers())
    env.reset(0)
    assert env.step(torch.tensor([[0, 1.5, 0, 0], [0, 0, 9.0, 1]])).reward.tolist() == [1.5, 30]
