"""SimulatorVectorEnv with a simulator in PyTorch whose every number is known in advance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo import serial_pipeline
from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, EnvContractError, EnvError, EnvRequest, UnsupportedEnvError, env_family, make_vector_env
from zoo.env.interface import EnvCommand
from zoo.env.tensor.program import StepOutcome
from zoo.env.tensor.simulator import BadValues, Simulator

END = 3.0


class Stairs(Simulator):
    """Env i begins at step i % 2 of a staircase; action 1 goes up one, 0 stays; step 3 is the end, with the reward 1.

    An episode is cut after 4 steps. With `breaks_at`, env 1 has nan for its reward from that step on.
    """

    obs_space = Box(np.zeros(1, np.float32), np.full(1, 3, np.float32))
    action_space = Discrete(2)
    device = torch.device('cpu')

    def __init__(self, n_env: int, breaks_at: int = 0) -> None:
        self.n_env = n_env
        self.breaks_at = breaks_at
        self.source = self

    def reset(self, seed: int) -> Tensor:
        self._start = (torch.arange(self.n_env) % 2).float()
        self._at = self._start
        self._age = torch.zeros(self.n_env)
        self.n_step = 0
        return self._at.unsqueeze(1)

    def step(self, action: Tensor) -> StepOutcome:
        self.n_step += 1
        reached = self._at + action
        self._age = self._age + 1
        terminated = reached == END
        truncated = self._age == 4
        ended = terminated | truncated
        self._at = torch.where(ended, self._start, reached)
        self._age = self._age.masked_fill(ended, 0)
        return StepOutcome(self._at.unsqueeze(1), reached.unsqueeze(1), terminated.float(), terminated, truncated)

    def find_bad(self) -> BadValues | None:
        if self.breaks_at and self.n_step >= self.breaks_at:
            return BadValues(1, self.breaks_at)
        return None


@pytest.fixture
def stairs() -> Iterator[str]:
    """The name of a family of Stairs."""

    @ENV_REGISTRY.register('stairs')
    @env_family()
    def make(request: EnvRequest, **kwargs: Any) -> Stairs:
        """Stairs."""
        return Stairs(request.n_env, **kwargs)

    yield 'stairs'
    del ENV_REGISTRY.entries['stairs']


def test_simulator_env_at_an_end_has_the_true_observation_and_the_next_start(stairs: str) -> None:
    env = make_vector_env(EnvConfig(id=stairs), 2)
    obs = env.reset(0)
    assert obs.tolist() == [[0.0], [1.0]]
    env.step(torch.tensor([1, 1]))
    step = env.step(torch.tensor([1, 1]))  # 0 + 1 + 1 = 2; 1 + 1 + 1 = 3, the end of env 1
    assert step.next_obs.tolist() == [[2.0], [3.0]]
    assert step.obs.tolist() == [[2.0], [1.0]]
    assert step.reward.tolist() == [0.0, 1.0]
    assert step.terminated.tolist() == [False, True]
    env.step(torch.tensor([0, 0]))
    step = env.step(torch.tensor([0, 0]))  # the fourth step of env 0, at 2
    assert step.truncated.tolist() == [True, False]
    assert (step.obs.tolist(), step.next_obs.tolist()) == ([[0.0], [1.0]], [[2.0], [1.0]])


def test_simulator_env_in_a_block_has_what_its_steps_return(stairs: str) -> None:
    env = make_vector_env(EnvConfig(id=stairs), 2)
    env.reset(0)
    block = env.block(3)
    for t in range(3):
        env.send(torch.ones(2, dtype=torch.int64))
        env.receive(block, t)
    # env 0: 1, 2, 3 (end); env 1: 2, 3 (end), 2
    assert block.steps.next_obs.squeeze(2).tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 2.0]]
    assert block.obs[1:].squeeze(2).tolist() == [[1.0, 2.0], [2.0, 1.0], [0.0, 2.0]]
    assert block.steps.terminated.tolist() == [[False, False], [False, True], [True, False]]


def test_simulator_env_check_names_the_env_and_the_step(stairs: str) -> None:
    env = make_vector_env(EnvConfig(id=stairs, kwargs={'breaks_at': 2}), 2)
    env.reset(0)
    env.step(torch.tensor([1, 1]))
    env.check()
    env.step(torch.tensor([1, 1]))
    with pytest.raises(EnvContractError, match='index 1, step 2: the observation or the reward is not finite'):
        env.check()


def test_simulator_env_before_its_reset_refuses_steps(stairs: str) -> None:
    with pytest.raises(EnvError, match='before the first reset'):
        make_vector_env(EnvConfig(id=stairs), 2).step(torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ('settings', 'sentence'),
    [
        (dict(info_columns=['speed']), r"the entries \['speed'\] of them are wanted"),
        (dict(action_mask='obs'), "env.action_mask is 'obs' but"),
        (dict(ends={'truncated': 'terminal'}), 'env.ends is set but'),
        (dict(reset_options={'a': 1}), 'env.reset_options is set but'),
        (dict(schedule={'breaks_at': 1}), "set of 'breaks_at'"),
        (dict(wrappers=['gymnasium.wrappers:TimeLimit']), 'env.wrappers is set but'),
    ],
)
def test_simulator_env_with_a_key_that_it_lacks_is_refused(
    stairs: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UnsupportedEnvError, match=sentence):
        make_vector_env(EnvConfig(id=stairs, **settings), 2)


def test_simulator_env_get_reads_an_attribute_of_the_simulator(stairs: str) -> None:
    env = make_vector_env(EnvConfig(id=stairs, kwargs={'breaks_at': 7}), 2)
    assert env.command(EnvCommand('get', 'breaks_at')) == [7]


@pytest.mark.slow
def test_run_with_a_simulator_learns_to_climb(stairs: str, tmp_path: Any) -> None:
    result = serial_pipeline(
        dict(
            exp_name='stairs',
            max_env_step=4096,
            env=dict(id=stairs, collector_env_num=16),
            policy=dict(learn=dict(learning_rate=3e-3), collect=dict(n_step=32)),
            logger=dict(root=str(tmp_path), console='off', tensorboard=False),
        )
    )
    # always up; a random policy: 3 of 4 steps up from 0 (5/16), or 2 of 4 from 1 (11/16), half of the episodes
    assert result.last_return == 1
