"""Conversion of other libraries' configs, in files or objects, to configs of zoo; recognises the library by its keys."""

from __future__ import annotations

import ast
import logging
import os
import shlex
import types
from collections.abc import Mapping
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


def is_zoo(data: Any) -> bool:
    """Whether a mapping is a config of zoo: it has a section env with the key id, or a section policy."""
    env, policy = (data.get(name) if isinstance(data, Mapping) else None for name in ('env', 'policy'))
    return (isinstance(env, Mapping) and 'id' in env) or (isinstance(policy, Mapping) and env is None)


def how_to_convert(path: Path, shown: str) -> str:
    """Returns a sentence about a file of another library that must be translated first; '' for any other file.

    Args: shown: the path as the user wrote it.
    """
    with suppress(ConfigError):
        what, option = _library(path)
        file = shlex.quote(shown)
        if what:
            return (
                f'{shown} is {what}, not a config of zoo: translate it with zoo convert {file}{option} -o config.yaml, '
                'then zoo train config.yaml.'
            )
    return ''


def _library(path: Path) -> tuple[str, str]:
    """Returns a description of the file, '' if unknown; and ' --name' with one of its configs, '' if it holds only one."""
    if path.suffix == '.py':
        code = {'a script of CleanRL': is_script, 'code for RLlib': is_chain}
        tree = read_code(path)
        return next((what for what, is_of in code.items() if is_of(tree)), ''), ''
    data = read_yaml(path)
    if is_zoo(data):
        return '', ''
    is_nested = bool(data) and all(isinstance(value, Mapping) for value in data.values())
    if is_nested:
        blocks = {str(name): block for name, block in data.items()}
    else:
        blocks = {'': data}
    for is_of, what in ((is_rllib, 'a file of RLlib'), (is_sb3, "a file of rl-zoo3's settings")):
        found = sorted(filter(lambda name: is_of(blocks[name]), blocks), key=lambda name: '-v' not in name)
        if found:  # ids come first, because the block `atari` is for many games
            return what, f' --name {shlex.quote(found[0])}' if len(blocks) > 1 else ''
    return '', ''


logger = logging.getLogger(__name__)
PACKAGES = ('ding', 'dizoo', 'ditk', 'lzero')
"""Packages that files of DI-engine import, and that a config does not need."""
_told: set[str] = set()  # texts of the translations that were logged


def translated(main: Any, create: Any = None) -> dict[str, Any]:
    """Translates DI-engine's pair of configs, or its main_config alone; logs the translation of each key once.

    Raises: ConfigError with a sentence for each problem.
    """
    conversion = from_pair(main, create)
    text = conversion.text()
    for line in text.splitlines() if text not in _told else ():
        logger.info('%s', line)
    _told.add(text)
    return plain(conversion.config)


def pair_of(variables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None] | None:
    """Returns (main_config, create_config) of a module of DI-engine; None if it defines none.

    create_config is None if the module has only a main_config of DI-engine.
    """
    main, create = (variables.get(name) for name in ('main_config', 'create_config'))
    if isinstance(variables.get('config'), dict):
        main = variables['config']
    if not isinstance(create, dict):
        create = None
    if not isinstance(main, dict):
        return None
    if create is not None or is_main_config(main):
        return (main, create)
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
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = []
    if isinstance(node, ast.ImportFrom):
        names += [node.module or '']
    else:
        names += []
    return any(name.partition('.')[0] in PACKAGES for name in names)


def check_pair(source: Any) -> tuple[Any, Any]:
    """Returns the two configs of a tuple or list. Raises: ConfigError if it is not a pair of dicts."""
    if len(source) == 2 and all(isinstance(item, dict) for item in source):
        return source[0], source[1]
    what = ', '.join(type(item).__name__ for item in source)
    raise ConfigError(
        f'a pair of configs is (main_config, create_config), two dicts, got ({what}); pass two dicts, or one config.'
    )


SOURCES = ('di-engine', 'sb3', 'cleanrl', 'rllib')
OF_CODE = {'cleanrl': is_script, 'rllib': is_chain, 'di-engine': lambda tree: bool(assigned(tree, 'main_config'))}
OF_SETTINGS = {'rllib': is_rllib, 'sb3': is_sb3}
OF_OBJECT = {'di-engine': is_main_config, **OF_SETTINGS}
"""Predicates that recognise a source in a syntax tree, a block of YAML or a dict; the first match counts."""


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
    if source:
        told = ''
    else:
        told = f' (recognised by {how})'
    return conversion._replace(config=plain(conversion.config), source=conversion.source + told)


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
    match source or next((kind for kind, is_of in OF_CODE.items() if is_of(tree)), None):
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
    is_nested = all(isinstance(value, Mapping) for value in data.values())
    if is_nested:
        blocks = {str(key): value for key, value in data.items()}
    else:
        blocks = {name or path.stem: data}
    if is_nested and name is None and len(blocks) > 1:
        names = ', '.join(list(blocks)[:12]) + (', ...' if len(blocks) > 12 else '')
        raise ConfigError(f'{path} holds {len(blocks)} configs: {names}; choose one with --name.')
    if name is not None and name not in blocks:
        raise ConfigError(unknown_name('config', name, blocks, listed=f'in {path}'))
    label = name or next(iter(blocks))
    block = blocks[label]
    match source or next((kind for kind, is_of in OF_SETTINGS.items() if is_of(block)), None):
        case 'rllib':
            return from_rllib(block), 'its keys run and config, or train_batch_size'
        case 'sb3':
            if is_nested:
                env = label
            else:
                env = name or block.get('env')
            return from_sb3(block, env, path.stem), 'keys such as n_steps and n_timesteps'
        case 'di-engine' | 'cleanrl':
            raise ConfigError(f'{path} is YAML; the configs of {source} are .py files: give one.')
    raise ConfigError(
        f'{path} is not recognised as settings of rl-zoo3 or RLlib; say what it is with --from, one of {", ".join(SOURCES)}.'
    )


def _of_object(data: Any, source: str | None, name: str | None) -> tuple[Conversion, str]:
    if isinstance(data, (tuple, list)):
        return from_pair(*check_pair(data)), 'its two dicts'
    if hasattr(data, 'to_dict') and not isinstance(data, Mapping):
        return from_rllib(data), 'its to_dict'
    if not isinstance(data, Mapping):
        raise ConfigError(
            f'a config is a dict, a path or a pair of dicts, got {type(data).__name__}; pass one of those.'
        )
    match source or next((kind for kind, is_of in OF_OBJECT.items() if is_of(data)), None):
        case 'di-engine':
            return from_pair(data), 'its keys'
        case 'rllib':
            return from_rllib(data), 'keys such as train_batch_size'
        case 'sb3':
            return from_sb3(data, name), 'keys such as n_steps'
    raise ConfigError(f'the dict is not recognised; pass source, one of {", ".join(SOURCES)}.')
