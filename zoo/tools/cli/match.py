"""`zoo match`: runs, snapshots and heuristics play each other."""

from __future__ import annotations

import argparse
import re

from zoo.core.errors import UserError
from zoo.tools.cli.output import argument, show, watch_calls_of

ARGUMENTS = {
    'match': (
        argument(
            'players',
            nargs='+',
            metavar='PLAYER',
            help='two or more: a run (as for zoo eval), RUN:POLICY for one of several, RUN@STEP or a file for a snapshot of its '
            'league, random, one_move_ahead (in board games), or a function of (observations, mask) as my_bots.py:greedy',
        ),
        argument(
            'overrides',
            nargs='*',
            default=[],
            metavar='KEY=VALUE',
            help='keys of the section env, e.g. env.kwargs.size=5',
        ),
        argument('--env', metavar='ENV', help='the game (default: that of the runs)'),
        argument('--episodes', '-n', type=int, default=200, metavar='N', help='games of each pair (default 200)'),
        argument('--seed', type=int, default=0, metavar='N', help='seed of the games (default 0)'),
        argument(
            '--greedy',
            action='store_true',
            help='take the likeliest actions; without it they are drawn, since good play of many games is mixed, and greedy '
            'policies repeat one game',
        ),
        argument('--policy', metavar='NAME', help='the policy that plays for runs with several'),
        argument('--best', action='store_true', help='the best checkpoints of run folders, not the newest'),
        argument('--video', metavar='FILE', help='also a film, .mp4 or .gif: one game of each seating of two players'),
        argument('--max-step', type=int, metavar='N', help='cut games off after N env steps'),
    )
}
NOTES = {
    'match': """\
Both players of a pair have each seat in the same number of games. A draw is half a win. The interval is of 95%. Three or more
players meet in all pairs, and get ratings (Elo).

  zoo match runs/connect_four/NEW runs/connect_four/OLD
  zoo match RUN RUN@0 RUN@100000 random -n 400
  zoo match RUN my_bots.py:greedy --greedy
  zoo match RUN RUN@0 --video game.mp4"""
}
OVERRIDE = re.compile(r'[\w.]+=.*')


def run_match(args: argparse.Namespace) -> None:
    """Plays the games, and prints the results."""
    players = [word for word in args.players if not OVERRIDE.fullmatch(word)]
    overrides = [word for word in args.players if OVERRIDE.fullmatch(word)] + args.overrides
    for name, number, least in (
        ('--episodes', args.episodes, 1),
        ('--seed', args.seed, 0),
        ('--max-step', args.max_step, 1),
    ):
        if number is not None and number < least:
            raise UserError(f'{name} is {number} but must be {least} or more')
    from zoo.tools.matches.match import match_text, play
    from zoo.tools.matches.match_film import film_match
    from zoo.tools.matches.setup import set_up
    from zoo.tools.media.video import check_video

    if args.video is not None:
        check_video(args.video, None, 'zoo match --video')
    setup = set_up(
        players,
        n_episode=args.episodes,
        env=args.env,
        seed=args.seed,
        greedy=args.greedy,
        policy=args.policy,
        best=args.best,
        max_step=args.max_step,
        trust=args.trust or args.imports,
        overrides=overrides,
    )
    with watch_calls_of(args, setup.section.step_timeout):
        film = None
        if args.video is not None:  # first: a game that cannot be drawn is refused at once
            film = film_match(setup, args.video)
        result = play(setup)
    data = result.as_data()
    text = match_text(result)
    if film is not None:
        seconds = film.n_frame / film.fps
        data['video'] = {'file': args.video, 'frames': film.n_frame, 'fps': film.fps, 'seconds': seconds}
        text += f'\n\n{args.video}: {len(film.evaluation.returns)} games, {seconds:.1f} s'
    show(args, data, text)
