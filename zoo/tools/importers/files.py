"""Reads configs of other libraries from files, without running them: literals of .py files, and YAML."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zoo.config.section import ConfigError
from zoo.config.yaml_io import yaml_problem


class Name(str):
    """The last word of a name in code whose value is not looked up, such as 'ReLU' for nn.ReLU."""


COMPUTED = Name('worked out when the script runs')
"""Replaces a value that the code computes when it runs."""


class Search(NamedTuple):
    """A value that a search chooses. call: its text there; kind: of the space in zoo; values: choices, or low and high."""

    call: str
    kind: str
    values: tuple[Any, ...]


SEARCHES = {
    'grid_search': 'choice',
    'choice': 'choice',
    'uniform': 'uniform',
    'quniform': 'uniform',
    'loguniform': 'log',
    'qloguniform': 'log',
    'randint': 'int',
    'lograndint': 'int',
}
"""Functions of Ray Tune that make a space of values -> the kind of such a space in `zoo sweep`."""


def as_search(value: Any) -> Any:
    """Converts a space of Ray Tune, an object or {grid_search: [..]} as in its YAML files, to a Search; else the value."""
    if isinstance(value, dict) and list(value) == ['grid_search'] and isinstance(value['grid_search'], list | tuple):
        choices = tuple(value['grid_search'])
        return Search(f'grid_search({list(choices)})', 'choice', choices)
    if type(value).__module__ != 'ray.tune.search.sample':
        return value
    if hasattr(value, 'categories'):
        return Search(f'choice({list(value.categories)})', 'choice', tuple(value.categories))
    if not hasattr(value, 'lower'):
        return COMPUTED
    kind = 'uniform'
    if 'Log' in type(value.get_sampler()).__name__:
        kind = 'log'
    elif type(value).__name__ == 'Integer':
        kind = 'int'
    return _search(f'{kind}({value.lower}, {value.upper})', kind, [value.lower, value.upper])


def _search(call: str, kind: str, arguments: Sequence[Any]) -> Search:
    """Returns the space of a call. Raises: ValueError if the arguments are not such that a space can be read."""
    if kind == 'choice':
        if not isinstance(arguments[0], list | tuple):
            raise ValueError('choices are a list')
        return Search(call, kind, tuple(arguments[0]))
    low, high, *_ = arguments
    if kind == 'int':
        high -= 1  # there the end of integers is left out
    return Search(call, kind, (low, high))


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping of a YAML 1.1 file, with anchors, merges and !!float. Raises: ConfigError."""
    try:
        data = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (yaml.YAMLError, ValueError, OSError, KeyError, RecursionError) as error:  # the last two: odd tags, nesting
        raise ConfigError(f'{path} cannot be read as YAML: {yaml_problem(error)}; correct it there.') from error
    if data is None or data == {}:
        raise ConfigError(f'{path} is empty; give a file with the keys of a config.')
    if not isinstance(data, dict):
        raise ConfigError(f'{path} holds {type(data).__name__}, not the keys of a config.')
    return data


def read_code(path: Path) -> ast.Module:
    """Returns the syntax tree of a .py file without running it. Raises: ConfigError."""
    try:
        return ast.parse(path.read_text(encoding='utf-8'), str(path))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigError(f'{path} cannot be read as Python: {error}; correct it there.') from error


def literal(node: ast.expr) -> Any:
    """Returns the value of an expression of literals, dict(...) calls and arithmetic; names become `Name`s.

    PPOConfig.overrides(..) of RLlib makes a dict, as dict(..) does.

    int() and float() of a number or a text are numbers. Raises: ValueError for any other expression.
    """
    match node:
        case ast.Call(func=ast.Name(id='int' | 'float' as name), args=[value], keywords=[]):
            return _number(name, literal(value))
        case ast.Call(func=ast.Name(id='dict') | ast.Attribute(attr='overrides'), args=[]):
            return {word.arg: literal(word.value) for word in node.keywords if word.arg}
        case ast.Call(args=[], keywords=[]):
            return literal(node.func)  # nn.Tanh() means the same activation as nn.Tanh
        case ast.Dict():
            return {literal(key): literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
        case ast.List() | ast.Tuple():
            return [literal(item) for item in node.elts]
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return Name(name)
        case ast.UnaryOp(op=ast.USub()):
            return -literal(node.operand)
        case ast.BinOp():
            return _arithmetic(node)
    return ast.literal_eval(node)


def setting(node: ast.expr) -> Any:
    """As `literal`, but an expression that it cannot read becomes COMPUTED, also as a value in a dict.

    A call that makes a space of Ray Tune, such as tune.grid_search([1, 2]), becomes a `Search`.
    """
    with suppress(ValueError, TypeError, ZeroDivisionError, OverflowError):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[_, *_]) if name in SEARCHES:
                return _search(ast.unparse(node), SEARCHES[name], [literal(value) for value in node.args])
            case ast.Call(func=ast.Name(id='dict') | ast.Attribute(attr='overrides'), args=[]):
                return _settings([(word.arg, word.value) for word in node.keywords])
            case ast.Dict():
                return _settings(
                    [(key and literal(key), value) for key, value in zip(node.keys, node.values, strict=True)]
                )
            case _:
                return literal(node)
    return COMPUTED


def _settings(pairs: Iterable[tuple[Any, ast.expr]]) -> dict[Any, Any]:
    """Returns the `setting` of each value by its key; a pair without a key is `**value`, whose keys are COMPUTED."""
    settings: dict[Any, Any] = {}
    for key, value in pairs:
        if key:
            settings[key] = setting(value)
        else:
            settings[f'**{ast.unparse(value)}'] = COMPUTED
    return settings


def is_computed(value: Any) -> bool:
    """Whether a setting, or a value in it, is COMPUTED or a Search."""
    if isinstance(value, dict):
        return any(map(is_computed, value.values()))
    return value is COMPUTED or isinstance(value, Search)


def literal_text(text: str) -> Any:
    """Returns the value of an expression given as text, such as "dict(net_arch=[64, 64])". Raises: ValueError."""
    try:
        return literal(ast.parse(text.strip(), mode='eval').body)
    except SyntaxError as error:
        raise ValueError(str(error)) from error


def fields_of_class(tree: ast.Module, name: str) -> dict[str, ast.expr]:
    """Returns the default expression of each annotated field of the class `name` that has a default."""
    defaults: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=field), value=ast.expr() as value):
                    defaults.setdefault(field, value)
    return defaults


def arguments_of_parser(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the default expression of every `add_argument('--a-b', default=...)`, by 'a_b'."""
    defaults: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr='add_argument'), args=[ast.Constant(value=str(flag)), *_]):
                default = next((word.value for word in node.keywords if word.arg == 'default'), None)
                if default is not None and flag.startswith('--'):
                    defaults.setdefault(flag.lstrip('-').replace('-', '_'), default)
    return defaults


def literals(values: Iterable[tuple[str, ast.expr]]) -> dict[str, Any]:
    """Returns for each name its first `setting` that is not COMPUTED; COMPUTED if there is none."""
    settings: dict[str, Any] = {}
    for name, value in values:
        if settings.get(name, COMPUTED) is COMPUTED:
            settings[name] = setting(value)
    return settings


def keywords_of_calls(tree: ast.Module, methods: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the `literals` of the arguments in calls of these methods. Args: methods: for each, its positional ones."""
    arguments: list[tuple[str, ast.expr]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in methods:
                arguments += zip(methods[name], node.args, strict=False)
                arguments += [_named_argument(word, node) for word in node.keywords]
    return literals(arguments)


def _named_argument(word: ast.keyword, call: ast.Call) -> tuple[str, ast.expr]:
    """Returns the name and the value of a keyword argument; of **options the call itself, which is COMPUTED."""
    if word.arg:
        return word.arg, word.value
    return f'**{ast.unparse(word.value)}', call


def assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """Returns the expressions that are assigned to a variable."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    return [node.value for node in nodes if any(getattr(target, 'id', '') == name for target in node.targets)]


def words_of(tree: ast.Module) -> set[str]:
    """Returns all names and attributes that the code uses."""
    return {getattr(node, 'id', getattr(node, 'attr', '')) for node in ast.walk(tree)}


def _number(name: str, value: object) -> int | float:
    if isinstance(value, Name) or not isinstance(value, int | float | str):
        raise ValueError('only numbers and texts become numbers')
    if name == 'int':
        return int(value)
    return float(value)


def _arithmetic(node: ast.BinOp) -> Any:
    left = literal(node.left)
    right = literal(node.right)
    if not all(type(side) in (int, float) for side in (left, right)):
        raise ValueError('only numbers are worked out')
    if type(node.op) not in _OPERATORS or (isinstance(node.op, ast.Pow) and abs(right) > 64):
        raise ValueError('not a number')
    return _OPERATORS[type(node.op)](left, right)


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
