"""Sources of configs: dicts, .py and .yaml files, bundled names; overrides 'a.b.c=value' from the command line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from zoo.config.section import ConfigError, plain, takes
from zoo.config.yaml_io import config_of_yaml, parse_yaml
from zoo.core.errors import UserError, closest, shown
from zoo.core.processes import STOP_REQUESTS
from zoo.core.registry import CONFIG_READER_REGISTRY, POLICY_REGISTRY
from zoo.core.streams import printable

BUNDLED_PACKAGE = 'dizoo_configs'


class ConfigReader:
    """Reads configs of another library; this one reads none. Classes are registered in CONFIG_READER_REGISTRY.

    A reader is asked only for what has not the form of a config of zoo.
    """

    def of_object(self, config: object) -> dict[str, Any] | None:
        """The config of zoo for a dict, tuple or list; None if it is none of the library. Raises: ConfigError."""
        return None

    def of_module(self, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        """The config of zoo for the variables of a .py file; None if they define none of the library. Raises: ConfigError."""
        return None

    def is_missing(self, error: BaseException | None) -> bool:
        """Whether a .py file failed with this error because the library is not installed."""
        return False

    def run_without_library(self, path: Path) -> ModuleType:
        """Runs a .py file without its imports of the library. Raises: any error of the file's own code."""
        raise NotImplementedError

    def how_to_convert(self, path: Path, shown: str) -> str:
        """A sentence about a file of the library that must be translated first; '' for any other file.

        Args: shown: the path as the user wrote it.
        """
        return ''


def load_config(source: Any) -> tuple[dict[str, Any], str]:
    """Loads a config as a plain, unvalidated dict, and returns it with a label of its source.

    Args:
      source: a dict or EasyDict; a path to a .py file (its variable `config` or `main_config`) or a .yaml file; the
        name of a bundled config. A .py file is run once in a process, with its folder on the import path. DI-engine's
        (main_config, create_config) is translated: as a tuple, a list or the two variables of a file.
    Raises: ConfigError if there is no such config, or its file holds none or cannot be read. If a .py file raises an
      error, the message names the line, and the error is the cause.
    """
    if isinstance(source, dict):
        config = plain(source)
        if _is_own(config):
            return config, 'config'
        return _translated(config) or config, 'config'
    if isinstance(source, (tuple, list)):
        return _translated(source) or {}, 'main_config and create_config'
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(
            f'a config is a dict, a path or a name, got {type(source).__name__}; pass one of those, or the pair '
            '(main_config, create_config) of DI-engine.'
        )
    path = Path(source)
    if path.suffix in ('.yaml', '.yml', '.py'):
        return _of_file(path, str(source)), str(source)
    if path.suffix or path.parent != Path('.'):
        raise ConfigError(
            f'config {str(source)!r} is not a .py or .yaml file; give one, or the name of a bundled config.'
        )
    bundled = bundled_configs()
    name = str(source)
    if name not in bundled:
        own = name.lower().partition('-v')[0]  # an env or a policy: suggest the other one that most users want
        near: list[Any] = [each for each in (f'{own}_ppo', f'cartpole_{own}') if each in bundled]
        near = near or (
            [{'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}}]
            if name in POLICY_REGISTRY
            else closest(name, bundled)
        )
        guess = ''
        if near:
            guess = f'did you mean {" or ".join(map(repr, near))}? '
        raise ConfigError(f'unknown config {shown(name)}: {guess}zoo list configs shows all {len(bundled)}.')
    return _from_module(importlib.import_module(f'{BUNDLED_PACKAGE}.{bundled[name].stem}'), name), name


def _readers() -> Iterator[ConfigReader]:
    for name in CONFIG_READER_REGISTRY.names():
        yield CONFIG_READER_REGISTRY.build(name)


def _translated(config: object) -> dict[str, Any] | None:
    """The config of zoo for a dict, tuple or list of another library; None if no reader knows it."""
    configs = (reader.of_object(config) for reader in _readers())
    return next((config for config in configs if config is not None), None)


def _of_file(path: Path, label: str) -> dict[str, Any]:
    """Loads the config of a .py or .yaml file. Raises: ConfigError; for a file of another library it names the library."""
    config = None
    problem = None
    whole = _existing(path)
    try:
        if path.suffix == '.py':
            config = _from_module(config_module(whole), label)
        else:
            config = config_of_yaml(whole)
    except ConfigError as error:
        problem = error
    if config is not None and _is_own(config):
        return config
    for reader in _readers():
        hint = reader.how_to_convert(whole, label)
        if hint:
            raise ConfigError(hint) from problem
    if problem is not None:
        raise problem
    assert config is not None
    return config


def bundled_configs() -> dict[str, Path]:
    """Name -> file of every bundled config: 'cartpole_ppo' is dizoo_configs/cartpole_ppo_config.py."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    folders = []
    if spec:
        folders = spec.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob('*_config.py'))
    return {file.stem.removesuffix('_config'): file for file in files}


def _existing(path: Path, what: str = 'config file') -> Path:
    try:
        path = path.expanduser().resolve()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # the path is too long, its home unknown, a NUL in it
        why = getattr(error, 'strerror', None) or error
        raise ConfigError(f'{shown(str(path), 200)} cannot be a {what} ({why}); check the path.') from error
    raise ConfigError(f'there is no {what} {str(path)!r}; check the path.')


def _is_own(config: dict[str, Any]) -> bool:
    """Whether a config has zoo's own form. Most have, and for these the translators need not be loaded."""
    return isinstance(config.get('env'), dict) and 'id' in config['env']


def config_module(path: Path) -> ModuleType:
    """Runs a .py file as a module; without its imports of DI-engine, if it has any and DI-engine is not installed."""
    try:
        return _module_of_file(path)
    except ConfigError as error:
        for reader in _readers():
            if reader.is_missing(error.__cause__):
                with running_code(str(path), str(path)):
                    return reader.run_without_library(path)
        raise


def _from_module(module: ModuleType, label: str) -> dict[str, Any]:
    if isinstance(vars(module).get('create_config'), dict) or not isinstance(vars(module).get('config'), dict):
        for reader in _readers():
            config = reader.of_module(vars(module))
            if config is not None:
                return config
    for name in ('config', 'main_config'):
        if isinstance(vars(module).get(name), dict):
            return plain(vars(module)[name])
    classes = {name: x for name, x in vars(module).items() if isinstance(x, type) and x.__module__ == module.__name__}
    envs = [name for name, x in classes.items() if all(callable(getattr(x, to, None)) for to in ('reset', 'step'))]
    train = ' or '.join(f'zoo train {label}:{name}' for name in envs[:3])
    raise ConfigError(
        f'{label} has no dict named `config` (or `main_config`); '
        + (f'to train on its env: {train}.' if train else 'define one.')
    )


def import_module_or_file(name: str) -> ModuleType:
    """Imports 'package.module' or 'path/file.py', which may register names.

    Raises: ConfigError if it does not exist, or if it raises an error, which is then the cause.
    """
    if name.endswith('.py'):
        return _module_of_file(_existing(Path(name), 'file to import').absolute())
    with running_code(f'module {name!r}'):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition('.')[0]):
                raise
            raise ConfigError(
                f'there is no module {name!r} to import; give its dotted name, or the path of a .py file.'
            ) from error


@contextmanager
def running_code(name: str, file: str = '', only_exits: bool = False) -> Iterator[None]:
    """A context in which code of a user runs for the first time: a config in Python, a module to import, an env's file.

    Args: name: of the code, for messages; file: its path; only_exits: an `Exception` of the code is raised unmodified.
    Raises: ConfigError with the line, in place of an error of the code. SystemExit counts as one: a script that ends the
      process while it is loaded would otherwise end the command with exit code 0, and nothing would be done.
    """
    try:
        yield
    except (UserError, *STOP_REQUESTS):
        raise
    except BaseException as error:
        if only_exits and isinstance(error, Exception):
            raise
        raise ConfigError(_failed(name, error, file)) from error


def files_run() -> dict[str, Path]:
    """The .py files that were run as modules in this process, by the module's name."""
    names = {getattr(module, '__file__', None): name for name, module in list(sys.modules.items())}
    return {names[str(path)]: path for path in _ran if str(path) in names}


class SourceOnlyLoader(SourceFileLoader):
    """Always compiles the text of a file: cached bytecode may be other code than the user read before trusting the file."""

    def get_code(self, fullname: str) -> Any:
        text = self.get_data(self.path)
        _digests[os.path.realpath(self.path)] = hashlib.sha256(text).hexdigest()
        return self.source_to_code(text, self.path)


def digest_that_ran(path: str) -> str | None:
    """The SHA-256 of the text of a .py file that was run last in this process; None if none was run."""
    return _digests.get(os.path.realpath(path))


def _module_of_file(path: Path) -> ModuleType:
    """Runs the file as a module in sys.modules, so that its functions can be named 'module:function'."""
    stamp = path.stat().st_mtime_ns
    if _is_free(path.stem, path):
        name = path.stem
    else:
        name = str(path.with_suffix('')).strip(os.sep).replace(os.sep, '_')
    if name in sys.modules and _ran.setdefault(path, stamp) == stamp:
        return sys.modules[name]  # running the file again would register its names twice
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceOnlyLoader(name, str(path)))
    assert spec is not None and spec.loader is not None, 'the suffix is .py'
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    _ran.pop(path, None)
    try:
        with running_code(str(path), str(path)):
            spec.loader.exec_module(module)
        _ran[path] = stamp
    finally:
        if path not in _ran:
            del sys.modules[name]
    return module


def _failed(name: str, error: BaseException, file: str = '') -> str:
    """A sentence about user code that raised an error: the error and its line, the last one in `file` if there is any."""
    if isinstance(error, SyntaxError) and error.lineno:
        place = (error.filename or file, error.lineno)
        said = error.msg
    else:
        places = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        place = [*places, *(at for at in places if at[0] == file)][-1]
        said = str(error)
    if place[0].startswith('<'):
        at = ''
    else:
        at = f' in line {place[1]}'
        if place[0] != file:
            at += f' of {place[0]}'
    if said:
        what = f'{type(error).__name__}: {printable(said):.200}'
    else:
        what = type(error).__name__
    return f'{name} failed{at} with {what}; correct it there, --debug shows the traceback.'


_digests: dict[str, str] = {}  # of the text of each .py file that was run in this process
_ran: dict[Path, int] = {}  # .py files run in this process -> time of their last change


def _is_free(name: str, path: Path) -> bool:
    """Whether importing `name` finds this file or no module."""
    if name in sys.modules:
        return getattr(sys.modules[name], '__file__', None) == str(path)
    spec = None
    if name.isidentifier():
        spec = importlib.util.find_spec(name)
    return name.isidentifier() and (spec is None or spec.origin == str(path))


def split_override(text: str) -> tuple[str, str]:
    """'a.b.c=value' -> ('a.b.c', 'value'). Raises: ConfigError for another form."""
    path, equals, raw = text.partition('=')
    path = path.strip().removeprefix('--')
    if not equals or not all(path.split('.')):
        raise ConfigError(
            f'override {text!r} is not key=value; write e.g. policy.learn.learning_rate=1e-3, without spaces or in quotes.'
        )
    return path, raw.strip()


def parse_value(raw: str, field: FieldInfo | None = None) -> Any:
    """The value of an override's text: the first reading that the field accepts.

    If the field accepts none, or there is no field, it is the first reading; validation then reports the problem.
    """
    readings = list(_readings(raw))
    fitting = (value for value in readings if field is not None and takes(field, value))
    return next(fitting, readings[0])


def _readings(raw: str) -> Iterator[Any]:
    """Yields the values that a text may mean: None, YAML, an integer (1e6), a boolean (on, off), the text itself."""
    if raw.lower() in ('none', 'null'):
        yield None
    try:
        value = plain(parse_yaml(raw))
    except yaml.YAMLError:
        value = raw
    if isinstance(value, str) and raw[0] not in '\'"!':  # plain text means no comment, anchor or line break of YAML
        value = raw
    if value is not None:
        yield value
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    words = {'on': True, 'yes': True, 'true': True, 'off': False, 'no': False, 'false': False}
    if raw.lower() in words:
        yield words[raw.lower()]
    if raw.lower() != 'null':
        yield raw
