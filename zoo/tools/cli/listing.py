"""Names, configs and envs: `zoo list`, `zoo config` and `zoo check-env`."""

from __future__ import annotations

import argparse
import itertools
import logging
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from zoo.core.errors import UserError, did_you_mean
from zoo.core.streams import columns, standard
from zoo.tools.cli.choice import CHOICE, chosen
from zoo.tools.cli.output import argument, show, watch_calls_of

if TYPE_CHECKING:
    from pydantic import BaseModel

logger = logging.getLogger('zoo')
KINDS = {
    'configs': 'bundled configs: env, policy, env steps',
    'envs': 'registered envs and the ids of gymnasium',
    'policies': 'policies, by policy.type',
    'models': 'networks, by policy.model.type',
    'encoders': 'encoders of observations, by policy.model.encoder',
    'cells': 'cells of a memory, by policy.model.recurrent.cell',
    'distributions': 'distributions of actions, by policy.model.distribution',
    'buffers': 'buffers, by buffer.type',
    'parts': 'parts of an update that a config may exchange, with their options',
}

# the keys that are changed most often, as in docs/configs.md
COMMON = (
    'env.collector_env_num',
    *(f'policy.collect.{key}' for key in ('n_step', 'discount_factor', 'gae_lambda')),
    *(f'policy.learn.{key}' for key in ('learning_rate', 'batch_size', 'epoch_per_collect', 'entropy_weight')),
    *(f'policy.learn.{key}' for key in ('clip_ratio', 'target_kl', 'reward_norm', 'value_norm')),
    *(f'policy.model.{key}' for key in ('obs_norm', 'hidden_sizes', 'log_std_init')),
)
NOTES = {
    'config': """A WORD finds keys by their name, by their meaning, and by the name that they have in other libraries:

  zoo config cartpole_ppo learning_rate
  zoo config cartpole_ppo policy.learn gamma"""
}

ARGUMENTS = {
    'list': (argument('kind', nargs='?', metavar='KIND', help=', '.join(KINDS)),),
    'config': (
        *CHOICE,
        argument('--common', action='store_true', help='the keys that matter most, as docs/configs.md lists them'),
        argument('--changed', action='store_true', help='the keys that the config or the command sets'),
        argument(
            '--all', action='store_true', help='all keys; without these options: those that are common or changed'
        ),
    ),
    'check-env': (
        argument('id', metavar='ENV', help="gymnasium id, registered name, 'module:function' or FILE.py:NAME"),
        argument(
            'overrides', nargs='*', default=[], metavar='KEY=VALUE', help='keys of the section env, e.g. env.window=4'
        ),
        argument('--steps', type=int, default=1000, help='steps to take (default 1000)'),
        argument(
            '--kwargs',
            action='append',
            default=[],
            metavar='NAME=VALUE',
            help='short for env.kwargs.NAME=VALUE; may be repeated',
        ),
    ),
}


def run_list(args: argparse.Namespace) -> None:
    """Prints the names of a kind with a description each; without a kind, the kinds."""
    if args.kind is None:
        show(args, {'kinds': KINDS}, columns(KINDS.items()))
        return
    if args.kind not in KINDS:
        do = did_you_mean(args.kind, KINDS, f'the kinds are {", ".join(KINDS)}', 'zoo list {}'.format)
        raise UserError(f'there is nothing of the kind {args.kind!r} to list; {do}')
    if args.kind == 'parts':
        _list_components(args)
        return
    rows = list(_rows(args.kind))
    show(args, {args.kind: [name for name, *_ in rows]}, columns(rows))


def _rows(kind: str) -> Iterable[tuple[str, ...]]:
    """Returns the name of each item of a kind, with a few words about it."""
    if kind == 'configs':
        return _configs()
    if kind == 'envs':
        return _envs()
    from zoo.core import registry

    registries: dict[str, Any] = {
        'policies': registry.POLICY_REGISTRY,
        'models': registry.MODEL_REGISTRY,
        'buffers': registry.BUFFER_REGISTRY,
        'encoders': registry.ENCODER_REGISTRY,
        'cells': registry.CELL_REGISTRY,
        'distributions': registry.DISTRIBUTION_REGISTRY,
    }
    return ((name, _summary(registries[kind].get(name))) for name in registries[kind].names())


def _configs() -> Iterable[tuple[str, ...]]:
    from zoo.config.source import bundled_configs, load_config

    for name in sorted(bundled_configs()):
        config = load_config(name)[0]
        env = config['env']
        step = config.get('max_env_step', 100_000)
        if 'game' not in env:
            env_id = env['id']
        else:
            env_id = f'{env["id"]}/{env["game"]}'
        yield name, env_id, config['policy'].get('type', 'ppo'), f'{step:,} env steps'


def _envs() -> Iterable[tuple[str, ...]]:
    """Yields ids of envs with a summary or the extra that they need, as far as it is known without creating an env."""
    from zoo.core.registry import ENV_REGISTRY
    from zoo.env.ids import offered_ids
    from zoo.env.make import extra_of

    for env_id in offered_ids():
        if env_id in ENV_REGISTRY:
            yield env_id, _summary(ENV_REGISTRY.get(env_id))
            continue
        extra = extra_of(env_id)
        needed = ''
        if extra:
            needed = f'extra {extra}'
        yield env_id, needed


def _list_components(args: argparse.Namespace) -> None:
    """Prints the components of an update by the key that chooses them, with a summary of each and its options."""
    from zoo.config.components import options_of, summary_of
    from zoo.core.registry import COMPONENTS

    components = {
        key: {name: summary_of(registry.get(name)) for name in registry.names()} for key, registry in COMPONENTS.items()
    }
    lines = []
    for key, names in components.items():
        shown = {name: f'{text}{_shown_options(options_of(COMPONENTS[key].get(name)))}' for name, text in names.items()}
        lines += [key, *(f'  {name:<16} {text}' for name, text in shown.items())]
    show(args, {'parts': components}, '\n'.join(lines))


def _shown_options(section: type[BaseModel]) -> str:
    """Returns the options of a component as ' [a=1, b=null]'; '' if it has none."""
    fields = {name: field for name, field in section.model_fields.items() if name != 'type'}
    defaults = {name: 'null' if field.default is None else field.default for name, field in fields.items()}
    words = [name if field.is_required() else f'{name}={defaults[name]}' for name, field in fields.items()]
    if words:
        return f' [{", ".join(words)}]'
    return ''


def _summary(named: object) -> str:
    """Returns the attribute `summary` of an object, or else the first line of its docstring."""
    if isinstance(line := getattr(named, 'summary', None), str) and line:
        return line
    return (getattr(named, '__doc__', None) or '').strip().partition('\n')[0]


# characters of a column: values are at most, meanings at least so wide
WIDEST_VALUE = 50
LEAST_MEANING = 30


def key_lines(rows: Sequence[tuple[str, str, str]], width: int | None) -> list[str]:
    """Returns a text for each key, with aligned columns. Args: rows: 'key = value', its origin, its meaning.

    width: of a terminal; a meaning that does not fit is wrapped below itself, a value below its key; None: one line each.
    """
    value_width = min(max(len(value) for value, _, _ in rows), WIDEST_VALUE)
    origin_width = max(len(origin) for _, origin, _ in rows)
    start = value_width + origin_width + 4
    if width is None:
        return [f'{value:<{value_width}}  {origin:<{origin_width}}  {meaning}' for value, origin, meaning in rows]
    if width - start < LEAST_MEANING:
        # the meaning is below its key
        start = 4
        value_width = width
    texts = []
    for value, origin, meaning in rows:
        lines = textwrap.wrap(value, width, subsequent_indent='    ')
        if start > 4 and len(value) <= value_width:
            head = f'{value:<{value_width}}  {origin:<{origin_width}}  '
            lines = textwrap.wrap(meaning, width, initial_indent=head, subsequent_indent=' ' * start)
        else:
            if start == 4:
                words = f'{origin}  {meaning}'
            else:
                words = f'{origin:<{origin_width}}  {meaning}'
            indent = ' ' * (start if start == 4 else value_width + 2)
            lines += textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=' ' * start)
        texts.append('\n'.join(lines))
    return texts


def run_config(args: argparse.Namespace) -> None:
    """Prints keys with value, origin, meaning and range: those that are common or changed, or that words or options name."""
    words = [text for text in args.overrides if '=' not in text]
    args.overrides = [text for text in args.overrides if '=' in text]
    config = chosen(
        args, 'zoo config got neither a config nor --env; name one (zoo list configs shows the bundled ones)'
    )
    from zoo.config.names import look_up
    from zoo.run.config import explain_config

    every = explain_config(config, args.overrides)
    is_plain = not (args.common or args.changed or words)
    others = ' '.join(entry.sentence() for word in words if (entry := look_up(word, inside=False)))
    named = tuple(re.findall(r'`([\w.]+)', others))
    found = re.compile('|'.join(rf'(?<![a-z]){re.escape(word)}' for word in words) or '(?!)', re.IGNORECASE)
    rows = [
        row
        for row in every
        if args.all
        or (is_plain and args.json)
        or ((args.common or is_plain) and row.key in COMMON)
        or ((args.changed or is_plain) and row.origin not in ('default', 'derived'))
        or found.search(f'{row.key} {row.description}')
        or f'{row.key}.'.startswith(tuple(f'{name}.' for name in named))
    ]
    if not rows:
        raise UserError(
            others or f'no key has {" or ".join(words)} in its name or meaning; zoo config CONFIG --all shows all keys'
        )
    data = {
        row.key: {'value': row.value, 'description': row.description, 'range': row.wanted, 'origin': row.origin}
        for row in rows
    }
    values = {row.key: f'{row.key} = {row.value!r}' for row in rows}
    width = None
    if standard('stdout').isatty():
        width = shutil.get_terminal_size().columns
    texts = key_lines([(values[row.key], row.origin, f'{row.description} ({row.wanted})') for row in rows], width)
    of_key = dict(zip(values, texts, strict=True))
    sections = itertools.groupby(rows, lambda row: row.key.split('.')[: min(2, row.key.count('.'))])
    show(args, data, '\n\n'.join('\n'.join(of_key[row.key] for row in each) for _, each in sections))
    if others:
        logger.info('%s', others)
    if len(rows) < len(every):
        logger.info('%d of %d keys; --all shows all, a word finds some: zoo config CONFIG WORD', len(rows), len(every))


def run_check_env(args: argparse.Namespace) -> int:
    """Prints all that was found; exit code 1 if there is a problem, 0 if there are warnings at most."""
    from zoo.env.inspection.inspect import inspect_env
    from zoo.worker.evaluation_env import evaluation_env

    cfg = evaluation_env({'env': {'id': args.id}}, [*args.overrides, *(f'env.kwargs.{word}' for word in args.kwargs)])
    with watch_calls_of(args, cfg.step_timeout):
        report = inspect_env(cfg, n_step=args.steps)
    show(args, report.to_json(), report.text())
    if report.problems:
        return 1
    return 0
