"""Before a run: `zoo init` writes a file, `zoo convert` translates a config, `zoo pretrain` imitates demonstrations."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from shlex import join, quote

from zoo.core.errors import UserError
from zoo.core.streams import say, write_line
from zoo.tools.cli.choice import CHOICE, chosen, words_of
from zoo.tools.cli.output import argument, show

NEXT = {
    'env': 'check it: zoo check-env {file}:MyEnv\ntrain on it: zoo train {file}:MyEnv',
    'agents': 'check it: zoo check-env {file}:MyGame\ntrain on it: zoo train {file}:MyGame',
    'policy': 'train it: zoo train cartpole_ppo policy.type=my_ppo --import {file}',
    'config': 'see all keys: zoo config {file} --all\ntrain it: zoo train {file}',
}
"""Next steps with each kind of file."""

SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')
ARGUMENTS = {
    'init': (
        argument(
            'file', metavar='FILE', help='e.g. my_env.py, my_policy.py or my_config.yaml; a new file, never overwritten'
        ),
        argument('--kind', choices=list(NEXT), help='what to write; without it the name of the file says it'),
        argument(
            '--agents',
            dest='kind',
            action='store_const',
            const='agents',
            help='short for --kind agents: an env of several',
        ),
    ),
    'convert': (
        argument('file', metavar='FILE', help='a .py or .yaml file of the other library'),
        argument('--from', dest='source', choices=SOURCES, help='the library; without it the file is looked at'),
        argument('--name', metavar='NAME', help='which config of the file, e.g. the env id in a file of rl-zoo3'),
        argument('-o', '--output', metavar='FILE.yaml', help='write the config there instead of on stdout'),
        argument('--force', action='store_true', help='write over a file that exists'),
    ),
    'pretrain': (
        *CHOICE,
        argument(
            '--demos',
            metavar='FILE',
            help='demonstrations: a file .npz (zoo eval RUN -o demos.npz), or an id of Minari',
        ),
        argument('--epochs', type=int, default=100, metavar='N', help='passes over them, at most (default 100)'),
        argument('--batch-size', type=int, default=64, metavar='N', help='steps per gradient step (default 64)'),
        argument('--learning-rate', type=float, default=1e-3, metavar='X', help="Adam's step size (default 1e-3)"),
        argument(
            '--keep-std',
            action='store_true',
            help='keep the imitated deviation of continuous actions; a run then explores little',
        ),
        argument('--run-dir', metavar='DIR', help='folder of the result; without it one as for a run'),
    ),
}


def run_init(args: argparse.Namespace) -> None:
    """Writes the file and says what to do next."""
    path = Path(args.file)
    kind = args.kind or _kind_of(path)
    suffixes: tuple[str, ...] = ('.py',)
    if kind == 'config':
        suffixes = ('.yaml', '.yml')
    if path.suffix not in suffixes:
        raise UserError(
            f'{args.file} is to hold {_article(kind)} and must end in {suffixes[0]}; name it {path.stem}{suffixes[0]}'
        )
    text = files('zoo.tools.cli').joinpath('starts', f'{kind}.txt').read_text(encoding='utf-8')
    try:
        with open(path, 'x', encoding='utf-8') as file:
            file.write(text)
    except FileExistsError as error:
        raise UserError(f'{args.file} exists; name another file, or remove it') from error
    except OSError as error:
        raise UserError(
            f'{args.file} cannot be written ({error.strerror}); name a file in a folder that exists'
        ) from error
    write_line(f'{args.file}: {_article(kind)} to start from\n{NEXT[kind].format(file=quote(str(path)))}')


def _kind_of(path: Path) -> str:
    """Returns the kind that the name of a file indicates. Raises: UserError if it does not indicate one kind."""
    if path.suffix in ('.yaml', '.yml'):
        return 'config'
    words = {'env': 'env', 'policy': 'policy', 'agents': 'agents', 'game': 'agents'}
    kinds = list(dict.fromkeys(kind for word, kind in words.items() if word in path.stem.lower()))
    if len(kinds) != 1:
        raise UserError(
            f'{path} may hold {" or ".join(kinds or ["an env", "a policy"])}; say which: --kind env, --agents, --kind policy; '
            'a config is a .yaml file'
        )
    return kinds[0]


def _article(kind: str) -> str:
    return {'env': 'an env', 'agents': 'an env of several agents'}.get(kind, f'a {kind}')


def run_convert(args: argparse.Namespace) -> int:
    """Writes the config as YAML to stdout or a file; lists the translated and the omitted keys on stderr.

    Keys without a counterpart and errors of the config are written as comments; the exit code is then 1.
    """
    from zoo.config.section import ConfigError, plain
    from zoo.config.yaml_io import yaml_text
    from zoo.run.config import resolve_config
    from zoo.tools.importers import convert
    from zoo.tools.importers.conversion import PartlyTranslatedError
    from zoo.tools.results.plot import write_output

    if args.output:
        output = Path(args.output)
    else:
        output = None
    if output is not None and output.suffix not in ('.yaml', '.yml'):
        raise UserError(f'--output is {args.output} but configs are written as YAML; name a .yaml file')
    if output is not None and output.exists() and not args.force:
        raise UserError(f'{args.output} exists; name another file, or write over it with --force')
    problems: list[str] = []
    try:
        conversion = convert(args.file, args.source, **({'name': args.name} if args.name else {}))
    except PartlyTranslatedError as error:
        conversion = error.conversion
        problems = error.problems
    try:
        resolve_config(plain(conversion.config))
    except ConfigError as error:
        problems = problems or error.problems
    text = ''.join([yaml_text(plain(conversion.config)), *(f'# {problem}\n' for problem in problems)])
    if not args.quiet and not args.json:
        say(conversion.text())
    for problem in problems:
        say(f'zoo: error: {problem}')
    if output is not None:
        write_output(output, text.encode())
        lacks = f'{args.output} is to be completed: its last lines say what is missing'
        if problems:
            text = lacks
        else:
            text = f'train it: zoo train {quote(args.output)}'
    data = {'config': conversion.config, 'became': conversion.became, 'left_out': conversion.left_out}
    show(args, data | ({'problems': problems} if problems else {}), text.rstrip())
    if problems:
        return 1
    return 0


def run_pretrain(args: argparse.Namespace) -> None:
    """Pretrains, and prints the commands that evaluate the result and train on from it."""
    config = chosen(
        args, 'zoo pretrain got no config and no --env; name a config (zoo list configs shows the bundled ones)'
    )
    if args.demos is None:
        raise UserError('zoo pretrain got no --demos; name a file .npz, e.g. one that zoo eval RUN -o demos.npz wrote')
    from zoo.tools.imitation.pretrain import pretrain

    found = pretrain(
        config,
        args.demos,
        overrides=args.overrides,
        epoch=args.epochs,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        keep_std=args.keep_std,
        run_dir=args.run_dir,
    )
    from zoo.run.checkpoint.consent import consent_words

    if found.agreement is None:
        agrees = ''
    else:
        agrees = f'; it takes {found.agreement:.1%} of the held-out actions'
    train_on = join(['zoo', 'train', *words_of(args), *args.overrides, f'init_from={found.run_dir}'])
    text = (
        f'{found.epoch} epochs, held-out loss {found.loss:.4f} nats{agrees}\nrun folder: {found.run_dir}\n'
        f'evaluate it: zoo eval {quote(str(found.run_dir))}{consent_words()}\ntrain on from it: {train_on}'
    )
    numbers = {name: value for name, value in found._asdict().items() if name != 'policy'}
    show(args, {**numbers, 'run_dir': str(found.run_dir)}, text)
