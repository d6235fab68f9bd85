"""The form in which a checkpoint file holds a state: dicts with text keys, where states of torch have integers and lists.

A key that is an integer is written '#7', a list that holds tensors as a dict with the keys '#[0]', '#[1]', .., a text key
that begins with '#' with one more, one with a '/' as '#~' and the key with '~1' for '/' and '~0' for '~' (RFC 6901);
tuples are written, and come back, as lists.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from zoo.run.checkpoint_file import DTYPES

MAX_DIGITS = 40
_NUMBER = re.compile(rf'#(-?\d{{1,{MAX_DIGITS}}})')


def to_tree(value: Any) -> Any:
    """A state as a file holds it; what it cannot hold is left as it is.

    Raises: TypeError for an integer of more than MAX_DIGITS digits as a key.
    """
    if isinstance(value, dict):
        return {_key(key): to_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_tree(item) for item in value]
        return {f'#[{i}]': item for i, item in enumerate(items)} if any(map(_has_tensor, items)) else items
    return value


def from_tree(value: Any) -> Any:
    """The state that a file holds."""
    if isinstance(value, list):
        return [from_tree(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, str) and key == f'#[{i}]' for i, key in enumerate(value)):
        return [from_tree(item) for item in value.values()]
    return {_unkey(key): from_tree(item) for key, item in value.items()}


def split(state: dict[str, Any], prefix: str = '') -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by path, and the state with None in their places, which keeps the order of keys."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(key, str) or not key or '/' in key or key == '__metadata__':
            raise TypeError(f'state has the key {key!r} under {prefix!r}; use a non-empty string without "/"')
        values[key] = None
        if isinstance(value, Tensor):
            if value.dtype not in DTYPES:
                raise TypeError(
                    f'state {prefix}{key} has dtype {value.dtype}, which a checkpoint cannot hold; convert it'
                )
            tensors[prefix + key] = value
        elif isinstance(value, dict):
            inner, values[key] = split(value, f'{prefix}{key}/')
            tensors |= inner
        else:
            check_json(value, f'state {prefix}{key}')
            values[key] = value
    return tensors, values


def check_json(value: Any, where: str) -> None:
    """Raises: TypeError if something is no JSON value."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            check_json(item, f'{where}[{i}]')
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            check_json(item, f'{where}/{key}')
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(
            f'{where} is of type {type(value).__name__}; a checkpoint holds tensors, numbers, strings, '
            'None, lists, and dicts with string keys; convert it'
        )


def is_numbered(value: Any) -> bool:
    """Whether it is a dict with integers as keys, such as the state that torch.optim keeps for each parameter."""
    return isinstance(value, dict) and bool(value) and all(type(key) is int for key in value)


def _key(key: Any) -> Any:
    if type(key) is int:
        if abs(key) >= 10**MAX_DIGITS:
            raise TypeError(f'state has an integer of more than {MAX_DIGITS} digits as a key; use a text')
        return f'#{key}'
    if isinstance(key, str) and '/' in key:
        return '#~' + key.replace('~', '~0').replace('/', '~1')
    return f'#{key}' if isinstance(key, str) and key.startswith('#') else key


def _unkey(key: Any) -> Any:
    if isinstance(key, str) and (number := _NUMBER.fullmatch(key)):
        return int(number[1])
    if isinstance(key, str) and key.startswith('#~'):
        return key[2:].replace('~1', '/').replace('~0', '~')
    return key[1:] if isinstance(key, str) and key.startswith('##') else key


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor)
