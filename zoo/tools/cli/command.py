"""Entry point of the `zoo` command: sets up the process and its log, runs one command, and reports errors."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial

from zoo.core.errors import RunError, UserError, env_failure, place_of, show_error
from zoo.core.processes import STOP_REQUESTS, memory_words
from zoo.core.streams import LogFormat, open_closed_streams, paint, say
from zoo.tools.cli.parser import parse

EXIT_FAILED = 1
EXIT_USER = 2
MAX_PROBLEMS = 40  # problems that are shown of one error
NO_THREAD = "can't start new thread"  # what Python says at a limit of the system
RANK_0_REPORT_S = 5.0  # seconds that other ranks wait before they report an error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; exit code 0, 1 (the run failed) or 2 (the user's mistake); signals exit with 128 + number."""
    if argv is None:  # the process is the command's own
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C must not become an exception inside the import of torch
        if 'OMP_WAIT_POLICY' not in os.environ:  # read when torch is loaded; zoo.run.resources says why
            os.environ.setdefault('GOMP_SPINCOUNT', '1000')
        open_closed_streams()
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        return _report(error, EXIT_USER)
    args.owns_process = argv is None
    _log_to_stderr(args)
    try:
        return _run(args)
    except KeyboardInterrupt:  # outside of the run, which handles signals
        return 130
    except STOP_REQUESTS:
        raise
    except BaseException as error:  # also SystemExit: zoo raises none, so that it is of code that zoo was given
        if args.debug and not isinstance(error, SystemExit):
            raise
        if isinstance(error, SystemExit):
            words = (
                f'code that zoo was given raised {show_error(error)} ({place_of(error)}), which ends no command of zoo'
            )
            return _report(RunError(f'{words}; take it out'), EXIT_FAILED)
        if isinstance(error, UserError):
            return _report(error, EXIT_USER, _hint(args, str(error)))
        if isinstance(error, RunError):
            return _report(error, EXIT_FAILED)
        failure = env_failure(error)
        if failure is not None:
            return _report(RunError(failure), EXIT_FAILED)
        if isinstance(error, MemoryError):
            words = f'memory ran out ({show_error(error)}) and {memory_words()}'
            return _report(
                RunError(f'{words}; ask for less, or end other programs. --debug shows the place'), EXIT_FAILED
            )
        if isinstance(error, RuntimeError) and NO_THREAD in str(error):
            words = 'no further thread could be started: a limit of processes (ulimit -u, pids.max of a container) or memory'
            return _report(
                RunError(f'{words}; raise it, or ask for fewer envs and processes. --debug shows the place'),
                EXIT_FAILED,
            )
        if argv is not None:
            raise
        say(traceback.format_exc().rstrip())
        say(
            f'{type(error).__name__} was not expected: it is a mistake in zoo, or in code that it was given, e.g. an env; '
            'if the lines above end in zoo, please report them',
            _error(),
        )
        return EXIT_FAILED
    finally:
        if argv is None:
            say('')  # drops text that could not be written: at the exit it would fail again and change the code


def _log_to_stderr(args: argparse.Namespace) -> None:
    """Sends the log to stderr, from the level that --debug, --log-level or --quiet asks for; 'info' without them."""
    if args.debug:
        level = 'debug'
    else:
        level = args.log_level or ('warning' if args.quiet else 'info')
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat())
    rank = _other_rank()
    if rank:
        from zoo.run.launch import filter_rank_log

        # before the ranks meet, only rank 0 shows what all of them log
        handler.addFilter(partial(filter_rank_log, rank))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == 'info':
        logging.getLogger('matplotlib').setLevel(logging.WARNING)  # at its first use it tells of files of its own


def _names_code(args: argparse.Namespace) -> bool:
    """Whether the user may have named modules of code. With the config of a checkpoint only certain arguments can do so."""
    is_from_checkpoint = (
        'checkpoint' in args or 'players' in args or (getattr(args, 'resume', None) and '=' in (args.config or '='))
    )
    words = []
    if 'overrides' in args:
        words = [getattr(args, 'config', None) or '', *getattr(args, 'players', ()), *args.overrides]
    return not is_from_checkpoint or bool(args.imports) or args.trust or any(':' in word for word in words)


def _run(args: argparse.Namespace) -> int:
    from zoo.core.files import current_folder

    folder = current_folder()
    if _names_code(args) and folder not in sys.path:
        sys.path.append(folder)  # 'module:function' finds the user's modules, as under `python -m zoo`
    words = args.imports
    args.import_words = [word for name in args.imports for word in ('--import', name)]
    if words:
        from zoo.config.source import import_module_or_file

        args.imports = [import_module_or_file(name).__name__ for name in words]
        if args.command in ('train', 'pretrain', 'fork'):
            from zoo.run.checkpoint.consent import give_imports

            give_imports(words)
    return args.run(args) or 0


def _hint(args: argparse.Namespace, message: str) -> str:
    """Returns a hint to import the user's code if the config of a checkpoint has an unknown name; else ''."""
    is_typed = any(getattr(args, name, None) is not None for name in ('config', 'env'))  # not of a checkpoint
    words = [getattr(args, name, None) for name in ('checkpoint', 'resume', 'run_dir')]
    if is_typed or not any(words) or 'unknown ' not in message:
        return ''
    from zoo.core import registry

    kinds = '|'.join(re.escape(x.kind) for x in vars(registry).values() if isinstance(x, registry.Registry))
    is_unknown = re.search(rf'^([\w.]+: )?unknown ({kinds}) ', message, re.MULTILINE)
    if is_unknown:
        return ' If it is your own, import the file that registers it: --import my_file.py'
    return ''


def _report(error: Exception, code: int, hint: str = '') -> int:
    """Prints an error, with one line for each problem. Returns: the exit code."""
    if _other_rank():
        from zoo.core.ranks import RanksLostError

        if isinstance(error, UserError | RanksLostError):
            time.sleep(RANK_0_REPORT_S)  # rank 0 reports the same, or the cause; torchrun then ends this process
    from zoo.config.section import ConfigError

    if isinstance(error, ConfigError):
        sentences = error.problems
    else:
        sentences = [str(error) or type(error).__name__]
    problems = ['\\n'.join(text.splitlines()) for text in sentences]  # a name of a file may have lines
    if len(problems) == 1:
        say(f'{problems[0]}{hint}', _error())
        return code
    left = len(problems) - MAX_PROBLEMS
    shown = [*problems[:MAX_PROBLEMS], *([f'and {left} more; --debug shows all'] if left > 0 else [])]
    say('\n'.join([f'{len(problems)} problems:{hint}', *(f'  {problem}' for problem in shown)]), _error())
    return code


def _other_rank() -> int:
    """Returns the rank of this process if torchrun started several ranks; else 0."""
    rank = os.environ.get('RANK', '')
    if rank.isdecimal() and os.environ.get('WORLD_SIZE', '1') != '1':
        return int(rank)
    return 0


def _error() -> str:
    return f'{paint("zoo: error:", "red")} '
