"""Parser of the command line: commands, their options, and the nearest name for a word that is neither."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from zoo.core import VERSION
from zoo.core.errors import UserError, closest
from zoo.tools.cli.output import Argument, argument

PROFILED = 10  # default of `zoo train --profile`, in iterations


class Command(NamedTuple):
    """A command: its help line, groups of shared options, and a module of this folder, loaded when the command is chosen.

    The module has the table `ARGUMENTS[COMMAND]` and the function `run_COMMAND(args)`, which returns the exit code. It may
    have `NOTES[COMMAND]`, which --help shows below the arguments.
    """

    summary: str
    groups: tuple[str, ...]
    module: str


RUN = ('common', 'trust', 'json')
DATA = ('common', 'json')
TEXT = ('common',)
COMMANDS = {
    'train': Command('train a policy from a config or on an env, or continue a run', RUN, 'train'),
    'serve': Command(
        'act for clients that drive the loop, such as a game or a plant, and learn from them', RUN, 'serve'
    ),
    'eval': Command('evaluate a checkpoint on its env, or on another one', RUN, 'episodes'),
    'play': Command('show a checkpoint that plays its env, in a window', RUN, 'episodes'),
    'video': Command('write a video of a checkpoint that plays its env, without a display', RUN, 'episodes'),
    'match': Command('let runs, snapshots and heuristics of a game play each other, and rate them', RUN, 'match'),
    'sweep': Command('tune a config: try many values of some keys, and find the best ones', DATA, 'sweep'),
    'evolve': Command('train a population: worse runs are replaced by changed copies of better ones', DATA, 'evolve'),
    'fork': Command('begin a new run with the state of another one, and other settings', RUN, 'fork'),
    'pretrain': Command('imitate demonstrations, before a run begins', DATA, 'start'),
    'runs': Command('list runs with their seeds, returns, speed and state', DATA, 'results'),
    'plot': Command(
        'draw curves of runs: the average over seeds with an interval, a line for each config', DATA, 'results'
    ),
    'compare': Command(
        'compare runs: returns with intervals, the chance that one config is better, and what differs', DATA, 'results'
    ),
    'report': Command('write a page about runs: curves, numbers, settings, machine, in one HTML file', TEXT, 'results'),
    'export': Command(
        'write a checkpoint as a file that acts without zoo: raw observations in, actions of the env out', RUN, 'export'
    ),
    'list': Command('list what has a name: configs, envs, policies, ...', DATA, 'listing'),
    'config': Command('print a resolved config and where each value comes from', DATA, 'listing'),
    'check-env': Command("check an env's contract for some steps, time it, and say how to run it", DATA, 'listing'),
    'bench': Command('measure on this machine: what configs learn, speed, kernels, runners', TEXT, 'bench'),
    'convert': Command('translate a config of DI-engine, stable-baselines3, CleanRL or RLlib', DATA, 'start'),
    'import': Command('make a run of a model that another library trained', RUN, 'models'),
    'init': Command('write a commented env, policy or config to start from', TEXT, 'start'),
    'completion': Command('print the code that makes a shell complete the words of zoo', TEXT, 'completion'),
}

SHARED = {
    'common': (
        argument(
            '--import',
            dest='imports',
            action='append',
            default=[],
            metavar='MODULE',
            help='Python module or .py file to import first, e.g. --import my_policy.py: code that registers a policy, env or '
            'part of your own; a checkpoint may then name what is in it; may be repeated',
        ),
        argument('--quiet', '-q', action='store_true', help='no progress, and only warnings and errors of the log'),
        argument(
            '--log-level', choices=['debug', 'info', 'warning', 'error'], help='least level of the log on stderr (info)'
        ),
        argument('--debug', action='store_true', help='show the traceback of an error'),
    ),
    'trust': (
        argument(
            '--trust',
            action='store_true',
            help='let the checkpoint load all code and reach all hosts that its config names; --import MODULE: code of one '
            'module',
        ),
    ),
    'json': (argument('--json', action='store_true', help='print one JSON object on stdout'),),
}
"""Arguments that several commands take, by group."""
OTHER_NAMES = {
    'tune': 'sweep',
    'optimize': 'sweep',
    'hpo': 'sweep',
    'pbt': 'evolve',
    'population': 'evolve',
}  # names of commands in other libraries

EPILOG = """first steps:
  zoo train cartpole_ppo                 a bundled config; zoo list configs shows them all
  zoo init my_env.py                     an env of your own to start from
  zoo train my_env.py:MyEnv              trains on it
  zoo eval MyEnv --import my_env.py      evaluates the newest run of runs/MyEnv

zoo help COMMAND shows the options of a command."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line; only --help shows the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f'{message}; {self.prog} --help shows what it takes')


def make_parser(chosen: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Returns the parser of the command line. Args: chosen: commands with their options; others have only a help line."""
    parser = _Parser(
        'zoo',
        description='Train and evaluate PPO and PPG policies.',
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--version', action='version', version=f'zoo {VERSION}')
    commands = parser.add_subparsers(metavar='COMMAND', dest='command', parser_class=_Parser)
    for name, (summary, groups, module) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f'{summary[0].upper()}{summary[1:]}.')
        _add(command, [row for group in groups for row in SHARED[group]])
        if name in chosen:
            home = importlib.import_module(f'zoo.tools.cli.{module}')
            note = getattr(home, 'NOTES', {}).get(name)
            if note:
                command.formatter_class = argparse.RawDescriptionHelpFormatter
                command.epilog = note
            _add(command, home.ARGUMENTS[name])
            command.set_defaults(run=getattr(home, f'run_{name.replace("-", "_")}'))
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parses a command line. KEY=VALUE words may stand anywhere; argparse takes them only before the first option.

    Raises: UserError with the nearest names; SystemExit after --help, --version, and where there is no word.
    """
    if '_ARGCOMPLETE' in os.environ:  # a shell asks for completions
        typed = [word for word in os.environ.get('COMP_LINE', '').split() if word in COMMANDS][:1]
        importlib.import_module('zoo.tools.cli.completion').complete(make_parser(typed))
    if not words:
        parser = make_parser([])
        parser.print_help(sys.stderr)
        parser.exit(2)
    words = _command_first([*words[1:2], '--help'] if words[0] == 'help' else words)  # zoo help train: zoo train --help
    _check_command(words)
    parser = make_parser([word for word in words if word in COMMANDS][:1])
    followed = zip(words, [*words[1:], ''], strict=True)
    # --profile without a number means its default; argparse would take the next word, an override, as its number
    args, rest = parser.parse_known_args(
        f'{word}={PROFILED}' if word == '--profile' and not after.lstrip('-')[:1].isdigit() else word
        for word, after in followed
    )
    if args.command is None:
        raise UserError(
            f'{" ".join(words)} names no command; the commands are {", ".join(COMMANDS)}; zoo help says what they do'
        )
    # words that may stand after an option
    takes = ''
    if args.command != 'config':
        takes = '='
    unknown = [word for word in rest if takes not in word or word.startswith('-') or not hasattr(args, 'overrides')]
    if unknown:
        raise UserError(_unknown_words(parser, args, unknown))
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _add(parser: argparse.ArgumentParser, arguments: Sequence[Argument]) -> None:
    for words, options in arguments:
        parser.add_argument(*words, **options)


def _command_first(words: Sequence[str]) -> Sequence[str]:
    """Moves shared options behind the command: 'zoo --quiet train CONFIG' becomes 'zoo train --quiet CONFIG'."""
    flags = {
        word: options.get('action') == 'store_true'
        for group in SHARED.values()
        for names, options in group
        for word in names
    }
    at = 0
    while at < len(words) and words[at].partition('=')[0] in flags:
        if flags[words[at].partition('=')[0]] or '=' in words[at]:
            at += 1
        else:
            at += 2
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]]


def _check_command(words: Sequence[str]) -> None:
    """Checks the first word. Raises: UserError with the nearest command, or another meaning, if it is no command."""
    word = words[0]
    if word.startswith('-') or word in COMMANDS:
        return
    if word in OTHER_NAMES:
        near = [OTHER_NAMES[word]]
    else:
        near = closest(word, COMMANDS)
    if near:
        raise UserError(f'there is no command {word!r}; did you mean zoo {" or zoo ".join(near)}?')
    from zoo.config.source import bundled_configs

    if word in bundled_configs() or word.endswith(('.yaml', '.yml', '.py')) or ':' in word:
        raise UserError(f'there is no command {word!r}; to train it: zoo train {shlex.quote(word)}')
    raise UserError(f'there is no command {word!r}; the commands are {", ".join(COMMANDS)}; zoo help says what they do')


def _unknown_words(parser: argparse.ArgumentParser, args: argparse.Namespace, unknown: list[str]) -> str:
    """Returns a sentence about a word that the command does not take, with the nearest option or key of the config."""
    word = next((word for word in unknown if word.startswith('-')), unknown[0])
    name, _, value = word.partition('=')
    said = f'zoo {args.command} does not take {word!r}'
    actions: Any = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    options = [option for action in actions.choices[args.command]._actions for option in action.option_strings]
    if not word.startswith('-'):
        if 'overrides' in args:
            return f'{said}; settings are written KEY=VALUE, e.g. policy.learn.learning_rate=1e-3'
        return f'{said}; zoo {args.command} --help shows what it takes'
    bare = {option.lstrip('-'): option for option in options}
    near = [bare[each] for each in closest(name.lstrip('-'), bare)]
    if args.command in ('train', 'sweep') and (meaning := _meaning_of(name, value)):
        return f'{said}; {meaning}'
    if near:
        return f'{said}; did you mean {" or ".join(near)}?'
    return f'{said}; its options are {", ".join(option for option in options if option.startswith("--"))}'


def _meaning_of(option: str, value: str) -> str:
    """Returns a clause with the counterpart of another library's option, e.g. --learning-rate; '' if it is not known."""
    from zoo.config.names import ZooKey, look_up
    from zoo.tools.cli.choice import keys_of

    name = option.lstrip('-').replace('-', '_')
    own = (ZooKey(key) for key in keys_of(None) if name in (key, key.rpartition('.')[2]))
    found = look_up(name) or next(own, None)
    if isinstance(found, ZooKey) and not found.forms and not found.note:
        return f'settings are written KEY=VALUE: {found.path}={value or "..."}'
    if found:
        return found.sentence().rstrip('.').removeprefix('in zoo ')
    return ''
