"""Configs as YAML text: read by the rules of YAML 1.2, written with names in place of functions."""

from __future__ import annotations

import copy
import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from zoo.config.section import MAX_DEPTH, PLAIN_TYPES, ConfigError, ConfigLike, Section, plain
from zoo.core.errors import shown
from zoo.core.files import read_small, whole_file
from zoo.core.streams import without_passwords

# YAML 1.2: 1e-3 is a float; on, off, yes and no are text
_SCALARS = {
    'null': r'(?:~|null|Null|NULL|)',
    'bool': r'(?:true|True|TRUE|false|False|FALSE)',
    'int': r'[-+]?(?:0|[1-9](?:_?[0-9])*|0x[0-9a-fA-F]+|0o[0-7]+)',
    'float': r'[-+]?(?:[0-9](?:_?[0-9])*(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)|\.[0-9]+(?:[eE][-+]?[0-9]+)?)'
    r'|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)',
}
MAX_BYTE = 1 << 20
MAX_NODE = 20_000
"""Size of a YAML file, and the number of its keys and values together: a config has some hundred, and 20,000 take seconds."""
MAX_KEPT = 1 << 14
"""Characters of a text whose value the process keeps: a complete config has some 8,000."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors = {  # no dates, sets or bytes: a checkpoint cannot hold them
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(':')[2] in ('null', 'bool', 'int', 'float', 'str', 'seq', 'map')
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f'key {key.value!r} appears twice', key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    _depth = 0
    _n_node = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth > MAX_DEPTH:  # else Python's recursion limit ends it, with an error that is not YAML's
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f'it has more than {MAX_DEPTH} levels', mark)
        self._n_node += 1
        if self._n_node > MAX_NODE:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f'it has more than {MAX_NODE:,} keys and values', mark)
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
        ) as error:  # the text does not fit its tag, or has too many digits for Python, e.g. 5,000
            problem = f'{shown(node.value)} cannot be read as {node.tag.rpartition(":")[2]}'
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node).replace('_', ''), 0)


class _PlainText:
    """What is written without anchors, by the rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Dumper(_PlainText, yaml.SafeDumper):
    """PyYAML's own: writes every text."""


class _FastDumper(_PlainText, getattr(yaml, 'CSafeDumper', yaml.SafeDumper)):  # type: ignore[misc]
    """libyaml's: a quarter of the time. It cannot write every text, see `yaml_text`."""


for _kind, _pattern in _SCALARS.items():
    for _class in (_Loader, _Dumper, _FastDumper):
        _class.add_implicit_resolver(f'tag:yaml.org,2002:{_kind}', re.compile(f'(?:{_pattern})$'), None)
_Loader.add_constructor('tag:yaml.org,2002:int', _Loader.construct_int)


def parse_yaml(text: str) -> Any:
    """Parses a YAML text. Raises: yaml.YAMLError.

    A text of the size of a config takes 8 ms. A process with many runs reads the same texts again and again, so it keeps the
    newest ones.
    """
    if len(text) > MAX_KEPT:
        return yaml.load(text, _Loader)
    return copy.deepcopy(_parsed(text))


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """The value of a text, not to be changed."""
    return yaml.load(text, _Loader)


def yaml_problem(error: Exception) -> str:
    """The error of a YAML text in a sentence that names its line, counted from 1: 'key 'a' appears twice in line 3'."""
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b'\n') + 1
        return f'byte 0x{error.object[error.start]:02x} in line {line} is not UTF-8'
    if isinstance(error, yaml.reader.ReaderError):
        return f'character U+{error.character:04X} is not allowed (it is number {error.position + 1} of the text)'
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return ' '.join(str(error).split())
    line = error.problem_mark.line + 1
    begin = error.context_mark
    if error.context:
        context = f' ({error.context}'
    else:
        context = ''
    if context:
        if begin is not None and begin.line + 1 != line:
            context += f' that begins in line {begin.line + 1})'
        else:
            context += ')'
    return ' '.join(f'{error.problem} in line {line}{context}'.split())


def config_of_yaml(path: Path) -> dict[str, Any]:
    """Reads the config of a YAML file. Raises: ConfigError."""
    try:
        data = parse_yaml(read_small(path, MAX_BYTE).decode())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f'{path} is not valid YAML: {yaml_problem(error)}; correct it there.') from error
    except OSError as error:
        raise ConfigError(f'{path} cannot be read ({error.strerror}); check the file.') from error
    if data is None:
        raise ConfigError(f'{path} is empty; write the keys of a config, e.g. env: {{id: CartPole-v1}}.')
    if not isinstance(data, dict):
        raise ConfigError(f'{path} holds {type(data).__name__}, not the keys of a config; write key: value lines.')
    return plain(data)


def save_yaml(config: ConfigLike, path: str | os.PathLike[str]) -> None:
    """Writes a config so that load_config reads an equal one; functions are written as 'module:function'."""
    with whole_file(Path(path)) as file:
        file.write(yaml_text(config).encode())


def yaml_text(config: ConfigLike) -> str:
    """A config as YAML, in ASCII with escapes for other characters."""
    data = storable(config)
    options: dict[str, Any] = {'sort_keys': False, 'width': 120}
    try:
        return yaml.dump(data, Dumper=_FastDumper, **options)
    except UnicodeEncodeError:  # a lone surrogate, as in the name of a folder that is not UTF-8
        return yaml.dump(data, Dumper=_Dumper, **options)


def storable(value: Any, hides: bool = False, at: str = '') -> Any:
    """A config as files hold it: plain, functions by name, no passwords in logger.sinks. Args: hides: no passwords at all."""
    if isinstance(value, dict | Section):
        return _stored(plain(value), hides, at)
    if isinstance(value, list):
        return [storable(v, hides, at) for v in value]
    return _stored(value, hides, at)


def _stored(value: Any, hides: bool, at: str) -> Any:
    """See `storable`. Args: value: as returned by `plain`."""
    if isinstance(value, dict):
        stored = {}
        for key, item in value.items():
            path = f'{at}.{key}'
            hides_item = hides or path == '.logger.sinks'
            if type(item) in PLAIN_TYPES and not hides_item:
                stored[key] = item
            else:
                stored[key] = _stored(item, hides_item, path)
        return stored
    if isinstance(value, list):
        return [_stored(v, hides, at) for v in value]
    if isinstance(value, str):
        if hides:
            return without_passwords(value)
        return value
    if callable(value):
        return function_name(value)
    return value


def function_name(function: Any) -> str:
    """The name 'module:function' of a function; the running script gets its import name instead of '__main__'."""
    module = getattr(function, '__module__', '?')
    if module == '__main__':
        module = Path(getattr(sys.modules['__main__'], '__file__', None) or '__main__').stem
    return f'{module}:{getattr(function, "__qualname__", type(function).__qualname__)}'


def value_text(value: Any) -> str:
    """A value as a user types it on the command line: 0.001, [64, 64], {start: 0.001, end: 0.0}, null."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    if isinstance(value, str):
        return value
    return text.removesuffix('\n').removesuffix('\n...')
