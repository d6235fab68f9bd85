"""Config keys of other libraries: each with the key of zoo, another way to do it in zoo, or why zoo has none.

`look_up` finds their entries, which are data, in names.yaml. A name may be the end of a path, such as 'env.type', if its
last word alone means different things in different sections.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml


class ZooKey(NamedTuple):
    """A key of zoo with the same meaning.

    path: its dotted path; forms: how its value is written, '..' for a number; note: a factor or a limit, '' for none.
    """

    path: str
    forms: tuple[str, ...] = ()
    note: str = ''

    def sentence(self) -> str:
        """The end of a message: 'in zoo it is ...'."""
        written = ''
        if self.forms:
            written = f', written {" or ".join(self.forms)}'
        return f'in zoo it is `{self.path}`{written}{f"; {self.note}" if self.note else ""}.'


class NoZooKey(NamedTuple):
    """A setting for which zoo has no key: another way to do it, or why there is none and what to do instead."""

    words: str

    def sentence(self) -> str:
        """The end of a message: 'in zoo ...', or 'zoo has no such key: ...'."""
        return f'{self.words}.'


Entry = ZooKey | NoZooKey


def look_up(path: str, inside: bool = True) -> Entry | None:
    """Finds the entry of a key of another library; None if the name is unknown. Case is ignored.

    The longest end of the path that has an entry counts: of 'evaluator.eval_freq' first the whole, then 'eval_freq'.
    Args: inside: if no end of the path is known, return the entry of the section that contains the key.
    """
    keys = path.lower().split('.')
    stops = [len(keys)]
    if inside:
        stops = list(range(len(keys), 0, -1))
    entries = (_entry_of_end(keys[:stop], stop) for stop in stops)
    return next((entry for entry in entries if entry is not None), None)


def in_context(path: str) -> Entry | None:
    """Finds the entry of an end of the path with two or more words. It counts even if zoo has a key named like the last."""
    keys = path.lower().split('.')
    return _entry_of_end(keys, len(keys) - 1)


def _entry_of_end(keys: list[str], n_start: int) -> Entry | None:
    ends = ('.'.join(keys[start:]) for start in range(n_start))
    return next((names()[end] for end in ends if end in names()), None)


@cache
def names() -> dict[str, Entry]:
    """Returns {key of another library, or the end of its path, in lower case: its entry}; the first call reads the file."""
    data = data_file('zoo.config', 'names.yaml')
    entries: list[tuple[Entry, str]] = [
        (ZooKey(x['key'], tuple(x.get('forms', ())), x.get('note', '')), x['names']) for x in data['here']
    ]
    entries += [(NoZooKey(f'in zoo {x["what"]}'), x['names']) for x in data['by']]
    entries += [(NoZooKey(f'zoo has no such key: {x["why"]}; {x["instead"]}'), x['names']) for x in data['not_here']]
    return {name: entry for entry, words in entries for name in words.split()}


def data_file(package: str, name: str) -> Any:
    """The content of a YAML file that a package ships."""
    text = files(package).joinpath(name).read_text(encoding='utf-8')
    return yaml.load(text, getattr(yaml, 'CSafeLoader', yaml.SafeLoader))  # written in C, 15 times as fast
