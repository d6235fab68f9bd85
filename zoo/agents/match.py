"""Matches: games between two players in an env of several agents, in which both have all seats equally often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.agents.actors import function_mode, random_mode
from zoo.agents.board_player import ahead_mode
from zoo.agents.config import AgentsConfig
from zoo.agents.evaluator import AgentEvaluator
from zoo.agents.games import find_game
from zoo.agents.layout import AGENT, OBS, STATE, Group, Layout, is_vector
from zoo.agents.scores import CONFIDENCE, GameScore, interval_over_seats
from zoo.agents.self_play import AHEAD, RANDOM
from zoo.agents.stage import look_at_agents
from zoo.core.data import Obs, State
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.core.spaces import Box, Dict, Space, leaf_spaces, space_words
from zoo.env import AnyVectorEnv, EnvConfig
from zoo.env.make import env_name
from zoo.policy.base import Policy
from zoo.policy.modes import EvalMode
from zoo.worker.evaluator import Evaluation

FIRST = 'first'
SECOND = 'second'
"""Names of the policies of the layout: the two players of a game."""


@dataclass(frozen=True)
class Contestant:
    """A player of matches.

    policy: acts for all its agents; act: a function of (observations, mask), for a player without a policy; built_in: the player
    without either, of BUILT_IN; state, pad: of the section agents with which the policy was trained.
    """

    name: str
    policy: Policy | None = None
    act: Callable[..., Any] | None = None
    state: str = 'off'
    pad: bool = False
    built_in: str = RANDOM

    @property
    def reads_state(self) -> bool:
        """Whether its policy acts by the state of the whole env."""
        policy = self.policy
        if policy is None or not isinstance(policy.obs_space, Dict):
            return False
        return STATE in policy.obs_space.spaces and STATE not in policy._optional_obs()


class Seat(NamedTuple):
    """Games in which the first player of a pairing has the same agents.

    return_: its mean return; other_return: that of the second one; error: the standard error of `return_`, None of a single game.
    """

    score: GameScore
    return_: float
    other_return: float
    error: float | None = None


@dataclass(frozen=True)
class Pairing:
    """The games between two players.

    seats: by the agents of the first one; n_cut: games that were cut off; repeats: whether all games of a seat had equal returns
    and lengths.
    """

    players: tuple[str, str]
    seats: Mapping[str, Seat]
    n_cut: int = 0
    repeats: bool = False

    @property
    def score(self) -> GameScore:
        """The results of all games, for the first player."""
        wins, draws, losses = np.sum([seat.score for seat in self.seats.values()], 0).tolist()
        return GameScore(wins, draws, losses)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the first player's win rate."""
        return interval_over_seats([seat.score for seat in self.seats.values()])

    @property
    def return_mean(self) -> float:
        """The first player's mean return over all seats: where games have stakes, it says more than the win rate."""
        return float(np.mean([seat.return_ for seat in self.seats.values()]))

    @property
    def return_interval(self) -> tuple[float, float] | None:
        """The 95% interval of `return_mean`, by the normal distribution of means; None if there is one game of a seat."""
        errors = [seat.error for seat in self.seats.values() if seat.error is not None]
        if len(errors) < len(self.seats):
            return None
        half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * float(np.linalg.norm(errors)) / len(errors)
        return self.return_mean - half, self.return_mean + half


class Seating:
    """The player of each agent in each game, a mapping of agents: kinds of games take turns, so that no seat is an advantage.

    With two agents there are two kinds. With more, one player has one agent and the other player all others: two kinds for each
    agent. With as many copies as kinds, or a multiple, every copy has games of one kind.
    Args: agents: of the env; n_copy: copies of the env.
    """

    def __init__(self, agents: Sequence[str], n_copy: int) -> None:
        self.agents = list(agents)
        self._n_copy = n_copy
        self.n_kind = kinds_of_games(len(self.agents))

    def __call__(self, agent: str, episode: int, copy: int) -> str:
        """The player of an agent. Args: as of a function in agents.mapping."""
        return self.player(agent, (copy + self._n_copy * episode) % self.n_kind)

    def player(self, agent: str, kind: int) -> str:
        """The player of an agent in a kind of games."""
        alone = kind % 2  # the player that has one agent: 0 the first one
        is_alone = self.agents.index(agent) == kind // 2
        if is_alone == (alone == 0):
            return FIRST
        return SECOND

    def name(self, kind: int) -> str:
        """The agents of the first player in a kind of games."""
        alone = self.agents[kind // 2]
        if kind % 2 == 0:
            return alone
        if len(self.agents) == 2:
            return self.agents[1]
        return f'all but {alone}'


def kinds_of_games(n_agent: int) -> int:
    """The number of different seatings of two players; each has the same number of games."""
    if n_agent == 2:
        return 2
    return 2 * n_agent


def look_at_match(section: EnvConfig, contestants: Sequence[Contestant]) -> Layout:
    """The layout of matches in an env. Raises: UserError for an env of one agent, or a player of another game."""
    name = env_name(section)
    game, kind = find_game(section)
    if game is None:
        raise UserError(
            f'{name} ({kind}) is an env of one agent, and a match is between the agents of an env; name a game'
        )
    with closing(game):
        agents = game.agents
    if len(agents) < 2:
        raise UserError(f'{name} has one agent ({agents[0]}), and a match is between the agents of an env; name a game')
    states = {contestant.state: contestant.name for contestant in contestants if contestant.reads_state}
    if len(states) > 1:
        (state, first), (other, second), *_ = states.items()
        raise UserError(
            f'{first} acts by agents.state={state} and {second} by agents.state={other}, and an env has one state; play them in '
            'matches of their own'
        )
    agents_section = AgentsConfig(
        policies={FIRST: 'random', SECOND: 'random'},
        mapping=Seating(agents, 1),
        id='on',
        state=next(iter(states), 'off'),  # type: ignore[arg-type]
        pad=any(contestant.pad for contestant in contestants),
    )
    layout = look_at_agents(section, agents_section)
    for contestant in contestants:
        if contestant.policy is not None:
            _refuse_other_game(contestant, contestant.policy, layout, section)
    return layout


def _refuse_other_game(contestant: Contestant, policy: Policy, layout: Layout, section: EnvConfig) -> None:
    """Raises: UserError for a policy of other spaces, or of another form of actions."""
    group = layout.groups[0]
    if _form(policy.action_space) != _form(group.action_space) or seen_by(policy, group) is None:
        raise UserError(
            f'{contestant.name} takes observations {space_words(policy.obs_space)} and gives actions '
            f'{space_words(policy.action_space)} but the agents of {layout.name} have {space_words(group.raw_spaces[0])} and '
            f'{space_words(group.raw_actions[0])}; a match is of players of one game'
        )
    mode = policy._action_map.mode
    has_numbers = any(isinstance(leaf, Box) for _, leaf in leaf_spaces(policy.action_space))
    if has_numbers and mode != section.action_mode:
        raise UserError(
            f'{contestant.name} was trained with env.action_mode={mode} but {layout.name} is played with '
            f'env.action_mode={section.action_mode}; a match needs players that were trained with the same one'
        )


def _form(space: Space) -> list[tuple[str, str]]:
    """The leaves of a space, without bounds."""
    return [
        (path, f'{type(leaf).__name__} {getattr(leaf, "n", None) or getattr(leaf, "nvec", None) or leaf.shape}')
        for path, leaf in leaf_spaces(space)
    ]


def seen_by(policy: Policy, group: Group) -> Callable[[Obs], Obs] | None:
    """A function that turns rows of a group into the observations that a policy was trained with.

    The rows say which agent each is, at the end of a vector or as an entry; the policy may see it elsewhere, or not at all.
    Returns: None if the rows lack what the policy acts by.
    """
    space = policy.obs_space
    if _form(space) == _form(group.obs_space):
        return lambda obs: obs
    parts = _parts_of(group)
    split = _splitting(group)
    if isinstance(space, Dict):
        names = [name for name, part in space.spaces.items() if name in parts and _form(part) == _form(parts[name])]
        if set(space.spaces) - set(names) - set(policy._optional_obs()):
            return None
        return lambda obs: {name: split(obs)[name] for name in names}
    if OBS not in parts:
        return None
    if _form(space) == _form(parts[OBS]):
        return lambda obs: split(obs)[OBS]
    vector = parts[OBS]
    if (
        isinstance(vector, Box)
        and is_vector(vector)
        and isinstance(space, Box)
        and space.shape == (len(vector.low) + len(group.slots),)
    ):
        return lambda obs: torch.cat([split(obs)[OBS], split(obs)[AGENT]], -1)
    return None


def _parts_of(group: Group) -> dict[str, Space]:
    """The spaces of the parts of a group's observations, by the names that they have as entries of a Dict."""
    space = group.obs_space
    if isinstance(space, Dict):
        return dict(space.spaces)
    n = len(group.slots)
    assert isinstance(space, Box), 'the id is at the end of a vector'
    one_hot = Box(space.low[-n:], space.high[-n:], space.dtype)
    return {OBS: Box(space.low[:-n], space.high[:-n], space.dtype), AGENT: one_hot}


def _splitting(group: Group) -> Callable[[Obs], dict[str, Tensor]]:
    """A function that gives the parts of a group's rows by name."""
    if isinstance(group.obs_space, Dict):
        return dict
    n = len(group.slots)
    return lambda obs: {OBS: obs[..., :-n], AGENT: obs[..., -n:]}


def mode_of(contestant: Contestant, layout: Layout, action_mode: str) -> EvalMode:
    """How a player acts for rows of a layout."""
    group = layout.groups[0]
    policy = contestant.policy
    if policy is None:
        if contestant.act is None and contestant.built_in == AHEAD:
            return ahead_mode(group.obs_space)
        if contestant.act is None:
            return random_mode(group.action_space, action_mode)
        return function_mode(contestant.act, f'the player {contestant.name}', group.action_space, action_mode)
    mode = policy.eval_mode
    view = seen_by(policy, group)
    assert view is not None, 'the layout is refused for such a policy'

    def forward(obs: Obs, state: State) -> dict[str, Any]:
        return mode.forward(view(obs), state)

    draw = mode.sample
    if draw is None:
        return mode._replace(forward=forward)
    return mode._replace(forward=forward, sample=lambda obs, state, generator: draw(view(obs), state, generator))


def pair_evaluator(
    layout: Layout,
    env: AnyVectorEnv,
    pair: tuple[Contestant, Contestant],
    n_episode: int,
    limit: int | None,
    greedy: bool,
    action_mode: str,
) -> AgentEvaluator:
    """What plays the games of two players.

    Args: env: of tables, as many copies as there are kinds of games, or a multiple, or one copy; n_episode: a multiple too;
      limit: steps after which a game is cut off; greedy: whether policies take their likeliest actions; action_mode: of
      the section env.
    """
    modes = {}
    drawing = []
    for name, contestant in zip((FIRST, SECOND), pair, strict=True):
        mode = modes[name] = mode_of(contestant, layout, action_mode)
        if contestant.act is None and mode.sample is not None and (contestant.policy is None or not greedy):
            drawing.append(name)
    seated = replace(layout, mapping=Seating(layout.agents, env.n_env))
    return AgentEvaluator(seated, env, modes, n_episode, limit, drawing=drawing)


def play_pair(evaluator: AgentEvaluator, layout: Layout, pair: tuple[Contestant, Contestant], seed: int) -> Pairing:
    """Plays the games of two players; a seed gives the same games whichever other pairs are played."""
    evaluation = evaluator.evaluate(stream(seed, 'match'))
    assert evaluation is not None, 'nothing stops it'
    first, second = pair
    n_copy = evaluator.env.n_env
    seating = Seating(layout.agents, n_copy)
    seats = seats_of(evaluation, seating, n_copy)
    return Pairing((first.name, second.name), seats, evaluation.n_cut, _repeats(evaluation, seating, n_copy))


def seats_of(evaluation: Evaluation, seating: Seating, n_copy: int) -> dict[str, Seat]:
    """The results of an evaluation whose copies have equal shares of episodes of their own kind; greater mean returns win.

    With two agents both kinds of games are seats; the returns of several agents of a player are their mean.
    """
    returns = np.array([evaluation.agents[agent] for agent in seating.agents])  # [A, N], copy by copy
    kinds = _kinds(returns.shape[1], seating, n_copy)
    seats = {}
    for kind in range(seating.n_kind):
        is_first = np.array([seating.player(agent, kind) == FIRST for agent in seating.agents])
        games = returns[:, kinds == kind]
        mine = games[is_first].mean(0)
        others = games[~is_first].mean(0)
        signs = np.sign(mine - others).astype(int)
        score = GameScore(int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum()))
        seats[seating.name(kind)] = Seat(score, float(mine.mean()), float(others.mean()), _standard_error(mine))
    return seats


def _standard_error(values: np.ndarray) -> float | None:
    """The standard error of a mean; None of a single value."""
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _kinds(n_game: int, seating: Seating, n_copy: int) -> np.ndarray:
    """The kind of each game of an evaluation, copy by copy, [N]."""
    share, rest = divmod(n_game, n_copy)
    copies = np.repeat(np.arange(n_copy), [share + (copy < rest) for copy in range(n_copy)])
    return copies % seating.n_kind


def _repeats(evaluation: Evaluation, seating: Seating, n_copy: int) -> bool:
    """Whether all games of each kind had equal returns and lengths, and there is more than one of a kind."""
    rows = list(zip(*evaluation.agents.values(), evaluation.lengths, strict=True))
    kinds = _kinds(len(rows), seating, n_copy).tolist()
    return len(rows) > seating.n_kind and len(set(zip(kinds, rows, strict=True))) == seating.n_kind
