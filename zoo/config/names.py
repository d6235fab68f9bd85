"""Names that keys have in other libraries: the key of zoo, what does it here, or why there is none.

Three kinds, found by `look_up`. A name may be the end of a path, such as 'env.type', where the last word alone means
different things in different sections. The names themselves are data, in names.yaml.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml


class Here(NamedTuple):
    """A key of zoo that means the same.

    path: where it is; forms: values that it is written as, '..' for a number; note: a factor or a limit, '' for none.
    """

    path: str
    forms: tuple[str, ...] = ()
    note: str = ''

    def sentence(self) -> str:
        """The end of a message: 'in zoo it is ...'."""
        written = f', written {" or ".join(self.forms)}' if self.forms else ''
        return f'in zoo it is `{self.path}`{written}{f"; {self.note}" if self.note else ""}.'


class Other(NamedTuple):
    """Something that no key of zoo means: what does it in another way, or why there is none and what to do instead."""

    words: str

    def sentence(self) -> str:
        """The end of a message: 'in zoo ...', or 'zoo has no such key: ...'."""
        return f'{self.words}.'


Entry = Here | Other


def look_up(path: str, inside: bool = True) -> Entry | None:
    """What a key of another library is here; None for a name that is not known. Upper and lower case are the same.

    The longest end of the path that has an entry counts: of 'policy.eval.evaluator.eval_freq' first
    'eval.evaluator.eval_freq', then 'evaluator.eval_freq', then 'eval_freq'.
    Args: inside: if no end of the path is known, take the entry of the section that it is in.
    """
    keys = path.lower().split('.')
    stops = range(len(keys), 0, -1) if inside else [len(keys)]
    found = (_entry_of_end(keys[:stop], stop) for stop in stops)
    return next((entry for entry in found if entry is not None), None)


def in_context(path: str) -> Entry | None:
    """The entry of an end of the path that has more than one word, which holds even if zoo has a key of the last word."""
    keys = path.lower().split('.')
    return _entry_of_end(keys, len(keys) - 1)


def _entry_of_end(keys: list[str], n_start: int) -> Entry | None:
    ends = ('.'.join(keys[start:]) for start in range(n_start))
    return next((names()[end] for end in ends if end in names()), None)


@cache
def names() -> dict[str, Entry]:
    """Name of a key in other libraries, or the end of its path, in lower case -> its entry; read when first asked for."""
    data = data_file('zoo.config', 'names.yaml')
    entries: list[tuple[Entry, str]] = [
        (Here(x['key'], tuple(x.get('forms', ())), x.get('note', '')), x['names']) for x in data['here']
    ]
    entries += [(Other(f'in zoo {x["what"]}'), x['names']) for x in data['by']]
    entries += [(Other(f'zoo has no such key: {x["why"]}; {x["instead"]}'), x['names']) for x in data['not_here']]
    return {name: entry for entry, words in entries for name in words.split()}


def data_file(package: str, name: str) -> Any:
    """The content of a YAML file that a package ships."""
    text = files(package).joinpath(name).read_text(encoding='utf-8')
    return yaml.load(text, getattr(yaml, 'CSafeLoader', yaml.SafeLoader))  # written in C, 15 times as fast
