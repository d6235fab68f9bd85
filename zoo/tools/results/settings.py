"""Settings of saved configs, for people: those that differ from the defaults, with values as one types them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zoo.config.section import ConfigError, differing_keys, has_key, value_at
from zoo.config.yaml_io import value_text
from zoo.core.errors import UserError
from zoo.run.checkpoint.consent import modules_of
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
    files = short_names(dict.fromkeys(file for config in configs for file in _files(config)))
    plain = [portable_config(config, files) for config in configs]
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


def portable_config(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A saved config as one gives it to somebody else: without derived values and folders of this machine.

    The folder for runs is left out, and 'folder/my_env.py:MyEnv' is 'my_env.py:MyEnv': a file beside the config.
    Args: names: of the files of code, where there are other configs too; None: `short_names` of those of this one.
    """
    data = _portable(without_derived_values(dict(config)), short_names(_files(config)) if names is None else names)
    return {**data, 'logger': {key: value for key, value in (data.get('logger') or {}).items() if key != 'root'}}


def short_names(files: Iterable[str]) -> dict[str, str]:
    """A name for each of some files, without its folder, or with as much of that as tells it from the others.

    'me/one/my_env.py' and 'me/two/my_env.py' are 'one/my_env.py' and 'two/my_env.py'.
    """
    parts = {file: path_parts(file) for file in files}
    found = {}
    for file, own in parts.items():
        others = [other for name, other in parts.items() if name != file]
        lengths = (n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others))
        found[file] = '/'.join(own[-next(lengths, len(own)) :])
    return found


def path_parts(path: str) -> tuple[str, ...]:
    """The names in a path of any system, from the outermost folder to the file."""
    return tuple(part for part in re.split(r'^[A-Za-z]:|[/\\]', path) if part not in ('', '.', '..', '~'))


def env_name(config: Mapping[str, Any]) -> str:
    """The env as people name it: 'CartPole-v1', 'atari: pong'."""
    env = config.get('env') or {}
    name = CODE_FILE.sub('', str(env.get('id', '')))
    return f'{name}: {env["game"]}' if env.get('game') else name


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


def _files(config: Mapping[str, Any]) -> list[str]:
    """The files of code that a config names."""
    return [module for module in modules_of(dict(config)) if module.endswith('.py')]


def _portable(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _portable(x, names) for key, x in value.items() if not (key == 'over' and x is None)}
    if isinstance(value, list):
        return [_portable(x, names) for x in value]
    if not isinstance(value, str):
        return value
    file, _, attribute = value.rpartition(':')
    return f'{names[file]}:{attribute}' if file in names else CODE_FILE.sub('', value)
