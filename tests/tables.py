"""Tables of what is refused: a config or command in a line, then, indented, each sentence that is said about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from zoo.config.section import ConfigError
from zoo.run.config import resolve_config


def rows_of(table: str) -> list[Any]:
    """The parameters (given, sentences) of a test, one for each row; the line of a row is the name of its case.

    A line at the margin is given: YAML if it begins with a bracket, otherwise text. Below it '- ' begins a sentence,
    which the next lines may continue. Lines that begin with # are comments.
    """
    rows: list[tuple[str, list[str]]] = []
    for line in table.strip('\n').splitlines():
        text = line.strip()
        if line.startswith('#'):
            continue
        if not line.startswith(' '):
            rows.append((text, []))
        elif text.startswith('- '):
            rows[-1][1].append(text[2:])
        else:
            rows[-1][1][-1] += f' {text}'
    return [pytest.param(yaml.safe_load(x) if x[:1] in ('{', '[') else x, said, id=x) for x, said in rows]


def overrides_of(words: str) -> list[str]:
    """The overrides in a line; a value may have blanks inside of brackets."""
    return re.split(r' (?=[\w.]+=)', words) if words else []


def is_said(wanted: str, said: str) -> bool:
    """Whether a sentence equals the wanted one, in which each * matches any text."""
    return re.fullmatch('.*'.join(map(re.escape, wanted.split('*'))), said) is not None


def are_said(wanted: Sequence[str], said: Sequence[str]) -> bool:
    """Whether there are as many sentences as wanted, each equal to that in its place, see `is_said`."""
    return len(wanted) == len(said) and all(map(is_said, wanted, said))


def refused(source: Any, overrides: Sequence[str] = (), **top_level: Any) -> list[str]:
    """The sentences with which a config is refused; the test fails if it is not."""
    with pytest.raises(ConfigError) as error:
        resolve_config(source, overrides, **top_level)
    assert str(error.value).split('\n') == error.value.problems
    return error.value.problems
