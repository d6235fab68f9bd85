"""What somebody needs besides a page to repeat its runs: packages, files, modules, a checkpoint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distribution, packages_distributions
from typing import NamedTuple

from zoo.results.read import Run
from zoo.results.report_config import path_parts, short_names
from zoo.results.report_html import Html, code, html
from zoo.run.trust import comes_with_zoo, modules_of


class Needs(NamedTuple):
    """What runs need besides their configs.

    packages: to install; beside: what lies beside the configs; imports: what a command has to import; names: of files of code,
    as seen from the folder of the configs.
    """

    packages: list[Html]
    beside: list[Html]
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
    beside = [html('the file $name', name=code(name)) for name in dict.fromkeys(names.values())]
    beside += [html('the module $name', name=code(name)) for name in modules if name not in packages]
    if any(run.config.get('init_from') for run in runs):
        beside.append(html('the checkpoint that $key names', key=code('init_from')))
    if any(started_by(run).startswith('python ') for run in runs):
        beside.append(Html('what the Python program gave besides the config, e.g. a network'))
    to_install = [
        html('the package $name ($version where this page was made)', name=code(name), version=version)
        for name, version in sorted({(package.name, package.version) for package in packages.values()})
    ]
    return Needs(to_install, beside, [names.get(name, name) for name in imports], names)


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
