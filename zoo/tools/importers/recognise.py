"""Recognition of other libraries' files and objects by their keys, also for `load_config`, which takes DI-engine's pairs."""

from __future__ import annotations

import ast
import logging
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.config.section import ConfigError, plain
from zoo.tools.importers.cleanrl import is_script
from zoo.tools.importers.conversion import Conversion
from zoo.tools.importers.di_engine import from_pair, is_main_config
from zoo.tools.importers.files import read_code, read_yaml
from zoo.tools.importers.rllib import is_chain
from zoo.tools.importers.sb3 import ROWS as SB3_KEYS


def is_rllib(block: Any) -> bool:
    """Whether a mapping has settings of RLlib's PPO."""
    keys = set(block) if isinstance(block, Mapping) else set()
    return {'run', 'config'} <= keys or bool(
        keys
        & {'train_batch_size', 'num_workers', 'num_rollout_workers', 'num_env_runners', 'vf_loss_coeff', 'num_sgd_iter'}
    )


def is_sb3(block: Any) -> bool:
    """Whether a mapping has arguments of stable-baselines3's PPO, as the files of rl-zoo3 do."""
    return isinstance(block, Mapping) and len(set(block) & (set(SB3_KEYS) - {'env', 'seed', 'gamma'})) >= 2


def is_zoo(data: Any) -> bool:
    """Whether a mapping is a config of zoo: it has a section env with the key id, or a section policy."""
    if not isinstance(data, Mapping):
        return False
    env, policy = data.get('env'), data.get('policy')
    return (isinstance(env, Mapping) and 'id' in env) or (isinstance(policy, Mapping) and env is None)


def defines(tree: ast.Module, name: str) -> bool:
    """Whether code gives a value to the variable `name`, at its top level."""
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def how_to_convert(path: Path, shown: str) -> str:
    """A sentence about a file of another library that has to be translated first; '' for any other file.

    Args: shown: the path as the user wrote it.
    """
    try:
        what, name = _library(path)
    except ConfigError:
        return ''
    if not what:
        return ''
    option = f' --name {name}' if name else ''
    return (
        f'{shown} is {what}, not a config of zoo: translate it with zoo convert {shown}{option} -o config.yaml, '
        'then zoo train config.yaml.'
    )


def _library(path: Path) -> tuple[str, str]:
    """What the file is, '' if it is not known; and the name of one of its configs, '' if it holds one."""
    if path.suffix == '.py':
        tree = read_code(path)
        if is_script(tree):
            return 'a script of CleanRL', ''
        return 'code for RLlib' if is_chain(tree) else '', ''
    data = read_yaml(path)
    if is_zoo(data):
        return '', ''
    is_nested = bool(data) and all(isinstance(value, Mapping) for value in data.values())
    blocks = {str(name): block for name, block in data.items()} if is_nested else {'': data}
    for is_of, what in ((is_rllib, 'a file of RLlib'), (is_sb3, "a file of rl-zoo3's settings")):
        found = sorted(filter(lambda name: is_of(blocks[name]), blocks), key=lambda name: '-v' not in name)
        if found:  # an id first: the block `atari` is for many games
            return what, found[0] if len(blocks) > 1 else ''
    return '', ''


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
