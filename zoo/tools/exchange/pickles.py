"""Reader of pickles and of torch.save archives that runs nothing: arrays, tensors and plain values come out, all else stays closed."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.core.processes import machine_memory

MAX_OPCODE = 5_000_000
MAX_DEPTH = 64  # levels of nested values, far from Python's limit of 1,000 for the functions that walk them
PLAIN = (str, bytes, bool, int, float, complex, type(None))


class PickleError(ValueError):
    """Data is no pickle that can be read; its text is the end of a sentence about it."""


class Closed:
    """An object of a class that is not opened: its name, and what it was to be made of, as values that were read.

    Attributes: name: 'module.Class'; args: of its constructor; state: its attributes, or what stands for them.
    """

    name: ClassVar[str] = ''

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        made.args = args
        made.state = None
        return made

    args: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Closed:
        return Closed(*args)

    def append(self, item: object) -> None:
        """Drops an item of a closed list."""

    def extend(self, items: object) -> None:
        """Drops items of a closed list."""

    def __setitem__(self, key: object, value: object) -> None:
        """Drops an entry of a closed dict."""

    def __getitem__(self, key: str) -> Any:
        """An attribute. Raises: KeyError if it has none of that name."""
        if not isinstance(self.state, Mapping):
            raise KeyError(key)
        return self.state[key]

    def get(self, key: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        if isinstance(self.state, Mapping):
            return self.state.get(key, default)
        return default


class ClassName(str):
    """The name of a class or function that stands in a pickle by itself: 'torch.nn.modules.activation.ReLU'."""


class _Entries(dict[Any, Any]):
    """A dict that takes a state and drops it, as torch gives its dicts of parameters one."""

    def __setstate__(self, state: Any) -> None:
        pass


class _DType:
    """A number type while it is read: '<f4' comes as 'f4' and a state with the order of its bytes."""

    def __init__(self, text: object, *_: object) -> None:
        if not isinstance(text, str):
            raise PickleError('it has a number type without a name')
        self.text = text
        self.order = '='

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5:
            raise PickleError('it has a type of numbers in an unknown form')
        self.order = str(state[1])
        if any(part is not None for part in state[2:5]):
            self.text = ''  # a structure

    def dtype(self) -> np.dtype[Any] | None:
        """The type of numbers; None for any other type, such as objects and texts."""
        if not re.fullmatch('[<>=|]?[biufc][0-9]{1,2}|bool', self.text):
            return None
        try:
            found = np.dtype(self.text)
        except TypeError:
            return None
        if self.order == '>':
            return found.newbyteorder('>')
        return found


class _Array:
    """An array while it is read; `value` is None until its numbers have come."""

    def __init__(self, *_: object) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise PickleError('it has an array in an unknown form')
        _, shape, dtype, is_fortran, data = state
        self.value = _array_of(data, dtype, shape, 'F' if is_fortran else 'C')

    @classmethod
    def of_buffer(cls, data: object, dtype: object, shape: object, order: object = 'C', *_: object) -> _Array:
        made = cls()
        made.value = _array_of(data, dtype, shape, order)
        return made

    @classmethod
    def of_dill(cls, _make: object, _args: object, state: object, *_: object) -> _Array:
        made = cls()
        made.__setstate__(state)
        return made


class _Number:
    """One number of numpy."""

    def __init__(self, dtype: object, data: object = b'') -> None:
        self.value = _array_of(data, dtype, (), 'C')
        if isinstance(self.value, np.ndarray):
            self.value = self.value[()]


class _Storage(NamedTuple):
    """The numbers of tensors, one after the other."""

    values: Tensor


class _StorageKind:
    """The class of a storage, which names the type of its numbers."""

    dtype: ClassVar[torch.dtype]


_STORAGES = {
    'Double': torch.float64,
    'Float': torch.float32,
    'Half': torch.float16,
    'BFloat16': torch.bfloat16,
    'Long': torch.int64,
    'Int': torch.int32,
    'Short': torch.int16,
    'Char': torch.int8,
    'Byte': torch.uint8,
    'Bool': torch.bool,
}


def _array_of(data: object, dtype: object, shape: object, order: object) -> Any:
    """A new array of bytes; `Closed` for one of other things than numbers.

    Raises: PickleError if the bytes do not have the size that type and shape ask for.
    """
    is_shape = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(dtype, _DType) or not is_shape:
        raise PickleError('it has an array in an unknown form')
    kind = dtype.dtype()
    if kind is None or not isinstance(data, bytes | bytearray):
        return Closed()
    assert isinstance(shape, tuple)
    if len(shape) > 32 or prod(shape) * kind.itemsize != len(data):
        raise PickleError(f'it has an array of shape {shape} in {len(data)} bytes')
    letter = 'C'
    if order == 'F':
        letter = 'F'
    values = np.frombuffer(data, kind).reshape(shape, order=letter)  # type: ignore[call-overload]
    return values.astype(kind.newbyteorder('='))


def _tensor_of(storage: object, offset: object, size: object, stride: object, *_: object) -> Tensor:
    """A tensor on a storage. Raises: PickleError if it reaches beyond it."""
    numbers = (offset, *size, *stride) if isinstance(size, tuple) and isinstance(stride, tuple) else (None,)
    fits = isinstance(storage, _Storage) and all(type(n) is int and n >= 0 for n in numbers)
    if not fits or len(size) != len(stride) or len(size) > 32:  # type: ignore[arg-type]
        raise PickleError('it has a tensor in an unknown form')
    assert isinstance(storage, _Storage) and isinstance(size, tuple) and isinstance(stride, tuple)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))  # type: ignore[operator]
    if 0 not in size and last >= len(storage.values):
        raise PickleError(f'it has a tensor of shape {size} on {len(storage.values)} numbers')
    return storage.values.as_strided(size, stride, offset)  # type: ignore[arg-type]


def _bytes_of(text: object, encoding: object = 'latin1') -> bytes:
    """The bytes that a text stands for in old pickles."""
    if not isinstance(text, str) or encoding not in ('latin1', 'latin-1'):
        raise PickleError('it has a text in an unknown encoding')
    try:
        return text.encode('latin1')
    except UnicodeEncodeError:
        raise PickleError('it has a text that is no bytes') from None


def _bytes_alone(*data: object) -> bytes:
    """No bytes, or those of a bytearray."""
    if data and not isinstance(data[0], bytes):
        raise PickleError('it has bytes in an unknown form')
    return bytes(*data[:1])  # type: ignore[arg-type]


def _tensor_itself(tensor: object, *_: object) -> object:
    return tensor


_OF_NUMPY: dict[str, Any] = {'_reconstruct': _Array, 'scalar': _Number, '_frombuffer': _Array.of_buffer}
OPENED: dict[str, Any] = {
    'collections.OrderedDict': _Entries,
    '_codecs.encode': _bytes_of,
    '__builtin__.bytes': _bytes_alone,
    'builtins.bytes': _bytes_alone,
    'builtins.bytearray': _bytes_alone,
    'numpy.dtype': _DType,
    'numpy.ndarray': _Array,
    **{f'numpy.{core}.{home}.{name}': make for core in ('core', '_core') for home in ('multiarray', 'numeric')
       for name, make in _OF_NUMPY.items()},
    'dill._dill._create_array': _Array.of_dill,
    'torch._utils._rebuild_tensor_v2': _tensor_of,
    'torch._utils._rebuild_parameter': _tensor_itself,
    'torch.Size': lambda items=(): tuple(items),
    **{f'torch.{name}Storage': type(f'_{name}Storage', (_StorageKind,), {'dtype': dtype})
       for name, dtype in _STORAGES.items()},
}  # fmt: skip
"""What is opened: 'module.name' in a pickle -> the function here that makes it. Nothing is looked up in other modules."""


class _Reader(pickle.Unpickler):
    """Unpickler that takes classes and functions from OPENED alone; all other names become `Closed`."""

    def __init__(self, data: bytes, storage_of: Callable[[object], _Storage] | None) -> None:
        super().__init__(io.BytesIO(data))
        self._storage_of = storage_of

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f'{module_name}.{global_name}'
        if name in OPENED:
            return OPENED[name]
        return type('Closed', (Closed,), {'name': name})

    def persistent_load(self, pid: Any, /) -> Any:
        if self._storage_of is None:
            raise PickleError('it names data of another file')
        return self._storage_of(pid)


def read_pickle(data: bytes, storage_of: Callable[[object], _Storage] | None = None) -> Any:
    """Reads a pickle: dicts, lists, tuples, plain values, arrays of numpy, tensors; `Closed` objects and `ClassName`s for all else.

    No module is imported and no code of the pickle or of other libraries is run. Raises: PickleError.
    """
    _check_opcodes(data)
    try:
        return _finished(_Reader(data, storage_of).load(), {}, MAX_DEPTH)
    except PickleError:
        raise
    except Exception as error:  # a damaged pickle may ask anything of the objects here
        raise PickleError(f'it is damaged ({type(error).__name__})') from error


def _check_opcodes(data: bytes) -> None:
    """Reads the opcodes without executing them. Raises: PickleError for damaged ones, and for numbers that take much memory."""
    n = 0
    try:
        for opcode, argument, _ in pickletools.genops(data):
            n += 1
            is_place = opcode.name in ('PUT', 'BINPUT', 'LONG_BINPUT')
            if n > MAX_OPCODE or (is_place and isinstance(argument, int) and argument > len(data)):
                raise PickleError('it is too large')
    except PickleError:
        raise
    except Exception as error:  # of the module pickletools: ValueError and others, for texts and numbers in it
        raise PickleError('it is no pickle, or is cut') from error
    if not n:
        raise PickleError('it is empty')


def _finished(value: Any, done: dict[int, tuple[object, Any]], depth: int) -> Any:
    """A value that was read, with arrays in place of what stood for them.

    Args: done: by the id of a container, itself (so that no other object gets this id) and the finished one.
    """
    if not depth:
        raise PickleError(f'it has more than {MAX_DEPTH} levels')
    if isinstance(value, PLAIN):
        return value
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, dict):
        entries: dict[Any, Any] = {}
        done[id(value)] = value, entries
        for key, item in value.items():
            entries[_finished(key, done, depth - 1)] = _finished(item, done, depth - 1)
        return entries
    if isinstance(value, list):
        items: list[Any] = []
        done[id(value)] = value, items
        items.extend(_finished(item, done, depth - 1) for item in value)
        return items
    if isinstance(value, tuple):
        return tuple(_finished(item, done, depth - 1) for item in value)
    if isinstance(value, Closed):
        parts = value.args, value.state
        done[id(value)] = (value, parts), value
        value.args = _finished(parts[0], done, depth - 1)
        value.state = _finished(parts[1], done, depth - 1)
        return value
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, _Array | _Number):
        return value.value
    if isinstance(value, _DType):
        return str(value.dtype() or ClassName('numpy.dtype'))
    if isinstance(value, type) and issubclass(value, Closed):
        return ClassName(value.name)
    if isinstance(value, bytearray):
        return bytes(value)
    if value in OPENED.values():
        return ClassName(next(name for name, made in OPENED.items() if made is value))
    if isinstance(value, set | frozenset):
        return set(value)
    raise PickleError(f'it has a value of the kind {type(value).__name__}')


class ArchiveError(ValueError):
    """A file is no zip archive of the wanted form; its text is the end of a sentence about it."""


def open_zip(data: io.BufferedIOBase | io.BytesIO) -> zipfile.ZipFile:
    """Opens a zip archive whose content fits into memory. Raises: ArchiveError."""
    try:
        archive = zipfile.ZipFile(data)  # type: ignore[arg-type]
        sizes = [info.file_size for info in archive.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ArchiveError('is no zip archive, or is cut') from error
    if sum(sizes) > machine_memory() // 2:
        raise ArchiveError(f'has {sum(sizes) / 1e6:,.0f} MB of content, more than fits into memory')
    return archive


def read_entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of an entry, whose checksum is verified. Raises: ArchiveError if it is missing or damaged."""
    try:
        return archive.read(name)
    except KeyError:
        raise ArchiveError(f'has no entry {name}') from None
    except Exception as error:  # of zipfile and of the decompressors, which have no common class
        raise ArchiveError(f'has a damaged entry {name}') from error


def read_torch(data: bytes) -> Any:
    """Reads what `torch.save` wrote, in its zip form. Raises: ArchiveError, PickleError."""
    archive = open_zip(io.BytesIO(data))
    roots = [name.removesuffix('data.pkl') for name in archive.namelist() if name.endswith('data.pkl')]
    if len(roots) != 1:
        raise ArchiveError('is no file of torch.save: it has no data.pkl')
    root = roots[0]
    if f'{root}byteorder' in archive.namelist() and read_entry(archive, f'{root}byteorder') != b'little':
        raise ArchiveError('was written on a machine with another order of bytes')
    storages: dict[str, _Storage] = {}

    def storage_of(pid: object) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != 'storage':
            raise PickleError('it names data of an unknown form')
        _, kind, key, _, n = pid
        if not (isinstance(kind, type) and issubclass(kind, _StorageKind)) or type(n) is not int:
            raise PickleError('it has numbers of an unknown type')
        if key not in storages:
            content = bytearray(read_entry(archive, f'{root}data/{key}'))
            if len(content) != n * kind.dtype.itemsize:
                raise PickleError(f'it has {len(content)} bytes where {n} numbers are to be')
            values = torch.empty(0, dtype=kind.dtype)
            if n:
                values = torch.frombuffer(content, dtype=kind.dtype)
            storages[key] = _Storage(values)
        return storages[key]

    return read_pickle(read_entry(archive, f'{root}data.pkl'), storage_of)
