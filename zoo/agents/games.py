"""Games of PettingZoo's interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from zoo.agents.game import AgentGame, End, Turn
from zoo.env.config import EnvConfig
from zoo.env.errors import UnsupportedEnvError
from zoo.env.make import env_name, make_source


def make_game(cfg: EnvConfig) -> AgentGame:
    """The env of a section, as a game. Raises: UnsupportedEnvError if it has one agent; errors of `make_env`."""
    name = env_name(cfg)
    env = make_source(cfg, name)
    game = game_of(env, name)
    if game is None:
        kind = type(getattr(env, 'unwrapped', env)).__name__
        raise UnsupportedEnvError(f'env {name!r}: {kind} is an env of one agent; leave the section agents out.')
    return game


def game_of(env: Any, name: str) -> AgentGame | None:
    if hasattr(env, 'agent_iter') and hasattr(env, 'last'):
        return TurnGame(env)
    if hasattr(env, 'possible_agents'):
        return ParallelGame(env)
    return None


class ParallelGame(AgentGame):
    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)
        self.metadata = dict(getattr(env, 'metadata', {}))
        self.render_mode = getattr(env, 'render_mode', None)

    def obs_space(self, agent: str) -> gymnasium.Space:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        obs, infos = self.env.reset(seed=seed, options=options)
        return Turn({a: obs[a] for a in self.env.agents}, infos=infos)

    def step(self, actions: Mapping[str, Any]) -> Turn:
        obs, rewards, term, trunc, infos = self.env.step(dict(actions))
        ended = {a: End(obs[a], bool(term[a])) for a in actions if term[a] or trunc[a]}
        return Turn({a: obs[a] for a in self.env.agents}, {a: float(rewards[a]) for a in actions}, ended, infos=infos)


class TurnGame(AgentGame):
    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents = tuple(env.possible_agents)
        self.metadata = dict(getattr(env, 'metadata', {}))
        self.render_mode = getattr(env, 'render_mode', None)

    def obs_space(self, agent: str) -> gymnasium.Space:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        self.env.reset(seed=seed, options=options)
        agent = self.env.agent_selection
        return Turn({agent: self.env.observe(agent)})

    def step(self, actions: Mapping[str, Any]) -> Turn:
        env = self.env
        alive = [a for a in env.agents if not env.terminations[a] and not env.truncations[a]]
        env.step(actions[env.agent_selection])
        rewards = {a: float(env.rewards.get(a, 0)) for a in self.agents}
        ended = {
            a: End(env.observe(a), bool(env.terminations[a]))
            for a in alive
            if a in env.agents and (env.terminations[a] or env.truncations[a])
        }
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        if not env.agents:
            return Turn({}, rewards, ended)
        agent = env.agent_selection
        return Turn({agent: env.observe(agent)}, rewards, ended)
