"""Overrides from the command line: 'a.b.c=value', read by the type of the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from zoo.config.section import ConfigError, plain
from zoo.config.yaml_text import parse_yaml


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
        value = plain(parse_yaml(raw))
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
