"""Games as tensor envs of several agents: Kuhn poker, Leduc poker, tic-tac-toe, connect four, rock-paper-scissors.

Agents, observations, actions and rewards are those of OpenSpiel's kuhn_poker and leduc_poker, and of PettingZoo's tictactoe_v3,
connect_four_v3 and rps_v2.
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
    spiel_game = 'kuhn_poker'

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


FOLD, CALL, RAISE = range(3)
"""The actions of Leduc poker."""


class Deal(NamedTuple):
    """The state of hands of Leduc poker. All int64.

    card: [N, 3], of 6, two of each rank: those of the players, then the public one; moves: [N, 2, 4], those of both rounds in
    order, -1 not made, 0 a call, 1 a raise; stage: [N], the round; paid: [N, 2], chips of the players.
    """

    card: Tensor
    moves: Tensor
    stage: Tensor
    paid: Tensor


@TENSOR_ENV_REGISTRY.register('leduc_poker')
class LeducPoker(AgentTensorEnv):
    """Poker with six cards, two rounds and two players, who have paid 1 each: fold, call, or raise by 2, in the second round by 4.

    Two raises a round. A public card is seen in the second round; whose card has its rank wins, else the higher one. Fold is legal
    where there is something to pay; an illegal action is a call. Observations: the player one-hot, the card one-hot, the public
    card one-hot, for each of four moves of both rounds whether it was a call, and whether a raise.
    Source: Southey et al. 2005, arXiv:1207.1411.
    """

    agents = ('player_0', 'player_1')
    action_space = Discrete(3)
    n_noise = 3
    spiel_game = 'leduc_poker'

    def __init__(self) -> None:
        self.obs_space = Dict({'obs': _unit_box(30), ACTION_MASK: MultiBinary((3,))})
        self._of_player = torch.eye(2)

    def reset(self, noise: Tensor) -> Deal:
        draw = (noise * torch.tensor([6.0, 5.0, 4.0], device=noise.device)).long()
        first = draw[:, 0].clamp(max=5)
        second = (first + 1 + draw[:, 1].clamp(max=4)) % 6
        low = torch.minimum(first, second)
        third = draw[:, 2].clamp(max=3)  # the number of a card among those that are left
        third = third + (third >= low)
        third = third + (third >= torch.maximum(first, second))
        n = len(noise)
        none = torch.full((n, 2, 4), -1, device=noise.device)
        return Deal(torch.stack((first, second, third), 1), none, torch.zeros_like(first), torch.ones_like(draw[:, :2]))

    def step(self, state: Deal, action: Tensor, noise: Tensor) -> tuple[Deal, Tensor, Tensor]:
        card, moves, stage, paid = state
        n_move, n_raise = self._counts(state)
        player = (n_move % 2).unsqueeze(1)
        choice = action.gather(1, player).squeeze(1)
        most = paid.max(1).values
        is_fold = (choice == FOLD) & (paid.gather(1, player).squeeze(1) < most)
        is_raise = (choice == RAISE) & (n_raise < 2)
        due = most + is_raise * 2 * (1 + stage)
        after = torch.where(is_fold.unsqueeze(1), paid, paid.scatter(1, player, due.unsqueeze(1)))
        place = (stage * 4 + n_move).unsqueeze(1)
        moves = moves.flatten(1).scatter(1, place, is_raise.long().unsqueeze(1)).view_as(moves)
        ends_round = ~is_fold & ~is_raise & (n_move > 0)
        is_over = is_fold | (ends_round & (stage == 1))
        winner = torch.where(is_fold, player.squeeze(1) * 2 - 1, self._showdown(card))  # 1: the first player
        gain = torch.where(is_over, winner * after.min(1).values, 0).float()
        stage = torch.where(ends_round & (stage == 0), 1, stage)
        return Deal(card, moves, stage, after), torch.stack((gain, -gain), 1), is_over

    def observe(self, state: Deal) -> Obs:
        n = len(state.card)
        cards = torch.nn.functional.one_hot(state.card, 6).float()  # [N, 3, 6]
        public = cards[:, 2] * (state.stage > 0).unsqueeze(1)
        made = torch.stack((state.moves == 0, state.moves == 1), 3).float().flatten(1)  # [N, 16]
        both = torch.cat((public, made), 1).unsqueeze(1).expand(n, 2, 22)
        obs = torch.cat((self._of_player.to(made.device).expand(n, 2, 2), cards[:, :2], both), 2)
        _, n_raise = self._counts(state)
        may_fold = state.paid[:, 0] != state.paid[:, 1]
        legal = torch.stack((may_fold, torch.ones_like(may_fold), n_raise < 2), 1)
        return {'obs': obs, ACTION_MASK: legal.unsqueeze(1).expand(n, 2, 3)}

    def acts(self, state: Deal) -> Tensor:
        n_move, _ = self._counts(state)
        return _on_move(n_move % 2)

    def _counts(self, state: Deal) -> tuple[Tensor, Tensor]:
        """The moves and the raises of the present round, [N] int64."""
        now = torch.where(state.stage.unsqueeze(1) == 0, state.moves[:, 0], state.moves[:, 1])
        return (now >= 0).sum(1), (now == 1).sum(1)

    def _showdown(self, card: Tensor) -> Tensor:
        """1 where the first player has the better cards, -1 where the second one has, 0 where they are equal; [N] int64."""
        rank = card // 2
        strength = rank[:, :2] + 3 * (rank[:, :2] == rank[:, 2:])
        return torch.sign(strength[:, 0] - strength[:, 1])


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


N_ROW, N_COLUMN = 6, 7


def lines_of_connect_four() -> list[list[int]]:
    """The 69 lines of connect four, four places each; places are counted row by row from the top."""
    lines = []
    for row in range(N_ROW):
        for column in range(N_COLUMN):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                places = [(row + i * down, column + i * right) for i in range(4)]
                last_row, last_column = places[-1]
                if last_row < N_ROW and 0 <= last_column < N_COLUMN:
                    lines.append([r * N_COLUMN + c for r, c in places])
    return lines


@TENSOR_ENV_REGISTRY.register('connect_four')
class ConnectFour(AgentTensorEnv):
    """Connect four: discs fall in a column of seven; four in a line win 1, the other player loses 1.

    Observations: [6, 7, 2], the discs of the player who observes, and those of the other one, the top row first. A disc in a full
    column changes nothing but whose move it is. State: the discs of both players, [N, 2, 42] bool, and the number of moves, [N].
    """

    agents = ('player_0', 'player_1')
    action_space = Discrete(N_COLUMN)

    def __init__(self) -> None:
        self.obs_space = Dict({ACTION_MASK: MultiBinary((N_COLUMN,)), 'observation': _unit_box(N_ROW, N_COLUMN, 2)})
        lines = torch.tensor(lines_of_connect_four())
        self._is_in_line = torch.nn.functional.one_hot(lines, N_ROW * N_COLUMN).sum(1).float().T  # [42, 69]

    def reset(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        n = len(noise)
        discs = torch.zeros((n, 2, N_ROW * N_COLUMN), dtype=torch.bool, device=noise.device)
        return discs, torch.zeros(n, dtype=torch.int64, device=noise.device)

    def step(
        self, state: tuple[Tensor, Tensor], action: Tensor, noise: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        discs, n_move = state
        player = n_move % 2
        column = action.gather(1, player.unsqueeze(1)).squeeze(1)
        height = self._heights(discs).gather(1, column.unsqueeze(1)).squeeze(1)
        place = (N_ROW - 1 - height) * N_COLUMN + column  # negative in a full column
        disc = place.unsqueeze(1) == torch.arange(N_ROW * N_COLUMN, device=place.device)
        discs = discs | (disc.unsqueeze(1) & _on_move(player).unsqueeze(2))
        has_line = ((discs.float() @ self._is_in_line.to(place.device)) > 3.5).any(2)  # [N, 2]
        line = has_line.float()
        return (discs, n_move + 1), line - line.flip(1), has_line.any(1) | discs.any(1).all(1)

    def observe(self, state: tuple[Tensor, Tensor]) -> Obs:
        discs, _ = state
        both = torch.stack((discs, discs.flip(1)), 3)  # [N, player, place, mine or theirs]
        free = self._heights(discs) < N_ROW
        board = both.unflatten(2, (N_ROW, N_COLUMN)).float()
        return {ACTION_MASK: free.unsqueeze(1).expand(-1, 2, -1), 'observation': board}

    def acts(self, state: tuple[Tensor, Tensor]) -> Tensor:
        return _on_move(state[1] % 2)

    def _heights(self, discs: Tensor) -> Tensor:
        """The discs in each column, [N, 7]."""
        return discs.any(1).unflatten(1, (N_ROW, N_COLUMN)).sum(1)


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
