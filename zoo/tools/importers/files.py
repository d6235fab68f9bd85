"""Reads configs of other libraries from files, without running them: literals of .py files, and YAML."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from zoo.config.section import ConfigError


class Name(str):
    """A name in code that stands for itself, such as nn.ReLU: its last word."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML 1.1 file, with anchors, merges and !!float. Raises: ConfigError."""
    try:
        data = yaml.safe_load(path.read_text(encoding='utf-8'))
    except (yaml.YAMLError, ValueError, OSError, KeyError, RecursionError) as error:  # the last two: odd tags, depths
        raise ConfigError(
            f'{path} cannot be read as YAML: {" ".join(str(error).split())}; correct it there.'
        ) from error
    if data is None:
        raise ConfigError(f'{path} is empty; give a file with the keys of a config.')
    if not isinstance(data, dict):
        raise ConfigError(f'{path} holds {type(data).__name__}, not the keys of a config.')
    return data


def read_code(path: Path) -> ast.Module:
    """The syntax tree of a .py file, which is not run. Raises: ConfigError."""
    try:
        return ast.parse(path.read_text(encoding='utf-8'), str(path))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigError(f'{path} cannot be read as Python: {error}; correct it there.') from error


def literal(node: ast.expr) -> Any:
    """The value of an expression of literals, dict(...) calls and arithmetic; names become `Name`s.

    Raises: ValueError for any other expression.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict' and not node.args:
        return {word.arg: literal(word.value) for word in node.keywords if word.arg}
    if isinstance(node, ast.Dict):
        return {literal(key): literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List | ast.Tuple):
        return [literal(item) for item in node.elts]
    if isinstance(node, ast.Attribute):
        return Name(node.attr)
    if isinstance(node, ast.Name):
        return Name(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -literal(node.operand)
    if isinstance(node, ast.BinOp):
        return _arithmetic(node)
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return literal(node.func)  # nn.Tanh() is the activation that nn.Tanh is
    return ast.literal_eval(node)


def literal_text(text: str) -> Any:
    """The value of the text of an expression, such as "dict(net_arch=[64, 64])". Raises: ValueError."""
    try:
        return literal(ast.parse(text.strip(), mode='eval').body)
    except SyntaxError as error:
        raise ValueError(str(error)) from error


def fields_of_class(tree: ast.Module, name: str) -> dict[str, ast.expr]:
    """The default of each annotated field of the class `name` that has one."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    found: dict[str, ast.expr] = {}
    for item in (item for node in classes for item in node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            found.setdefault(item.target.id, item.value)
    return found


def arguments_of_parser(tree: ast.Module) -> dict[str, ast.expr]:
    """The default of every `add_argument('--a-b', default=...)`, by 'a_b'."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and getattr(node.func, 'attr', '') == 'add_argument' and node.args):
            continue
        flag = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        value = next((word.value for word in node.keywords if word.arg == 'default'), None)
        if isinstance(flag, str) and flag.startswith('--') and value is not None:
            found.setdefault(flag.lstrip('-').replace('-', '_'), value)
    return found


def literals(values: Mapping[str, ast.expr]) -> dict[str, Any]:
    """The values that are literals; one that is worked out when the code runs, such as the name of the file, is left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        _keep(found, name, value)
    return found


def keywords_of_calls(tree: ast.Module, methods: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The literal keyword arguments of the calls of these methods; their positional ones by the names given."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        name = getattr(node.func, 'attr', getattr(node.func, 'id', '')) if isinstance(node, ast.Call) else ''
        if not isinstance(node, ast.Call) or name not in methods:
            continue
        for key, value in zip(methods[name], node.args, strict=False):
            _keep(found, key, value)
        for word in node.keywords:
            if word.arg:
                _keep(found, word.arg, word.value)
    return found


def words_of(tree: ast.Module) -> set[str]:
    """All names and attributes that the code uses."""
    return {getattr(node, 'id', getattr(node, 'attr', '')) for node in ast.walk(tree)}


def _keep(found: dict[str, Any], key: str, value: ast.expr) -> None:
    with suppress(ValueError, TypeError, ZeroDivisionError):  # of what is worked out when the code runs
        found.setdefault(key, literal(value))


def _arithmetic(node: ast.BinOp) -> Any:
    left, right = literal(node.left), literal(node.right)
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
