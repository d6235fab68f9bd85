"""`zoo eval`: a checkpoint -> its returns."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.cli.output import columns, print_json, watch_calls_of
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'evaluate a checkpoint on its env, or on another one'
OPTIONS = ('trust', 'json')
DEMOS = '.npz'
BEST = Path('checkpoints') / 'best.safetensors'


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='a checkpoint file, or a run folder (its newest)')
    parser.add_argument(
        'overrides',
        nargs='*',
        default=[],
        metavar='KEY=VALUE',
        help='other keys of the section env, e.g. env.kwargs.size=20 or env.id=Other-v0',
    )
    parser.add_argument('--episodes', type=int, default=20, metavar='N', help='episodes to run (default 20)')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help='seed of the envs (default 0)')
    parser.add_argument('--best', action='store_true', help='of a run folder the best checkpoint, not the newest')
    parser.add_argument(
        '--stochastic', action='store_true', help='sample actions as in training, not the most likely ones'
    )
    parser.add_argument(
        '--set', dest='set_name', metavar='NAME', help='on the envs of policy.eval.sets that have this name'
    )
    parser.add_argument('--max-step', type=int, metavar='N', help='cut episodes off after N env steps')
    parser.add_argument(
        '--output',
        '-o',
        metavar='FILE',
        help='write a row for each episode to a .csv, .json or .jsonl file; or each step, as demonstrations, to a .npz file',
    )


def run(args: argparse.Namespace) -> int:
    """Plays the episodes and prints their returns."""
    _check(args)
    from zoo.run.checkpoint import load_checkpoint
    from zoo.run.load import env_config_of, policy_of
    from zoo.worker.evaluator import evaluate

    checkpoint, trust = load_checkpoint(checkpoint_path(args)), args.trust or args.imports
    # first: without consent to its code nothing is built
    env = env_config_of(checkpoint, trust, args.overrides, args.set_name)
    policy = policy_of(checkpoint, trust=trust)
    if args.output and Path(args.output).suffix == DEMOS:
        return _record(args, policy, env, checkpoint.meta['env_step'])
    with watch_calls_of(args, env.step_timeout):
        evaluation = evaluate(
            policy,
            env,
            args.episodes,
            args.seed,
            deterministic=False if args.stochastic else None,
            max_step=args.max_step,
        )
    env_step = checkpoint.meta['env_step']
    if args.output:
        _write_rows(Path(args.output), [_without_nan(row) for row in evaluation.rows()])
    if args.json:
        print_json({**_summary(evaluation), 'env_step': env_step})
    else:
        write_line(_text(evaluation, env_step))
    return 0


def _record(args: argparse.Namespace, policy: Any, env: Any, env_step: int) -> int:
    """Plays the episodes and writes what the policy saw and did."""
    from zoo.worker.demonstrations import record_demonstrations, save_demonstrations

    if args.max_step is not None:
        raise UserError(
            '--max-step cuts episodes off, and demonstrations are whole episodes; set env.max_episode_steps=N'
        )
    with watch_calls_of(args, env.step_timeout):
        demos, evaluation = record_demonstrations(
            policy, env, args.episodes, args.seed, deterministic=False if args.stochastic else None
        )
    save_demonstrations(args.output, demos)
    if args.json:
        print_json({**_summary(evaluation), 'steps': demos.n_step})
    else:
        write_line(
            f'{args.output}: {demos.n_step:,} steps of {len(demos.episode_ends)} episodes\n{_text(evaluation, env_step)}'
        )
    return 0


def check_episodes(args: argparse.Namespace) -> None:
    """Raises: UserError for episodes, a seed or a limit of steps without meaning."""
    if args.episodes < 1 or args.seed < 0:
        raise UserError(
            f'--episodes is {args.episodes} and --seed is {args.seed}; episodes must be 1 or more, the seed 0 or more'
        )
    if args.max_step is not None and args.max_step < 1:
        raise UserError(f'--max-step is {args.max_step} but must be 1 or more env steps')


def _check(args: argparse.Namespace) -> None:
    """Raises: UserError for arguments without meaning, before anything is loaded."""
    check_episodes(args)
    if args.output and Path(args.output).suffix not in (*_FORMATS, DEMOS):
        raise UserError(f'--output is {args.output} but must end in {", ".join((*_FORMATS, DEMOS))}')
    if args.output and not Path(args.output).absolute().parent.is_dir():
        raise UserError(f'--output is {args.output} but there is no folder {Path(args.output).parent}; make it first')


def checkpoint_path(args: argparse.Namespace) -> Path:
    """The checkpoint to load. Raises: UserError if --best finds none."""
    path = Path(args.checkpoint)
    if not args.best:
        return path
    if path.is_file():
        raise UserError(f'--best belongs to a run folder, but {path} is a file; leave --best out')
    if path.is_dir() and not (path / BEST).exists():
        raise UserError(
            f'{path} has no best checkpoint: no evaluation came before its end, or checkpoint.keep_best was off; '
            'leave --best out for the newest one'
        )
    return path / BEST if path.is_dir() else path


def _summary(evaluation: Any) -> dict[str, Any]:
    return {
        'return_mean': evaluation.return_mean,
        'return_std': evaluation.return_std,
        'return_min': evaluation.return_min,
        'return_median': evaluation.return_quantile(0.5),
        'return_max': evaluation.return_max,
        'length_mean': evaluation.length_mean,
        'episodes': len(evaluation.returns),
        'episodes_cut': evaluation.n_cut,
        'infos': {key: evaluation.info_mean(key) for key in evaluation.infos},
    }


def _text(evaluation: Any, env_step: int) -> str:
    """The result as people read it: the returns, then the env's own numbers."""
    summary = _summary(evaluation)
    cut = f', {evaluation.n_cut} of them cut off' if evaluation.n_cut else ''
    lines = [
        f'return {evaluation.return_mean:.2f} +- {evaluation.return_std:.2f} (min {evaluation.return_min:.2f}, '
        f'max {evaluation.return_max:.2f}) over {len(evaluation.returns)} episodes{cut}, policy of env step {env_step}'
    ]
    if summary['infos']:
        numbers = ((name, '-' if value is None else f'{value:.4g}') for name, value in summary['infos'].items())
        lines.append(columns(numbers, indent='  '))
    return '\n'.join(lines)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: what an episode lacks is null, in CSV an empty cell."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


_FORMATS = {
    '.csv': _csv,
    '.json': lambda rows: f'{json.dumps(rows, indent=1)}\n',
    '.jsonl': lambda rows: ''.join(f'{json.dumps(row)}\n' for row in rows),
}


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    try:
        path.write_text(_FORMATS[path.suffix](rows), encoding='utf-8')
    except OSError as error:
        raise UserError(f'{path} cannot be written ({error.strerror}); name another file') from error
