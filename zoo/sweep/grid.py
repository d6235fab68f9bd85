"""Several runs on the command line: `--seeds 5`, and lists of values, `seed=0..4 policy.learn.learning_rate=1e-3,3e-4`."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from zoo.config.override import parse_value, split_override
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.sweep.spaces import parts_of_text

MAX_RUN = 1_000
MAX_NAME = 100  # characters of the name of a folder
_RANGE = re.compile(r'(-?\d+)\.\.(-?\d+)')
_NEARLY_RANGE = re.compile(r'(\d+)(?:\.{3,}|-|:)(\d+)')  # of seeds, as others write it
TEXT_KEYS = ('exp_name', 'logger.root')
"""Keys whose value is one text, commas included."""


class Member(NamedTuple):
    """One run of a grid.

    values: the keys that have several values, with the value of this run; name: of its folder, 'seed0_batch_size=64'.
    """

    values: dict[str, str]
    name: str

    @property
    def overrides(self) -> list[str]:
        """The values as overrides."""
        return [f'{key}={text}' for key, text in self.values.items()]


def grid_of(texts: Sequence[str], seeds: int | None = None, first_seed: int = 0) -> tuple[list[Member], list[str]]:
    """All combinations of the values that keys have, seeds last; and the overrides that have one value.

    Args: texts: overrides, of which the last one of a key counts; '1..5' and 'a,b' are several values, but for commas inside
      of brackets or quotes; seeds: that many, from first_seed on.
    Returns: one member without values where nothing has several. Raises: ConfigError, also for a key with several values twice,
      which may be meant together; UserError.
    """
    several: dict[str, list[str]] = {}
    fixed: list[str] = []
    for text in texts:
        key, raw = split_override(text)
        values = [raw] if key in TEXT_KEYS else _values(key, raw)
        if len(values) == 1:
            several.pop(key, None)
            fixed.append(f'{key}={values[0]}')
        elif key in several:
            raise ConfigError(f'{key} has several values twice; give them once.')
        else:
            fixed = [one for one in fixed if split_override(one)[0] != key]
            several[key] = values
    _add_seeds(several, fixed, seeds, first_seed)
    n_run = math.prod(map(len, several.values()))
    if n_run > MAX_RUN:
        raise UserError(
            f'these values make {n_run:,} runs but at most {MAX_RUN:,} are trained by one command; give fewer'
        )
    keys = sorted(several, key=lambda key: key == 'seed')
    chosen = itertools.product(*(several[key] for key in keys))
    return _with_own_names([_member(dict(zip(keys, values, strict=True))) for values in chosen]), fixed


def _with_own_names(members: list[Member]) -> list[Member]:
    """Members whose names differ, also where a file system ignores case, and are short enough for one."""
    n_use = Counter(member.name.casefold() for member in members)
    return [
        member._replace(name=f'{member.name[:MAX_NAME]}-{_digest(member)}')
        if n_use[member.name.casefold()] > 1 or len(member.name) > MAX_NAME
        else member
        for member in members
    ]


def _digest(member: Member) -> str:
    return hashlib.sha256(repr(sorted(member.values.items())).encode()).hexdigest()[:8]


def _add_seeds(several: dict[str, list[str]], fixed: list[str], seeds: int | None, first_seed: int) -> None:
    if seeds is None:
        return
    if 'seed' in several:
        raise UserError(f'--seeds {seeds} and seed={",".join(several["seed"])} both name seeds; give one of them')
    if seeds < 1:
        raise UserError(f'--seeds is {seeds} but must be 1 or more; e.g. --seeds 5')
    fixed[:] = [text for text in fixed if split_override(text)[0] != 'seed']
    several['seed'] = [str(first_seed + i) for i in range(seeds)]


def _values(key: str, raw: str) -> list[str]:
    """The values of a text. Raises: ConfigError for a list or range that has none, or one of them twice."""
    if found := _RANGE.fullmatch(raw):
        low, high = map(int, found.groups())
        if high < low:
            raise ConfigError(f'{key}={raw} counts down, which has no values; write {key}={high}..{low}.')
        if high - low >= MAX_RUN:
            raise ConfigError(
                f'{key}={raw} has {high - low + 1:,} values; at most {MAX_RUN:,} runs are trained by one command.'
            )
        return [str(i) for i in range(low, high + 1)]
    if key == 'seed' and (found := _NEARLY_RANGE.fullmatch(raw)):
        raise ConfigError(f'{key}={raw} is no range; write {key}={found[1]}..{found[2]}.')
    values = [part.strip() for part in parts_of_text(raw)]
    if len(values) > 1 and not all(values):
        there = ','.join(value for value in values if value)
        raise ConfigError(f'{key}={raw} has an empty value; there are no spaces around commas: {key}={there}.')
    _refuse_equal(key, raw, values)
    return values


def _refuse_equal(key: str, raw: str, values: list[str]) -> None:
    """Raises: ConfigError for a value that is there twice, maybe written in two ways: 1e-3,0.001."""
    if len(values) == 1:
        return
    first: dict[str, str] = {}  # as it is written, by its meaning
    pairs = [(first.setdefault(_meaning(value), value), value) for value in values]
    if len(first) < len(values):
        ways = ', '.join(f'{one} and {other} are equal' for one, other in pairs if one != other)
        raise ConfigError(
            f'{key}={raw} has a value twice{f" ({ways})" if ways else ""}; write {key}={",".join(first.values())}.'
        )


def _meaning(text: str) -> str:
    """A text that is the same for all ways to write one value."""
    value = parse_value(text)
    if value == text:
        with suppress(ValueError):  # YAML takes 00 for a text, a key that is a number does not
            value = float(text)
    return repr(_plain_number(value))


def _plain_number(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [_plain_number(part) for part in value] if isinstance(value, list) else value


def _member(values: dict[str, str]) -> Member:
    words = [f'{key.rpartition(".")[2]}={text}' for key, text in values.items() if key != 'seed']
    name = '_'.join([f'seed{values["seed"]}' if 'seed' in values else '', *words]).strip('_')
    return Member(values, re.sub(r'[^\w.=+-]+', '-', name))
