"""`zoo play`: a checkpoint plays its env in a window."""

from __future__ import annotations

import argparse
from contextlib import closing

from zoo.cli.evaluate import check_episodes
from zoo.cli.output import print_json, watch_calls_of
from zoo.cli.video import add_episodes, episode_line, load_player, numbers, stopping
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'show a checkpoint that plays its env, in a window'
OPTIONS = ('trust', 'json')


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_episodes(parser, 3)


def run(args: argparse.Namespace) -> int:
    """Plays the episodes in a window, each with a line about its return."""
    check_episodes(args)
    if args.fps is not None and not 0 < args.fps <= 1000:
        raise UserError(f'--fps is {args.fps:g} but must be more than 0 and at most 1000 pictures per second')
    from zoo.worker.window import Window

    with stopping() as received:
        title = f'zoo play {args.checkpoint}'
        with closing(Window(title, args.fps, lambda: bool(received))) as window:
            from zoo.worker.recording import record

            player = load_player(args)
            with watch_calls_of(args, player.env.step_timeout):
                recording = record(
                    player.policy,
                    player.env,
                    args.episodes,
                    args.seed,
                    on_frame=window.show,
                    deterministic=False if args.stochastic else None,
                    max_step=args.max_step,
                    stop=lambda: bool(received) or window.is_closed,
                    callback=None if args.json else lambda row: write_line(episode_line(row)),
                )
    if received:
        return 128 + received[0]
    if recording is not None and args.json:
        print_json(numbers(recording.evaluation, player.env_step))
    return 0
