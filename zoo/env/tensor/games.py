"""Small games as tensor envs of several agents: Kuhn poker, tic-tac-toe, rock-paper-scissors.

Agents, observations, actions and rewards are those of OpenSpiel's kuhn_poker, and of PettingZoo's tictactoe_v3 and rps_v2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.data import Obs
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary
from zoo.env.tensor.agents import AgentTensorEnv
from zoo.env.tensor.program import TENSOR_ENV_REGISTRY


def _unit_box(*shape: int) -> Box:
    return Box(np.zeros(shape, np.float32), np.ones(shape, np.float32))


def _on_move(player: Tensor) -> Tensor:
    """[N, 2] bool: the player of each env, [N], as flags of both."""
    return torch.stack((player == 0, player == 1), 1)


class Hand(NamedTuple):
    """The state of hands of Kuhn poker: card [N, 2] int64, of 3; bets [N, 3] int64, -1 not made, 0 pass, 1 bet; n_bet [N] int64."""

    card: Tensor
    bets: Tensor
    n_bet: Tensor


@TENSOR_ENV_REGISTRY.register('kuhn_poker')
class KuhnPoker(AgentTensorEnv):
    """Poker with three cards and two players, who have paid 1 each: pass, or bet 1.

    Pass, pass: the higher card wins 1. A pass after a bet loses 1. Two bets: the higher card wins 2. Observations: the player
    one-hot, the card one-hot, and for each of three bets whether it was a pass, and whether a bet. Source: Kuhn 1950.
    """

    agents = ('player_0', 'player_1')
    action_space = Discrete(2)
    n_noise = 2

    def __init__(self) -> None:
        self.obs_space = Dict({'obs': _unit_box(11), ACTION_MASK: MultiBinary((2,))})
        self._of_player = torch.eye(2)

    def reset(self, noise: Tensor) -> Hand:
        first = (noise[:, 0] * 3).long().clamp(max=2)
        second = (first + 1 + (noise[:, 1] * 2).long().clamp(max=1)) % 3
        zero = torch.zeros_like(first)
        return Hand(torch.stack((first, second), 1), torch.full((len(noise), 3), -1, device=noise.device), zero)

    def step(self, state: Hand, action: Tensor, noise: Tensor) -> tuple[Hand, Tensor, Tensor]:
        card, bets, n_bet = state
        player = n_bet % 2
        bet = action.gather(1, player.unsqueeze(1))
        bets = bets.scatter(1, n_bet.clamp(max=2).unsqueeze(1), bet)
        n_bet = n_bet + 1
        n_made = (bets == 1).sum(1)
        is_call = n_made == 2
        is_show = is_call | ((n_made == 0) & (n_bet == 2))
        is_fold = (n_made == 1) & (bet.squeeze(1) == 0)
        of_cards = torch.where(card[:, 0] > card[:, 1], 1.0, -1.0) * (1.0 + is_call.float())
        of_fold = torch.where(player == 0, -1.0, 1.0)  # the player who passes loses
        gain = torch.where(is_show, of_cards, torch.where(is_fold, of_fold, 0.0))
        return Hand(card, bets, n_bet), torch.stack((gain, -gain), 1), is_show | is_fold

    def observe(self, state: Hand) -> Obs:
        cards = torch.nn.functional.one_hot(state.card, 3).float()  # [N, 2, 3]
        made = torch.stack((state.bets == 0, state.bets == 1), 2).float().flatten(1)  # [N, 6]
        n = len(made)
        players = self._of_player.to(made.device).expand(n, 2, 2)
        obs = torch.cat((players, cards, made.unsqueeze(1).expand(n, 2, 6)), 2)
        return {'obs': obs, ACTION_MASK: torch.ones((n, 2, 2), dtype=torch.bool, device=made.device)}

    def acts(self, state: Hand) -> Tensor:
        return _on_move(state.n_bet % 2)


LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@TENSOR_ENV_REGISTRY.register('tictactoe')
class TicTacToe(AgentTensorEnv):
    """Tic-tac-toe: three in a line win 1, the other player loses 1. Squares are counted row by row.

    Observations: [3, 3, 2], the marks of the player who observes, and those of the other one. State: [N, 2, 9] bool, the marks of
    both players.
    """

    agents = ('player_1', 'player_2')
    action_space = Discrete(9)

    def __init__(self) -> None:
        self.obs_space = Dict({ACTION_MASK: MultiBinary((9,)), 'observation': _unit_box(3, 3, 2)})
        self._lines = torch.tensor(LINES)

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros((len(noise), 2, 9), dtype=torch.bool, device=noise.device)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        player = self._player(state)
        square = action.gather(1, player.unsqueeze(1))
        mark = torch.nn.functional.one_hot(square.squeeze(1), 9).bool()
        state = state | (mark.unsqueeze(1) & _on_move(player).unsqueeze(2))
        has_line = state[:, :, self._lines.to(state.device)].all(3).any(2)  # [B, 2]
        line = has_line.float()
        reward = line - line.flip(1)
        return state, reward, has_line.any(1) | state.any(1).all(1)

    def observe(self, state: Tensor) -> Obs:
        both = torch.stack((state, state.flip(1)), 3)  # [N, player, square, mine or theirs]
        free = ~state.any(1)
        return {ACTION_MASK: free.unsqueeze(1).expand(-1, 2, -1), 'observation': both.unflatten(2, (3, 3)).float()}

    def acts(self, state: Tensor) -> Tensor:
        return _on_move(self._player(state))

    def _player(self, state: Tensor) -> Tensor:
        return state.sum((1, 2)) % 2


@TENSOR_ENV_REGISTRY.register('rock_paper_scissors')
class RockPaperScissors(AgentTensorEnv):
    """Rock (0), paper (1), scissors (2), both players at the same time, for 15 rounds: a round is won by 1, or a draw.

    Observations: the last choice of the other player one-hot, of four: the last means that there is none. State: [N, 2] int64.
    """

    agents = ('player_0', 'player_1')
    action_space = Discrete(3)
    max_episode_steps = 15

    def __init__(self) -> None:
        self.obs_space = _unit_box(4)

    def reset(self, noise: Tensor) -> Tensor:
        return torch.full((len(noise), 2), 3, device=noise.device)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ahead = (action[:, 0] - action[:, 1]) % 3  # 1: the first player's choice beats that of the second
        gain = (ahead == 1).float() - (ahead == 2).float()
        return action, torch.stack((gain, -gain), 1), torch.zeros_like(gain, dtype=torch.bool)

    def observe(self, state: Tensor) -> Obs:
        return torch.nn.functional.one_hot(state.flip(1), 4).float()
