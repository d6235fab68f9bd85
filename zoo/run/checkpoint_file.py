"""The file of a checkpoint: safetensors with a checksum, of which nothing is used before its sizes and checksum are right."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
import stat
import struct
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator
from torch import Tensor

from zoo.core.errors import UserError
from zoo.core.files import whole_file
from zoo.run.memory import machine_memory

MAX_HEADER = 1 << 24
"""Bytes of the JSON that describes a file: 16 MB of it become at most 24 times as much in Python, 0.4 GB."""
MAX_DEPTH = 64
"""Levels of nested JSON; functions that walk it recursively stay far from Python's limit of 1,000."""

DTYPES = {
    torch.float64: 'F64',
    torch.float32: 'F32',
    torch.float16: 'F16',
    torch.bfloat16: 'BF16',
    torch.bool: 'BOOL',
    torch.int64: 'I64',
    torch.int32: 'I32',
    torch.int16: 'I16',
    torch.int8: 'I8',
    torch.uint8: 'U8',
    torch.uint16: 'U16',
    torch.uint32: 'U32',
    torch.uint64: 'U64',
}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
# Quotes inside JSON strings are escaped, so these bytes occur once in a header.
_DIGEST_KEY = b'"sha256":"'
_BLANK = b'0' * 64
_OTHER_FILES = {b'PK\x03\x04': 'a zip archive, as torch.save and Stable-Baselines3 write', b'\x80': 'a pickle'}
_DAMAGED = 'is truncated or was changed: it does not match its checksum; use an older checkpoint'
_CHUNK = 1 << 20


class CheckpointError(UserError):
    """A checkpoint cannot be used; holds its path and the reason."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path, self.reason = Path(path), reason

    def __str__(self) -> str:
        return f'checkpoint {self.path} {self.reason}'


class FileContent(NamedTuple):
    """What a file holds; the tensors are on the CPU."""

    format: int
    meta: dict[str, Any]
    values: dict[str, Any]  # the state without its tensors
    tensors: dict[str, Tensor]


def write_file(path: Path, content: FileContent) -> None:
    """Writes a file that `path` holds whole or not at all.

    Raises: TypeError if what is not a tensor takes more than MAX_HEADER; OSError, e.g. on a full disk.
    """
    tensors = dict(sorted(content.tensors.items(), key=lambda item: -item[1].element_size()))  # keeps each aligned
    header = _header(content, tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        digest = hashlib.sha256(header)
        file.write(header)
        for tensor in tensors.values():
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest.update(data)
            file.write(data)
        file.seek(header.index(_DIGEST_KEY) + len(_DIGEST_KEY))
        file.write(digest.hexdigest().encode())


def read_file(path: Path, newest_format: int) -> FileContent:
    """The content of a file that zoo wrote. Memory: that of the tensors, which the file really holds.

    Raises: CheckpointError if it is no such file, is of a newer format, or was changed.
    """
    try:
        with _open(path) as file:
            return _read(path, file, newest_format)
    except FileNotFoundError:
        raise CheckpointError(path, 'does not exist; pass a run folder or a .safetensors file of it') from None
    except OSError as error:
        raise CheckpointError(path, f'cannot be read: {error.strerror or error}') from error
    except (MemoryError, RuntimeError) as error:  # the second is what torch raises
        raise CheckpointError(path, 'cannot be read: there is not enough memory for its tensors') from error


def malformed(path: Path, problem: str) -> CheckpointError:
    """The error for a file that has a correct checksum but was not written by zoo."""
    return CheckpointError(
        path, f'is malformed although its checksum is correct: {problem}; use a checkpoint that zoo wrote'
    )


def first_problem(error: ValidationError) -> str:
    """The first problem that a schema found, as the end of a sentence: where, what was got, what is wanted."""
    problem = error.errors(include_url=False)[0]
    where = shown('.'.join(map(str, problem['loc']))) or 'it'
    if problem['type'] == 'missing':
        return f'{where} is missing'
    if problem['type'] == 'extra_forbidden':
        return f'{where} is unknown'
    got = ' '.join(reprlib.repr(problem['input']).split())  # a tensor has lines
    if problem['type'].startswith('union_tag'):
        return f'{where} is {got}: its kind is none that zoo knows'
    wanted = re.sub('^(Value error,|Input|String|List|Dictionary|Tuple) ', '', problem['msg'])
    return f'{where} is {got}: it {wanted}'


def shown(text: str, n: int = 100) -> str:
    """The start of a text from a file, which may be long and hold characters that control a terminal."""
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= n else f'{text[: n - 3]}...'


def _open(path: Path) -> BufferedReader:
    """The file, if it is one: a named pipe would wait for ever, a device may have no end."""
    try:
        mode = os.stat(path).st_mode
    except ValueError:  # a path with a NUL
        raise FileNotFoundError from None
    kinds = {
        stat.S_ISFIFO: 'a named pipe',
        stat.S_ISCHR: 'a device',
        stat.S_ISBLK: 'a device',
        stat.S_ISDIR: 'a folder',
    }
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in kinds.items() if is_kind(mode)), 'no regular file')
        raise CheckpointError(path, f'is {kind}; pass a run folder or a .safetensors file of it')
    return open(path, 'rb')


def _read(path: Path, file: BufferedReader, newest_format: int) -> FileContent:
    n_byte = os.fstat(file.fileno()).st_size
    head = file.read(9)
    n_header = int.from_bytes(head[:8], 'little')
    if len(head) < 9:
        raise CheckpointError(path, f'is empty or truncated: it has {n_byte} bytes; use an older checkpoint')
    if head[8:] != b'{':  # tested first: a length may begin like a pickle
        kind = next((kind for magic, kind in _OTHER_FILES.items() if head.startswith(magic)), 'not a safetensors file')
        raise CheckpointError(path, f'is {kind}; zoo reads only the checkpoints it wrote')
    if not 2 <= n_header <= n_byte - 8:
        raise CheckpointError(path, _DAMAGED)
    for size, limit, what in ((n_header, MAX_HEADER, 'a header'), (n_byte, machine_memory(), 'tensors')):
        if size > limit:
            raise CheckpointError(
                path, f'has {what} of {size / 1e6:,.0f} MB, at most {limit / 1e6:,.0f} MB can be read; use another file'
            )
    head += file.read(n_header - 1)
    header, metadata = _parse(path, head)
    number = _format_number(path, metadata, newest_format)
    if not _has_digest(file, head):
        raise CheckpointError(path, _DAMAGED)
    try:
        text = _Metadata.model_validate(metadata)
        meta, values = _object('meta', text.meta), _object('state', text.state)
        entries = _ENTRIES.validate_python(header)
        _check_layout(entries, n_byte - len(head))
        file.seek(len(head))
        return FileContent(number, meta, values, {name: _tensor(file, name, entries[name]) for name in _order(entries)})
    except ValidationError as error:
        raise malformed(path, first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise malformed(path, str(error)) from error


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra='forbid')


class _Metadata(_Strict):
    zoo_format: str
    sha256: str
    meta: str
    state: str


class _Entry(_Strict):
    """What a header says of a tensor."""

    dtype: str
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**48)]], Field(max_length=32)]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0, lt=2**62)]], Field(min_length=2, max_length=2)]

    @field_validator('dtype')
    @classmethod
    def _is_known(cls, dtype: str) -> str:
        if dtype not in _BY_NAME:
            raise ValueError(f'should be one of {", ".join(_BY_NAME)}')
        return dtype

    @model_validator(mode='after')
    def _fits(self) -> _Entry:
        n_byte = math.prod(self.shape) * _BY_NAME[self.dtype].itemsize
        if self.data_offsets[1] - self.data_offsets[0] != n_byte or math.prod(n or 1 for n in self.shape) >= 2**48:
            raise ValueError(f'should have {n_byte} bytes, by its shape')
        return self


_ENTRIES = TypeAdapter(dict[str, _Entry])


def _parse(path: Path, head: bytes) -> tuple[dict[str, Any], Any]:
    """The entries of the tensors by name, and the metadata."""
    try:
        header = json.loads(head[8:])
    except (ValueError, RecursionError):
        raise CheckpointError(path, _DAMAGED) from None
    return header, header.pop('__metadata__', None)


def _format_number(path: Path, metadata: Any, newest: int) -> int:
    text = metadata.get('zoo_format') if isinstance(metadata, dict) else None
    if text is None:
        raise CheckpointError(path, 'is a safetensors file of another program; zoo reads only the checkpoints it wrote')
    if not isinstance(text, str) or not re.fullmatch('[1-9][0-9]{0,8}', text):
        raise CheckpointError(
            path, f'has format {shown(str(text))} but the formats are 1 to {newest}; use another checkpoint'
        )
    if int(text) > newest:
        raise CheckpointError(
            path,
            f'has format {text} and this zoo reads formats up to {newest}: '
            'upgrade with pip install --upgrade policy-zoo',
        )
    return int(text)


def _has_digest(file: BufferedReader, head: bytes) -> bool:
    """Whether the checksum in the header is that of header and file, from its position to the end."""
    start = head.find(_DIGEST_KEY) + len(_DIGEST_KEY)
    digest = hashlib.sha256(head[:start] + _BLANK + head[start + len(_BLANK) :])
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return head[start : start + len(_BLANK)] == digest.hexdigest().encode()


def _object(name: str, text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f'{name} is {reprlib.repr(value)}: it should be a JSON object')
    _check_depth(name, value, MAX_DEPTH)
    return value


def _check_depth(name: str, value: Any, n_left: int) -> None:
    if not n_left:
        raise ValueError(f'{name} has more than {MAX_DEPTH} levels')
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(name, item, n_left - 1)


def _order(entries: dict[str, _Entry]) -> list[str]:
    """The names of the tensors in the order of their bytes."""
    return sorted(entries, key=lambda name: entries[name].data_offsets)


def _check_layout(entries: dict[str, _Entry], n_byte: int) -> None:
    """Raises: ValueError unless the tensors fill n_byte one after the other."""
    end = 0
    for name in _order(entries):
        if entries[name].data_offsets[0] != end:
            raise ValueError(f'tensor {shown(name)} does not begin where the one before it ends')
        end = entries[name].data_offsets[1]
    if end != n_byte:
        raise ValueError(f'the tensors take {end} bytes but the file has {n_byte} for them')


def _tensor(file: BufferedReader, name: str, entry: _Entry) -> Tensor:
    """The next tensor of a file."""
    tensor = torch.empty(entry.shape, dtype=_BY_NAME[entry.dtype])
    data = tensor.reshape(-1).view(torch.uint8)
    if file.readinto(data.numpy().data) != len(data):
        raise OSError('it became shorter while it was read')
    if tensor.dtype == torch.bool and bool((data > 1).any()):  # torch counts them by adding bytes
        raise ValueError(f'tensor {shown(name)} has truth values other than 0 and 1')
    return tensor


def _header(content: FileContent, tensors: dict[str, Tensor]) -> bytes:
    """Length and JSON of a safetensors header. The digest in it is blank, and is computed over the file in this form."""
    header: dict[str, Any] = {
        '__metadata__': {
            'zoo_format': str(content.format),
            'sha256': _BLANK.decode(),
            'meta': json.dumps(content.meta),
            'state': json.dumps(content.values),
        }
    }
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {'dtype': DTYPES[tensor.dtype], 'shape': list(tensor.shape), 'data_offsets': [start, end]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise TypeError(
            f'state and meta have {len(text) / 1e6:.0f} MB that is not in tensors, at most '
            f'{MAX_HEADER / 1e6:.0f} MB can be saved; convert long lists to tensors'
        )
    return struct.pack('<Q', len(text)) + text
