"""Episodes of a checkpoint: `zoo eval` measures them, `zoo play` shows them in a window, `zoo video` films them."""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.core.errors import UserError
from zoo.core.streams import columns, write_line
from zoo.tools.cli.output import BEST, Argument, argument, has_better, in_brackets, print_json, show, watch_calls_of

if TYPE_CHECKING:
    from zoo.agents.exploitability import Exploitability
    from zoo.env.config import EnvConfig
    from zoo.worker.evaluator import Evaluation, Playing

DEMOS = '.npz'
logger = logging.getLogger('zoo')
RUN_HELP = (
    'a run folder (its newest checkpoint), a checkpoint file, a folder of runs or a name in runs/ (the newest run), '
    'or last'
)
_STOCHASTIC: dict[str, Any] = {'dest': 'deterministic', 'action': 'store_const', 'const': False}  # without it: None

_OVERRIDES = argument(
    'overrides',
    nargs='*',
    default=[],
    metavar='KEY=VALUE',
    help='other keys of the section env, e.g. env.kwargs.size=20 or env.id=Other-v0; other opponents in an env of several '
    'agents: agents.mapping.player_1=random',
)


# of a video for which no number of episodes is given
LEAST_S = 4.0
MOST_EPISODES = 20


def _episodes(n_episode: int | None, words: str) -> tuple[Argument, ...]:
    """The arguments that say which episodes are shown. Args: words: the default number in words."""
    return (
        argument('checkpoint', metavar='RUN', help=RUN_HELP),
        _OVERRIDES,
        argument('--episodes', type=int, default=n_episode, metavar='N', help=f'episodes (default {words})'),
        argument('--seed', type=int, default=0, metavar='N', help='seed of the env (default 0)'),
        argument('--fps', type=float, metavar='X', help='frames per second (default: as the env says, else 30)'),
        argument('--best', action='store_true', help='the best checkpoint of the run, not the newest'),
        argument('--stochastic', **_STOCHASTIC, help='sample actions as in training'),
        argument('--set', dest='set_name', metavar='NAME', help='on the env of policy.eval.sets that has this name'),
        argument('--max-step', type=int, metavar='N', help='cut episodes off after N env steps'),
        argument(
            '--overlay', action='store_true', help='write the step, the return so far and the action below each picture'
        ),
    )


ARGUMENTS = {
    'eval': (
        argument('checkpoint', metavar='CHECKPOINT', help=RUN_HELP),
        _OVERRIDES,
        argument('--episodes', type=int, default=20, metavar='N', help='episodes to run (default 20)'),
        argument('--seed', type=int, default=0, metavar='N', help='seed of the envs (default 0)'),
        argument('--best', action='store_true', help='of a run folder the best checkpoint, not the newest'),
        argument('--stochastic', **_STOCHASTIC, help='sample actions as in training, not the most likely ones'),
        argument('--set', dest='set_name', metavar='NAME', help='on the envs of policy.eval.sets that have this name'),
        argument('--max-step', type=int, metavar='N', help='cut episodes off after N env steps'),
        argument(
            '--output',
            '-o',
            metavar='FILE',
            help='write a row for each episode to a .csv, .json or .jsonl file; or each step, as demonstrations, to a .npz file',
        ),
    ),
    'play': _episodes(3, '3'),
    'video': (
        *_episodes(None, '1; more, up to 20, if it is shorter than 4 seconds'),
        argument('--output', '-o', required=True, metavar='FILE', help='the video, a file .mp4 or .gif'),
    ),
}


def run_eval(args: argparse.Namespace) -> None:
    _check_episodes(args)
    path = Path(args.output or '')
    if args.output and path.suffix not in (*_FORMATS, DEMOS):
        raise UserError(f'--output is {args.output} but must end in {", ".join((*_FORMATS, DEMOS))}')
    if args.output and not path.absolute().parent.is_dir():
        raise UserError(f'--output is {args.output} but there is no folder {path.parent}; make it first')
    from zoo.tools.results.plot import write_output
    from zoo.worker.evaluator import evaluate

    policy, env, env_step = load_player(args)
    if path.suffix == DEMOS:
        _record(args, policy, env, env_step)
        return
    with watch_calls_of(args, env.step_timeout):
        evaluation = evaluate(
            policy, env, args.episodes, args.seed, deterministic=args.deterministic, max_step=args.max_step
        )
    if args.output:  # NaN, for a missing number, becomes null in JSON and an empty cell in CSV
        rows = [{name: None if x != x else x for name, x in row.items()} for row in evaluation.rows()]
        write_output(path, _FORMATS[path.suffix](rows).encode())
    data = {**_summary(evaluation), 'env_step': env_step}
    text = _text(evaluation, env_step)
    exact = _exact(args, policy, env)
    if exact:
        from zoo.tools.matches.exact import exact_text

        data['exploitability'] = {name: found.as_data() for name, found in exact.items()}
        text = f'{text}\n{exact_text(exact)}'
    show(args, data, text)


def _exact(args: argparse.Namespace, policy: Playing, env: EnvConfig) -> dict[str, Exploitability]:
    """The exploitability of the policy, and of its league, in small games of OpenSpiel; {} for others."""
    if not isinstance(env.id, str) or not env.id.startswith('pyspiel:'):  # before the import
        return {}
    from zoo.tools.matches.exact import exact_of_run

    path = checkpoint_path(args)
    run_dir = None
    if path.is_dir():
        run_dir = path
    return exact_of_run(policy, env, run_dir, args.trust or args.imports)


def _record(args: argparse.Namespace, policy: Playing, env: EnvConfig, env_step: int) -> None:
    """Plays the episodes and writes the observations and actions of the policy."""
    from zoo.policy.base import Policy
    from zoo.tools.imitation.demonstrations import record_demonstrations, save_demonstrations

    if not isinstance(policy, Policy):
        raise UserError(
            f'--output is {args.output} but demonstrations are of an env of one agent, and this run has several; use .csv'
        )
    if args.max_step is not None:
        raise UserError(
            '--max-step cuts episodes off, and demonstrations are whole episodes; set env.max_episode_steps=N'
        )
    with watch_calls_of(args, env.step_timeout):
        demos, evaluation = record_demonstrations(
            policy, env, args.episodes, args.seed, deterministic=args.deterministic
        )
    save_demonstrations(args.output, demos)
    kept = f'{args.output}: {demos.n_step:,} steps of {len(demos.episode_ends)} episodes'
    show(args, {**_summary(evaluation), 'steps': demos.n_step}, f'{kept}\n{_text(evaluation, env_step)}')


def _check_episodes(args: argparse.Namespace) -> None:
    """Checks the ranges of --episodes, --seed and --max-step. Raises: UserError."""
    if args.episodes is None:
        n_episode = 1
    else:
        n_episode = args.episodes
    if n_episode < 1 or args.seed < 0:
        raise UserError(
            f'--episodes is {n_episode} and --seed is {args.seed}; episodes must be 1 or more, the seed 0 or more'
        )
    if args.max_step is not None and args.max_step < 1:
        raise UserError(f'--max-step is {args.max_step} but must be 1 or more env steps')


def checkpoint_path(args: argparse.Namespace) -> Path:
    """The checkpoint to load. Raises: UserError if --best finds none."""
    from zoo.tools.results.read import one_run

    path = one_run(args.checkpoint)
    if not args.best:
        return path
    if path.is_file():
        raise UserError(f'--best belongs to a run folder, but {path} is a file; leave --best out')
    if path.is_dir() and not (path / BEST).exists():
        raise UserError(
            f'{path} has no best checkpoint: no evaluation came before its end, or checkpoint.keep_best was off; '
            'leave --best out for the newest one'
        )
    if path.is_dir():
        return path / BEST
    return path


def _summary(evaluation: Evaluation) -> dict[str, Any]:
    names = ('return_mean', 'return_std', 'return_min', 'return_max', 'length_mean')
    return {name: getattr(evaluation, name) for name in names} | {
        'return_median': evaluation.return_quantile(0.5),
        'episodes': len(evaluation.returns),
        'episodes_cut': evaluation.n_cut,
        'infos': {key: evaluation.info_mean(key) for key in evaluation.infos},
        **_of_agents(evaluation),
    }


def _of_agents(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """The mean returns by policy and by agent; {} of an env of one agent."""
    if not evaluation.agents:
        return {}
    return {
        'policies': {name: part.return_mean for name, part in evaluation.learners.items()},
        'agents': {name: sum(returns) / len(returns) for name, returns in evaluation.agents.items()},
    }


def _text(evaluation: Evaluation, env_step: int) -> str:
    """Returns the result as readable text: the returns, then the env's own numbers."""
    cut = ''
    if evaluation.n_cut:
        cut = f', {evaluation.n_cut} of them cut off'
    lines = [
        f'return{in_brackets(evaluation.return_of)} {evaluation.return_mean:.2f} +- {evaluation.return_std:.2f} '
        f'(min {evaluation.return_min:.2f}, max {evaluation.return_max:.2f}) over {len(evaluation.returns)} episodes{cut}, policy of env step {env_step}'
    ]
    infos = ((name, evaluation.info_mean(name)) for name in evaluation.infos)
    of_agents = _of_agents(evaluation)
    numbers = [(f'policy {name}', f'{value:.2f}') for name, value in of_agents.get('policies', {}).items()]
    numbers += [(f'agent {name}', f'{value:.2f}') for name, value in of_agents.get('agents', {}).items()]
    numbers += [(name, '-' if value is None else f'{value:.4g}') for name, value in infos]
    return '\n'.join([*lines, columns(numbers, indent='  ')] if numbers else lines)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_FORMATS = {
    '.csv': _csv,
    '.json': lambda rows: f'{json.dumps(rows, indent=1)}\n',
    '.jsonl': lambda rows: ''.join(f'{json.dumps(row)}\n' for row in rows),
}


def run_play(args: argparse.Namespace) -> int:
    """Plays the episodes in a window, each with a line about its return."""
    _check_episodes(args)
    if args.fps is not None and not 0 < args.fps <= 1000:
        raise UserError(f'--fps is {args.fps:g} but must be more than 0 and at most 1000 frames per second')
    from zoo.tools.media.video import Window

    title = f'zoo play {args.checkpoint}'
    with _stopping() as received, closing(Window(title, args.fps, lambda: bool(received))) as window:
        from zoo.tools.media.recording import record

        policy, env, env_step = load_player(args)
        with watch_calls_of(args, env.step_timeout):
            recording = record(
                policy,
                env,
                args.episodes,
                args.seed,
                on_frame=window.show,
                overlay=args.overlay,
                deterministic=args.deterministic,
                max_step=args.max_step,
                stop=lambda: bool(received) or window.is_closed,
                callback=None if args.json else lambda row: write_line(_episode_line(row)),
            )
    if received:
        return 128 + received[0]
    if recording is not None and args.json:
        print_json(_numbers(recording.evaluation, env_step))
    return 0


def run_video(args: argparse.Namespace) -> int:
    _check_episodes(args)
    from zoo.tools.media.video import check_video

    check_video(args.output, args.fps, 'zoo video')
    from zoo.tools.media.recording import record_video

    policy, env, env_step = load_player(args)
    options = {'fps': args.fps, 'overlay': args.overlay, 'deterministic': args.deterministic, 'max_step': args.max_step}
    if args.episodes is None:
        n_episode = 1
    else:
        n_episode = args.episodes
    with _stopping() as received, watch_calls_of(args, env.step_timeout):
        options['stop'] = lambda: bool(received)
        recording = record_video(policy, env, args.output, n_episode, args.seed, **options)
        if recording is not None and args.episodes is None:
            n_episode = enough_episodes(recording.n_frame / recording.fps)
            if n_episode > 1:  # the same first episode, and more
                recording = record_video(policy, env, args.output, n_episode, args.seed, **options)
    if recording is None:
        return 128 + received[0]
    seconds = recording.n_frame / recording.fps
    data = {'file': args.output, 'frames': recording.n_frame, 'fps': recording.fps, 'seconds': seconds}
    file = f'{args.output}: {seconds:.1f} s, {recording.n_frame} frames, policy of env step {env_step}'
    of = recording.evaluation.return_of
    lines = [*(_episode_line(row, of) for row in recording.evaluation.rows()), file]
    show(args, data | _numbers(recording.evaluation, env_step), '\n'.join(lines))
    return 0


def enough_episodes(seconds: float) -> int:
    """Returns the number of episodes that fill LEAST_S, at most MOST_EPISODES. Args: seconds: of one episode."""
    return min(MOST_EPISODES, math.ceil(LEAST_S / seconds))


def load_player(args: argparse.Namespace) -> tuple[Playing, EnvConfig, int]:
    """Returns the policy that the arguments name, the section env of the env that it plays, its checkpoint's env step.

    Of a run with several policies all are returned, by name.

    Raises: CheckpointError, ConfigError, by the rules of `zoo eval`.
    """
    from zoo.run.checkpoint.consent import approve_agents
    from zoo.run.checkpoint.file import load_checkpoint
    from zoo.run.checkpoint.schema import saved_run
    from zoo.run.policy_file import env_config_of, load_policies, load_policy, saved_policies

    checkpoint = load_checkpoint(checkpoint_path(args))
    trust = args.trust or args.imports
    # before the policy: nothing is built without consent to the code that the checkpoint names
    of_agents = [text for text in args.overrides if text.startswith('agents.')]
    of_env = [text for text in args.overrides if text not in of_agents]
    env = env_config_of(checkpoint, trust, of_env, args.set_name)
    approve_agents(saved_run(checkpoint), trust)
    env_step = checkpoint.meta['env_step']
    counter = saved_run(checkpoint).state.counter
    if not args.best and has_better(checkpoint.path.parent.parent, counter.best_return, counter.last_return):
        logger.info(
            'the last evaluation of this run gave %.4g, the best one %.4g: --best takes the policy of that one',
            counter.last_return,
            counter.best_return,
        )
    if of_agents:
        from zoo.run.agents_player import player_of_policies

        return player_of_policies(load_policies(checkpoint, trust=trust), of_agents, trust), env, env_step
    if len(saved_policies(saved_run(checkpoint))) > 1:
        return load_policies(checkpoint, trust=trust), env, env_step
    return load_policy(checkpoint, trust=trust), env, env_step


def _numbers(evaluation: Evaluation, env_step: int) -> dict[str, Any]:
    """Returns the numbers of the episodes that --json prints."""
    found = {name: getattr(evaluation, name) for name in ('returns', 'lengths', 'return_mean')}
    return found | {'episodes_cut': evaluation.n_cut, 'env_step': env_step}


def _episode_line(row: dict[str, Any], return_of: str = '') -> str:
    """Returns a readable line about one episode. Args: row: of `Evaluation.rows`; return_of: of that evaluation."""
    cut = ''
    if row['cut']:
        cut = ', cut off'
    return (
        f'episode {row["episode"] + 1}: return{in_brackets(return_of)} {row["return"]:.2f}, length {row["length"]}{cut}'
    )


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """Yields a list that receives the numbers of signals that ask to stop; a second one ends the process at once."""
    from zoo.core.processes import catch_signals

    received: list[int] = []

    def take(number: int, frame: object) -> bool:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        return True

    with catch_signals(take):
        yield received
