"""`Policy.with_updates`: a policy from another one, with other methods and other defaults, without a class statement."""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from abc import ABC
from collections.abc import Mapping
from typing import Any

from zoo.config.messages import shown
from zoo.config.section import Section, fields_of, plain, validate, with_defaults
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY, closest

KINDS = staticmethod, classmethod, property


def updated_class(base: type, name: str, config: Any, methods: Mapping[str, Any]) -> Any:
    """A registered subclass, see `Policy.with_updates`; its module is that of the caller's caller."""
    if not isinstance(name, str) or not name:
        raise UserError(
            f'with_updates got {shown(name)} as a name but must get a non-empty text, e.g. {base.__name__!r}'
        )
    body = {key: _like(base, key, value) for key, value in methods.items() if key != '__doc__'}
    caller = sys._getframe(2)
    module = caller.f_globals.get('__name__', '?')
    body |= {'config': _section(base, name, config), '__module__': module, '__qualname__': name}
    new = type(base)(
        name, (base,), {'__reduce_ex__': _reduced, **body, '__doc__': methods.get('__doc__', base.__doc__)}
    )
    POLICY_REGISTRY._add(name, new, f'{module}:{caller.f_lineno}')
    return new


def _reduced(self: Any, protocol: Any) -> Any:
    """As of every object, but the class is found by its registered name: the module may call it otherwise, or not at all."""
    reduced: Any = object.__reduce_ex__(self, protocol)
    cls = type(self)
    is_made_here = vars(cls).get('__reduce_ex__') is _reduced  # not so for a class statement below such a class
    if not is_made_here or reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return reduced
    return _new, (cls.__module__, cls.__name__), *reduced[2:]


def _new(module: str, name: str) -> Any:
    """An object of the class that `module` registered under `name`, without a state yet."""
    importlib.import_module(module)
    cls = POLICY_REGISTRY.get(name)
    return cls.__new__(cls)


def _like(base: type, key: str, value: Any) -> Any:
    """The value as the kind of attribute that the base has under this name."""
    known = sorted(
        {name for each in base.__mro__ if each not in (object, ABC) for name in vars(each) if not name.startswith('__')}
        - {'_abc_impl', 'with_updates', 'config'}
    )
    if key not in known:
        close = closest(key, known)
        words = f'did you mean {" or ".join(map(repr, close))}?' if close else f'there are {", ".join(known)}.'
        raise UserError(f'{base.__name__} has no method {key!r}, so nothing would call it: {words}')
    kept = inspect.getattr_static(base, key)
    is_method = callable(kept) or isinstance(kept, KINDS)
    if isinstance(value, KINDS):
        return value
    if is_method != callable(value):
        wanted = 'a function' if is_method else f'a value like {shown(kept)}'
        raise UserError(f'{key} is {shown(value)} but {base.__name__}.{key} is {wanted}; give one')
    return next((kind(value) for kind in KINDS if isinstance(kept, kind)), value)


def _section(base: Any, name: str, config: Any) -> type[Section]:
    """The section of a policy with other defaults; its default type is `name`."""
    if isinstance(config, type) and issubclass(config, base.config):
        return config
    if config is not None and not isinstance(config, dict):
        raise UserError(
            f'config is {shown(config)} but must be a dict of defaults, or a class derived from {base.config.__name__}'
        )
    data = {**plain(config or {}), 'type': name}
    if 'model' in data:
        raise UserError(
            'config has defaults for model, whose fields depend on its type; give default_model=lambda cls: name, and the '
            'rest in the config of a run'
        )
    validate(base.config, data, 'policy', [path for path, _ in fields_of(base.config, 'policy')])
    return with_defaults(base.config, data)
