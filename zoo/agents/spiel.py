"""Games of OpenSpiel, by pyspiel itself: with chance, and with moves at the same time.

Adapters to PettingZoo's interface lose some of it: a chance event ends the episode there, and the observations forget what was
played before. Source of the meaning: the API of OpenSpiel (Lanctot et al., 2019, arXiv:1908.09453).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from zoo.agents.game import AgentGame, End, Turn
from zoo.core.errors import UserError
from zoo.env.errors import UnsupportedEnvError


class SpielGame(AgentGame):
    """A game of OpenSpiel. Players observe their information state, which remembers all that they saw, where the game has one.

    Args: game: what pyspiel.load_game returns.
    Attributes: remembers: whether observations are information states; n_number: numbers of an observation.
    """

    def __init__(self, game: Any) -> None:
        self.env = game
        self.agents = tuple(f'player_{i}' for i in range(game.num_players()))
        self.metadata = {}
        kind = game.get_type()
        if kind.dynamics.name == 'MEAN_FIELD':
            raise UnsupportedEnvError(
                f'env {kind.short_name!r}: it is a mean-field game, whose players are one and a distribution of many; use a '
                'game of players that move in turn, or at the same time.'
            )
        self.remembers = bool(kind.provides_information_state_tensor)
        if not self.remembers and not kind.provides_observation_tensor:
            raise UnsupportedEnvError(
                f'env {kind.short_name!r}: the game gives no tensors of observations, only texts; use another game, or give an '
                'env of your own that encodes it.'
            )
        if self.remembers:
            shape = game.information_state_tensor_shape()
        else:
            shape = game.observation_tensor_shape()
        self.n_number = int(np.prod(shape))
        self._shape = (self.n_number,)
        self._random = np.random.default_rng(0)
        self.position: Any = None
        self._legal: dict[str, np.ndarray] = {}

    def obs_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, self._shape, np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(self.env.num_distinct_actions())

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Turn:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.position = self.env.new_initial_state()
        self._returns = np.zeros(len(self.agents))
        return self._turn()

    def step(self, actions: Mapping[str, Any]) -> Turn:
        state = self.position
        for agent, action in actions.items():
            self._refuse_illegal(agent, int(action))
        if state.is_simultaneous_node():
            state.apply_actions([int(actions.get(agent, 0)) for agent in self.agents])
        else:
            (action,) = actions.values()
            state.apply_action(int(action))
        return self._turn()

    def _refuse_illegal(self, agent: str, action: int) -> None:
        """Raises: UserError for an illegal action, which OpenSpiel would take: the game would be another one."""
        mask = self._legal[agent]
        if not 0 <= action < len(mask) or not mask[action]:
            raise UserError(
                f'{agent} took action {action} of {self.env.get_type().short_name}, where {mask.nonzero()[0].tolist()} are legal; '
                'choose by the mask (env.action_mask=auto), in a function by its argument mask'
            )

    def observe(self, agent: str) -> np.ndarray:
        return self._tensor(self.agents.index(agent))

    def state(self) -> np.ndarray:
        """The observations of all players, one after the other."""
        if self.position.is_terminal():
            return np.zeros(len(self.agents) * self._shape[0], np.float32)
        return np.concatenate([self._tensor(i) for i in range(len(self.agents))])

    def render(self) -> str:
        return str(self.position)

    def close(self) -> None:
        self.position = None

    def _tensor(self, player: int) -> np.ndarray:
        if self.remembers:
            return np.array(self.position.information_state_tensor(player), np.float32)
        return np.array(self.position.observation_tensor(player), np.float32)

    def _turn(self) -> Turn:
        """The turn after an action; draws what chance decides."""
        state = self.position
        while state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            p = np.array(probabilities)
            state.apply_action(int(self._random.choice(outcomes, p=p / p.sum())))
        returns = np.array(state.returns())
        rewards = dict(zip(self.agents, (returns - self._returns).tolist(), strict=True))
        self._returns = returns
        if state.is_terminal():
            last = np.zeros(self._shape, np.float32)
            return Turn({}, rewards, {agent: End(last, True) for agent in self.agents})
        players = [state.current_player()]
        if state.is_simultaneous_node():
            players = [i for i in range(len(self.agents)) if state.legal_actions(i)]
        acts = {self.agents[i]: self._tensor(i) for i in players}
        self._legal = {self.agents[i]: np.array(state.legal_actions_mask(i), bool) for i in players}
        return Turn(acts, rewards, masks=self._legal)
