"""Pickles of others: arrays and plain values come out, and no code runs, whatever the pickle asks for."""

from __future__ import annotations

import collections
import functools
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.tools.exchange.pickles import ArchiveError, ClassName, Closed, PickleError, read_pickle, read_torch

VALUES: dict[str, Any] = {
    'plain': {'a': [1, 2.5, None, True, 'text', b'bytes', (1, 2)]},
    'ordered': collections.OrderedDict(a=1, b=[2]),
    'integers': np.arange(6, dtype=np.int16).reshape(2, 3),
    'columns first': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    'other order of bytes': np.arange(3, dtype='>f4'),
    'bools': np.array([True, False]),
    'number': np.float32(1.5),
    'empty': np.zeros((0, 3)),
}


def equal(one: Any, two: Any) -> bool:
    if isinstance(two, np.ndarray):
        return np.array_equal(one, two) and one.dtype == two.dtype.newbyteorder('=')
    return bool(one == two)


@pytest.mark.parametrize('name', VALUES)
@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_values_come_out_of_each_protocol(name: str, protocol: int) -> None:
    assert equal(read_pickle(pickle.dumps(VALUES[name], protocol)), VALUES[name])


def test_tensors_come_out_of_torch_save_with_their_strides_and_shared_memory() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    file = io.BytesIO()
    tensors = {'x': x, 't': x.t(), 'h': x.bfloat16(), 'p': torch.nn.Parameter(x[1]), 'empty': torch.empty(0)}
    torch.save({**tensors, 'step': 3}, file)
    found = read_torch(file.getvalue())
    assert found.pop('step') == 3
    for name, wanted in tensors.items():
        assert torch.equal(found[name], wanted) and found[name].dtype == wanted.dtype
    assert found['t'].data_ptr() == found['x'].data_ptr()


@pytest.mark.parametrize('array', [np.array([{}], object), np.array(['a']), np.zeros(2, [('a', 'f4')])])
def test_arrays_of_other_things_than_numbers_stay_closed(array: np.ndarray) -> None:
    assert isinstance(read_pickle(pickle.dumps([array]))[0], Closed)


class Harmless:
    """An object whose pickle calls print, as that of an attacker would call something else."""

    def __reduce__(self) -> Any:
        return print, ('opened',)


class Plain:
    """A class that no list knows."""

    def __init__(self) -> None:
        self.n = 3


def test_unknown_classes_stay_closed_and_their_attributes_can_be_read() -> None:
    found = read_pickle(pickle.dumps([Plain(), Plain]))
    assert isinstance(found[0], Closed) and found[0].name.endswith('test_pickles.Plain') and found[0]['n'] == 3
    assert isinstance(found[1], ClassName) and found[1] == found[0].name


CALLS = {  # made in the test: another test may have put a `print` of its own in the place of Python's
    'print': Harmless,
    'in a dict': lambda: {'a': [Harmless(), Plain()]},
    'path': lambda: Path('x'),
    'a function with its arguments': lambda: functools.partial(print, 'opened'),
}


@pytest.mark.parametrize('name', CALLS)
def test_nothing_is_imported_called_or_opened(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = pickle.dumps(CALLS[name]())
    data_by_name = b'cno_such_module\nno_such_name\n(tR.'
    events: list[str] = []
    is_watching = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if is_watching[0] and event.partition('.')[0] in (
            'import',
            'exec',
            'compile',
            'open',
            'os',
            'pickle',
            'subprocess',
        ):
            events.append(event)

    sys.addaudithook(watch)  # it cannot be removed, so it is silenced at the end
    try:
        read_pickle(data)
        read_pickle(data_by_name)
    finally:
        is_watching[0] = False
    assert events == [] and capsys.readouterr().out == ''


BAD = {
    'empty': (b'', 'no pickle'),
    'text': (b'hello', 'no pickle'),
    'cut': (pickle.dumps(VALUES['plain'])[:-8], 'no pickle'),
    'place far away': (b'\x80\x04]r\xff\xff\xff\x7f.', 'too large'),
    'many levels': (b'(' * 1 + b'l' + b'(l' * 100 + b'a' * 100 + b'.', 'levels'),
    'data elsewhere': (b'Pname\n.', 'another file'),
    'shape too large': (
        pickle.dumps(np.zeros(2, np.uint8), 2).replace(b'K\x02\x85', b'K\x09\x85'),
        'shape',
    ),
    'nothing on the stack': (b'.', 'damaged'),
}


@pytest.mark.parametrize('name', BAD)
def test_damaged_pickles_are_refused(name: str) -> None:
    data, said = BAD[name]
    with pytest.raises(PickleError, match=said):
        read_pickle(data)


def test_tensor_beyond_its_numbers_is_refused() -> None:
    file = io.BytesIO()
    torch.save(torch.zeros(2), file)
    content = file.getvalue()
    import zipfile

    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(changed, 'w') as other:
        for name in archive.namelist():
            data = archive.read(name)
            if name.endswith('data.pkl'):
                data = data.replace(b'K\x02\x85', b'K\x20\x85')
            other.writestr(name, data)
    with pytest.raises(PickleError, match='on 2 numbers'):
        read_torch(changed.getvalue())
    with pytest.raises(ArchiveError, match='no zip archive'):
        read_torch(content[:100])
