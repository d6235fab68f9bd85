"""What of a saved config is said to people: the settings that differ from the defaults, and values as one types them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from zoo.config.section import ConfigError, value_at
from zoo.core.errors import UserError
from zoo.run.config import explain_config
from zoo.run.config_check import without_derived_values

NAMES = ('policy.type', 'env.id', 'env.game')
ELSEWHERE = ('exp_name', 'seed', *NAMES)
"""Keys that a report says in words; NAMES are listed too where they differ between configs."""
NO_EFFECT = ('logger.', 'checkpoint.', 'cluster.')
"""Sections that change what is kept, or where it runs, not what is learned."""

CODE_FILE = re.compile(r'^.*[/\\](?=[^/\\]+\.py:\w+$)')
"""The folder in 'folder/file.py:name'."""
NONE = '–'
Defaults = dict[str, tuple[Any, str]]


class Setting(NamedTuple):
    """A key whose value differs from its default, or between configs, with texts as one types them.

    values: one for each config, in order, '–' where it has no such key; default: '–' where it is not known, and with the
    names of the policies where theirs differ.
    """

    key: str
    values: tuple[str, ...]
    default: str
    meaning: str


def changed_settings(configs: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """The keys that differ from the defaults of their policy in one of the configs, in the order of the schema.

    Configs are saved ones, with all keys. Defaults of a policy that is not registered in this process are not known: then
    the keys are those that differ between the configs. No code that a config names is imported.
    """
    plain = [portable_config(config) for config in configs]
    defaults = [_defaults(config) for config in plain]
    keys = [
        key
        for key in dict.fromkeys(key for known in defaults for key in known)
        if any(_differs(config, known, key) for config, known in zip(plain, defaults, strict=True))
    ]
    if not all(defaults):
        keys += [key for key in differing_keys(plain) if key not in keys]
    names = [key for key in NAMES if len({str(value_at(config, key)) for config in plain}) > 1]
    return [_setting(key, plain, defaults) for key in (*names, *(key for key in keys if not _is_elsewhere(key)))]


def has_defaults(config: Mapping[str, Any]) -> bool:
    """Whether the defaults of its policy are known: it is registered in this process."""
    return bool(_defaults(config))


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config as one gives it to somebody else: without derived values and folders of this machine.

    The folder for runs is left out, and 'folder/my_env.py:MyEnv' is 'my_env.py:MyEnv': a file beside the config.
    """
    data = _portable(without_derived_values(dict(config)))
    return {**data, 'logger': {key: value for key, value in (data.get('logger') or {}).items() if key != 'root'}}


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all configs, in the order of the first config that has each."""
    keys = dict.fromkeys(key for config in configs for key in _leaves(config))
    return [key for key in keys if any(value_at(c, key) != value_at(configs[0], key) for c in configs)]


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Whether a config has a dotted key, with whatever value."""
    parents, _, last = key.rpartition('.')
    section = value_at(config, parents) if parents else config
    return isinstance(section, dict) and last in section


def env_name(config: Mapping[str, Any]) -> str:
    """The env as people name it: 'CartPole-v1', 'atari: pong'."""
    env = config.get('env') or {}
    name = CODE_FILE.sub('', str(env.get('id', '')))
    return f'{name}: {env["game"]}' if env.get('game') else name


def value_text(value: Any) -> str:
    """A value as one types it on the command line: 0.001, [64, 64], {start: 0.001, end: 0.0}, null."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return value if isinstance(value, str) else text.removesuffix('\n').removesuffix('\n...')


def _setting(key: str, configs: Sequence[Mapping[str, Any]], defaults: Sequence[Defaults]) -> Setting:
    values = tuple(value_text(value_at(config, key)) if has_key(config, key) else NONE for config in configs)
    known = {
        c['policy']['type']: value_text(d[key][0])
        for c, d in zip(configs, defaults, strict=True)
        if key in d and key not in NAMES
    }
    texts = list(dict.fromkeys(known.values())) or [NONE]
    default = texts[0] if len(texts) == 1 else ', '.join(f'{text} ({policy})' for policy, text in known.items())
    return Setting(key, values, default, next((d[key][1] for d in defaults if key in d), ''))


def _defaults(config: Mapping[str, Any]) -> Defaults:
    """Default and meaning of each key of a policy with this type and model; {} if they are not registered here."""
    policy = config['policy']
    model = policy.get('model') or {}
    named = {'type': policy['type'], **({'model': {'type': model['type']}} if 'type' in model else {})}
    try:
        rows = explain_config({'env': {'id': 'CartPole-v1'}, 'policy': named})  # the env is not made
    except (ConfigError, UserError):
        return {}
    return {row.key: (row.value, row.description) for row in rows}


def _differs(config: Mapping[str, Any], known: Defaults, key: str) -> bool:
    return key in known and has_key(config, key) and value_at(config, key) != known[key][0]


def _is_elsewhere(key: str) -> bool:
    return key in ELSEWHERE or key.startswith(NO_EFFECT)


def _leaves(data: Any, path: str = '') -> list[str]:
    if isinstance(data, dict) and data:
        return [leaf for key, value in data.items() for leaf in _leaves(value, f'{path}.{key}' if path else str(key))]
    return [path]


def _portable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _portable(x) for key, x in value.items() if not (key == 'over' and x is None)}
    if isinstance(value, list):
        return [_portable(x) for x in value]
    return CODE_FILE.sub('', value) if isinstance(value, str) else value
