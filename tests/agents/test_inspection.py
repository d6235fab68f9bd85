"""Checks of envs of several agents, and reports about them, of envs whose behaviour is known."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.agents.envs import Clockwork
from zoo import inspect_env
from zoo.agents.inspection import AgentsReport, check_agents
from zoo.env import EnvConfig
from zoo.env.errors import EnvContractError

N_CHOICE = 4


class Masked(Clockwork):
    """In step t of an episode an agent may take choice t % 4 alone; another one is an error of the test."""

    def observation_space(self, agent: str) -> gymnasium.Space:
        mask = gymnasium.spaces.Box(0, 1, (N_CHOICE,), np.int8)
        return gymnasium.spaces.Dict({'observation': super().observation_space(agent), 'action_mask': mask})

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(N_CHOICE)

    def observed(self, agent: str) -> Any:
        mask = np.zeros(N_CHOICE, np.int8)
        mask[self._t % N_CHOICE] = 1
        return {'observation': super().observed(agent), 'action_mask': mask}

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(action == self._t % N_CHOICE for action in actions.values())
        return super().step(actions)


class NoChoice(Masked):
    """No choice is allowed."""

    def observed(self, agent: str) -> Any:
        return super().observed(agent) | {'action_mask': np.zeros(N_CHOICE, np.int8)}


class Unseeded(Clockwork):
    """Observations are drawn without regard to the seed."""

    drawn = np.random.default_rng(0)

    def observed(self, agent: str) -> np.ndarray:
        return self.drawn.random(2, np.float32)


class WrongShape(Clockwork):
    """From step 2 on the observations of c have three numbers."""

    def observed(self, agent: str) -> np.ndarray:
        if agent == 'c':
            return np.zeros(3, np.float32)
        return super().observed(agent)


class BothFlags(Clockwork):
    """The end of c is a time limit too; rewards are of types that differ."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        truncated = {agent: truncated[agent] or (agent == 'c' and terminated[agent]) for agent in truncated}
        rewards = {agent: np.float64(reward) if agent == 'a' else reward for agent, reward in rewards.items()}
        return obs, rewards, terminated, truncated, infos


class Stated(Clockwork):
    def state(self) -> np.ndarray:
        return np.zeros((2, 3), np.float64)


def section(kind: type, **keys: Any) -> EnvConfig:
    return EnvConfig(id=kind, **keys)


def report_of(kind: type, n_step: int = 50) -> AgentsReport:
    report = inspect_env(section(kind), n_step=n_step)
    assert isinstance(report, AgentsReport)
    return report


def test_check_takes_legal_moves_alone():
    assert check_agents(section(Masked), n_step=30) == []
    assert report_of(Masked).facts['masks'] == 'obs'


def test_mask_that_allows_nothing_names_the_agent():
    with pytest.raises(EnvContractError, match=r"step 0: agent 'a': .*allows no action.*at least one"):
        check_agents(section(NoChoice))


class Remembering(Clockwork):
    """An env whose reset is seeded, but begins at another place than the one where the agents stand."""

    place = -1

    def reset(self, seed=None, options=None):
        drawn = np.random.default_rng(seed).integers(100)
        self.place = drawn + (drawn == self.place)
        return super().reset(seed)

    def step(self, actions):
        self.place = -1
        return super().step(actions)

    def observed(self, agent):
        return np.array([self._t, self.place], np.float32)


def test_seeds_that_two_resets_in_a_row_do_not_repeat_are_found():
    (sentence,) = check_agents(section(Remembering))
    assert 'the first and one right after another, returned the observation of a' in sentence


def test_episodes_that_no_seed_repeats_are_a_warning_and_strict_refuses_them():
    (sentence,) = check_agents(section(Unseeded))
    assert 'two resets with seed=' in sentence and 'the observation of a' in sentence
    with pytest.raises(EnvContractError, match='env.check=strict refuses this'):
        check_agents(section(Unseeded, check='strict'))


def test_observation_of_another_shape_names_agent_and_step():
    with pytest.raises(EnvContractError, match=r"WrongShape.*, index 0, step 2: agent 'c': the observation of step"):
        check_agents(section(WrongShape))
    report = report_of(WrongShape)
    assert len(report.problems) == 1 and not report.warnings
    assert report.text().startswith(f'{report.env}: 1 problem')


def test_report_of_an_env_in_which_agents_end_and_come():
    """In 10 episodes of 5 steps a and b end before c each time, and c comes after the first step; 2, 2, 2, 2, 1 act."""
    facts = report_of(Clockwork).facts
    assert facts['episodes']['count'] == 10
    assert facts['ends'] == '20 agents ended before their episode did; 10 came after its begin'
    assert facts['acting'] == '1 to 2 of 3 agents in a step'
    assert facts['rewards']['c'] == {
        'min': 256,
        'max': 16_384,
        'mean': (256 + 2_048 + 16_384) / 3,
        'std': pytest.approx(7_217.9, abs=1),
    }
    assert facts['repeats'] is True
    assert facts['state'].startswith('none')


def test_report_says_what_the_env_itself_returns():
    report = report_of(BothFlags)
    assert report.facts['reward_types'] == ['float64', 'int']
    assert report.facts['both_flags'] == ['c']
    assert any(
        'ends of c are both terminated and truncated; zoo takes them as terminated' in x for x in report.warnings
    )
    assert report_of(Stated).facts['state'] == 'float64 of shape [2, 3]: agents.state=env gives it to critics'


def test_report_groups_agents_by_their_spaces():
    text = report_of(Clockwork).text()
    assert '  spaces            observations Box (2,) float32 in -inf .. inf, actions Discrete(2)\n' in text
    assert 'one policy can act for all agents' in text
