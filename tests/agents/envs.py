"""Envs of several agents for tests: CartPole as an env of one agent in both interfaces of PettingZoo, and scripted ones."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np


class CartPoleParallel:
    """CartPole-v1 as a parallel env of one agent."""

    metadata: ClassVar[dict[str, Any]] = {'name': 'cartpole'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['one']

    def __init__(self) -> None:
        self.env = gymnasium.make('CartPole-v1')
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self.env.observation_space

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.env.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed)
        self.agents = ['one']
        return {'one': obs}, {'one': info}

    def step(self, actions: dict[str, Any]) -> Any:
        *result, info = self.env.step(actions['one'])
        if result[2] or result[3]:
            self.agents = []
        return *({'one': x} for x in result), {'one': info}

    def close(self) -> None:
        self.env.close()


class CartPoleTurns:
    """CartPole-v1 as an AEC env of one agent; as those of PettingZoo it has no `agent_selection` before its reset."""

    metadata: ClassVar[dict[str, Any]] = {'name': 'cartpole'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['one']

    def __init__(self) -> None:
        self.env = gymnasium.make('CartPole-v1')

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self.env.observation_space

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.env.action_space

    def agent_iter(self) -> Any:
        raise AssertionError('it loops over turns itself')

    def last(self) -> Any:
        raise AssertionError('rewards are those of `rewards`')

    def observe(self, agent: str) -> Any:
        return self._obs

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._obs, info = self.env.reset(seed=seed)
        self.agents = ['one']
        self.agent_selection = 'one'
        self.terminations = self.truncations = {'one': False}
        self.rewards = {'one': 0.0}
        self.infos = {'one': info}

    def step(self, action: Any) -> None:
        if action is None:
            self.agents = []
            return
        self._obs, reward, terminated, truncated, info = self.env.step(action)
        self.rewards = {'one': reward}
        self.terminations = {'one': terminated}
        self.truncations = {'one': truncated}
        self.infos = {'one': info}

    def close(self) -> None:
        self.env.close()


class Clockwork:
    """A parallel env whose script says who acts when.

    script: for each step the agents that act in it; the last entry has none. In step t agent i earns 2 ** (3 * t + i), if it is
    in the episode. ends: {(step, agent): is_terminal}. Observations are [t, index of the agent]; `nan` in those of dead agents.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'clockwork'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b', 'c']
    script: ClassVar[list[str]] = ['ab', 'ab', 'bc', 'bc', 'c', '']
    """a and b begin; a ends in step 1, c is born after it; b is cut off in step 3; c ends in step 4."""
    ends: ClassVar[dict[tuple[int, str], bool]] = {(1, 'a'): True, (3, 'b'): False, (4, 'c'): True}

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def observed(self, agent: str) -> np.ndarray:
        """The observation of an agent now."""
        return np.array([self._t, self.possible_agents.index(agent)], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        self.agents = list(self.script[0])
        return {agent: self.observed(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert sorted(actions) == sorted(self.agents)
        t = self._t
        acted = list(self.agents)
        self._t += 1
        self.agents = list(self.script[self._t])
        known = list(dict.fromkeys((*acted, *self.agents)))
        obs = {agent: self.observed(agent) for agent in known}
        obs |= {agent: np.full(2, np.nan, np.float32) for agent in self.possible_agents if agent not in known}
        rewards = {agent: 2 ** (3 * t + self.possible_agents.index(agent)) for agent in acted}
        terminated = {agent: self.ends.get((t, agent)) is True for agent in acted}
        truncated = {agent: self.ends.get((t, agent)) is False for agent in acted}
        return obs, rewards, terminated, truncated, {agent: {} for agent in acted}

    def close(self) -> None:
        pass


class Rota:
    """An AEC env whose script says whose turn it is.

    order: the agent that acts in each step. In step t agent i earns 2 ** (3 * t + i), whether it acts or not, also before its
    first action and after its end. ends: {(step, agent): is_terminal}. Observations are [t, index of the agent]. While dead
    agents are stepped with None, `rewards` are 99, which belong to no step.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'rota'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b', 'c']
    order = 'abacbcc'
    """a acts in steps 0 and 2, b in 1 and 4, c in 3, 5 and 6."""
    ends: ClassVar[dict[tuple[int, str], bool]] = {(2, 'a'): True, (5, 'b'): False, (6, 'c'): True}
    """a dies with its own action, b is cut off by one of c, c dies with the last one."""

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def agent_iter(self) -> Any:
        raise AssertionError('zoo loops over turns itself')

    def last(self) -> Any:
        raise AssertionError('rewards are those of `rewards`')

    def observe(self, agent: str) -> Any:
        return np.array([self._t, self.possible_agents.index(agent)], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._t = 0
        self.agents = list(self.possible_agents)
        self.agent_selection = self.order[0]
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.rewards = dict.fromkeys(self.agents, 0)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.rewards = dict.fromkeys(self.agents, 99)
        else:
            t = self._t
            self._t += 1
            self.rewards = {agent: 2 ** (3 * t + i) for i, agent in enumerate(self.possible_agents)}
            for agent in self.agents:
                self.terminations[agent] = self.ends.get((t, agent)) is True
                self.truncations[agent] = self.ends.get((t, agent)) is False
        ended = [agent for agent in self.agents if self.terminations[agent] or self.truncations[agent]]
        if ended:
            self.agent_selection = ended[0]
        elif self.agents:
            self.agent_selection = self.order[self._t]

    def close(self) -> None:
        pass


class Referee:
    """An env of turns of PettingZoo, around which moves are counted: all, and those that the mask forbids.

    Args: env: from its module, before any wrapper that would end the game at an illegal move.
    """

    n_move = 0  # of all of them
    illegal: ClassVar[list[Any]] = []

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return getattr(self._env, name)

    def step(self, action: Any) -> None:
        env = self._env
        agent = env.agent_selection
        if not (env.terminations[agent] or env.truncations[agent]):
            Referee.n_move += 1
            if not env.observe(agent)['action_mask'][action]:
                Referee.illegal.append((agent, action))
        env.step(action)


def tictactoe() -> Any:
    from pettingzoo.classic.tictactoe.tictactoe import raw_env

    return Referee(raw_env())


def connect_four() -> Any:
    from pettingzoo.classic.connect_four.connect_four import raw_env

    return Referee(raw_env())


class MatrixGame:
    """Two agents, a and b, choose at the same time, once in an episode; each observes 0.

    payoff: [n, n, 2], of the choices of a and b to what both get.
    """

    metadata: ClassVar[dict[str, Any]] = {'name': 'matrix'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b']
    payoff: ClassVar[Any]

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(len(self.payoff))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return self._each(np.zeros(1, np.float32)), self._each({})

    def step(self, actions: dict[str, Any]) -> Any:
        rewards = dict(zip('ab', self.payoff[actions['a']][actions['b']], strict=True))
        self.agents = []
        return self._each(np.zeros(1, np.float32)), rewards, self._each(True), self._each(False), self._each({})

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def close(self) -> None:
        pass


class PrisonersDilemma(MatrixGame):
    """Choice 1, to defect, is better whatever the other does."""

    payoff = (((3, 3), (0, 5)), ((5, 0), (1, 1)))


class StagHunt(MatrixGame):
    """Choice 1, the hare, is safe: 3 alone, 2 if both take it; 0, the stag, gives 4 if both hunt it, else nothing."""

    payoff = (((4, 4), (0, 3)), ((3, 0), (2, 2)))


class RockPaperScissors(MatrixGame):
    """Rock is 0, paper 1, scissors 2."""

    payoff = (((0, 0), (-1, 1), (1, -1)), ((1, -1), (0, 0), (-1, 1)), ((-1, 1), (1, -1), (0, 0)))


class HiddenCoin:
    """Agents a and b get 1 for heads and -1 for tails of a coin that is thrown at each step and that only state() shows."""

    metadata: ClassVar[dict[str, Any]] = {'name': 'coin'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b']

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def state(self) -> Any:
        return np.array([self._coin], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._t = 0
        self._coin = self._thrown()
        self.agents = list(self.possible_agents)
        return self._each(np.zeros(1, np.float32)), self._each({})

    def step(self, actions: dict[str, Any]) -> Any:
        reward = self._coin
        self._coin = self._thrown()
        self._t += 1
        is_over = self._t == 8
        if is_over:
            self.agents = []
        obs = self._each(np.zeros(1, np.float32))
        return obs, self._each(reward), self._each(is_over), self._each(False), self._each({})

    def _thrown(self) -> float:
        return float(2 * self._random.integers(2) - 1)

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def close(self) -> None:
        pass


def rock(obs: Any, mask: Any) -> Any:
    """A policy that always plays rock."""
    return np.zeros(len(obs), np.int64)
