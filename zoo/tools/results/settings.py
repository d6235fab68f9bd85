"""Settings of saved configs for readers: differences from the defaults, and commands that repeat the runs."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution, packages_distributions
from typing import Any, NamedTuple

from markupsafe import Markup

from zoo.config.section import ConfigError, differing_keys, has_key, value_at
from zoo.config.yaml_io import value_text, yaml_text
from zoo.core.errors import UserError
from zoo.run.checkpoint.consent import comes_with_zoo, modules_of
from zoo.run.config import explain_config, without_derived_values
from zoo.tools.results.read import Run

NAMES = ('policy.type', 'env.id', 'env.game')
ELSEWHERE = ('exp_name', 'seed', *NAMES)
"""Keys that a report names in its text; NAMES are also listed if they differ between configs."""
NO_EFFECT = ('logger.', 'checkpoint.', 'cluster.')
"""Sections that change what is stored or where a run is computed, not what is learned."""

CODE_FILE = re.compile(r'^.*[/\\](?=[^/\\]+\.py:\w+$)')
"""The folder in 'folder/file.py:name'."""
NONE = '–'
Defaults = dict[str, tuple[Any, str]]


class Setting(NamedTuple):
    """A key whose value differs from its default or between configs; values are texts as in a command.

    values: one for each config, in order, '–' if it has no such key; default: '–' if it is unknown, with the names of the
    policies if their defaults differ.
    """

    key: str
    values: tuple[str, ...]
    default: str
    meaning: str


def changed_settings(configs: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Returns the keys that differ from the defaults of their policy in one of the configs, in the order of the schema.

    Configs are saved ones, with all keys. The defaults of a policy that is not registered in this process are unknown: then
    keys that differ between the configs are added. No code that a config names is imported.
    """
    files = short_names(dict.fromkeys(file for config in configs for file in _files(config)))
    plain = [portable_config(config, files) for config in configs]
    defaults = [defaults_of(config) for config in plain]
    keys = [
        key
        for key in dict.fromkeys(key for known in defaults for key in known)
        if any(
            key in known and has_key(config, key) and value_at(config, key) != known[key][0]
            for config, known in zip(plain, defaults, strict=True)
        )
    ]
    if not all(defaults):
        keys += [key for key in differing_keys(plain) if key not in keys]
    names = [key for key in NAMES if len({str(value_at(config, key)) for config in plain}) > 1]
    keys = [key for key in keys if key not in ELSEWHERE and not key.startswith(NO_EFFECT)]
    return [_setting(key, plain, defaults) for key in (*names, *keys)]


def portable_config(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns a saved config that can be given to others: without derived values and folders of this machine.

    The folder for runs is left out. 'folder/my_env.py:MyEnv' becomes 'my_env.py:MyEnv', a file next to the config.
    Args: names: short names of the code files of several configs; None: `short_names` of the files of this config.
    """
    if names is None:
        names = short_names(_files(config))
    data = _portable(without_derived_values(dict(config)), names)
    return {**data, 'logger': {key: value for key, value in (data.get('logger') or {}).items() if key != 'root'}}


def short_names(files: Iterable[str]) -> dict[str, str]:
    """Returns the shortest end of each path that differs from the ends of the other paths.

    'me/one/my_env.py' and 'me/two/my_env.py' become 'one/my_env.py' and 'two/my_env.py'.
    """
    parts = {file: path_parts(file) for file in files}
    found = {}
    for file, own in parts.items():
        others = [other for name, other in parts.items() if name != file]
        lengths = (n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others))
        found[file] = '/'.join(own[-next(lengths, len(own)) :])
    return found


def path_parts(path: str) -> tuple[str, ...]:
    """Returns the names in a path of any operating system, from the outermost folder to the file."""
    return tuple(part for part in re.split(r'^[A-Za-z]:|[/\\]', path) if part not in ('', '.', '..', '~'))


def env_name(config: Mapping[str, Any]) -> str:
    """Returns a readable name of the env: 'CartPole-v1', 'atari: pong'."""
    env = config.get('env') or {}
    name = CODE_FILE.sub('', str(env.get('id', '')))
    if env.get('game'):
        return f'{name}: {env["game"]}'
    return name


def _setting(key: str, configs: Sequence[Mapping[str, Any]], defaults: Sequence[Defaults]) -> Setting:
    values = []
    for config in configs:
        if has_key(config, key):
            values.append(value_text(value_at(config, key)))
        else:
            values.append(NONE)
    known = {
        c['policy']['type']: value_text(d[key][0])
        for c, d in zip(configs, defaults, strict=True)
        if key in d and key not in NAMES
    }
    texts = list(dict.fromkeys(known.values())) or [NONE]
    if len(texts) == 1:
        default = texts[0]
    else:
        default = ', '.join(f'{text} ({policy})' for policy, text in known.items())
    return Setting(key, tuple(values), default, next((d[key][1] for d in defaults if key in d), ''))


def defaults_of(config: Mapping[str, Any]) -> Defaults:
    """Returns default and meaning of each key for this type of policy and model; {} if they are not registered here."""
    policy: dict[str, Any] = {'type': config['policy']['type']}
    model = value_at(config, 'policy.model.type')
    if model is not None:
        policy['model'] = {'type': model}
    try:
        rows = explain_config({'env': {'id': 'CartPole-v1'}, 'policy': policy})  # the env is not created
    except (ConfigError, UserError):
        return {}
    return {row.key: (row.value, row.description) for row in rows}


def _files(config: Mapping[str, Any]) -> list[str]:
    """Returns the code files that a config names."""
    return [module for module in modules_of(dict(config)) if module.endswith('.py')]


def _portable(value: Any, names: Mapping[str, str]) -> Any:
    match value:
        case dict():
            return {key: _portable(x, names) for key, x in value.items() if not (key == 'over' and x is None)}
        case list():
            return [_portable(x, names) for x in value]
        case str():
            file, _, attribute = value.rpartition(':')
            if file in names:
                return f'{names[file]}:{attribute}'
            return CODE_FILE.sub('', value)
    return value


class Needs(NamedTuple):
    """The requirements of runs in addition to their configs.

    packages: to install; beside: files and modules to put next to the configs; imports: for --import of a command; names: paths
    of code files, relative to the folder of the configs.
    """

    packages: list[Markup]
    beside: list[Markup]
    imports: list[str]
    names: dict[str, str]


def needs_of(runs: Sequence[Run]) -> Needs:
    """Returns the requirements of runs: the code that their configs name and their commands imported, and other inputs.

    A package from an index can be distinguished from a module of the user only if it is also installed here.
    """
    named = [module for run in runs for module in modules_of(run.config)]
    imports = list(dict.fromkeys(name for run in runs for name in _imports_of(run)))
    found = list(dict.fromkeys([*named, *imports]))
    names = short_names([name for name in found if name.endswith('.py')])
    modules = [name for name in found if name not in names and not comes_with_zoo(name)]
    homes: Mapping[str, list[str]] = {}
    if modules:
        homes = packages_distributions()
    packages = {}
    for name in modules:
        package = _package_of(name, homes)
        if package is not None:
            packages[name] = package
    beside = [
        *(Markup('the file <code>{}</code>').format(name) for name in dict.fromkeys(names.values())),
        *(Markup('the module <code>{}</code>').format(name) for name in modules if name not in packages),
    ]
    if any(run.config.get('init_from') for run in runs):
        beside.append(Markup('the checkpoint that <code>init_from</code> names'))
    if any(started_by(run).startswith('python ') for run in runs):
        beside.append(Markup('what the Python program gave besides the config, e.g. a network'))
    to_install = [
        Markup('the package <code>{}</code> ({} where this page was made)').format(name, version)
        for name, version in sorted({(package.name, package.version) for package in packages.values()})
    ]
    return Needs(to_install, beside, [names.get(name, name) for name in imports], names)


class SavedConfig(NamedTuple):
    """The config of a group of runs. command: trains it; name: of its file; text: of its file; data: the text in base64."""

    label: str
    command: str
    name: str
    text: str
    data: str


def commands(groups: Mapping[str, Sequence[Run]], needs: Needs) -> list[SavedConfig]:
    """Returns a command for each config, and the config as a file with a unique name: 'cartpole_ppo_2.yaml'."""
    imports = ''.join(f' --import {shlex.quote(name)}' for name in needs.imports)
    found: dict[str, SavedConfig] = {}
    for label, runs in groups.items():
        stem = re.sub(r'[^A-Za-z0-9_.-]+', '_', runs[0].exp_name)[:60] or 'config'
        name = f'{stem}.yaml'
        n = 1
        while name in found:
            n += 1
            name = f'{stem}_{n}.yaml'
        text = yaml_text(portable_config(runs[0].config, needs.names))
        values = sorted({run.seed for run in runs})
        is_range = len(values) > 1 and values[-1] - values[0] == len(values) - 1
        # as `zoo train` takes them
        if is_range:
            seeds = f'{values[0]}..{values[-1]}'
        else:
            seeds = ','.join(map(str, values))
        command = f'zoo train {name} seed={seeds}{imports}'
        found[name] = SavedConfig(label, command, name, text, base64.b64encode(text.encode()).decode())
    return list(found.values())


def started_by(run: Run) -> str:
    """Returns the command line that started a run; '' if it is unknown, or if zoo itself started the process."""
    words = run.result.get('command')
    if not isinstance(words, list) or not words or '-c' in words[1:2]:
        return ''
    return shlex.join(map(str, words))


def _imports_of(run: Run) -> Iterator[str]:
    """Yields the imports of the command that started a run; a file by the path that the config has for it."""
    words = run.result.get('command')
    if isinstance(words, list):
        words = [*map(str, words)]
    else:
        words = []
    for word, after in zip(words, [*words[1:], ''], strict=False):
        option, _, name = word.partition('=')
        typed = name or after
        if option == '--import' and typed:
            parts = path_parts(typed)
            files = []
            if typed.endswith('.py'):
                files = _files(run.config)
            yield next((file for file in files if path_parts(file)[-len(parts) :] == parts), typed)


def _package_of(module: str, homes: Mapping[str, Sequence[str]]) -> Distribution | None:
    """Returns the installed package of a module; None for a user's module, which has no package or one in a local folder.

    Args: homes: `packages_distributions()`.
    """
    for name in homes.get(module.partition('.')[0], ()):
        package = distribution(name)
        origin = json.loads(package.read_text('direct_url.json') or '{}')  # of a package that is from no index
        if not str(origin.get('url', '')).startswith('file:'):
            return package
    return None
