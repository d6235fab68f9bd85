"""Checkpoints with changed content and a correct checksum, as only an attacker or a bug writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint

OLD = Path(__file__).parent / 'old_checkpoints'
BLANK = b'0' * 64
DIGEST_KEY = b'"sha256":"'


def crafted(
    path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], source: str = 'ppo_categorical'
) -> Path:
    """Writes a checkpoint after `change` has changed its state and meta in place."""
    state, meta, _ = load_checkpoint(OLD / f'{source}.safetensors')
    change(state, meta)
    save_checkpoint(path, state, meta)
    return path


def with_value(path: Path, key: str, value: Any, source: str = 'ppo_categorical') -> Path:
    """Writes a checkpoint with one value set, e.g. 'meta.config.env.id'; `...` as value removes the key."""

    def change(state: dict[str, Any], meta: dict[str, Any]) -> None:
        *parents, last = key.split('.')
        node: Any = {'state': state, 'meta': meta}
        for parent in parents:
            node = node[parent]
        if value is ...:
            del node[last]
        else:
            node[last] = value

    return crafted(path, change, source)


def mended(data: bytes) -> bytes:
    """Returns a file's bytes with the correct checksum; unmodified if the file has no place for a checksum."""
    at = data.find(DIGEST_KEY) + len(DIGEST_KEY)
    if at < len(DIGEST_KEY) or at + 64 > len(data):
        return data
    blank = data[:at] + BLANK + data[at + 64 :]
    return data[:at] + hashlib.sha256(blank).hexdigest().encode() + data[at + 64 :]


def components_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns a file's header and the bytes of its tensors."""
    n = int.from_bytes(data[:8], 'little')
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def joined(header: dict[str, Any], tensors: bytes) -> bytes:
    """Returns the bytes of a file with this header, these tensors and a correct checksum."""
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    return mended(len(text).to_bytes(8, 'little') + text + tensors)
