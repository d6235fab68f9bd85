"""Overrides: their syntax, and values parsed by the type of the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import Field

from zoo.config.schedule import Schedule
from zoo.config.section import ConfigError, Section
from zoo.config.source import parse_value, split_override


class Typed(Section):
    rate: Schedule = 1e-3
    size: int = Field(3, ge=1)
    share: float = 0.5
    text: str = 'a'
    maybe: str | None = None
    limit: float | None = 0.5
    flag: bool = True
    mode: Literal['off', 'batch'] = 'off'
    sizes: list[int] = []
    anything: Any = None
    id: str | Callable[..., Any] = 'a'
    free: dict[str, Any] = {}


@pytest.mark.parametrize(
    'text, parts',
    [
        ('seed=1', ('seed', '1')),
        ('a.b.c=x=y', ('a.b.c', 'x=y')),
        ('--seed=1', ('seed', '1')),
        ('a = ', ('a', '')),
    ],
)
def test_split_override(text, parts):
    assert split_override(text) == parts


@pytest.mark.parametrize('text', ['seed', '=1', 'a..b=1', '.a=1', 'a.=1', ''])
def test_split_override_of_another_form_says_the_form(text):
    with pytest.raises(ConfigError, match='is not key=value; write e.g. policy.learn.learning_rate=1e-3'):
        split_override(text)


@pytest.mark.parametrize(
    'key, raw, value',
    [
        ('rate', '1e-3', 1e-3),
        ('rate', '1', 1),
        ('rate', '{start: 1e-3, end: 0}', {'start': 1e-3, 'end': 0}),
        ('rate', '{points: [[0, 1e-3], [1e5, 0.]]}', {'points': [[0, 1e-3], [1e5, 0.0]]}),
        ('size', '7', 7),
        ('size', '1e6', 10**6),
        ('size', '100_000', 100_000),
        ('share', '1e6', 1e6),
        ('text', '3', '3'),
        ('text', 'none', 'none'),
        ('text', 'on', 'on'),
        ('text', '[1,', '[1,'),
        ('text', '', ''),
        ('text', '# a', '# a'),
        ('text', 'a: b', 'a: b'),
        ('maybe', 'none', None),
        ('maybe', 'null', None),
        ('maybe', 'no', 'no'),
        ('limit', 'None', None),
        ('limit', '3', 3),
        ('flag', 'true', True),
        ('flag', 'False', False),
        ('flag', 'off', False),
        ('flag', 'yes', True),
        ('mode', 'off', 'off'),
        ('sizes', '[32, 32]', [32, 32]),
        ('anything', 'none', None),
        ('anything', '1e-3', 1e-3),
        ('anything', 'abc', 'abc'),
        ('id', 'CartPole-v1', 'CartPole-v1'),
        ('id', 'a:b', 'a:b'),
        ('free', '{a: {b: 1e-3}}', {'a': {'b': 1e-3}}),
        # a value that does not fit the type is passed on, and validation refuses it
        ('size', '2.5', 2.5),
        ('size', 'x', 'x'),
        ('size', 'true', True),
        ('rate', '0', 0),
        ('rate', '-1', -1),
    ],
)
def test_parse_value_is_typed_by_the_field(key, raw, value):
    got = parse_value(raw, Typed.model_fields[key])
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize('raw', ['[' * 400, '{a: ' * 400, '1' * 10_000, '!!int x', '!!bool x', '*a'])
def test_parse_value_that_is_no_yaml_is_text(raw):
    assert parse_value(raw, Typed.model_fields['size']) == raw


@pytest.mark.parametrize('raw', ['&a [*a]', '{b: &a {c: *a}}'])
def test_parse_value_that_contains_itself_says_so(raw):
    with pytest.raises(ConfigError, match='the config contains itself'):
        parse_value(raw, Typed.model_fields['free'])


@pytest.mark.parametrize('raw', ['/data/run #2', '&a b', 'a\nb', '|', '# a'])
def test_parse_value_of_plain_text_is_all_of_it(raw):
    assert parse_value(raw, Typed.model_fields['text']) == parse_value(raw, Typed.model_fields['maybe']) == raw
    assert parse_value(raw) == raw
    assert parse_value(f"'{raw}'", Typed.model_fields['text']) == raw.replace('\n', ' ')


def test_parse_value_without_a_field_reads_yaml():
    assert [parse_value(raw) for raw in ('none', '1e-3', '3', 'abc', '[1, a]')] == [None, 1e-3, 3, 'abc', [1, 'a']]
