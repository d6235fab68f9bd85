"""Games of every kind: parallel envs and envs of turns (PettingZoo's interfaces), and how an env is told to be one.

Envs are told by their methods; no library of envs is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from zoo.agents.game import AgentGame, End, Turn, numbers
from zoo.config.section import own_copy
from zoo.core.spaces import ACTION_MASK
from zoo.env.adapter import takes_keyword
from zoo.env.config import EnvConfig
from zoo.env.errors import BrokenContractError, UnsupportedEnvError, show_value
from zoo.env.families.family import EnvFamily, EnvRequest
from zoo.env.given import counts_agents, has_several_agents
from zoo.env.make import env_name, find_env, make_source
from zoo.env.make_vector import vectorization_of
from zoo.env.validation import as_flag

UNSEEDED = ('shimmy',)
"""Packages whose envs draw from the system where a reset has no seed."""


def make_game(cfg: EnvConfig) -> AgentGame:
    """The env of a section, as a game. Raises: UnsupportedEnvError if it has one agent; errors of `make_env`."""
    game, kind = find_game(cfg)
    if game is None:
        raise UnsupportedEnvError(
            f'env {env_name(cfg)!r}: {kind} is an env of one agent; leave the section agents out.'
        )
    return game


def find_game(cfg: EnvConfig) -> tuple[AgentGame | None, str]:
    """The env of a section as a game, None for an env of one agent; and the name of its class. Raises: errors of `make_env`."""
    name = env_name(cfg)
    if is_tensor_env(cfg):
        return _tensor_game(cfg, name)
    family = simulator_family(cfg)
    if family is not None:
        return _simulator_game(cfg, family, name)
    env = make_source(cfg, name)
    if cfg.wrappers:
        from zoo.env.wrappers import apply_wrappers  # few configs have any

        env = apply_wrappers(env, cfg.wrappers, name, has_several_agents)
    kind = type(getattr(env, 'unwrapped', env)).__name__
    game = game_of(env, name)
    if game is None:
        return None, kind
    game.reward_weights = cfg.reward_weights
    return game, kind


def is_tensor_env(cfg: EnvConfig) -> bool:
    """Whether the env of a section is a tensor program."""
    return cfg.id == 'torch'


def _tensor_game(cfg: EnvConfig, name: str) -> tuple[AgentGame | None, str]:
    """As `find_game`, of a tensor program. Raises: UnsupportedEnvError for keys that it does not have."""
    from zoo.agents.tensor_game import TensorGame  # few runs have tensor envs of several agents
    from zoo.env.tensor.agents import AgentTensorEnv
    from zoo.env.tensor.program import check_tensor_config
    from zoo.env.tensor.vector import tensor_env_of

    vectorization_of(cfg, find_env(cfg.id, cfg.game))  # refuses keys of single envs
    check_tensor_config(cfg, name)
    env = tensor_env_of(EnvRequest(name, cfg.game or '', 1, False, cfg.max_episode_steps), cfg.kwargs)
    kind = type(env).__name__
    if not isinstance(env, AgentTensorEnv):
        return None, kind
    return TensorGame(env, cfg.max_episode_steps), kind


def simulator_family(cfg: EnvConfig) -> EnvFamily | None:
    """The family of the env of a section, if it may make simulators of several agents; None if not."""
    source = find_env(cfg.id, cfg.game)
    if isinstance(source, EnvFamily) and source.make_agents is not None:
        return source
    return None


def _simulator_game(cfg: EnvConfig, family: EnvFamily, name: str) -> tuple[AgentGame | None, str]:
    """As `find_game`, of a simulator. Raises: UnsupportedEnvError for keys that it does not have."""
    from zoo.agents.simulator_game import SimulatorGame  # few runs have simulators of several agents
    from zoo.env.tensor.program import check_tensor_config

    vectorization_of(cfg, family)  # refuses keys of single envs
    check_tensor_config(cfg, name)
    assert family.make_agents is not None, 'it makes envs of several agents'
    simulator = family.make_agents(EnvRequest(name, '', 1, False, cfg.max_episode_steps), **own_copy(cfg.kwargs))
    if simulator is None:
        return None, name
    return SimulatorGame(simulator), type(simulator.source).__name__


def game_of(env: Any, name: str) -> AgentGame | None:
    """An env of several agents as a game; None for an env of one agent. Args: name: of the env, for messages."""
    if hasattr(env, 'agent_iter') and hasattr(env, 'last'):  # before its reset there is no agent_selection
        check_interface(env, name)
        return TurnGame(env)
    if hasattr(env, 'possible_agents'):
        check_interface(env, name)
        return ParallelGame(env)
    if hasattr(env, 'new_initial_state') and hasattr(env, 'num_players'):
        from zoo.agents.spiel import SpielGame  # few envs are of OpenSpiel

        return SpielGame(env)
    if isinstance(env, gymnasium.Env) and counts_agents(env):
        from zoo.agents.tuples import TupleGame

        return TupleGame(env)
    if callable(getattr(env, 'observation_space', None)):
        raise UnsupportedEnvError(
            f'env {name!r}: {type(env).__name__} has observation_space(agent) but no possible_agents; give it the list of all '
            'agents that there may be.'
        )
    return None


SPACES = ('observation_space', 'action_space')


def check_interface(env: Any, name: str) -> None:
    """Checks the names of agents, and the methods that PettingZoo's two interfaces share. Raises: UnsupportedEnvError."""
    where = f'env {name!r}: {type(getattr(env, "unwrapped", env)).__name__}'
    agents = list(getattr(env, 'possible_agents', ()))
    if not agents or len(set(agents)) < len(agents) or not all(isinstance(agent, str) for agent in agents):
        raise UnsupportedEnvError(
            f"{where} has the possible_agents {agents!r:.80}, wanted strings that differ, such as ['agent_0', 'agent_1']; name "
            'the agents so, in what reset and step return too.'
        )
    for what in SPACES:
        if not callable(getattr(env, what, None)) and not isinstance(getattr(env, f'{what}s', None), Mapping):
            kind = type(getattr(env, what, None)).__name__
            raise UnsupportedEnvError(
                f'{where} has {what} as a {kind}, wanted as a method of the agent; write def {what}(self, agent).'
            )
    for what, arguments in (('reset', 'seed=None, options=None'), ('step', 'actions')):
        method = getattr(env, what, None)
        if not callable(method) or (what == 'reset' and not takes_keyword(method, 'seed')):
            raise UnsupportedEnvError(
                f'{where} has no method {what}({arguments}); write def {what}(self, {arguments}).'
            )


def space_of(env: Any, what: str, agent: str) -> gymnasium.Space:
    """A space of an agent, by the method of that name, or by the dict that older envs have. Args: what: one of SPACES."""
    method = getattr(env, what, None)
    if callable(method):
        return method(agent)
    return getattr(env, f'{what}s')[agent]


class PettingZooGame(AgentGame):
    """Base of the games of PettingZoo's two interfaces. Args: env: see `check_interface`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)
        self.metadata = dict(getattr(env, 'metadata', None) or {})
        self.render_mode = getattr(env, 'render_mode', None)
        self._seeds: np.random.Generator | None = None
        module = type(getattr(env, 'unwrapped', env)).__module__
        self._needs_seeds = module.partition('.')[0] in UNSEEDED

    def obs_space(self, agent: str) -> gymnasium.Space:
        return space_of(self.env, 'observation_space', agent)

    def action_space(self, agent: str) -> gymnasium.Space:
        return space_of(self.env, 'action_space', agent)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        if self._needs_seeds:
            if seed is not None or self._seeds is None:
                self._seeds = np.random.default_rng(seed)
            seed = int(self._seeds.integers(1 << 31))
        if options is None:
            return self.env.reset(seed=seed)
        return self.env.reset(seed=seed, options=options)


def masks_of(infos: Mapping[str, Any], agents: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The masks in the infos of agents that act."""
    masks = {}
    for agent in agents:
        info = infos.get(agent) or {}
        if ACTION_MASK in info:
            masks[agent] = info[ACTION_MASK]
    return masks


class Cycle:
    """A step of all agents of an env of turns, in which each acts once, in place of that of PettingZoo's `aec_to_parallel`.

    The result is the same. PettingZoo's also makes an observation before each turn and drops it, and asks the env for each of its
    attributes several times; in simple_spread that takes a fifth of the time.
    Args: env: the parallel env, whose `agents` is kept.
    """

    def __init__(self, env: Any) -> None:
        self._parallel = env
        self._turns = env.aec_env

    def __call__(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        env = self._turns
        total: dict[str, Any] = {}
        for agent in env.agents:
            on_turn = env.agent_selection
            if agent != on_turn:
                raise BrokenContractError(
                    f'agent {on_turn!r} is on turn', f'agent {agent!r}: all act once in a cycle', 'use the env of turns'
                )
            env.step(actions[agent])
            rewards = env.rewards
            for other in env.agents:
                total[other] = total.get(other, 0) + rewards[other]
        terminated = dict(env.terminations)
        truncated = dict(env.truncations)
        infos = dict(env.infos)
        agents = env.agents
        obs = {agent: env.observe(agent) for agent in agents}
        while agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
            agents = env.agents
        self._parallel.agents = agents
        return obs, total, terminated, truncated, infos


class ParallelGame(PettingZooGame):
    """An env in which all agents that are there act at the same time."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.step_env: Callable[[dict[str, Any]], Any] = env.step
        kind = type(env)
        if kind.__name__ == 'aec_to_parallel_wrapper' and kind.__module__.partition('.')[0] == 'pettingzoo':
            self.step_env = Cycle(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        result = self._reset(seed, options)
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(x, Mapping) for x in result):
            raise BrokenContractError(
                f'reset returned {show_value(result)}',
                'a tuple (observations, infos) of dicts by agent',
                'return both',
            )
        obs, infos = result
        acts = self._acting(obs, 'reset')
        return Turn(acts, masks=masks_of(infos, acts), infos=infos)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        result = self.step_env(dict(actions))
        try:
            return self._turn(actions, *result)
        except Exception:
            self._check_dicts(result)
            raise

    def _turn(
        self,
        actions: Mapping[str, Any],
        obs: Mapping[str, Any],
        rewards: Mapping[str, Any],
        terminated: Mapping[str, Any],
        truncated: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> Turn:
        """The turn after a step, of what the step returned."""
        ended = {}
        for agent in actions:
            if agent not in rewards or agent not in terminated or agent not in truncated:
                raise self._missing_error(agent, rewards=rewards, terminations=terminated, truncations=truncated)
            if terminated[agent] or truncated[agent]:
                is_terminal = as_flag(f'terminations[{agent!r}]', terminated[agent])
                as_flag(f'truncations[{agent!r}]', truncated[agent])
                ended[agent] = self._end(agent, obs, is_terminal)
        acts = self._acting(obs, 'step')
        for agent in actions:
            if (agent in acts) == (agent in ended):
                raise self._no_end_error(agent, agent in ended)
        return Turn(acts, numbers(rewards, self.reward_weights), ended, masks_of(infos, acts), infos)

    def _check_dicts(self, result: Any) -> None:
        """Checks that a step returned five dicts. Raises: BrokenContractError."""
        names = ('observations', 'rewards', 'terminations', 'truncations', 'infos')
        if not isinstance(result, tuple | list) or len(result) != len(names):
            got = show_value(result)
            if isinstance(result, tuple | list):
                got = f'a {type(result).__name__} of {len(result)}'
            raise BrokenContractError(
                f'step returned {got}', f'a tuple ({", ".join(names)}) of dicts by agent', 'return all five'
            )
        for what, of_agents in zip(names, result, strict=True):
            if not isinstance(of_agents, Mapping):
                raise BrokenContractError(
                    f'step returned {what} {show_value(of_agents)}', 'a dict by agent', 'return one'
                )

    def _missing_error(self, agent: str, **dicts: Mapping[str, Any]) -> BrokenContractError:
        """The error of an agent that acted and that one of these dicts of a step lacks."""
        what = next(name for name, of_agents in dicts.items() if agent not in of_agents)
        return BrokenContractError(
            f'step returned {what} without agent {agent!r}, which acted', 'an entry for it', 'return one'
        )

    def _no_end_error(self, agent: str, is_ended: bool) -> BrokenContractError:
        """The error of an agent that has ended and is still there, or of one that is gone without an end."""
        if is_ended:
            return BrokenContractError(
                f'agent {agent!r} has ended, but is still in `agents`',
                'an agent that has ended not to be there',
                'remove it',
            )
        return BrokenContractError(
            f'agent {agent!r} is gone from `agents`, but was neither terminated nor truncated',
            'one of the two',
            'say how it ended',
        )

    def _acting(self, obs: Mapping[str, Any], call: str) -> dict[str, Any]:
        acts = {}
        for agent in self.env.agents:
            if agent not in obs:
                raise BrokenContractError(
                    f'{call} returned no observation of agent {agent!r}, which is in `agents`', 'one', 'return it'
                )
            acts[agent] = obs[agent]
        return acts

    def _end(self, agent: str, obs: Mapping[str, Any], is_terminal: bool) -> End:
        if agent not in obs and not is_terminal:
            raise BrokenContractError(
                f'agent {agent!r} was truncated, but step returned no last observation of it',
                'its last observation',
                'return it',
            )
        return End(obs.get(agent), is_terminal)


class TurnGame(PettingZooGame):
    """An env in which one agent acts at a time (AEC). Agents that have ended are stepped with None here.

    Rewards are the sums of `rewards` after each step of an agent that lives: `last()` counts some twice where agents are removed.
    """

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        self._reset(seed, options)
        for name in ('agents', 'agent_selection', 'rewards', 'terminations', 'truncations', 'infos'):
            if not hasattr(self.env, name):
                raise BrokenContractError(f'after a reset there is no {name}', 'an attribute', f'set {name} in reset')
        return self._turn({}, {})

    def step(self, actions: Mapping[str, Any]) -> Turn:
        env = self.env
        living = [agent for agent in env.agents if not (env.terminations[agent] or env.truncations[agent])]
        env.step(actions[env.agent_selection])
        rewards = numbers(env.rewards, self.reward_weights)
        ended = {}
        for agent in living:
            if agent not in env.terminations or agent not in env.truncations:
                raise BrokenContractError(
                    f'agent {agent!r} is gone, but was neither terminated nor truncated',
                    'one of the two',
                    'say how it ended',
                )
            if env.terminations[agent] or env.truncations[agent]:
                ended[agent] = End(env.observe(agent), bool(env.terminations[agent]))
        return self._turn(rewards, ended)

    def _turn(self, rewards: Mapping[str, float], ended: Mapping[str, End]) -> Turn:
        env = self.env
        infos = dict(env.infos)
        while True:
            agents = env.agents
            if not agents:
                return Turn({}, rewards, ended, infos=infos)
            agent = env.agent_selection
            if agent not in agents:
                raise BrokenContractError(
                    f'agent_selection is {agent!r}', f'one of `agents`, {", ".join(agents)}', 'select one that is there'
                )
            if not (env.terminations[agent] or env.truncations[agent]):
                break
            env.step(None)
            if agent in env.agents:
                raise BrokenContractError(
                    f'agent {agent!r} has ended, and is still in `agents` after its step with None',
                    'it to be removed there',
                    'remove it',
                )
        acts = {agent: env.observe(agent)}
        return Turn(acts, rewards, ended, masks_of(env.infos, acts), infos)
