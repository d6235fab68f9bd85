"""Common parts of the config translators: tables of keys, the draft, the result, readers of values, and the env."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import gymnasium

from zoo.config.names import look_up
from zoo.config.section import ConfigError, has_key, put_at, value_at
from zoo.core.errors import join_path, shown
from zoo.env.ids import game_of, installed_by, package_of, versions_of
from zoo.tools.importers.files import COMPUTED, Name, Search, as_search, is_computed

EXAMPLES = {'atari': 'Pong', 'procgen': 'coinrun'}
"""Family -> one of its games. In rl-zoo3 a block with the name of a family is for all its games."""


class Conversion(NamedTuple):
    """A translated config of another library, with the translation of each key.

    config: for `serial_pipeline`; became: pairs (key and value there, key and value here); left_out: pairs (key and value
    there, why it has no counterpart and what to do instead); source: the library, and how it was recognised.
    """

    config: dict[str, Any]
    became: list[tuple[str, str]]
    left_out: list[tuple[str, str]]
    source: str = ''

    def text(self) -> str:
        """Returns a line with the library, then a line for each key that was translated or left out."""
        lines = []
        if self.source:
            lines.append(f'read as {self.source}')
        lines += [f'{old}  ->  {new}' for old, new in self.became]
        lines += [f'{old}  left out: {why}' for old, why in self.left_out]
        return '\n'.join(lines)


class PartlyTranslatedError(ConfigError):
    """Problems of a config; its attribute `conversion` has the part that could be translated."""

    conversion: Conversion


class Draft:
    """An unfinished translation: the config of zoo, the translation of each key, and all problems.

    Attributes:
      parts: values that the translator must combine, by the path of their key in the other library.
      unreadable: whether a value could not be read, so that values that depend on it cannot be computed.
    """

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.became: list[tuple[str, str]] = []
        self.left_out: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.parts: dict[str, Any] = {}
        self.unreadable = False

    def put(self, path: str, value: Any, old: str = '', note: str = '') -> None:
        """Sets a key of zoo. Args: old: text about its origin, '' for none; note: a remark on the translation."""
        put_at(self.config, path, value)
        if not old:
            return
        new = f'{path}={_short(value)}'
        if note:
            new += f' ({note})'
        self.became.append((old, new))

    def at(self, path: str, default: Any = None) -> Any:
        """Returns the value of a key of zoo that was set before, else the default."""
        value = value_at(self.config, path)
        if value is None:
            return default
        return value

    def drop(self, old: str, why: str) -> None:
        """Leaves out a key whose value does not change the learning, or which zoo determines by itself."""
        self.left_out.append((old, why))

    def refuse(self, sentence: str) -> None:
        """Adds a problem, because of which the config cannot be trained as intended."""
        self.problems.append(sentence)

    def finish(self, source: str) -> Conversion:
        """Returns the result. Raises: PartlyTranslatedError with all problems, one on each line."""
        conversion = Conversion(self.config, self.became, self.left_out, source)
        if self.problems:
            error = PartlyTranslatedError(self.problems)
            error.conversion = conversion
            raise error
        return conversion


class KeyRow(NamedTuple):
    """The translation rule of one key; the YAML files of the tables explain the kinds.

    read: converts a value of the other library to zoo's; raises ValueError if it cannot.
    """

    kind: Literal['to', 'part', 'out', 'only']
    here: str
    note: str
    page: str
    accepted: tuple[Any, ...]
    read: Callable[[Any], Any]

    def apply(self, draft: Draft, path: str, value: Any, origin: str = '') -> None:
        """Puts, drops or refuses one key. Args: path: its path there; origin: a remark on a value that is a default."""
        old = path
        if value is not COMPUTED:
            old = f'{path}={_short(value)}{origin}'
        try:
            new = self.read(value)
        except ValueError as error:
            draft.unreadable = True
            draft.refuse(_unreadable(path, value, error))
            return
        if self.kind == 'part':
            draft.parts[path] = new
        elif self.kind == 'to':
            draft.put(self.here, new, old, self.note)
        elif self.kind == 'out':
            draft.drop(old, self.note)
        elif any(value == item and type(value) is type(item) for item in self.accepted):
            draft.drop(old, 'that is how it is here')
        else:
            draft.refuse(f'{path} is {shown(value)}, which has no counterpart here: {self.note}.')

    def shown(self) -> str:
        """Returns the text of this row for a table of the docs."""
        match self.kind:
            case 'out':
                return self.note
            case 'only' if self.accepted:
                return f'only {" or ".join(map(repr, self.accepted))}: {self.note}'
            case 'only':
                return f'refused: {self.note}'
        remarks = '; '.join(filter(None, (self.note, self.page)))
        if remarks:
            return f'`{self.here}`: {remarks}'
        return f'`{self.here}`'


def _unreadable(path: str, value: object, error: ValueError) -> str:
    if isinstance(value, Name) and 'number' in str(error):
        return f'{path} is {value}, a name in the code, which cannot be read: {error}; give it a plain value.'
    return f'{path} is {shown(value)}, which cannot be read: {error}; correct it.'


def rows_of(table: Mapping[str, Mapping[str, Any]], **readers: Callable[[Any], Any]) -> dict[str, KeyRow]:
    """Returns the rows of a table from a file, by dotted path. Args: readers: additional readers to those of READERS."""
    known_readers = {**READERS, **readers}
    rows = {}
    for path, entry in table.items():
        kind: Any = next(kind for kind in ('to', 'part', 'out', 'only') if kind in entry)
        here = ''
        note = entry.get('why', entry.get('note', ''))
        if kind == 'out':
            note = entry['out']
        elif kind != 'only':
            here = entry[kind]
        value = entry.get('value', 'as it is')
        if isinstance(value, list):
            read = _either(*value)
        else:
            read = known_readers[value]
        accepted = tuple(entry.get('only', ()))
        rows[path] = KeyRow(kind, here=here, note=note, page=entry.get('page', ''), accepted=accepted, read=read)
    return rows


def _either(if_true: Any, if_false: Any) -> Callable[[Any], Any]:
    return lambda value: if_true if value else if_false


def translate(draft: Draft, rows: Mapping[str, KeyRow], data: Mapping[str, Any], who: str, path: str = '') -> None:
    """Applies the row of each key in nested `data`; a key without a row is a problem.

    Args: rows: by dotted path; 'a.b.*' is for all keys of a.b without a row of their own. who: name for messages: 'DI-engine'.
    """
    for key, raw in data.items():
        key_path = join_path(path, str(key))
        value = as_search(raw)
        row = rows.get(key_path)
        has_inner = any(name.startswith(f'{key_path}.') for name in rows)
        if row is None and has_inner and isinstance(value, Mapping):
            translate(draft, rows, value, who, key_path)
            continue
        if isinstance(value, Search):
            draft.refuse(_search_sentence(row, key_path, value))
            continue
        if is_computed(value) and (has_inner or (row is not None and row.kind != 'out')):
            draft.refuse(f'{key_path} is worked out when the script runs; give it a plain value in the script.')
            continue
        if row is None and path:
            row = rows.get(f'{path}.*')
        if row is not None:
            row.apply(draft, key_path, value)
        else:
            draft.refuse(_unknown_key(key_path, value, who))


def _unknown_key(path: str, value: object, who: str) -> str:
    entry = look_up(path, inside=False)
    if entry:
        return f'{path} is {shown(value)}: {entry.sentence()}'
    return f'{path} is {shown(value)}, which is no key of {who} that this translation knows; take it out of the config.'


def _search_sentence(row: KeyRow | None, path: str, search: Search) -> str:
    """Returns the sentence about a key for which a search chooses a value: how `zoo sweep` does it."""
    request = f'{path} is {search.call}, a space of values; give it one value'
    if row is None or row.kind not in ('to', 'part'):
        return f'{request}.'
    values = search.values
    if row.kind == 'to':
        values = tuple(map(row.read, values))
    space = ','.join(map(str, values))
    if search.kind != 'choice':
        space = f'{search.kind}({space})'
    return f"{request}, and try the others with zoo sweep CONFIG '{row.here}={space}'."


def defaults(draft: Draft, rows: Mapping[str, KeyRow], values: Mapping[str, Any], data: Any, who: str) -> None:
    """Applies the library's own defaults, by dotted path, to the keys that nested `data` leaves out."""
    for path, value in values.items():
        if not has_key(data, path) and (rows[path].kind != 'to' or draft.at(rows[path].here) is None):
            rows[path].apply(draft, path, value, f" ({who}'s default)")


def nearest_divisor(n: int, wanted: int, multiple: int = 1) -> int:
    """Returns the divisor of n whose ratio to `wanted` is closest to 1, the larger of two; `wanted` for n above 10^12.

    Args: multiple: a divisor of n, of which the result is a multiple.
    """
    if n > 10**12:
        return wanted
    n_part = n // multiple
    small = [d for d in range(1, int(n_part**0.5) + 1) if n_part % d == 0]
    large = [n_part // d for d in small]
    divisors = [d * multiple for d in [*small, *large]]
    return min(divisors, key=lambda d: (max(d / wanted, wanted / d), -d))


def linear(value: Any, end: float = 0.0) -> dict[str, float]:
    """Returns a linear schedule from `value` to `end` over the run."""
    return {'start': as_number(value), 'end': end}


def as_number(value: Any) -> float:
    """Converts a number or its text, such as '1e-3', to a float. Raises: ValueError."""
    with suppress(ValueError, TypeError, OverflowError):
        number = float(value)
        if not isinstance(value, bool) and not math.isnan(number):
            return number
    raise ValueError('it must be a number')


def as_positive(value: object) -> float:
    """As `as_number`, above 0. Raises: ValueError."""
    if as_number(value) <= 0:
        raise ValueError('it must be a number above 0')
    return as_number(value)


def number_or_none(value: object) -> float | None:
    """As `as_number`; None for None. Raises: ValueError."""
    if value is None:
        return None
    return as_number(value)


def as_count(value: object) -> int:
    """Converts 1e6, 1000000.0 or '1e6' to an integer >= 0. Raises: ValueError."""
    number = as_number(value)
    if not number.is_integer() or number < 0:
        raise ValueError('it must be a whole number of 0 or more')
    return int(number)


def as_size(value: object) -> int:
    """As `as_count`, for integers >= 1. Raises: ValueError."""
    if as_number(value) < 1:
        raise ValueError('it must be a whole number of 1 or more')
    return as_count(value)


def sizes(value: object) -> list[int]:
    """A list of widths. Raises: ValueError."""
    if not isinstance(value, list | tuple):
        raise ValueError('it must be a list of whole numbers')
    return [as_size(item) for item in value]


def mapping(value: object) -> dict[str, Any]:
    """A dict; {} for None. Raises: ValueError."""
    if not isinstance(value, Mapping | None):
        raise ValueError('it must be a dict')
    return dict(value or {})


def one_of(names: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Returns a reader from a name, a class or its instance, in any case, to the entry of the name; ValueError for others."""

    def read(value: Any) -> Any:
        name = value
        if not isinstance(value, str):
            name = getattr(value, '__name__', type(value).__name__)
        name = name.rpartition('.')[2].lower()
        if name not in names:
            raise ValueError(f'it must be one of {", ".join(names)}')
        return names[name]

    return read


READERS: dict[str, Callable[[Any], Any]] = {
    'as it is': lambda value: value,
    'number': as_number,
    'positive': as_positive,
    'number_or_none': number_or_none,
    'count': as_count,
    'size': as_size,
    'sizes': sizes,
    'mapping': mapping,
    'twice': lambda value: 2 * as_number(value),
    'activation': one_of({**{name: name for name in ('tanh', 'relu', 'elu', 'gelu', 'silu')}, 'swish': 'silu'}),
}
"""Readers of values by their names in tables."""


def _short(value: object) -> str:
    name = getattr(value, '__name__', None)
    if name:
        return name
    if callable(value):
        return type(value).__name__
    return shown(value, 100)


def put_env(draft: Draft, name: object, old: str, if_none: str = '') -> None:
    """Sets env.id (for a game also env.game) from a gym id, an Atari id, or the name of a Procgen game.

    An id whose version gymnasium no longer has gets the newest version.
    Args: old: text about its origin; if_none: the problem to add if the name is not a string.
    """
    if not isinstance(name, str):
        draft.refuse(if_none)
        return
    spec = gymnasium.registry.get(name)
    game = None
    if spec is None or 'ale_py' in str(spec.entry_point):  # an id that others registered is no game
        game = game_of(name)
    if name in EXAMPLES:
        note = f'it has many games: name one with env.game, e.g. zoo train .. env.game={EXAMPLES[name]}'
        draft.put('env.id', name, old, note)
    elif game is None:
        registered, note = _registered(name)
        draft.put('env.id', registered, old, note)
    elif game.is_ram:
        draft.refuse(f'{old}: {game.sentence()}')
    else:
        note = ''
        if game.family == 'atari':
            note = 'with the usual wrappers, see the extra atari'
        draft.put('env.id', game.family, old, note)
        draft.put('env.game', game.name, old)


def is_image_env(draft: Draft) -> bool:
    """Whether the env is of a family whose observations are images."""
    return draft.at('env.id') in ('atari', 'procgen')


def _registered(name: str) -> tuple[str, str]:
    """Returns the id, or its newest registered version, and a note if the version changed or the id is unknown."""
    versions = [spec.id for spec in versions_of(name)]
    if name in versions or ':' in name:
        return name, ''
    package = package_of(name)
    if package is not None:
        return f'{package}:{name}', f'the package {package} registers it: {installed_by(package)}'
    if not versions:
        return name, 'gymnasium does not know it: import the package that registers it, zoo train --import'
    return versions[-1], f'the newest version; gymnasium has no {name}'


def put_frame_stack(draft: Draft, n: object, old: str, is_filled: bool = True) -> None:
    """Sets the number of frames in an observation. Args: is_filled: there, copies of an episode's first frame come first."""
    if draft.at('env.id') == 'atari':
        draft.put('env.kwargs.frame_stack', n, old)
    elif n not in (None, 0, 1):
        note = 'an episode begins with zeros in the window'
        if is_filled:
            note += ', there with copies of its first frame'
        draft.put('env.window', n, old, note)


def is_continuous(draft: Draft) -> bool | None:
    """Whether the env has real-valued actions; None if it is not one of gymnasium's own, or cannot be made."""
    spec = gymnasium.registry.get(str(draft.at('env.id')))
    if spec is None or not str(spec.entry_point).startswith('gymnasium.envs.'):
        return False if is_image_env(draft) else None
    # arguments that it does not take; a package is missing
    with suppress(gymnasium.error.Error, TypeError, ImportError):
        env = gymnasium.make(spec, **draft.at('env.kwargs', {}))
        env.close()
        return isinstance(env.action_space, gymnasium.spaces.Box)
    return None
