"""Setup of a match: its players, its env, and how games are played."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from numbers import Integral
from typing import NamedTuple

from zoo.agents.layout import Layout
from zoo.agents.match import Contestant, kinds_of_games, look_at_match
from zoo.core.errors import UserError, shown
from zoo.env import EnvConfig
from zoo.policy.base import Policy
from zoo.policy.config import MAX_EPISODE_STEPS
from zoo.run.checkpoint.consent import Trust
from zoo.tools.matches.players import Entrant, Named, env_of_match, read_players

logger = logging.getLogger('zoo')


class MatchSetup(NamedTuple):
    """A match that can be played. section: of its env; n_episode: games of each pair; limit: steps of a game, None: no limit."""

    entrants: Sequence[Entrant]
    section: EnvConfig
    layout: Layout
    n_episode: int
    limit: int | None
    greedy: bool
    seed: int
    trust: Trust

    @property
    def contestants(self) -> list[Contestant]:
        return [entrant.contestant for entrant in self.entrants]

    @property
    def policies(self) -> list[Policy]:
        """Those of the players that have one."""
        return [contestant.policy for contestant in self.contestants if contestant.policy is not None]


def set_up(
    players: Sequence[Named],
    *,
    n_episode: int,
    env: object,
    seed: int,
    greedy: bool,
    policy: str | None,
    best: bool,
    max_step: int | None,
    trust: Trust,
    overrides: Sequence[str],
) -> MatchSetup:
    """Loads the players and looks at the env. Args and raises: as of `match`."""
    _check_numbers(n_episode, seed, max_step)
    entrants = read_players(players, trust, policy, best)
    section = env_of_match(entrants, env, trust, overrides)
    layout = look_at_match(section, [entrant.contestant for entrant in entrants])
    n_episode = _rounded(n_episode, kinds_of_games(len(layout.agents)))
    setup = MatchSetup(entrants, section, layout, n_episode, max_step, greedy, seed, trust)
    if max_step is not None:
        return setup
    limit: int | None = MAX_EPISODE_STEPS
    if setup.policies:
        limit = setup.policies[0].cfg.eval.max_episode_steps
    return setup._replace(limit=limit)


def _check_numbers(n_episode: object, seed: object, max_step: object) -> None:
    for name, number, least in (('n_episode', n_episode, 1), ('seed', seed, 0), ('max_step', max_step, 1)):
        is_default = number is None and name == 'max_step'
        if not is_default and (not isinstance(number, Integral) or number < least):
            raise UserError(f'{name} is {shown(number)} but must be an integer >= {least}')


def _rounded(n_episode: int, n_kind: int) -> int:
    """The number of games, rounded up to a multiple of the kinds of games, which is logged."""
    rounded = -(-n_episode // n_kind) * n_kind
    if rounded != n_episode:
        logger.info(
            '%d games are played in place of %d: each of the %d ways to take the seats has the same number',
            rounded,
            n_episode,
            n_kind,
        )
    return rounded
