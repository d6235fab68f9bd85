"""Checkpoint files: safetensors with a checksum, written atomically, never a pickle. A state is stored as dicts with text
keys. Nothing of a file is used before its sizes and checksum are verified."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator
from torch import Tensor

from zoo.core.errors import UserError, brief, is_checkout
from zoo.core.files import refuse_links, whole_file
from zoo.core.processes import machine_memory

MAX_HEADER = 1 << 24
"""Largest size of the JSON header of a file, in bytes: 16 MB become at most 24 times as much in Python, 0.4 GB."""
MAX_KEY = (
    100_000  # keys in meta, and in the values of a state: dicts take ten times the memory of lists of the same length
)
MAX_DEPTH = 64  # levels of nested JSON; functions that walk it recursively stay far from Python's limit of 1,000
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
_KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFDIR: 'a folder',
    stat.S_IFLNK: 'a link',
}


class CheckpointError(UserError):
    """A checkpoint cannot be used; holds its path and the reason."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path = Path(path)
        self.reason = reason

    def __str__(self) -> str:
        return f'checkpoint {self.path} {self.reason}'


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
    got = brief(problem['input'])
    if problem['type'].startswith('union_tag'):
        return f'{where} is {got}: its kind is none that zoo knows'
    wanted = re.sub('^(Value error,|Input|String|List|Dictionary|Tuple) ', '', problem['msg'])
    return f'{where} is {got}: it {wanted}'


def shown(text: str, n: int = 100) -> str:
    """The start of a text from a file, safe to print: the text may be long or contain terminal control characters."""
    if not text.isprintable():
        text = repr(text)
    if len(text) <= n:
        return text
    return f'{text[: n - 3]}...'


def _open(path: Path) -> BufferedReader:
    """Opens a file, which must be a regular one: a named pipe would wait for ever, a device may have no end."""
    try:  # in a run folder no link is followed
        mode = os.stat(path, follow_symlinks=path.parent.name != 'checkpoints').st_mode
    except ValueError:  # a path with a NUL
        raise FileNotFoundError from None
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), 'no regular file')
        raise CheckpointError(path, f'is {kind}; pass a run folder or a .safetensors file of it')
    return open(path, 'rb')


def _read(path: Path, file: BufferedReader) -> tuple[int, dict[str, Any], State, dict[str, Tensor]]:
    """Reads the number of the file's format, meta, the state without its tensors, and the tensors by path, on the CPU."""
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
    try:
        header = json.loads(head[8:])
    except (ValueError, RecursionError):
        raise CheckpointError(path, _DAMAGED) from None
    metadata = header.pop('__metadata__', None)
    number = _format_number(path, metadata)
    if not _has_digest(file, head):
        raise CheckpointError(path, _DAMAGED)
    try:
        text = _Metadata.model_validate(metadata)
        meta = _object('meta', text.meta)
        state = _object('state', text.state)
        entries = sorted(_ENTRIES.validate_python(header).items(), key=lambda item: item[1].data_offsets)
        _check_layout(entries, n_byte - len(head))
        file.seek(len(head))
        return number, meta, state, {name: _tensor(file, name, entry) for name, entry in entries}
    except ValidationError as error:
        raise malformed(path, first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise malformed(path, str(error)) from error


class Strict(BaseModel):
    """A part of a file, with exactly these fields."""

    model_config = ConfigDict(strict=True, extra='forbid', allow_inf_nan=False, protected_namespaces=())


class _Metadata(Strict):
    zoo_format: str
    sha256: str
    meta: str
    state: str


class _Entry(Strict):
    """The description of a tensor in a header."""

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


def _format_number(path: Path, metadata: object) -> int:
    text = None
    if isinstance(metadata, dict):
        text = metadata.get('zoo_format')
    if text is None:
        raise CheckpointError(path, 'is a safetensors file of another program; zoo reads only the checkpoints it wrote')
    if not isinstance(text, str) or not re.fullmatch('[1-9][0-9]{0,8}', text):
        raise CheckpointError(
            path, f'has format {shown(str(text))} but the formats are 1 to {FORMAT}; use another checkpoint'
        )
    if int(text) > FORMAT:
        raise CheckpointError(
            path,
            f'has format {text} and this zoo reads formats up to {FORMAT}: '
            + ('upgrade with git pull in the checkout of zoo' if is_checkout() else 'install a newer version of zoo'),
        )
    return int(text)


def _has_digest(file: BufferedReader, head: bytes) -> bool:
    """Whether the checksum in the header is right for the header and the file from its current position to the end."""
    start = head.find(_DIGEST_KEY) + len(_DIGEST_KEY)
    digest = hashlib.sha256(head[:start] + _BLANK + head[start + len(_BLANK) :])
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return head[start : start + len(_BLANK)] == digest.hexdigest().encode()


def _object(name: str, text: str) -> dict[str, Any]:
    if text.count('":') > MAX_KEY:  # counted before it is parsed
        raise ValueError(f'{name} has more than {MAX_KEY:,} keys')
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f'{name} is {brief(value)}: it should be a JSON object')
    _check_depth(name, value, MAX_DEPTH)
    return value


def _check_depth(name: str, value: object, n_left: int) -> None:
    if not n_left:
        raise ValueError(f'{name} has more than {MAX_DEPTH} levels')
    if isinstance(value, dict):
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        _check_depth(name, item, n_left - 1)


def _check_layout(entries: list[tuple[str, _Entry]], n_byte: int) -> None:
    """Raises: ValueError unless the tensors, in order, fill n_byte without gaps."""
    end = 0
    for name, entry in entries:
        start, stop = entry.data_offsets
        if start != end:
            raise ValueError(f'tensor {shown(name)} does not begin where the one before it ends')
        end = stop
    if end != n_byte:
        raise ValueError(f'the tensors take {end} bytes but the file has {n_byte} for them')


def _tensor(file: BufferedReader, name: str, entry: _Entry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=_BY_NAME[entry.dtype])
    data = tensor.reshape(-1).view(torch.uint8)
    if file.readinto(data.numpy().data) != len(data):
        raise OSError('it became shorter while it was read')
    if tensor.dtype == torch.bool and bool((data > 1).any()):  # torch counts them by adding bytes
        raise ValueError(f'tensor {shown(name)} has truth values other than 0 and 1')
    return tensor


def _header(meta: dict[str, Any], values: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """Length and JSON of a safetensors header with a blank digest, over which the digest of the file is computed."""
    header: dict[str, Any] = {
        '__metadata__': {
            'zoo_format': str(FORMAT),
            'sha256': _BLANK.decode(),
            'meta': json.dumps(meta),
            'state': json.dumps(values),
        }
    }
    end = 0
    for name, tensor in tensors.items():
        start = end
        end = end + tensor.numel() * tensor.element_size()
        header[name] = {'dtype': DTYPES[tensor.dtype], 'shape': list(tensor.shape), 'data_offsets': [start, end]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise TypeError(
            f'state and meta have {len(text) / 1e6:.0f} MB that is not in tensors, at most '
            f'{MAX_HEADER / 1e6:.0f} MB can be saved; convert long lists to tensors'
        )
    return struct.pack('<Q', len(text)) + text


MAX_DIGITS = 40
_NUMBER = re.compile(rf'#(-?\d{{1,{MAX_DIGITS}}})')


def to_tree(value: object) -> Any:
    """Converts a state to the form in a file, and numpy's numbers to Python's; values that no file can hold are unchanged.

    Raises: TypeError for an integer of more than MAX_DIGITS digits as a key.
    """
    if isinstance(value, dict):
        return {_key(key): to_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_tree(item) for item in value]
        if any(map(_has_tensor, items)):
            return {f'#[{i}]': item for i, item in enumerate(items)}
        return items
    if isinstance(value, np.generic):
        return value.item()
    return value


def from_tree(value: object) -> Any:
    """Converts the form in a file back to a state."""
    if isinstance(value, list):
        return [from_tree(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, str) and key == f'#[{i}]' for i, key in enumerate(value)):
        return [from_tree(item) for item in value.values()]
    return {_unkey(key): from_tree(item) for key, item in value.items()}


def split(state: dict[str, Any], prefix: str = '') -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Splits a state into its tensors by path, and the state with None in their places, which keeps the order of keys."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(key, str) or not key or '/' in key or key == '__metadata__':
            raise TypeError(f'state has the key {key!r} under {prefix!r}; use a non-empty string without "/"')
        values[key] = None
        if isinstance(value, Tensor):
            if value.dtype not in DTYPES:
                raise TypeError(
                    f'state {prefix}{key} has dtype {value.dtype}, which a checkpoint cannot hold; convert it'
                )
            tensors[prefix + key] = value
        elif isinstance(value, dict):
            inner, values[key] = split(value, f'{prefix}{key}/')
            tensors |= inner
        else:
            check_json(value, f'state {prefix}{key}')
            values[key] = value
    return tensors, values


def check_json(value: object, where: str) -> None:
    """Raises: TypeError if a value is no JSON value."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            check_json(item, f'{where}[{i}]')
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            check_json(item, f'{where}/{key}')
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(
            f'{where} is of type {type(value).__name__}; a checkpoint holds tensors, numbers, strings, '
            'None, lists, and dicts with string keys; convert it'
        )


def is_numbered(value: object) -> bool:
    """Whether a value is a dict with integer keys, such as the state that torch.optim keeps for each parameter."""
    return isinstance(value, dict) and bool(value) and all(type(key) is int for key in value)


def _key(key: object) -> object:
    if type(key) is int:
        if abs(key) >= 10**MAX_DIGITS:
            raise TypeError(f'state has an integer of more than {MAX_DIGITS} digits as a key; use a text')
        return f'#{key}'
    if key == '' or (isinstance(key, str) and '/' in key):
        return '#~' + key.replace('~', '~0').replace('/', '~1')
    if isinstance(key, str) and key.startswith('#'):
        return f'#{key}'
    return key


def _unkey(key: str) -> str | int:
    number = _NUMBER.fullmatch(key)
    if number:
        return int(number[1])
    if key.startswith('#~'):
        return key[2:].replace('~1', '/').replace('~0', '~')
    if key.startswith('##'):
        return key.removeprefix('#')
    return key


def _has_tensor(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor)


logger = logging.getLogger(__name__)
FORMAT = 4
"""Version of the file format; files with a higher number are refused, those with a lower one are translated.

Format 1 has Gaussian logits in buffers as {'mu', 'sigma'}; format 2 has one tensor of mu and sigma concatenated. Both are
older than action masks, although an env may have had one. Up to format 3, PPG's value_weight had no effect unless actor
and critic shared all parameters, and kl_weight had none with policy_loss 'clip'.
"""
State = dict[str, Any]
"""Nested dicts; the keys are non-empty strings, or integers, the leaves tensors, JSON values or lists of these.

An example is `state_dict()` of a torch.optim.Optimizer. Tuples are loaded as lists.
"""
MAX_NUMBER = 2**128
"""Bound for numbers in the state of a policy or buffer: numpy's generators have integers of 128 bits."""
ALL_OR_NOTHING = re.compile('learn/(plasticity|intrinsic|constraint)/')
"""State of options that only some runs have: a file has all of it or none."""
RESETTABLE = re.compile(  # state that is reset if a file lacks it, each number separately
    'learn/(adaptive_rate|penalty_weight)/|learn/optimizer/(.+/)?(average|average_weight|loss_scale|n_good_step)$'
)
MAY_BE_MISSING = re.compile(
    r'learn/(aux_filled|aux_oldest|intrinsic/carry|intrinsic/n_update)$|(.+[/.])?(byte_scale|entry_count)$'
)
"""State that a file may lack; if a file has it, the run must have it too."""
IGNORED = re.compile('(learn/)?((learn|collect|plasticity|intrinsic)/generator|collect/n_acted)$')
"""State of older files that is ignored: random streams; draws are now functions of the seed and a counter."""


class Checkpoint(NamedTuple):
    """The content of a checkpoint file; tensors are on the CPU, the path is absolute."""

    state: State
    meta: dict[str, Any]
    path: Path


def save_checkpoint(path: str | os.PathLike[str], state: State, meta: dict[str, Any]) -> None:
    """Writes a checkpoint atomically: at any moment `path` is either the complete old file or the complete new one.

    Args:
      state: see State; tensors may be on any device and may be views or tied: each is stored in full.
      meta: JSON values, e.g. the config, counters and versions.
    Raises: TypeError if a value is neither a tensor nor a JSON value (names it), or if the JSON values take more than
      MAX_HEADER; OSError, e.g. on a full disk.
    """
    tensors, values = split(to_tree(state))
    check_json(meta, 'meta')
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # keeps each tensor aligned
    header = _header(meta, values, tensors)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(Path(path)) as file:
        digest = hashlib.sha256(header)
        file.write(header)
        for tensor in tensors.values():
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            digest.update(data)
            file.write(data)
        file.seek(header.index(_DIGEST_KEY) + len(_DIGEST_KEY))
        file.write(digest.hexdigest().encode())


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint file, or the newest valid one of a run folder (the best one if no other is valid).

    Nothing in a file is executed, and nothing in it is used before its sizes and its checksum are verified. The meaning
    of the tensors and values is not checked here, but in `zoo.run.checkpoint.schema`.
    Raises: CheckpointError; UserError if `path` is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f'a checkpoint is named by the path of a file or run folder, got {path!r:.60}; pass one')
    path = Path(path)
    if os.path.isdir(path):
        return _load_newest(path)
    return _load_file(path)


def fit_state(
    expected: State, got: State, path: str | os.PathLike[str], causes: Mapping[str, str] | None = None
) -> None:
    """Checks that a loaded state has the names, shapes and dtypes of the state that it replaces.

    State of options that were turned on or off since it was saved may be missing or unused; the log says so.
    Args: causes: the cause of a difference and what to do, by the beginning of the state's name; the first that applies
      counts, '' means no particular cause.
    Raises: CheckpointError with the first differences.
    """
    want = dict(_leaves(expected))
    have = dict(_leaves(got))
    misfits = [
        f'{name} is {_form(name, have[name])} in the file and a section in this run'
        for name, value in want.items()
        if isinstance(value, dict) and not isinstance(have.get(name, value), dict)
    ]
    for name in {
        name for leaves in (want, have) for name, value in leaves.items() if is_numbered(value) or value == {}
    }:
        want.pop(name, None)  # torch.optim has no state before its first step, and checks its state itself
        have.pop(name, None)
    missing = _turned(want, have)
    in_vain = _turned(have, want)
    misfits += [
        f'{name} is {_form(name, have[name])} in the file and {_form(name, value)} in this run'
        for name, value in want.items()
        if name in have and not _fits(name, value, have[name])
    ]
    lacked = [name for name in want if name not in have and name not in missing and not MAY_BE_MISSING.match(name)]
    misfits += [f'{name} is not in the file' for name in lacked]
    known = {*want, *in_vain, *filter(IGNORED.match, have)}
    misfits += [f'{shown(name)} is only in the file' for name in have if name not in known]
    if misfits:
        more = ''
        if len(misfits) > 3:
            more = f', and {len(misfits) - 3} more'
        named = (cause for prefix, cause in (causes or {}).items() if any(text.startswith(prefix) for text in misfits))
        remedy = next(named, '') or (
            'use the config that it was saved with, and a model like that of the run where it was given one as model='
        )
        raise CheckpointError(path, f'does not fit: {", ".join(misfits[:3])}{more}; {remedy}')
    for piece in dict.fromkeys(missing.values()):
        logger.info('%s is not in the checkpoint: it begins anew', piece)
    for piece in dict.fromkeys(in_vain.values()):
        logger.info('%s of the checkpoint is not used: this run has no such part', shown(piece))


def check_finite(expected: State, got: State, path: str | os.PathLike[str]) -> None:
    """Checks that the tensors of a state that fits are finite, where the tensors that they replace are finite.

    Missing tensors are not checked, see `fit_state`. Raises: CheckpointError with the first tensor that is not finite.
    """
    expected = dict(_leaves(expected))
    for name, found in _leaves(got):
        value = expected.get(name)
        if isinstance(value, Tensor) and not found.isfinite().all() and value.isfinite().all():
            raise CheckpointError(
                path, f'has numbers in {name} that are not finite: training had failed; use an older checkpoint'
            )


def _turned(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    """The names that only `one` has because an option was turned on or off, each with its word in the log."""
    found = {}
    halves = {match[0] for match in map(ALL_OR_NOTHING.match, other) if match}
    for name in (name for name in one if name not in other):
        whole = ALL_OR_NOTHING.match(name)
        piece = RESETTABLE.match(name)
        if whole and whole[0] not in halves:
            found[name] = whole[0].rstrip('/')
        elif piece:
            if piece[1]:
                found[name] = f'learn/{piece[1]}'
            else:
                found[name] = piece[0].removesuffix('_weight')
    return found


def _load_file(path: Path) -> Checkpoint:
    """Reads a file that zoo wrote; takes the memory of the tensors that the file really holds. Raises: CheckpointError."""
    try:
        with _open(path) as file:
            number, meta, state, tensors = _read(path, file)
    except FileNotFoundError:
        raise CheckpointError(path, 'does not exist; pass a run folder or a .safetensors file of it') from None
    except OSError as error:
        raise CheckpointError(path, f'cannot be read: {error.strerror or error}') from error
    except (MemoryError, RuntimeError) as error:  # the second is what torch raises
        raise CheckpointError(path, 'cannot be read: there is not enough memory for its tensors') from error
    try:
        for name, tensor in tensors.items():
            _put(state, name, tensor)
        _translate(number, state, meta)
        state = from_tree(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise malformed(path, shown(str(error))) from error
    return Checkpoint(state, meta, path.absolute())


def _put(state: State, name: str, tensor: Tensor) -> None:
    """Puts a tensor at its path in a state, where the file has None."""
    node = state
    *parents, key = name.split('/')
    for parent in parents:
        node = node[parent]
    if node[key] is not None:
        raise ValueError(f'state {name} is a tensor and a value')
    node[key] = tensor


def _translate(number: int, state: State, meta: dict[str, Any]) -> None:
    """Changes state and meta of an older format, in place, to those of the newest one."""
    if number < 2 and 'buffer' in state:
        state['buffer'] = _with_flat_logits(state['buffer'])
    if number < 3:  # the policy knows no action mask, even if the env shows one
        meta['config']['env'].setdefault('action_mask', 'off')
    if number < 4:  # weights in PPG's config that had no effect, and would have one or be refused now
        policy = meta['config']['policy']
        if policy['type'] not in ('ppg', 'ppg_offpolicy'):
            return
        learn = policy['learn']
        model = policy.get('model') or {}
        if learn.get('value_weight') == 0.5 or model.get('arch') in ('dual', 'detach'):
            learn['value_weight'] = None
        if learn.get('policy_loss', 'clip') == 'clip':
            learn.pop('kl_weight', None)


def _with_flat_logits(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {'mu', 'sigma'}:
        return torch.cat((value['mu'], value['sigma']), -1)
    return {key: _with_flat_logits(item) for key, item in value.items()}


def _load_newest(folder: Path) -> Checkpoint:
    inner = folder / 'checkpoints'
    if not os.path.isdir(inner):
        inner = folder
    files = [*reversed(steps_of(inner).values()), *inner.glob('best.safetensors')]
    if not files:
        files = [*folder.glob('*/checkpoints/*.safetensors'), *folder.glob('*/*/checkpoints/*.safetensors')]
        newest = max({path.parent.parent for path in files}, key=lambda run: run.stat().st_mtime, default=None)
        if newest is None:
            do = 'pass a run folder or a .safetensors file of it'
        else:
            do = f'the newest run in it is {newest}: pass that'
        raise CheckpointError(folder, f'is a folder without checkpoints; {do}')
    errors = []
    for file in files:
        try:
            return _load_file(file)
        except CheckpointError as error:
            logger.warning('%s', error)
            errors.append(error)
    raise CheckpointError(folder, f'has no valid checkpoint among {len(files)}; the newest: {errors[0]}') from errors[0]


def steps_of(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by env step, in rising order. Raises: UserError for a link to a folder."""
    if folder.name == 'checkpoints' and os.path.islink(folder):
        refuse_links(folder.parent)
    if not os.path.isdir(folder):
        return {}
    matches = ((re.fullmatch(r'step_(\d+)\.safetensors', file.name), file) for file in folder.glob('step_*'))
    return dict(sorted((int(match[1]), file) for match, file in matches if match))


def _leaves(state: State, prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Path and value of every leaf; dicts with integers as keys, and empty ones, are leaves too."""
    for key, value in state.items():
        if isinstance(value, dict) and value and not is_numbered(value):
            yield from _leaves(value, f'{prefix}{key}/')
        else:
            yield prefix + key, value


def _fits(name: str, want: object, have: object) -> bool:
    """Whether the leaf `have` may replace `want`; None means a number that is not known yet."""
    if want is None and not isinstance(have, Tensor):
        return have is None or _form(name, have) == 'a number'
    return _form(name, want) == _form(name, have)


def _form(name: str, value: object) -> str:
    """A leaf in words: shape and dtype of a tensor, the kind of other values."""
    if isinstance(value, Tensor):
        if name.rpartition('/')[2] == 'generator' and value.dtype == torch.uint8:
            return 'the state of a generator'  # its length depends on the kind of device
        return f'{list(value.shape)} {str(value.dtype).removeprefix("torch.")}'
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) < MAX_NUMBER:
            return 'a number'
        return 'a number out of range'
    return {bool: 'a truth value', str: 'text', list: 'a list'}.get(type(value), 'null')
