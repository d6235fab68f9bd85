"""A package with the interface of VMAS, whose worlds are a line on which two agents walk; every number is known in advance."""

from __future__ import annotations

import random
import warnings
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

END = 3.0


class Environment:
    """B lines. Agent `near` observes both places, `far` its own and a signal. The end: `near` is at 3 or beyond.

    The start of `near` is drawn from the state that all envs of the process share. The reward of an agent is its place; that of
    `far` has shape [B, 1], as in VMAS's scenario wheel. With broken_at, `far` of the last env observes nan from that step on.
    """

    vmas_random_state: ClassVar[list[Any]] = [
        torch.random.get_rng_state(),
        np.random.get_state(),
        random.getstate(),
    ]

    def __init__(self, num_envs: int, max_steps: int, continuous_actions: bool, multidiscrete_actions: bool) -> None:
        self.num_envs = num_envs
        self.max_steps = max_steps
        self.continuous_actions = continuous_actions
        self.multidiscrete_actions = multidiscrete_actions
        self.agents = [SimpleNamespace(name='near'), SimpleNamespace(name='far')]
        self.sent: list[Tensor] = []
        self.broken_at = 0
        self.n_step = 0
        self.reset()

    def reset(self) -> list[Tensor]:
        self.place = torch.zeros((self.num_envs, 2))
        self.age = torch.zeros(self.num_envs)
        self.place[:, 0] = self._drawn(self.num_envs)
        return self._obs()

    def reset_at(self, index: int, return_observations: bool = True) -> None:
        assert not return_observations
        self.place[index] = 0.0
        self.place[index, 0] = self._drawn(1)[0]
        self.age[index] = 0

    def get_from_scenario(
        self, get_observations: bool, get_rewards: bool, get_infos: bool, get_dones: bool
    ) -> list[list[Tensor]]:
        assert get_observations and not (get_rewards or get_infos or get_dones)
        return [self._obs()]

    def step(self, actions: list[Tensor]) -> tuple[Any, ...]:
        self.sent = actions
        self.n_step += 1
        self.age += 1
        self.place += torch.stack([x[:, 0].float() for x in actions], 1)
        rewards = [self.place[:, 0].clone(), self.place[:, 1:].clone()]
        return self._obs(), rewards, self.place[:, 0] >= END, self.age >= self.max_steps, [{}, {}]

    def get_agent_action_space(self, agent: object) -> SimpleNamespace:
        if self.continuous_actions:
            return SimpleNamespace(low=np.full(2, -1.0), high=np.full(2, 1.0))
        if self.multidiscrete_actions:
            return SimpleNamespace(nvec=np.array([3, 3]))
        return SimpleNamespace(n=9)

    def render(self, mode: str) -> np.ndarray:
        assert mode == 'rgb_array'
        return np.zeros((4, 5, 3), np.uint8)

    def _obs(self) -> list[Tensor]:
        far = torch.stack((self.place[:, 1], self.age / 10, torch.zeros(self.num_envs)), 1)
        if self.broken_at and self.n_step >= self.broken_at:
            far[-1, 2] = torch.nan
        return [self.place.clone(), far]

    def _drawn(self, n: int) -> Tensor:
        """[n] in [0, 1), drawn as VMAS draws."""
        before = torch.random.get_rng_state()
        torch.random.set_rng_state(Environment.vmas_random_state[0])
        numbers = torch.rand(n)
        Environment.vmas_random_state[0] = torch.random.get_rng_state()
        torch.random.set_rng_state(before)
        return numbers


def make_env(
    scenario: str,
    num_envs: int,
    device: str,
    max_steps: int,
    terminated_truncated: bool,
    continuous_actions: bool = True,
    multidiscrete_actions: bool = False,
    **kwargs: Any,
) -> Environment:
    assert (scenario, device, terminated_truncated) == ('line', 'cpu', True)
    if kwargs:
        warnings.warn(f'Scenario kwargs: {kwargs} passed but not used by the scenario.', stacklevel=2)
    return Environment(num_envs, max_steps, continuous_actions, multidiscrete_actions)


vmas: Any = SimpleNamespace(
    scenarios=['line'],
    debug_scenarios=[],
    mpe_scenarios=[],
    make_env=make_env,
    simulator=SimpleNamespace(environment=SimpleNamespace(Environment=Environment)),
)
"""The package itself."""
