"""Arguments that choose a config, or an env without a config: of `zoo train`, `zoo config` and other commands."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zoo.core.errors import UserError, did_you_mean
from zoo.tools.cli.output import argument

logger = logging.getLogger('zoo')
FILES = ('.py', '.yaml', '.yml')
CHOICE = (
    argument(
        'config',
        nargs='?',
        metavar='CONFIG',
        help='name of a bundled config (zoo list configs), a .py or .yaml file, or an env as FILE.py:NAME',
    ),
    argument(
        'overrides', nargs='*', default=[], metavar='KEY=VALUE', help='e.g. policy.learn.learning_rate=1e-3 seed=1'
    ),
    argument('--env', metavar='ENV', help='env without a config: a gymnasium id, a registered name, or FILE.py:NAME'),
    argument('--policy', metavar='NAME', help='policy for --env (zoo list policies); ppo without it'),
    argument('--seed', metavar='N', help='short for seed=N'),
    argument('--steps', metavar='N', help='short for max_env_step=N: the run ends with its last whole rollout'),
)


def chosen(args: argparse.Namespace, if_none: str = '') -> Any:
    """Returns the config that the arguments name, and puts all its overrides into args.overrides.

    Args: if_none: the error message if they name no config; '': the function returns None instead.
    Raises: UserError for arguments that exclude each other, and for a name that is not the name of a config.
    """
    _sort(args)
    if args.env is not None:
        from zoo.run.config_for_env import config_for_env
        from zoo.worker.env_watch import EnvWatch

        EnvWatch.owns_process = args.owns_process  # the env is made to look at it, which may hang
        return config_for_env(args.env, args.policy, args.overrides)
    if args.config is not None:
        _refuse_other_names(args.config, args.command)
    elif if_none:
        raise UserError(if_none)
    return args.config


def with_whole_keys(texts: Sequence[str], config: Any) -> Iterator[str]:
    """Yields 'policy.learn.learning_rate=1e-3' for 'learning_rate=1e-3', and logs it, if only one section has the short key."""
    from zoo.policy.config import OLD_KEYS
    from zoo.run.base_config import JobConfig

    for text in texts:
        head = re.split(r'[.=]', text, maxsplit=1)[0]
        if head in JobConfig.model_fields or '-' in head:
            keys = []
        else:
            keys = [*keys_of(config), *OLD_KEYS]
        homes = {match[1] for key in keys if (match := re.match(rf'(.+\.{re.escape(head)})(?:\.|$)', key))}
        if len(homes) == 1:
            logger.info('%s is the key %s', head, *homes)
        yield homes.pop() + text[len(head) :] if len(homes) == 1 else text


def keys_of(config: Any) -> list[str]:
    """Returns the keys of a config; the keys of a default config if it has a mistake."""
    from zoo.run.config import explain_config

    try:
        rows = explain_config(config)
    except UserError:
        rows = explain_config({'env': {'id': 'CartPole-v1'}})
    return [row.key for row in rows]


def take_override(args: argparse.Namespace) -> None:
    """Moves the first word to the overrides if it is an override and not a config."""
    if args.config is not None and '=' in args.config:
        args.overrides = [args.config, *args.overrides]
        args.config = None


def _sort(args: argparse.Namespace) -> None:
    """Moves each word to where it belongs: an override or env in the place of the config, and the short forms of keys."""
    take_override(args)
    if args.config is not None and args.env is None and ':' in args.config and not Path(args.config).is_file():
        args.env = args.config
        args.config = None
    named = dict(text.partition('=')[::2] for text in args.overrides)
    if args.config is None and args.env is None and not getattr(args, 'resume', None) and 'env.id' in named:
        args.env = named['env.id']
    if args.env is None and args.policy is not None:
        raise UserError(f'--policy {args.policy} belongs to --env; with a config write policy.type={args.policy}')
    if args.config is not None and args.env is not None:
        _take_policy(args)
    for value, key in ((args.seed, 'seed'), (args.steps, 'max_env_step')):
        if value is not None:
            args.overrides = [*args.overrides, f'{key}={value}']
    args.overrides = [*with_whole_keys(args.overrides, args.config)]


def words_of(args: argparse.Namespace) -> list[str]:
    """Returns the words that name the same config or env again, and its imports; call it after `chosen`."""
    if args.config is not None:
        words = [args.config]
    else:
        words = ['--env', args.env]
    return [*words, *(['--policy', args.policy] if args.policy is not None else []), *args.import_words]


def _take_policy(args: argparse.Namespace) -> None:
    """Takes the first word as the policy, as in `zoo train ppo --env ID`. Raises: UserError if it is no policy."""
    from zoo.config.source import bundled_configs
    from zoo.core.registry import POLICY_REGISTRY

    is_config = args.config in bundled_configs() or Path(args.config).suffix in FILES
    if args.config not in POLICY_REGISTRY and not is_config:
        known = [*POLICY_REGISTRY.names(), *bundled_configs()]
        do = did_you_mean(args.config, known, 'zoo list policies shows the policies', str)
        raise UserError(f'{args.config!r} is neither a policy nor a config; {do}')
    if is_config or args.policy is not None:
        raise UserError(
            f'zoo {args.command} got the config {args.config} and --env {args.env}; give one of them, or change the env of '
            f'the config: zoo {args.command} {args.config} env.id={args.env}'
        )
    args.policy = args.config
    args.config = None


def _refuse_other_names(word: str, command: str) -> None:
    """Checks that a word is not the id of an env or the name of a policy. Raises: UserError if it is, and is no config."""
    from zoo.config.source import bundled_configs

    if word in bundled_configs() or Path(word).suffix in FILES:
        return
    from zoo.core.registry import POLICY_REGISTRY
    from zoo.env import known_ids

    if word in POLICY_REGISTRY:
        raise UserError(
            f'{word} is a policy, not a config; name an env with it: zoo {command} {word} --env CartPole-v1'
        )
    if word in known_ids():
        raise UserError(f'{word} is an env, not a config; write zoo {command} --env {word}')
