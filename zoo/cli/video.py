"""`zoo video`: a checkpoint -> a video of episodes, without a display."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from zoo.cli.evaluate import check_episodes, checkpoint_path
from zoo.cli.output import print_json, watch_calls_of
from zoo.core.streams import write_line

SUMMARY = 'write a video of a checkpoint that plays its env, without a display'
OPTIONS = ('trust', 'json')


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_episodes(parser, 1)
    parser.add_argument('--output', '-o', required=True, metavar='FILE', help='the video, a file .mp4 or .gif')


def add_episodes(parser: argparse.ArgumentParser, n_episode: int) -> None:
    """The arguments that say which episodes are shown, also of `zoo play`."""
    parser.add_argument('checkpoint', metavar='RUN', help='a run folder (its newest checkpoint), or a checkpoint file')
    parser.add_argument(
        'overrides',
        nargs='*',
        default=[],
        metavar='KEY=VALUE',
        help='other keys of the section env, e.g. env.kwargs.size=20 or env.id=Other-v0',
    )
    parser.add_argument('--episodes', type=int, default=n_episode, metavar='N', help=f'episodes (default {n_episode})')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help='seed of the env (default 0)')
    parser.add_argument(
        '--fps', type=float, metavar='X', help='pictures per second (default: as the env says, else 30)'
    )
    parser.add_argument('--best', action='store_true', help='the best checkpoint of the run, not the newest')
    parser.add_argument('--stochastic', action='store_true', help='sample actions as in training')
    parser.add_argument(
        '--set', dest='set_name', metavar='NAME', help='on the env of policy.eval.sets that has this name'
    )
    parser.add_argument('--max-step', type=int, metavar='N', help='cut episodes off after N env steps')


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and writes the video."""
    check_episodes(args)
    from zoo.worker.video import check_video

    check_video(args.output, args.fps, 'zoo video')
    from zoo.worker.recording import record_video

    player = load_player(args)
    with stopping() as received, watch_calls_of(args, player.env.step_timeout):
        recording = record_video(
            player.policy,
            player.env,
            args.output,
            args.episodes,
            args.seed,
            fps=args.fps,
            deterministic=False if args.stochastic else None,
            max_step=args.max_step,
            stop=lambda: bool(received),
        )
    if recording is None:
        return 128 + received[0]
    seconds = recording.n_frame / recording.fps
    if args.json:
        print_json(
            {'file': args.output, 'frames': recording.n_frame, 'fps': recording.fps, 'seconds': seconds}
            | numbers(recording.evaluation, player.env_step)
        )
        return 0
    for row in recording.evaluation.rows():
        write_line(episode_line(row))
    write_line(f'{args.output}: {seconds:.1f} s, {recording.n_frame} pictures, policy of env step {player.env_step}')
    return 0


class Player(NamedTuple):
    """A policy, the section env of what it plays, and the env step of its checkpoint."""

    policy: Any
    env: Any
    env_step: int


def load_player(args: argparse.Namespace) -> Player:
    """What the arguments of `add_episodes` name. Raises: CheckpointError, ConfigError, by the rules of `zoo eval`."""
    from zoo.run.checkpoint import load_checkpoint
    from zoo.run.load import env_config_of, policy_of

    checkpoint, trust = load_checkpoint(checkpoint_path(args)), args.trust or args.imports
    # first: without consent to its code nothing is built
    env = env_config_of(checkpoint, trust, args.overrides, args.set_name)
    return Player(policy_of(checkpoint, trust=trust), env, checkpoint.meta['env_step'])


def numbers(evaluation: Any, env_step: int) -> dict[str, Any]:
    """What --json prints of the episodes."""
    found = {'returns': evaluation.returns, 'lengths': evaluation.lengths, 'return_mean': evaluation.return_mean}
    return {**found, 'episodes_cut': evaluation.n_cut, 'env_step': env_step}


def episode_line(row: dict[str, Any]) -> str:
    """A line for people about one episode, a row of `Evaluation.rows`."""
    cut = ', cut off' if row['cut'] else ''
    return f'episode {row["episode"] + 1}: return {row["return"]:.2f}, length {row["length"]}{cut}'


@contextmanager
def stopping() -> Iterator[list[int]]:
    """Yields a list that receives the numbers of signals that ask to stop; a second one ends the process at once."""
    received: list[int] = []

    def handler(number: int, frame: Any) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)

    wanted = (signal.SIGINT, signal.SIGTERM)
    try:
        old = {number: signal.signal(number, handler) for number in wanted}
    except ValueError:  # not in the main thread, which alone can handle signals
        yield received
        return
    try:
        yield received
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)
