"""The `zoo` command: a thin layer over the public functions. torch is imported only by the commands that need it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from zoo.core.streams import open_closed_streams, say, write_line

EXIT_FAILED, EXIT_USER = 1, 2
PROFILED = 10  # default of --profile, in iterations


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; exit code 0, 1 (the run failed) or 2 (the user's mistake); signals exit with 128 + number."""
    if argv is None:
        _prepare_process()
    args = _parse(argv)
    args.owns_process = argv is None
    level = logging.DEBUG if args.debug else logging.INFO
    logging.basicConfig(level=level, format='zoo: %(message)s', stream=sys.stderr)
    try:
        return _run(args)
    except KeyboardInterrupt:  # outside of the run, which handles signals
        return 130
    except Exception as error:
        if argv is not None or args.debug:
            raise
        say(traceback.format_exc().rstrip())
        say(
            f'zoo: error: {type(error).__name__} was not expected: it is a mistake in zoo, or in code that it was given, '
            'e.g. an env; if the lines above end in zoo, please report them'
        )
        return EXIT_FAILED
    finally:
        if argv is None:
            say('')  # what the log could not write would fail again, and change the exit code


def _prepare_process() -> None:
    """What holds for the command itself, and not where Python calls `main`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C must not become an exception inside the import of torch
    if 'OMP_WAIT_POLICY' not in os.environ:  # read when torch is loaded; zoo.run.threads says why
        os.environ.setdefault('GOMP_SPINCOUNT', '1000')
    open_closed_streams()


def _names_code(args: argparse.Namespace) -> bool:
    """Whether the user may have named modules: all that a command has, unless it has its config from a checkpoint."""
    is_from_checkpoint = 'checkpoint' in args or (getattr(args, 'resume', None) and '=' in (args.config or '='))
    words = [args.config or '', *args.overrides] if 'overrides' in args else []
    return not is_from_checkpoint or bool(args.imports) or args.trust or any(':' in word for word in words)


def _run(args: argparse.Namespace) -> int:
    if args.debug:
        return _with_imports(args)
    from zoo.core.errors import RunError, UserError, env_failure  # light: no torch

    try:
        return _with_imports(args)
    except UserError as error:
        return _report(error, EXIT_USER, _hint(args, str(error)))
    except RunError as error:
        return _report(error, EXIT_FAILED)
    except Exception as error:
        if (failure := env_failure(error)) is None:
            raise
        return _report(RunError(failure), EXIT_FAILED)


def _with_imports(args: argparse.Namespace) -> int:
    from zoo.core.files import current_folder

    folder = current_folder()
    if _names_code(args) and folder not in sys.path:
        sys.path.append(folder)  # 'module:function' finds the user's modules, as under `python -m zoo`
    if args.imports:
        from zoo.config.source import import_module_or_file

        args.imports = [import_module_or_file(name).__name__ for name in args.imports]
    return args.run(args) or 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes KEY=VALUE words only before the first option; here they may stand anywhere."""
    parser = _parser()
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(EXIT_USER)
    args, rest = parser.parse_known_args(_with_numbers(words))
    if unknown := [word for word in rest if '=' not in word or word.startswith('-') or not hasattr(args, 'overrides')]:
        parser.error(f'unrecognized arguments: {" ".join(unknown)}')
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _with_numbers(argv: Sequence[str]) -> list[str]:
    """Gives `--profile` its default where no number follows; argparse would take the next word, an override."""
    followed = zip(argv, [*argv[1:], ''], strict=True)
    return [
        f'{word}={PROFILED}' if word == '--profile' and not after.lstrip('-')[:1].isdigit() else word
        for word, after in followed
    ]


def _hint(args: argparse.Namespace, message: str) -> str:
    from_file = getattr(args, 'checkpoint', None) or getattr(args, 'resume', None)
    unknown = message.startswith(('unknown policy', 'unknown model', 'unknown env', 'unknown buffer'))
    return ' If it is your own, import the file that registers it: --import my_file.py' if from_file and unknown else ''


def _report(error: Exception, code: int, hint: str = '') -> int:
    problems = str(error).splitlines() or [type(error).__name__]
    more = f' (and {len(problems) - 1} more; --debug shows all)' if len(problems) > 1 else ''
    say(f'zoo: error: {problems[0]}{more}{hint}')
    return code


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        '--import',
        dest='imports',
        action='append',
        default=[],
        metavar='MODULE',
        help='module or .py file to import first, e.g. one that registers your own policy or env; '
        'a checkpoint may then name its code',
    )
    common.add_argument('--debug', action='store_true', help='show the traceback of an error')
    trusting = argparse.ArgumentParser(add_help=False)
    trusting.add_argument(
        '--trust',
        action='store_true',
        help='let the checkpoint load all code that its config names; --import MODULE allows that of one module',
    )
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument('--json', action='store_true', help='print one JSON object on stdout')
    parser = argparse.ArgumentParser('zoo', description='Train and evaluate PPO and PPG policies.')
    commands = parser.add_subparsers(required=True, metavar='COMMAND')

    train = commands.add_parser(
        'train', parents=[common, trusting, as_json], help='train a policy from a config, or continue a run'
    )
    train.add_argument(
        'config',
        nargs='?',
        metavar='CONFIG',
        help='name of a bundled config (zoo list configs), or a .py or .yaml file',
    )
    train.add_argument('overrides', nargs='*', metavar='KEY=VALUE', help='e.g. policy.learn.learning_rate=1e-3 seed=1')
    train.add_argument('--resume', metavar='RUN', help='a run folder or checkpoint file to continue')
    train.add_argument(
        '--profile',
        type=int,
        metavar='N',
        help=f'time the parts of N iterations (default {PROFILED}) after 2 to warm up, and trace the next 3; '
        'the run then continues',
    )
    train.set_defaults(run=_train)

    evaluate = commands.add_parser('eval', parents=[common, trusting, as_json], help='evaluate a checkpoint on its env')
    evaluate.add_argument('checkpoint', metavar='CHECKPOINT', help='a checkpoint file, or a run folder (its newest)')
    evaluate.add_argument('--episodes', type=int, default=20, help='episodes to run (default 20)')
    evaluate.add_argument('--seed', type=int, default=0, help='seed of the envs (default 0)')
    evaluate.set_defaults(run=_eval)

    names = commands.add_parser('list', parents=[common, as_json], help='list what is registered')
    names.add_argument(
        'kind', choices=['policies', 'models', 'envs', 'buffers', 'encoders', 'distributions', 'configs', 'parts']
    )
    names.set_defaults(run=_list)

    config = commands.add_parser(
        'config', parents=[common, as_json], help='print a resolved config and where each value comes from'
    )
    config.add_argument('config', metavar='CONFIG', help='as in train')
    config.add_argument('overrides', nargs='*', default=[], metavar='KEY=VALUE')
    config.set_defaults(run=_config)

    check = commands.add_parser('check-env', parents=[common], help="check an env's contract for some steps")
    check.add_argument('id', metavar='ID', help="gymnasium id, registered name, or 'module:function'")
    check.add_argument('--steps', type=int, default=1000, help='steps to take (default 1000)')
    check.set_defaults(run=_check_env)
    return parser


def _train(args: argparse.Namespace) -> int:
    from zoo.core.errors import UserError

    if args.config is not None and '=' in args.config:  # no config was given, only overrides
        args.config, args.overrides = None, [args.config, *args.overrides]
    if args.config is None and args.resume is None:
        raise UserError(
            'zoo train got neither a config nor --resume; name a config (zoo list configs shows the bundled ones)'
        )
    from zoo.pipeline import serial_pipeline
    from zoo.run.env_watch import EnvWatch
    from zoo.run.trust import consent_words

    EnvWatch.owns_process = args.owns_process
    result = serial_pipeline(
        args.config,
        resume=args.resume,
        overrides=args.overrides,
        profile=args.profile,
        trust=args.trust or args.imports,
    )
    summary = {
        'run_dir': str(result.run_dir),
        'env_step': result.env_step,
        'train_iter': result.train_iter,
        'best_return': result.best_return,
        'last_return': result.last_return,
        'wall_s': round(result.wall_s, 3),
        'env_step_per_s': round(result.env_step_per_s, 1),
    }
    if args.json:
        _print_json(summary)
    else:
        write_line(
            f'{result.env_step} env steps in {result.wall_s:.1f} s; '
            f'return: last {result.last_return:.1f}, best {result.best_return:.1f}\n'
            f'run folder: {result.run_dir}\nevaluate it: zoo eval {result.run_dir}{consent_words()}'
        )
    return 0


def _eval(args: argparse.Namespace) -> int:
    from zoo.core.errors import UserError

    if args.episodes < 1 or args.seed < 0:
        raise UserError(
            f'--episodes is {args.episodes} and --seed is {args.seed}; episodes must be 1 or more, the seed 0 or more'
        )
    from zoo.run.checkpoint import load_checkpoint
    from zoo.run.load import env_config_of, policy_of
    from zoo.worker.evaluator import evaluate

    checkpoint, trust = load_checkpoint(args.checkpoint), args.trust or args.imports
    env = env_config_of(checkpoint, trust)  # first: without consent to its code nothing is built
    policy = policy_of(checkpoint, trust=trust)
    with _watch_calls(args, env.step_timeout):
        evaluation = evaluate(policy, env, args.episodes, args.seed)
    summary = {
        'return_mean': evaluation.return_mean,
        'return_std': evaluation.return_std,
        'episodes': len(evaluation.returns),
        'episodes_cut': evaluation.n_cut,
        'env_step': checkpoint.meta['env_step'],
    }
    if args.json:
        _print_json(summary)
    else:
        write_line(
            f'return {evaluation.return_mean:.2f} +- {evaluation.return_std:.2f} '
            f'over {len(evaluation.returns)} episodes, policy of env step {checkpoint.meta["env_step"]}'
        )
    return 0


def _list(args: argparse.Namespace) -> int:
    if args.kind == 'parts':
        return _list_parts(args)
    names = _names(args.kind)
    if args.json:
        _print_json({args.kind: names})
    else:
        write_line('\n'.join(names))
    return 0


def _list_parts(args: argparse.Namespace) -> int:
    """The parts of an update, by the key that chooses them, with what each does."""
    from zoo.config.parts import options_of, summary_of
    from zoo.core.registry import PARTS

    parts = {
        key: {name: summary_of(registry.get(name)) for name in registry.names()} for key, registry in PARTS.items()
    }
    if args.json:
        _print_json({'parts': parts})
        return 0
    lines = []
    for key, names in parts.items():
        lines += [
            key,
            *(
                f'  {name:<16} {summary}{_shown_options(options_of(PARTS[key].get(name)))}'
                for name, summary in names.items()
            ),
        ]
    write_line('\n'.join(lines))
    return 0


def _shown_options(section: Any) -> str:
    """' [a=1, b=null]' of the options of a part; '' without any."""
    fields = {name: field.default for name, field in section.model_fields.items() if name != 'type'}
    words = [f'{name}={"null" if value is None else value}' for name, value in fields.items()]
    return f' [{", ".join(words)}]' if words else ''


def _names(kind: str) -> list[str]:
    from zoo.core import registry

    if kind == 'configs':
        from zoo.config.source import bundled_configs

        return sorted(bundled_configs())
    if kind == 'envs':
        from zoo.env import known_ids

        return known_ids()
    return {
        'policies': registry.POLICY_REGISTRY,
        'models': registry.MODEL_REGISTRY,
        'buffers': registry.BUFFER_REGISTRY,
        'encoders': registry.ENCODER_REGISTRY,
        'distributions': registry.DISTRIBUTION_REGISTRY,
    }[kind].names()


def _config(args: argparse.Namespace) -> int:
    from zoo.run.config import explain_config

    rows = explain_config(args.config, args.overrides)
    if args.json:
        _print_json(
            {
                row.key: {'value': row.value, 'description': row.description, 'range': row.wanted, 'origin': row.origin}
                for row in rows
            }
        )
        return 0
    values = [f'{row.key} = {row.value!r}' for row in rows]
    width = min(max(map(len, values)), 50)
    origin_width = max(len(row.origin) for row in rows)
    lines = [
        f'{value:<{width}}  {row.origin:<{origin_width}}  {row.description} ({row.wanted})'
        for value, row in zip(values, rows, strict=True)
    ]
    write_line('\n'.join(lines))
    return 0


def _check_env(args: argparse.Namespace) -> int:
    from zoo.env import EnvConfig, check_env

    cfg = EnvConfig(id=args.id)
    with _watch_calls(args, cfg.step_timeout):
        warnings = check_env(cfg, n_step=args.steps)
    found = 'no problem found' if not warnings else 'nothing but the warnings above found'
    write_line(f'{args.id}: {found} in {args.steps} steps')
    return 0


def _watch_calls(args: argparse.Namespace, step_timeout: float) -> AbstractContextManager[None]:
    from zoo.run.env_watch import EnvWatch, watch_calls

    EnvWatch.owns_process = args.owns_process
    return watch_calls(step_timeout)


def _print_json(value: dict[str, Any]) -> None:
    write_line(json.dumps(value, default=str))
