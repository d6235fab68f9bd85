"""Loads and saves configs: dicts, .py and .yaml files, bundled names, command-line overrides."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from zoo.config.messages import printable, shown
from zoo.config.section import MAX_DEPTH, ConfigError, plain
from zoo.core.errors import UserError
from zoo.core.files import whole_file
from zoo.core.registry import closest

BUNDLED_PACKAGE = 'dizoo_configs'


def load_config(source: Any) -> tuple[dict[str, Any], str]:
    """The plain, unvalidated dict of a config, and a label of its source.

    Args:
      source: a dict or EasyDict; a path to a .py file (its variable `config` or `main_config`) or a .yaml file; the
        name of a bundled config. A .py file is run once in a process, with its folder on the import path. DI-engine's
        (main_config, create_config), as a tuple, a list or the two variables of a file, is translated.
    Raises: ConfigError if there is no such config, or its file holds none or cannot be read; for an error inside a .py
      file it names the line, and the error itself is its cause.
    """
    if isinstance(source, dict):
        return _translated(plain(source)) or plain(source), 'config'
    if isinstance(source, (tuple, list)):
        from zoo.config.foreign.pairs import check_pair, translated

        return translated(*check_pair(source)), 'main_config and create_config'
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(
            f'a config is a dict, a path or a name, got {type(source).__name__}; pass one of those, or the pair '
            '(main_config, create_config) of DI-engine.'
        )
    path = Path(source)
    if path.suffix in ('.yaml', '.yml'):
        return _from_yaml(_existing(path)), str(source)
    if path.suffix == '.py':
        return _from_module(config_module(_existing(path)), str(source)), str(source)
    if path.suffix or path.parent != Path('.'):
        raise ConfigError(
            f'config {str(source)!r} is not a .py or .yaml file; give one, or the name of a bundled config.'
        )
    bundled, name = bundled_configs(), str(source)
    if name not in bundled:
        near = closest(name, bundled)
        guess = f'did you mean {" or ".join(map(repr, near))}? ' if near else ''
        raise ConfigError(f'unknown config {shown(name)}: {guess}zoo list configs shows all {len(bundled)}.')
    return _from_module(importlib.import_module(f'{BUNDLED_PACKAGE}.{bundled[name].stem}'), name), name


def bundled_configs() -> dict[str, Path]:
    """Name -> file of every bundled config: 'cartpole_ppo' is dizoo_configs/cartpole_ppo_config.py."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    folders = spec.submodule_search_locations or [] if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob('*_config.py'))
    return {file.stem.removesuffix('_config'): file for file in files}


def _existing(path: Path) -> Path:
    try:
        path = path.expanduser().resolve()
        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, a home that is not known, a NUL in it
        why = getattr(error, 'strerror', None) or error
        raise ConfigError(f'{shown(str(path), 200)} cannot be a config file ({why}); check the path.') from error
    raise ConfigError(f'there is no config file {str(path)!r}; check the path.')


def _translated(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config of zoo for a main_config of DI-engine; None for any other dict."""
    if isinstance(config.get('env'), dict) and 'id' in config['env']:
        return None  # zoo's own, as most are; the translators need not be loaded
    from zoo.config.foreign.pairs import is_main_config, translated

    return translated(config) if is_main_config(config) else None


def config_module(path: Path) -> ModuleType:
    """The module of a .py file; of one that imports DI-engine, where that is missing, without those imports."""
    try:
        return _module_of_file(path)
    except ConfigError as error:
        from zoo.config.foreign.pairs import needs_di_engine, run_without_imports

        if not needs_di_engine(error.__cause__):
            raise
        try:
            return run_without_imports(path)
        except Exception as other:
            raise ConfigError(_failed(str(path), other, str(path))) from other


def _from_module(module: ModuleType, label: str) -> dict[str, Any]:
    if isinstance(vars(module).get('create_config'), dict) or not isinstance(vars(module).get('config'), dict):
        from zoo.config.foreign.pairs import pair_of, translated

        if (pair := pair_of(vars(module))) is not None:
            return translated(*pair)
    for name in ('config', 'main_config'):
        if isinstance(vars(module).get(name), dict):
            return plain(vars(module)[name])
    raise ConfigError(f'{label} has no dict named `config` (or `main_config`); define one.')


def import_module_or_file(name: str) -> ModuleType:
    """Imports 'package.module' or 'path/file.py', which may register names.

    Raises: ConfigError if there is none, or it raises an error, which is then the cause.
    """
    if name.endswith('.py'):
        return _module_of_file(_existing(Path(name)).absolute())
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition('.')[0]):
            raise ConfigError(
                f'there is no module {name!r} to import; give its dotted name, or the path of a .py file.'
            ) from error
        raise ConfigError(_failed(f'module {name!r}', error)) from error


def _module_of_file(path: Path) -> ModuleType:
    """The file as a module in sys.modules, so that its functions can be named 'module:function'."""
    stamp = path.stat().st_mtime_ns
    name = path.stem if _is_free(path.stem, path) else str(path.with_suffix('')).strip(os.sep).replace(os.sep, '_')
    if name in sys.modules and _ran.setdefault(path, stamp) == stamp:
        return sys.modules[name]  # a second run of the file would register what it registers twice
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, 'the suffix is .py'
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    _ran.pop(path, None)
    try:
        spec.loader.exec_module(module)
        _ran[path] = stamp
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(_failed(str(path), error, str(path))) from error
    finally:
        if path not in _ran:
            del sys.modules[name]
    return module


def _failed(name: str, error: Exception, file: str = '') -> str:
    """A sentence about code of the user's that raised an error: what, and the last line that did, if any in `file`."""
    if isinstance(error, SyntaxError) and error.lineno:
        place, said = (error.filename or file, error.lineno), error.msg
    else:
        places = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        place, said = [*places, *(at for at in places if at[0] == file)][-1], str(error)
    at = '' if place[0].startswith('<') else f' in line {place[1]}' + ('' if place[0] == file else f' of {place[0]}')
    what = f'{type(error).__name__}: {printable(said):.200}' if said else type(error).__name__
    return f'{name} failed{at} with {what}; correct it there, --debug shows the traceback.'


_ran: dict[Path, int] = {}  # .py files run in this process -> time of their last change


def _is_free(name: str, path: Path) -> bool:
    """Whether importing `name` gives this file, or nothing."""
    if name in sys.modules:
        return getattr(sys.modules[name], '__file__', None) == str(path)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    return name.isidentifier() and (spec is None or spec.origin == str(path))


# YAML 1.2: 1e-3 is a float; on, off, yes and no are text
_SCALARS = {
    'null': r'(?:~|null|Null|NULL|)',
    'bool': r'(?:true|True|TRUE|false|False|FALSE)',
    'int': r'[-+]?(?:0|[1-9](?:_?[0-9])*|0x[0-9a-fA-F]+|0o[0-7]+)',
    'float': r'[-+]?(?:[0-9](?:_?[0-9])*(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|\.[0-9]+(?:[eE][-+]?[0-9]+)?)'
    r'|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)',
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {  # no dates, sets or bytes, which no checkpoint holds
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(':')[2] in ('null', 'bool', 'int', 'float', 'str', 'seq', 'map')
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if doubled := [key for key, n in Counter(keys).items() if n > 1]:
            raise yaml.constructor.ConstructorError(None, None, f'key {doubled[0]!r} appears twice', node.start_mark)
        return super().construct_mapping(node, deep)

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth > MAX_DEPTH:  # by default the limit of Python's stack, which is no error of YAML
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f'it has more than {MAX_DEPTH} levels', mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (
            KeyError,
            ValueError,
        ) as error:  # a tag that the text does not fit; 5,000 digits are too many for Python
            problem = f'{shown(node.value)} cannot be read as {node.tag.rpartition(":")[2]}'
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node).replace('_', ''), 0)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, _pattern in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f'tag:yaml.org,2002:{_kind}', re.compile(f'(?:{_pattern})$'), None)
_Loader.add_constructor('tag:yaml.org,2002:int', _Loader.construct_int)


def _from_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding='utf-8'), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'{path} is not valid YAML: {" ".join(str(error).split())}; correct it there.') from error
    except OSError as error:
        raise ConfigError(f'{path} cannot be read ({error.strerror}); check the file.') from error
    if not isinstance(data, dict):
        raise ConfigError(f'{path} holds {type(data).__name__}, not the keys of a config; write key: value lines.')
    return plain(data)


def save_yaml(config: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a config so that load_config reads an equal one; functions are written as 'module:function'."""
    with whole_file(Path(path)) as file:
        file.write(yaml_text(config).encode())


def yaml_text(config: dict[str, Any]) -> str:
    """A config as YAML, in ASCII with escapes for other characters."""
    return yaml.dump(storable(config), Dumper=_Dumper, sort_keys=False, width=120)


def storable(value: Any) -> Any:
    """A config as YAML and JSON hold it: plain, functions as 'module:function'."""
    if isinstance(value, dict):
        return {key: storable(v) for key, v in plain(value).items()}
    if isinstance(value, list):
        return [storable(v) for v in value]
    return function_name(value) if callable(value) else value


def function_name(function: Any) -> str:
    """'module:function'; the script that is being run has the name that it is imported by."""
    module = getattr(function, '__module__', '?')
    if module == '__main__':
        module = Path(getattr(sys.modules['__main__'], '__file__', None) or '__main__').stem
    return f'{module}:{getattr(function, "__qualname__", type(function).__qualname__)}'


def split_override(text: str) -> tuple[str, str]:
    """'a.b.c=value' -> ('a.b.c', 'value'). Raises: ConfigError for another form."""
    path, equals, raw = text.partition('=')
    path = path.strip().removeprefix('--')
    if not equals or not all(path.split('.')):
        raise ConfigError(f'override {text!r} is not key=value; write e.g. policy.learn.learning_rate=1e-3.')
    return path, raw.strip()


def parse_value(raw: str, field: FieldInfo | None = None) -> Any:
    """The value of an override's text: the first reading that the field accepts.

    If no reading fits, or there is no field, it is the YAML reading, which validation then reports.
    """
    readings = list(_readings(raw))
    if field is not None:
        for value in readings:
            if _takes(field, value):
                return value
    return readings[0]


def _readings(raw: str) -> Iterator[Any]:
    """The values that a text may mean: None, YAML, an integer (1e6), a boolean (on, off), the text itself."""
    if raw.lower() in ('none', 'null'):
        yield None
    try:
        value = plain(yaml.load(raw, _Loader))
    except yaml.YAMLError:
        value = raw
    if value is not None:
        yield value
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    words = {'on': True, 'yes': True, 'true': True, 'off': False, 'no': False, 'false': False}
    if raw.lower() in words:
        yield words[raw.lower()]
    yield raw


def _takes(field: FieldInfo, value: Any) -> bool:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return isinstance(value, dict)
    strict = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    typed: Any = Annotated[(annotation, *field.metadata)] if field.metadata else annotation  # type: ignore[misc]
    try:
        TypeAdapter(typed, config=strict).validate_python(value)
    except ValidationError:
        return False
    return True
