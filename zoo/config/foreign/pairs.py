"""Where `load_config` meets DI-engine's configs: pairs, files that hold a pair, and a main_config alone."""

from __future__ import annotations

import ast
import logging
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.config.foreign.conversion import Conversion
from zoo.config.foreign.di_engine import from_pair, is_main_config
from zoo.config.section import ConfigError, plain

logger = logging.getLogger(__name__)
PACKAGES = ('ding', 'dizoo', 'ditk', 'lzero')
"""What files of DI-engine import, and a config does not need."""

_told: set[str] = set()  # translations that were logged, by their text


def translated(main: Any, create: Any = None) -> dict[str, Any]:
    """The config of zoo for DI-engine's pair, or for its main_config alone; what became what is logged once.

    Raises: ConfigError with a sentence for each problem.
    """
    conversion = from_pair(main, create)
    _tell(conversion)
    return plain(conversion.config)


def pair_of(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """The (main_config, create_config) that a module of DI-engine defines; None if it defines none.

    create_config is None where main_config is DI-engine's and alone.
    """
    main, create = (variables.get(name) for name in ('main_config', 'create_config'))
    main = variables['config'] if isinstance(variables.get('config'), dict) else main
    create = create if isinstance(create, dict) else None
    if not isinstance(main, dict):
        return None
    return (main, create) if create is not None or is_main_config(main) else None


def run_without_imports(path: Path) -> types.ModuleType:
    """Runs a .py file of DI-engine without its imports of DI-engine, which is not needed to read a config.

    Raises: any error of the file's own code, such as a name that it would have imported.
    """
    tree = ast.parse(path.read_text(encoding='utf-8'), str(path))
    tree.body = [node for node in tree.body if not _imports(node)]
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(tree, str(path), 'exec'), vars(module))  # the same trust as importing it
    return module


def needs_di_engine(error: BaseException | None) -> bool:
    """Whether a file failed because DI-engine is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or '').partition('.')[0] in PACKAGES


def _imports(node: ast.stmt) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ''] if isinstance(node, ast.ImportFrom) else []
    return any(name.partition('.')[0] in PACKAGES for name in names)


def _tell(conversion: Conversion) -> None:
    text = conversion.text()
    if text in _told:
        return
    _told.add(text)
    for line in text.splitlines():
        logger.info('%s', line)


def check_pair(source: Any) -> tuple[Any, Any]:
    """The two configs of a tuple or list. Raises: ConfigError if it is another thing than a pair of dicts."""
    if len(source) == 2 and all(isinstance(item, dict) for item in source):
        return source[0], source[1]
    what = ', '.join(type(item).__name__ for item in source)
    raise ConfigError(
        f'a pair of configs is (main_config, create_config), two dicts, got ({what}); pass two dicts, or one config.'
    )
