"""Error messages for unknown keys and wrong values of a config; imported only if there is one."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from zoo.config.names import ZooKey, in_context, look_up, names
from zoo.core.errors import closest, join_path, shown
from zoo.core.registry import BUFFER_REGISTRY, COMPONENTS, MODEL_REGISTRY, POLICY_REGISTRY, Registry

TYPED: dict[str, Registry[Any]] = {'policy.model': MODEL_REGISTRY, 'policy': POLICY_REGISTRY, 'buffer': BUFFER_REGISTRY}
"""Section whose keys depend on its `type` -> registry of the types; inner sections come first."""


def unknown_key(section: str, key: str, siblings: Iterable[str], known: Iterable[str] = ()) -> str:
    """The message for a key that does not exist: its name in zoo, where it belongs, or the closest names."""
    known = list(known)
    siblings = list(siblings)
    path = join_path(section, key)
    close = [join_path(section, name) for name in closest(key, siblings)]
    if '.' in key and key in known:
        nested = functools.reduce(lambda inner, part: f'{{{part!r}: {inner}}}', reversed(key.split('.')), '..')
        return f'unknown key {path!r}: dotted names are for overrides only; write a nested dict: {nested}.'
    if section in COMPONENTS:
        names = [repr(name) for name in COMPONENTS[section].names() if key in _options(COMPONENTS[section].get(name))]
        owners = ''
        if names:
            owners = f'{COMPONENTS[section].kind} {_some(names)}'
    else:
        owners = _types_with(section, key)
    if owners:
        if close:
            do = f'did you mean {" or ".join(close)}?'
        else:
            do = 'set that type, or leave the key out.'
        return f'unknown key {path}: only {owners} has it; {do}'
    if section in COMPONENTS:  # names of its options may occur in other sections too, so that those are no hint
        if close:
            guess = f'did you mean {" or ".join(close)}?'
        else:
            guess = f'the keys of {section} are {", ".join(siblings)}.'
        return f'unknown key {path}: {guess}'
    return f'unknown key {path}: {_other_name(section, key, siblings, known) or _guess(section, key, siblings, known)}'


def _other_name(section: str, key: str, siblings: list[str], known: list[str]) -> str:
    """The end of a message for a key of another library or another section: its key in zoo; '' if it is neither."""
    path = join_path(section, key)
    entry = in_context(path)
    if entry:
        return entry.sentence()
    name = key.rsplit('.', 1)[-1].lower()  # AgileRL writes its keys in capitals
    if name in siblings:
        elsewhere = []
    else:
        elsewhere = [p for p in known if p.rsplit('.', 1)[-1] == name]
    if elsewhere:
        return f'it belongs at {" or ".join(elsewhere[:2])}.'
    entry = look_up(name, inside=False)
    if entry:
        return entry.sentence()
    return ''


def _guess(section: str, key: str, siblings: list[str], known: list[str]) -> str:
    """The end of a message: close keys of the section, else close keys elsewhere, else all keys of the section."""
    near = closest(key, {*siblings, *(path.rsplit('.', 1)[-1] for path in known), *names()}, n=9)
    close = [join_path(section, name) for name in near if name in siblings]
    close = close or [path for name in near for path in known if path.rsplit('.', 1)[-1] == name]
    if near and not close and isinstance(here := names()[near[0]], ZooKey):
        return f'did you mean {here.path}, which has the name {near[0]} elsewhere?'
    if close:
        return f'did you mean {" or ".join(close[:2])}?'
    return f'the keys of {section or "the config"} are {", ".join(siblings) or "none"}.'


def _types_with(section: str, key: str) -> str:
    """Names the registered types that have this key, e.g. "buffer.type 'multi'"; '' if there are none."""
    for typed, registry in TYPED.items():
        if f'{section}.'.startswith(f'{typed}.'):
            keys = [*filter(None, section.removeprefix(typed).split('.')), key]
            names = [
                repr(name) for name in registry.names() if _has_key(getattr(registry.get(name), 'config', None), keys)
            ]
            if names:
                return f'{typed}.type {_some(names)}'
            return ''
    return ''


def _options(component: Any) -> Iterable[str]:
    """Names the options of a registered component, the same as `zoo.config.components.options_of`."""
    if hasattr(component, 'config'):
        return getattr(component.config, 'model_fields', ())
    parameters = inspect.signature(component).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _some(names: list[str]) -> str:
    """Joins names to 'a, b or c'; of more than three it shows the first two and the number of the others."""
    if len(names) <= 3:
        *first, last = names
    else:
        *first, last = [*names[:2], f'{len(names) - 2} others']
    if first:
        return f'{", ".join(first)} or {last}'
    return last


def _has_key(section: Any, keys: Iterable[str]) -> bool:
    """Whether a section class has a key. Args: keys: the path of inner sections that ends with this key."""
    for key in keys:
        field = getattr(section, 'model_fields', {}).get(key)
        if field is None:
            return False
        section = field.annotation
    return True


def bad_value(path: str, value: Any, wanted: FieldInfo | type[BaseModel]) -> str:
    """The message for a value of the wrong type or out of range: the value, the accepted values, what to do."""
    if value is None:
        got = 'null'
    else:
        got = f'{shown(value)} ({_WORDS.get(type(value), type(value).__name__)})'
    if not isinstance(wanted, FieldInfo):
        first = next((key for key in ('type', 'id') if key in wanted.model_fields), '')
        do = ''
        if first and isinstance(value, str) and value.isprintable():
            do = f'; write {path}: {{{first}: {value}}}'
        return f'{path} is {got} but must be a dict with the keys {", ".join(wanted.model_fields)}{do}.'
    is_described = wanted.annotation is type(None) or any(getattr(m, 'pattern', None) for m in wanted.metadata)
    if wanted.description and is_described:
        must = wanted.description
    else:
        must = describe(wanted.annotation, wanted.metadata)
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    # the form of rl-zoo3
    line = None
    if 'start' in str(must):
        line = re.fullmatch(r"'lin_([\d.e-]+)'", shown(value))
    if line:
        form = f'write {{start: {line[1]}, end: 0}}'
    else:
        form = _as_list(path, value, wanted)
    if wanted.default is PydanticUndefined or isinstance(wanted.default, BaseModel):
        if wanted.description:
            advice = f'it is the {wanted.description}'
        else:
            advice = 'change it'
    else:
        default = 'null'
        if wanted.default is not None:
            default = repr(wanted.default)
        advice = f'leave it out for {default}, the default'
    if is_whole and 'an integer' in describe(wanted.annotation):
        do = f'write {int(value)}'
    else:
        do = form or advice
    return f'{path} is {got} but must be {must}; {do}.'


def _as_list(path: str, value: Any, wanted: FieldInfo) -> str:
    """The advice for a value that is no list but could be an item of the wanted list; '' for other values."""
    if get_origin(wanted.annotation) is not list or isinstance(value, bool | list):
        return ''
    if isinstance(value, str) and ',' in value and value.isprintable():  # from the command line
        return f"write '{path}=[{value.strip('()')}]'"
    if isinstance(value, int | float | str):
        if len(shown(value)) < 60:
            return f'write {path}: [{_written(path, value)}]'
        return ''
    if not isinstance(value, dict) or path not in COMPONENTS or len(shown(value)) >= 60:
        return ''
    if 'type' in value:
        return f'write {path}: [{_flow(value)}]'
    mine = []
    others = []
    for key, inner in value.items():
        entry = look_up(str(key), inside=False)
        if key in COMPONENTS[path] and (options := _options(COMPONENTS[path].get(key))):
            mine.append(_flow({'type': key, next(iter(options)): inner}))
        elif isinstance(entry, ZooKey) and entry.path == path and entry.forms:
            mine.append(re.sub(r'\d+(?=\})', _flow(inner), entry.forms[0].removeprefix('[').removesuffix(']')))
        elif isinstance(entry, ZooKey):
            others.append(f'{entry.path}: {_flow(inner)}')
        else:
            return ''
    return 'write ' + ' and '.join([f'{path}: [{", ".join(mine)}]'] * bool(mine) + others)


def _written(path: str, value: Any) -> str:
    """Writes one item of a list; a component that has options without a default is written with these."""
    component = None
    if path in COMPONENTS and value in COMPONENTS[path]:
        component = COMPONENTS[path].get(value)
    fields = getattr(getattr(component, 'config', None), 'model_fields', {})
    missing = [name for name, field in fields.items() if field.is_required() and name != 'type']
    if missing:
        return f'{{type: {value}, {", ".join(f"{name}: .." for name in missing)}}}'
    return str(value)


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return f'{{{", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items())}}}'
    if isinstance(value, list):
        return f'[{", ".join(map(_flow, value))}]'
    return str(value)


def missing_value(path: str, field: FieldInfo) -> str:
    """The message for a missing key without a default."""
    return f'{path} is missing: give {describe(field.annotation, field.metadata)} ({field.description or "required"}).'


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Type and range of a field in words: 'a number > 0 or {start, end, over}'."""
    origin = get_origin(annotation)
    args = get_args(annotation)
    if origin is Annotated:
        inner = [m for meta in args[1:] for m in (meta.metadata if isinstance(meta, FieldInfo) else [meta])]
        return describe(args[0], [*inner, *metadata])
    if origin in (Union, types.UnionType):
        names = str in args and any(get_origin(arg) is dict for arg in args)  # it takes a component
        args = tuple(arg for arg in args if not names or get_origin(arg) is not dict)
        kinds = []
        for arg in args:
            if names and arg is str:
                kinds.append('a name or {type: name, its options}')
            elif arg is type(None):
                kinds.append(describe(arg))
            else:
                kinds.append(describe(arg, metadata))
        return ' or '.join([kind for kind in kinds if kind != 'null'] + [kind for kind in kinds if kind == 'null'])
    if origin is Literal:
        if len(args) > 1:
            return 'one of ' + ', '.join(map(repr, args))
        return repr(args[0])
    if origin is list or args[1:] == (Ellipsis,):
        return _list_of(args[0], metadata)
    return _noun(annotation, origin, args) + _range(metadata)


def _list_of(annotation: Any, metadata: Iterable[Any]) -> str:
    """A list type in words: 'a list of one or more integers >= 1'."""
    metas = list(metadata)
    least = max((getattr(m, 'min_length', None) or 0 for m in metas), default=0)
    most = max((getattr(m, 'max_length', None) or 0 for m in metas), default=0)
    number = ''
    if least == 1:
        number = 'one or more '
    elif least:
        number = f'{least} or more '
    items = re.sub(r'^(?:an? )(\w+)|^text', lambda m: f'{m[1] or "text"}s', describe(annotation))
    text = f'a list of {number}{items}'
    if most:
        text += f', at most {most}'
    return text


def _noun(annotation: Any, origin: Any, args: tuple[Any, ...]) -> str:
    simple = {
        bool: 'true or false',
        int: 'an integer',
        float: 'a number',
        str: 'text',
        type(None): 'null',
        Any: 'any value',
        dict: 'a section of your own keys',
        Callable: 'a function',
    }
    if origin is tuple:
        return f'[{", ".join(describe(a) for a in args)}]'
    fields = getattr(annotation, 'model_fields', None)
    if fields is not None:
        return f'{{{", ".join(fields)}}}'
    return simple.get(origin or annotation, getattr(origin or annotation, '__name__', str(annotation)))


def _range(metadata: Iterable[Any]) -> str:
    found = [(words, getattr(m, name, None)) for m in metadata for name, words in _RANGES.items()]
    text = ' and '.join(words.format(value) for words, value in found if value is not None)
    if text:
        return f' {text}'
    return ''


_WORDS = {str: 'string', int: 'integer', float: 'number', bool: 'boolean', dict: 'dict'}
_RANGES = {
    'gt': '> {:g}',
    'ge': '>= {:g}',
    'lt': '< {:g}',
    'le': '<= {:g}',
    'min_length': 'of length at least {}',
    'max_length': 'of length at most {}',
    'pattern': 'matching {}',
}
