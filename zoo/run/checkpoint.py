"""One safetensors file per checkpoint: written atomically, verified by a checksum before use, never a pickle."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor

from zoo.config.section import Section
from zoo.core.errors import UserError

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the file format; files with a higher number are refused.

Format 1 has Gaussian logits in buffers as {'mu', 'sigma'}; format 2 has one tensor, mu and sigma side by side.
"""

State = dict[str, Any]
"""Nested dicts; the keys are non-empty strings without '/', the leaves tensors or JSON values."""

_DTYPES = {
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
# Quotes inside JSON strings are escaped, so these bytes occur once in a header.
_DIGEST_KEY = b'"sha256":"'
_BLANK = b'0' * 64
_OTHER_FILES = {b'PK\x03\x04': 'a zip archive, as torch.save and Stable-Baselines3 write', b'\x80': 'a pickle'}
_DAMAGED = 'is truncated or was changed: it does not match its checksum; use an older checkpoint'


class CheckpointConfig(Section):
    """When checkpoints are written and which are kept."""

    freq: int = Field(
        50_000, gt=0, description='env steps between checkpoints, and one at the end; less often if saving takes long'
    )
    keep_last: int = Field(3, ge=1, description='number of newest checkpoints to keep')
    keep_best: bool = Field(True, description='also keep the checkpoint with the best evaluation')
    aux_memory: bool = Field(
        True,
        description="save the samples of past rollouts (PPG's auxiliary memory); if false, files are smaller and a "
        'resumed run starts a new phase',
    )


class CheckpointError(UserError):
    """A checkpoint cannot be used; holds its path and the reason."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(os.fspath(path), reason)
        self.path, self.reason = Path(path), reason

    def __str__(self) -> str:
        return f'checkpoint {self.path} {self.reason}'


class Checkpoint(NamedTuple):
    """The content of a checkpoint file; tensors are on the CPU, the path is absolute."""

    state: State
    meta: dict[str, Any]
    path: Path


def save_checkpoint(path: str | os.PathLike[str], state: State, meta: dict[str, Any]) -> None:
    """Writes a checkpoint atomically: at any moment `path` holds either the old file or the new one, whole.

    Args:
      state: see State; tensors may be on any device and may be views or tied: each is stored in full.
      meta: JSON values, e.g. the config, counters and versions.
    Raises: TypeError if something is neither a tensor nor a JSON value (names it); OSError, e.g. on a full disk.
    """
    path = Path(path)
    tensors, values = _split(state)
    _check_json(meta, 'meta')
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # keeps every tensor aligned
    header = _header(tensors, values, meta)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    try:
        with open(partial, 'wb') as file:
            digest = hashlib.sha256(header)
            file.write(header)
            for tensor in tensors.values():
                data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                digest.update(data)
                file.write(data)
            file.seek(header.index(_DIGEST_KEY) + len(_DIGEST_KEY))
            file.write(digest.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(path.parent)


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint file, or the newest valid one of a run folder (the best one if no other is valid).

    Nothing in a file is executed, and nothing in it is used before its checksum is verified.
    Raises: CheckpointError.
    """
    path = Path(path)
    if path.is_dir():
        return _load_newest(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(path, 'does not exist; pass a run folder or a .safetensors file of it') from None
    except OSError as error:
        raise CheckpointError(path, f'cannot be read: {error.strerror or error}') from error
    metadata = _checked_metadata(path, data)
    try:
        state, meta = json.loads(metadata['state']), json.loads(metadata['meta'])
        for name, tensor in safetensors.torch.load(data).items():
            *parents, key = name.split('/')
            node = state
            for parent in parents:
                node = node[parent]
            node[key] = tensor
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(path, f'is malformed although its checksum is correct: {error!r}') from error
    if metadata['zoo_format'] == '1' and 'buffer' in state:
        state['buffer'] = _with_flat_logits(state['buffer'])
    return Checkpoint(state, meta, path.absolute())


def fit_state(expected: State, got: State, path: str | os.PathLike[str]) -> None:
    """Checks that a loaded state has the names, shapes and dtypes of the state that it replaces.

    Raises: CheckpointError with the first differences.
    """
    want, have = dict(_leaves(expected)), dict(_leaves(got))
    misfits = [
        f'{name} is {have[name]} in the file and {form} in this run'
        for name, form in want.items()
        if have.get(name, form) != form
    ]
    misfits += [f'{name} is not in the file' for name in want if name not in have]
    misfits += [f'{name} is only in the file' for name in have if name not in want]
    if misfits:
        more = f', and {len(misfits) - 3} more' if len(misfits) > 3 else ''
        raise CheckpointError(
            path, f'does not fit: {", ".join(misfits[:3])}{more}; use the config that it was saved with'
        )


class CheckpointManager:
    """Writes the checkpoints of one run to <run_dir>/checkpoints: the last few, and the best.

    A write that fails, e.g. on a full disk, is a warning: the run continues and older checkpoints are kept.
    """

    def __init__(self, run_dir: str | os.PathLike[str], cfg: CheckpointConfig) -> None:
        self._folder = Path(run_dir) / 'checkpoints'
        self._cfg = cfg

    def save(self, env_step: int, state: State, meta: dict[str, Any]) -> Path | None:
        """Writes step_<env_step>.safetensors and removes all but the last `keep_last`; None if it could not be written.

        Checkpoints of later env steps are removed too: a resume from an earlier one has replaced them.
        """
        path = self._write(f'step_{env_step:09d}.safetensors', state, meta)
        if path is not None:
            steps = steps_of(self._folder)
            now = [step for step in steps if step <= env_step]
            stale = [file for step, file in steps.items() if step not in now[-self._cfg.keep_last :]]
            _remove([*stale, *self._folder.glob('*.tmp')])  # a process killed during a save leaves *.tmp
        return path

    def save_best(self, env_step: int, state: State, meta: dict[str, Any]) -> Path | None:
        """Replaces best.safetensors; None if `keep_best` is off or it could not be written."""
        return self._write('best.safetensors', state, meta) if self._cfg.keep_best else None

    def _write(self, name: str, state: State, meta: dict[str, Any]) -> Path | None:
        try:
            save_checkpoint(self._folder / name, state, meta)
        except OSError as error:
            logger.warning(
                'checkpoint %s was not saved (%s); training continues, older checkpoints are intact',
                self._folder / name,
                error.strerror or error,
            )
            return None
        return self._folder / name


def _with_flat_logits(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {'mu', 'sigma'}:
        return torch.cat((value['mu'], value['sigma']), -1)
    return {key: _with_flat_logits(item) for key, item in value.items()}


def _split(state: State, prefix: str = '') -> tuple[dict[str, Tensor], State]:
    """The tensors by path, and the state with None in their places, which keeps the order of keys."""
    tensors: dict[str, Tensor] = {}
    values: State = {}
    for key, value in state.items():
        if not isinstance(key, str) or not key or '/' in key or key == '__metadata__':
            raise TypeError(f'state has the key {key!r} under {prefix!r}; use a non-empty string without "/"')
        values[key] = None
        if isinstance(value, Tensor):
            if value.dtype not in _DTYPES:
                raise TypeError(
                    f'state {prefix}{key} has dtype {value.dtype}, which a checkpoint cannot hold; convert it'
                )
            tensors[prefix + key] = value
        elif isinstance(value, dict):
            inner, values[key] = _split(value, f'{prefix}{key}/')
            tensors |= inner
        else:
            _check_json(value, f'state {prefix}{key}')
            values[key] = value
    return tensors, values


def _check_json(value: Any, where: str) -> None:
    if isinstance(value, list):
        for i, item in enumerate(value):
            _check_json(item, f'{where}[{i}]')
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_json(item, f'{where}/{key}')
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(
            f'{where} is of type {type(value).__name__}; a checkpoint holds tensors, numbers, strings, '
            'None, lists, and dicts with string keys; convert it'
        )


def _header(tensors: dict[str, Tensor], values: State, meta: dict[str, Any]) -> bytes:
    """Length and JSON of a safetensors header. The digest in it is blank, and is computed over the file in this form."""
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
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {'dtype': _DTYPES[tensor.dtype], 'shape': list(tensor.shape), 'data_offsets': [start, end]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    return struct.pack('<Q', len(text)) + text


def _checked_metadata(path: Path, data: bytes) -> dict[str, str]:
    """The metadata of a checkpoint file of a known format with a correct checksum. Raises: CheckpointError."""
    size = int.from_bytes(data[:8], 'little')
    if len(data) < 9:
        raise CheckpointError(path, f'is empty or truncated: it has {len(data)} bytes; use an older checkpoint')
    if data[8:9] != b'{':  # tested first: a length may begin like a pickle
        kind = next((kind for magic, kind in _OTHER_FILES.items() if data.startswith(magic)), 'not a safetensors file')
        raise CheckpointError(path, f'is {kind}; zoo reads only the checkpoints it wrote')
    try:
        metadata = json.loads(data[8 : 8 + size]).get('__metadata__')
    except (ValueError, RecursionError):
        raise CheckpointError(path, _DAMAGED) from None
    number = metadata.get('zoo_format') if isinstance(metadata, dict) else None
    if number is None:
        raise CheckpointError(path, 'is a safetensors file of another program; zoo reads only the checkpoints it wrote')
    if str(number).isdecimal() and int(number) > FORMAT:
        raise CheckpointError(
            path,
            f'has format {number} and this zoo reads formats up to {FORMAT}: '
            'upgrade with pip install --upgrade policy-zoo',
        )
    start = data.find(_DIGEST_KEY, 8, 8 + size) + len(_DIGEST_KEY)
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(_BLANK)
    digest.update(view[start + len(_BLANK) :])
    if view[start : start + len(_BLANK)] != digest.hexdigest().encode():
        raise CheckpointError(path, _DAMAGED)
    return metadata


def _load_newest(folder: Path) -> Checkpoint:
    inner = folder / 'checkpoints'
    inner = inner if inner.is_dir() else folder
    files = [*reversed(steps_of(inner).values()), *inner.glob('best.safetensors')]
    if not files:
        raise CheckpointError(folder, 'is a folder without checkpoints; pass a run folder or a .safetensors file of it')
    first: CheckpointError | None = None
    for file in files:
        try:
            return load_checkpoint(file)
        except CheckpointError as error:
            logger.warning('%s', error)
            first = first or error
    raise CheckpointError(folder, f'has no valid checkpoint among {len(files)}; the newest: {first}') from first


def steps_of(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by env step, in rising order."""
    found = ((re.fullmatch(r'step_(\d+)\.safetensors', file.name), file) for file in folder.glob('step_*'))
    return dict(sorted((int(match[1]), file) for match, file in found if match))


def _leaves(state: State, prefix: str = '') -> Iterator[tuple[str, str]]:
    """Name and description of every leaf: shape and dtype of a tensor; other values may differ."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from _leaves(value, f'{prefix}{key}/')
        elif key == 'generator' and isinstance(value, Tensor) and value.dtype == torch.uint8:
            yield prefix + key, 'the state of a generator'  # its length depends on the kind of device
        elif isinstance(value, Tensor):
            yield prefix + key, f'{list(value.shape)} {str(value.dtype).removeprefix("torch.")}'
        else:
            yield prefix + key, 'not a tensor'


def _remove(files: list[Path]) -> None:
    try:
        for file in files:
            file.unlink(missing_ok=True)
    except OSError as error:
        logger.warning('an old checkpoint could not be removed: %s', error)


def _sync_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
