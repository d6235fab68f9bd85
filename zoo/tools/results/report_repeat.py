"""Commands that repeat the runs of a report, and all that they need besides it: packages, files, modules, a checkpoint."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution, packages_distributions
from itertools import count
from typing import NamedTuple

from markupsafe import Markup

from zoo.config.yaml_io import yaml_text
from zoo.run.checkpoint.consent import comes_with_zoo, modules_of
from zoo.tools.results.read import Run
from zoo.tools.results.settings import path_parts, portable_config, short_names


class Needs(NamedTuple):
    """What runs need besides their configs.

    packages: to install; beside: what lies beside the configs; imports: what a command has to import; names: of files of code,
    as seen from the folder of the configs.
    """

    packages: list[Markup]
    beside: list[Markup]
    imports: list[str]
    names: dict[str, str]


def needs_of(runs: Sequence[Run]) -> Needs:
    """What the configs of runs name, what their commands imported, and what else they began with.

    A package that was installed from an index is told from a module of the user's own as far as it is installed here, too.
    """
    named = [module for run in runs for module in modules_of(run.config)]
    imports = list(dict.fromkeys(name for run in runs for name in _imports_of(run)))
    found = list(dict.fromkeys([*named, *imports]))
    names = short_names([name for name in found if name.endswith('.py')])
    modules = [name for name in found if name not in names and not comes_with_zoo(name)]
    homes = packages_distributions() if modules else {}
    packages = {name: package for name in modules if (package := _package_of(name, homes)) is not None}
    beside = [Markup('the file <code>{}</code>').format(name) for name in dict.fromkeys(names.values())]
    beside += [Markup('the module <code>{}</code>').format(name) for name in modules if name not in packages]
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
    """The config of a group of runs: the command that trains it, the name of its file, its text, and that in base64."""

    label: str
    command: str
    name: str
    text: str
    data: str


def commands(groups: Mapping[str, Sequence[Run]], needs: Needs) -> list[SavedConfig]:
    """A command for each config, which a page carries as a file of a name that no other has: 'cartpole_ppo_2.yaml'."""
    imports = ''.join(f' --import {shlex.quote(name)}' for name in needs.imports)
    found: dict[str, SavedConfig] = {}
    for label, runs in groups.items():
        stem = re.sub(r'[^A-Za-z0-9_.-]+', '_', runs[0].exp_name)[:60] or 'config'
        name = next(name for n in count(1) if (name := f'{stem if n == 1 else f"{stem}_{n}"}.yaml') not in found)
        text = yaml_text(portable_config(runs[0].config, needs.names))
        command = f'zoo train {name} {_seed_words(runs)}{imports}'
        found[name] = SavedConfig(label, command, name, text, base64.b64encode(text.encode()).decode())
    return list(found.values())


def started_by(run: Run) -> str:
    """The command line that started a run, '' if it is not known, or that of a process that zoo started itself."""
    words = run.result.get('command')
    if not isinstance(words, list) or not words or '-c' in words[1:2]:
        return ''
    return shlex.join(map(str, words))


def _imports_of(run: Run) -> Iterator[str]:
    """What the command that started a run had imported; a file that its config names by that."""
    words = run.result.get('command')
    words = [*map(str, words)] if isinstance(words, list) else []
    files = [name for name in modules_of(run.config) if name.endswith('.py')]
    for word, after in zip(words, [*words[1:], ''], strict=False):
        option, _, name = word.partition('=')
        if option == '--import' and (typed := name or after):
            parts = path_parts(typed)
            is_file = typed.endswith('.py')
            yield next((file for file in files if is_file and path_parts(file)[-len(parts) :] == parts), typed)


def _package_of(module: str, homes: Mapping[str, Sequence[str]]) -> Distribution | None:
    """The installed package that has a module; None for a module of the user's own: of no package, or of one in a folder.

    Args: homes: `packages_distributions()`.
    """
    for name in homes.get(module.partition('.')[0], ()):
        package = distribution(name)
        origin = json.loads(package.read_text('direct_url.json') or '{}')  # of what was installed from no index
        if not str(origin.get('url', '')).startswith('file:'):
            return package
    return None


def _seed_words(runs: Sequence[Run]) -> str:
    """The seeds of runs as `zoo train` takes them: 'seed=3', 'seed=0..4', 'seed=1,5,9'."""
    values = sorted({run.seed for run in runs})
    is_range = len(values) > 1 and values[-1] - values[0] == len(values) - 1
    return f'seed={values[0]}..{values[-1]}' if is_range else f'seed={",".join(map(str, values))}'
