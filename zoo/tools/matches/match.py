"""`zoo match`: players of a game play each other in pairs; win rates with intervals, and ratings of several players."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from zoo.agents.exploitability import Exploitability
from zoo.agents.match import Pairing, kinds_of_games, pair_evaluator, play_pair
from zoo.agents.scores import GameScore, ratings
from zoo.agents.stage import table_section
from zoo.core.errors import UserError
from zoo.core.streams import columns
from zoo.env import make_vector_env
from zoo.env.settings import AT_END, EnvSettings
from zoo.run.checkpoint.consent import Trust
from zoo.tools.matches.exact import exact_of_match, exact_text
from zoo.tools.matches.match_film import film_match
from zoo.tools.matches.players import Named
from zoo.tools.matches.setup import MatchSetup, set_up
from zoo.tools.media.video import check_video

N_EPISODE = 200
logger = logging.getLogger('zoo')


@dataclass(frozen=True)
class MatchResult:
    """The results of a match.

    env: its name; players: their names; pairings: of each pair of players, (0, 1), (0, 2), ..., (1, 2), ...; ratings: Elo of each
    player; anchor: the player whose rating is fixed; greedy: whether the likeliest actions were taken; seed: of the games;
    exploitability: in small games of OpenSpiel of each player whose probabilities are known, and of the average of the snapshots
    of each run with a league, also where the games were greedy; {} in others.
    """

    env: str
    players: tuple[str, ...]
    pairings: tuple[Pairing, ...]
    ratings: Mapping[str, float]
    anchor: str
    greedy: bool
    seed: int
    exploitability: Mapping[str, Exploitability]

    @property
    def score(self) -> GameScore:
        """Wins, draws and losses of the first player against the second one."""
        return self.pairings[0].score

    @property
    def win_rate(self) -> float:
        """The first player's share of points against the second one; a draw is half a point."""
        return self.score.win_rate

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of `win_rate`."""
        return self.pairings[0].interval

    def pairing(self, first: str, second: str) -> Pairing:
        """The games of two players, in this order. Raises: UserError if there are none."""
        for pairing in self.pairings:
            if pairing.players == (first, second):
                return pairing
        raise UserError(
            f'{first} and {second} have no games in this order; players are {", ".join(self.players)}, in pairs of this order'
        )

    def as_data(self) -> dict[str, Any]:
        """All numbers as plain data, as --json prints them."""
        return {
            'env': self.env,
            'players': list(self.players),
            'greedy': self.greedy,
            'seed': self.seed,
            'pairings': [_pairing_data(pairing) for pairing in self.pairings],
            'elo': dict(self.ratings),
            'anchor': self.anchor,
            'exploitability': {name: exact.as_data() for name, exact in self.exploitability.items()},
        }

    def __str__(self) -> str:
        return match_text(self)


def match(
    *players: Named,
    n_episode: int = N_EPISODE,
    env: object = None,
    seed: int = 0,
    greedy: bool = False,
    policy: str | None = None,
    best: bool = False,
    max_step: int | None = None,
    trust: Trust = (),
    overrides: Sequence[str] = (),
    video: str | Path | None = None,
) -> MatchResult:
    """Plays games between each pair of players, in which both have every seat equally often; the same seed gives the same games.

    Args:
      players: two or more: runs, files, 'RUN@STEP', 'RUN:POLICY', 'random', 'one_move_ahead', 'module:function', policies, functions of
        (observations, mask).
      n_episode: games of each pair; rounded up so that all seats have the same number.
      env: the game, as for `evaluate`; None: that of the runs.
      greedy: take the likeliest actions; False: draw them from the policies, as in training. In a game without chance, two greedy
        policies play the same game again and again.
      policy, best: which policy of runs with several, and the best checkpoint in place of the newest.
      max_step: env steps after which a game is cut off, with the returns until then; None: as the first policy's
        policy.eval.max_episode_steps says.
      trust: consent to code that checkpoints name, as of `load_policy`; overrides: 'env.KEY=VALUE' texts.
      video: a file .mp4 or .gif: a film of one further game of each seating of two players.
    Raises: UserError for players of different games, or an env of one agent; ConfigError; CheckpointError.
    """
    if video is not None:
        check_video(video, None, 'the film of a match')
    setup = set_up(
        players,
        n_episode=n_episode,
        env=env,
        seed=seed,
        greedy=greedy,
        policy=policy,
        best=best,
        max_step=max_step,
        trust=trust,
        overrides=overrides,
    )
    if video is not None:
        film_match(setup, video)
    return play(setup)


def play(setup: MatchSetup) -> MatchResult:
    """Plays the games of all pairs."""
    layout = setup.layout
    n_kind = kinds_of_games(len(layout.agents))
    n_copy = max(1, min(setup.n_episode, setup.section.evaluator_env_num) // n_kind) * n_kind
    stage = table_section(setup.section, layout)
    device = 'cpu'
    if setup.policies:
        device = str(setup.policies[0].device)
    pairings = []
    with closing(make_vector_env(stage, n_copy, device=device)) as vector:
        EnvSettings(stage).apply([vector], AT_END)
        for pair in combinations(setup.contestants, 2):
            evaluator = pair_evaluator(
                layout, vector, pair, setup.n_episode, setup.limit, setup.greedy, setup.section.action_mode
            )
            pairing = play_pair(evaluator, layout, pair, setup.seed)
            if pairing.repeats and not evaluator.draws:
                logger.warning(
                    '%s and %s draw no actions, and all games of a seat had the same end: if the game has no chance either, they '
                    'are one game, and the interval says nothing; without greedy play policies draw their actions',
                    *pairing.players,
                )
            pairings.append(pairing)
    return _result(setup, pairings)


def _result(setup: MatchSetup, pairings: Sequence[Pairing]) -> MatchResult:
    contestants = setup.contestants
    names = tuple(contestant.name for contestant in contestants)
    fixed = [i for i, contestant in enumerate(contestants) if contestant.policy is None]
    anchor = next(iter(fixed), 0)
    points = np.zeros((len(names), len(names)))
    games = np.zeros_like(points)
    for pairing in pairings:
        i, j = (names.index(name) for name in pairing.players)
        score = pairing.score
        points[i, j] = score.wins + score.draws / 2
        points[j, i] = score.losses + score.draws / 2
        games[i, j] = games[j, i] = score.n_game
    exact = exact_of_match(setup.entrants, setup.section, setup.trust)
    elo = dict(zip(names, ratings(points, games, anchor), strict=True))
    return MatchResult(setup.layout.name, names, tuple(pairings), elo, names[anchor], setup.greedy, setup.seed, exact)


def _pairing_data(pairing: Pairing) -> dict[str, Any]:
    score = pairing.score
    low, high = pairing.interval
    return {
        'players': list(pairing.players),
        'episodes': score.n_game,
        **_score_data(score),
        'interval': [low, high],
        'return_mean': pairing.return_mean,
        'return_interval': pairing.return_interval,
        'episodes_cut': pairing.n_cut,
        'seats': {
            name: {**_score_data(seat.score), 'return_mean': seat.return_, 'other_return_mean': seat.other_return}
            for name, seat in pairing.seats.items()
        },
    }


def _score_data(score: GameScore) -> dict[str, Any]:
    return {'wins': score.wins, 'draws': score.draws, 'losses': score.losses, 'win_rate': score.win_rate}


def match_text(result: MatchResult) -> str:
    """The result as readable text: each pair, and ratings if there are more than two players."""
    how = 'actions drawn from the policies'
    if result.greedy:
        how = 'the likeliest actions'
    n = result.pairings[0].score.n_game
    lines = [f'{result.env}: {n} games of each pair, {how}, seed {result.seed}']
    for pairing in result.pairings:
        lines += ['', _pairing_text(pairing, result)]
    if len(result.players) > 2:
        lines += ['', _ratings_text(result)]
    if result.exploitability:
        lines += ['', exact_text(result.exploitability)]
    return '\n'.join(lines)


def _pairing_text(pairing: Pairing, result: MatchResult) -> str:
    first, second = pairing.players
    low, high = pairing.interval
    difference = result.ratings[first] - result.ratings[second]
    elo = ''
    if len(result.players) == 2:
        elo = f', Elo {difference:+.0f}'
    cut = ''
    if pairing.n_cut:
        cut = f'; {pairing.n_cut} games were cut off'
    around = ''
    if pairing.return_interval is not None:
        least, most = pairing.return_interval
        around = f' [{least:+.3f}, {most:+.3f}]'
    head = (
        f'{first} against {second}: win rate {pairing.score.win_rate:.3f} [{low:.3f}, {high:.3f}]{elo}, return '
        f'{pairing.return_mean:+.3f}{around}{cut}'
    )
    rows: list[tuple[str, ...]] = [('its seat', 'wins', 'draws', 'losses', 'win rate', 'return', 'return of the other')]
    for name, seat in pairing.seats.items():
        returns = (f'{seat.return_:.3f}', f'{seat.other_return:.3f}')
        rows.append((name, *_score_words(seat.score), *returns))
    rows.append(('all', *_score_words(pairing.score)))
    return f'{head}\n{columns(rows, indent="  ")}'


def _score_words(score: GameScore) -> tuple[str, ...]:
    return str(score.wins), str(score.draws), str(score.losses), f'{score.win_rate:.3f}'


def _ratings_text(result: MatchResult) -> str:
    order = sorted(result.players, key=lambda name: -result.ratings[name])
    rows = [('Elo', 'player', *(str(i + 1) for i in range(len(order))))]
    for i, name in enumerate(order):
        against = [_rate_against(result, name, other) for other in order]
        rows.append((f'{result.ratings[name]:.0f}', f'{i + 1} {name}', *against))
    note = (
        f'win rates of rows against columns; Elo by maximum likelihood, {result.anchor} fixed, and half a draw added to each pair, '
        'so that a player without a loss has a rating too'
    )
    return f'{columns(rows)}\n{note}'


def _rate_against(result: MatchResult, name: str, other: str) -> str:
    for pairing in result.pairings:
        if pairing.players == (name, other):
            return f'{pairing.score.win_rate:.2f}'
        if pairing.players == (other, name):
            return f'{1 - pairing.score.win_rate:.2f}'
    return '-'
