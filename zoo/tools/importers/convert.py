"""Conversion of other libraries' configs, in files or objects, to configs of zoo; recognises the library by its keys."""

from __future__ import annotations

import ast
import logging
import os
import shlex
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.config.section import ConfigError, plain
from zoo.config.source import config_module
from zoo.core.errors import unknown_name
from zoo.tools.importers.cleanrl import from_cleanrl, is_script, why_not_translated
from zoo.tools.importers.conversion import Conversion
from zoo.tools.importers.di_engine import from_pair, is_main_config
from zoo.tools.importers.files import assigned, read_code, read_yaml
from zoo.tools.importers.rllib import from_rllib, is_chain, is_rllib, settings_of
from zoo.tools.importers.sb3 import from_sb3, is_sb3

logger = logging.getLogger(__name__)
SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')
OF_CODE = {'cleanrl': is_script, 'rllib': is_chain, 'di-engine': lambda tree: bool(assigned(tree, 'main_config'))}
OF_SETTINGS = {'rllib': is_rllib, 'sb3': is_sb3}
OF_OBJECT = {'di-engine': is_main_config, **OF_SETTINGS}
"""Predicates that recognise a source in a syntax tree, a block of YAML or a dict; the first match counts."""
PACKAGES = ('ding', 'dizoo', 'ditk', 'lzero')
"""Packages that files of DI-engine import, and that a config does not need."""
_told: set[str] = set()  # texts of the translations that were logged


def is_zoo(data: Any) -> bool:
    """Whether a mapping is a config of zoo: it has a section env with the key id, or a section policy."""
    if not isinstance(data, Mapping):
        return False
    env = data.get('env')
    if env is None:
        return isinstance(data.get('policy'), Mapping)
    return isinstance(env, Mapping) and 'id' in env


def how_to_convert(path: Path, shown: str) -> str:
    """Returns a sentence about a file of another library that must be translated first; '' for any other file.

    Args: shown: the path as the user wrote it.
    """
    with suppress(ConfigError):
        kind, option = _library(path)
        if kind:
            command = f'zoo convert {shlex.quote(shown)}{option} -o config.yaml'
            return f'{shown} is {kind}, not a config of zoo: translate it with {command}, then zoo train config.yaml.'
    return ''


def _library(path: Path) -> tuple[str, str]:
    """Returns a description of the file, '' if unknown; and ' --name' with one of its configs, '' if it holds only one."""
    if path.suffix == '.py':
        return _library_of_code(read_code(path)), ''
    data = read_yaml(path)
    if is_zoo(data):
        return '', ''
    blocks = {'': data}
    if _is_nested(data):
        blocks = {str(name): block for name, block in data.items()}
    for is_of_library, kind in ((is_rllib, 'a file of RLlib'), (is_sb3, "a file of rl-zoo3's settings")):
        names = [name for name, block in blocks.items() if is_of_library(block)]
        names.sort(key=lambda name: '-v' not in name)  # ids come first, because the block `atari` is for many games
        if names and len(blocks) > 1:
            return kind, f' --name {shlex.quote(names[0])}'
        if names:
            return kind, ''
    return '', ''


def _library_of_code(tree: ast.Module) -> str:
    if is_script(tree):
        return 'a script of CleanRL'
    if is_chain(tree):
        return 'code for RLlib'
    return ''


def _is_nested(data: Mapping[str, Any]) -> bool:
    """Whether a YAML file holds named configs."""
    return all(isinstance(value, Mapping) for value in data.values())


def translated(main: Any, create: Any = None) -> dict[str, Any]:
    """Translates DI-engine's pair of configs, or its main_config alone; logs the translation of each key once.

    Raises: ConfigError with a sentence for each problem.
    """
    conversion = from_pair(main, create)
    text = conversion.text()
    if text not in _told:
        _told.add(text)
        for line in text.splitlines():
            logger.info('%s', line)
    return plain(conversion.config)


def pair_of(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Returns (main_config, create_config) of a module of DI-engine; None if it defines none.

    create_config is None if the module has only a main_config of DI-engine.
    """
    main = variables.get('config')
    if not isinstance(main, dict):
        main = variables.get('main_config')
    if not isinstance(main, dict):
        return None
    create = variables.get('create_config')
    if isinstance(create, dict):
        return main, create
    if is_main_config(main):
        return main, None
    return None


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
    names: list[str] = []
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.ImportFrom():
            names = [node.module or '']
    return any(name.partition('.')[0] in PACKAGES for name in names)


def check_pair(source: Any) -> tuple[Any, Any]:
    """Returns the two configs of a tuple or list. Raises: ConfigError if it is not a pair of dicts."""
    if len(source) == 2 and all(isinstance(item, dict) for item in source):
        return source[0], source[1]
    types_ = ', '.join(type(item).__name__ for item in source)
    raise ConfigError(
        f'a pair of configs is (main_config, create_config), two dicts, got ({types_}); pass two dicts, or one config.'
    )


def convert(path_or_object: Any, source: str | None = None, name: str | None = None) -> Conversion:
    """Converts a config of DI-engine, stable-baselines3 (rl-zoo3), CleanRL or RLlib to a config of zoo.

    Args:
      path_or_object: a .py or .yaml file (only files of DI-engine are executed); a dict of settings; DI-engine's
        (main_config, create_config); a PPOConfig of RLlib.
      source: one of SOURCES; None: it is recognised by its keys, as `Conversion.source` says.
      name: the block of a YAML file, such as 'CartPole-v1'; for a dict of SB3's settings the env.
    Raises: ConfigError with a sentence for every key that has no counterpart, or if the library is not recognised.
    """
    if source is not None and source not in SOURCES:
        raise ConfigError(unknown_name('library', source, SOURCES, listed='known'))
    if isinstance(path_or_object, (str, os.PathLike)):
        conversion, how = _of_file(Path(path_or_object), source, name)
    else:
        conversion, how = _of_object(plain(path_or_object), source, name)
    description = conversion.source
    if source is None:
        description += f' (recognised by {how})'
    return conversion._replace(config=plain(conversion.config), source=description)


def _recognised(config: Any, predicates: Mapping[str, Callable[[Any], bool]]) -> str | None:
    return next((source for source, is_of_source in predicates.items() if is_of_source(config)), None)


def _of_file(path: Path, source: str | None, name: str | None) -> tuple[Conversion, str]:
    if path.is_dir():
        raise ConfigError(f'{str(path)!r} is a folder; name a file in it.')
    if not path.is_file():
        raise ConfigError(f'there is no file {str(path)!r}; check the path.')
    if path.suffix in ('.yaml', '.yml'):
        return _of_yaml(path, source, name)
    if path.suffix != '.py':
        raise ConfigError(f'{path} is neither a .py nor a .yaml file; give one.')
    tree = read_code(path)
    match source or _recognised(tree, OF_CODE):
        case 'sb3':
            raise ConfigError(
                f'{path} is code; of stable-baselines3 give a YAML file of rl-zoo3, or a dict of the arguments.'
            )
        case 'cleanrl':
            return from_cleanrl(tree, path.stem), 'num_minibatches and clip_coef among its arguments'
        case 'rllib':
            return from_rllib(settings_of(tree)), 'its PPOConfig'
        case 'di-engine':
            pair = pair_of(vars(config_module(path.resolve())))
            if pair is None:
                raise ConfigError(f'{path} has no dicts main_config and create_config; define both.')
            return from_pair(*pair), 'its variable main_config'
    why = why_not_translated(tree, path.stem)
    if why:
        raise ConfigError(why)
    raise ConfigError(
        f'{path} is not recognised: it has no main_config (DI-engine), no PPOConfig (RLlib) and no arguments of a script of '
        'CleanRL; say what it is with --from, one of ' + ', '.join(SOURCES) + '.'
    )


def _of_yaml(path: Path, source: str | None, name: str | None) -> tuple[Conversion, str]:
    data = read_yaml(path)
    if source is None and is_zoo(data):
        raise ConfigError(f'{path} is already a config of zoo; train it with zoo train {shlex.quote(str(path))}.')
    block = data
    label = name
    if _is_nested(data):
        label, block = _block(path, {str(key): value for key, value in data.items()}, name)
    match source or _recognised(block, OF_SETTINGS):
        case 'rllib':
            return from_rllib(block), 'its keys run and config, or train_batch_size'
        case 'sb3':
            return from_sb3(block, label or block.get('env'), path.stem), 'keys such as n_steps and n_timesteps'
        case 'di-engine' | 'cleanrl':
            raise ConfigError(f'{path} is YAML; the configs of {source} are .py files: give one.')
    raise ConfigError(
        f'{path} is not recognised as settings of rl-zoo3 or RLlib; say what it is with --from, one of {", ".join(SOURCES)}.'
    )


def _block(path: Path, blocks: Mapping[str, Any], name: str | None) -> tuple[str, Any]:
    """Returns the named config of a YAML file, or its only one. Raises: ConfigError."""
    if name is not None:
        if name not in blocks:
            raise ConfigError(unknown_name('config', name, blocks, listed=f'in {path}'))
        return name, blocks[name]
    if len(blocks) > 1:
        names = list(blocks)[:12]
        if len(blocks) > 12:
            names.append('...')
        raise ConfigError(f'{path} holds {len(blocks)} configs: {", ".join(names)}; choose one with --name.')
    return next(iter(blocks.items()))


def _of_object(data: Any, source: str | None, name: str | None) -> tuple[Conversion, str]:
    if isinstance(data, (tuple, list)):
        return from_pair(*check_pair(data)), 'its two dicts'
    if hasattr(data, 'to_dict') and not isinstance(data, Mapping):
        return from_rllib(data), 'its to_dict'
    if not isinstance(data, Mapping):
        raise ConfigError(
            f'a config is a dict, a path or a pair of dicts, got {type(data).__name__}; pass one of those.'
        )
    match source or _recognised(data, OF_OBJECT):
        case 'di-engine':
            return from_pair(data), 'its keys'
        case 'rllib':
            return from_rllib(data), 'keys such as train_batch_size'
        case 'sb3':
            return from_sb3(data, name), 'keys such as n_steps'
    raise ConfigError(f'the dict is not recognised; pass source, one of {", ".join(SOURCES)}.')
