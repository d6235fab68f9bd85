"""Checkpoints: one file each, written atomically, verified by a checksum before use, never a pickle."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.section import Section
from zoo.core.errors import UserError
from zoo.run.checkpoint_file import CheckpointError, FileContent, malformed, read_file, shown, write_file
from zoo.run.state_tree import check_json, from_tree, is_numbered, split, to_tree

logger = logging.getLogger(__name__)

FORMAT = 4
"""Version of the file format; files with a higher number are refused, those with a lower one are translated.

Format 1 has Gaussian logits in buffers as {'mu', 'sigma'}; format 2 has one tensor, mu and sigma side by side. Files of
both are of a time without action masks, which an env may have had nevertheless. Up to format 3, PPG's value_weight had no
effect unless actor and critic shared all parameters, nor had kl_weight beside policy_loss 'clip'.
"""

State = dict[str, Any]
"""Nested dicts; the keys are non-empty strings, or integers, the leaves tensors, JSON values or lists of these.

So `state_dict()` of a torch.optim.Optimizer is one; tuples come back as lists.
"""

MAX_NUMBER = 2**128
"""Above all numbers in the state of a policy or buffer; the generators of numpy have integers of 128 bits."""

Translation = Callable[[State, dict[str, Any]], None]

WHOLE = re.compile('learn/(plasticity|intrinsic)/')
"""State of parts that only some runs have: all of it is in a file, or nothing."""
OPTIONAL = re.compile(
    'learn/(adaptive_rate|penalty_weight)/|learn/optimizer/(.+/)?(average|average_weight|loss_scale|n_good_step)$'
)
"""State that begins anew where a file lacks it, each number on its own."""
LATER = re.compile('learn/(aux_filled|aux_oldest|intrinsic/carry|intrinsic/n_update)$')
"""State that a file may lack, but not have in vain."""
FORMER = re.compile('(learn/)?((learn|collect|plasticity|intrinsic)/generator|collect/n_acted)$')
"""State that a file may have in vain: random streams that went on, where draws are now functions of the seed and a counter."""


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
    tensors, values = split(to_tree(state))
    check_json(meta, 'meta')
    write_file(Path(path), FileContent(FORMAT, meta, values, tensors))


def check_state(state: State) -> None:
    """Raises: TypeError if something is neither a tensor nor a JSON value (names it), so that it could not be saved."""
    split(to_tree(state))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint file, or the newest valid one of a run folder (the best one if no other is valid).

    Nothing in a file is executed, and nothing in it is used before its sizes and its checksum are verified. What the
    tensors and values mean is not looked at: see `zoo.run.saved_run`.
    Raises: CheckpointError; UserError if `path` is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f'a checkpoint is named by the path of a file or run folder, got {path!r:.60}; pass one')
    path = Path(path)
    return _load_newest(path) if _is_folder(path) else _load_file(path)


def fit_state(
    expected: State, got: State, path: str | os.PathLike[str], causes: Mapping[str, str] | None = None
) -> None:
    """Checks that a loaded state has the names, shapes and dtypes of the state that it replaces.

    State of parts that were turned on or off since it was saved may be missing, or be there in vain; the log says so.
    Args: causes: what a difference is due to and what to do, by the beginning of its name; the first that applies counts,
      '' for nothing particular.
    Raises: CheckpointError with the first differences.
    """
    want, have = dict(_leaves(expected)), dict(_leaves(got))
    for name in {
        name for leaves in (want, have) for name, value in leaves.items() if is_numbered(value) or value == {}
    }:
        want.pop(name, None)  # of torch.optim, which has no state before its first step, and looks at what it is given
        have.pop(name, None)
    missing, in_vain = _turned(want, have), _turned(have, want)
    misfits = [
        f'{name} is {_form(name, have[name])} in the file and {_form(name, value)} in this run'
        for name, value in want.items()
        if name in have and not _fits(name, value, have[name])
    ]
    lacked = [name for name in want if name not in have and name not in missing and not LATER.match(name)]
    misfits += [f'{name} is not in the file' for name in lacked]
    known = {*want, *in_vain, *filter(FORMER.match, have)}
    misfits += [f'{shown(name)} is only in the file' for name in have if name not in known]
    if misfits:
        more = f', and {len(misfits) - 3} more' if len(misfits) > 3 else ''
        remedy = (
            'use the config that it was saved with, and a model like that of the run where it was given one as model='
        )
        for prefix, cause in (causes or {}).items():
            if any(text.startswith(prefix) for text in misfits):
                remedy = cause or remedy
                break
        raise CheckpointError(path, f'does not fit: {", ".join(misfits[:3])}{more}; {remedy}')
    for piece in dict.fromkeys(missing.values()):
        logger.info('%s is not in the checkpoint: it begins anew', piece)
    for piece in dict.fromkeys(in_vain.values()):
        logger.info('%s of the checkpoint is not used: this run has no such part', shown(piece))


def check_finite(expected: State, got: State, path: str | os.PathLike[str]) -> None:
    """Checks that the tensors of a state that fits have finite numbers, where those that they replace have.

    Raises: CheckpointError with the first tensor that has not.
    """
    have = dict(_leaves(got))
    for name, value in _leaves(expected):
        if isinstance(value, Tensor) and not have[name].isfinite().all() and value.isfinite().all():
            raise CheckpointError(
                path, f'has numbers in {name} that are not finite: training had failed; use an older checkpoint'
            )


def _turned(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    """The names in one state alone that are of parts turned on or off, each with what the log calls its piece."""
    found = {}
    halves = {match[0] for match in map(WHOLE.match, other) if match}
    for name in (name for name in one if name not in other):
        whole, piece = WHOLE.match(name), OPTIONAL.match(name)
        if whole and whole[0] not in halves:
            found[name] = whole[0].rstrip('/')
        elif piece:
            found[name] = f'learn/{piece[1]}' if piece[1] else piece[0].removesuffix('_weight')
    return found


def _load_file(path: Path) -> Checkpoint:
    content = read_file(path, FORMAT)
    state, meta = content.values, content.meta
    try:
        for name, tensor in content.tensors.items():
            _put(state, name, tensor)
        for number in range(content.format, FORMAT):
            _TRANSLATIONS[number](state, meta)
        state = from_tree(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise malformed(path, shown(str(error))) from error
    return Checkpoint(state, meta, path.absolute())


def _put(state: State, name: str, tensor: Tensor) -> None:
    """Sets the value at a path of a state, which was written as None."""
    node, (*parents, key) = state, name.split('/')
    for parent in parents:
        node = node[parent]
    if node[key] is not None:
        raise ValueError(f'state {name} is a tensor and a value')
    node[key] = tensor


def _flatten_logits(state: State, meta: dict[str, Any]) -> None:
    """Format 1 to 2."""
    if 'buffer' in state:
        state['buffer'] = _with_flat_logits(state['buffer'])


def _leave_masks_out(state: State, meta: dict[str, Any]) -> None:
    """Formats 1 and 2: whatever the env shows, its policy knows no action mask."""
    meta['config']['env'].setdefault('action_mask', 'off')


def _drop_idle_weights(state: State, meta: dict[str, Any]) -> None:
    """Formats 1 to 3: weights in PPG's config that had no effect, and would have one or be refused now."""
    policy = meta['config']['policy']
    if policy['type'] not in ('ppg', 'ppg_offpolicy'):
        return
    learn, model = policy['learn'], policy.get('model') or {}
    if learn.get('value_weight') == 0.5 or model.get('arch') in ('dual', 'detach'):
        learn['value_weight'] = None
    if learn.get('policy_loss', 'clip') == 'clip':
        learn.pop('kl_weight', None)


_TRANSLATIONS: dict[int, Translation] = {1: _flatten_logits, 2: _leave_masks_out, 3: _drop_idle_weights}
"""What changes state and meta of a format, in place, to those of the next one."""


def _with_flat_logits(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {'mu', 'sigma'}:
        return torch.cat((value['mu'], value['sigma']), -1)
    return {key: _with_flat_logits(item) for key, item in value.items()}


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL: reading it says so
        return False


def _load_newest(folder: Path) -> Checkpoint:
    inner = folder / 'checkpoints'
    inner = inner if inner.is_dir() else folder
    files = [*reversed(steps_of(inner).values()), *inner.glob('best.safetensors')]
    if not files:
        files = [*folder.glob('*/checkpoints/*.safetensors'), *folder.glob('*/*/checkpoints/*.safetensors')]
        runs = {path.parent.parent for path in files}
        newest = max(runs, key=lambda run: run.stat().st_mtime, default=None)
        do = (
            'pass a run folder or a .safetensors file of it'
            if newest is None
            else f'the newest run in it is {newest}: pass that'
        )
        raise CheckpointError(folder, f'is a folder without checkpoints; {do}')
    first: CheckpointError | None = None
    for file in files:
        try:
            return _load_file(file)
        except CheckpointError as error:
            logger.warning('%s', error)
            first = first or error
    raise CheckpointError(folder, f'has no valid checkpoint among {len(files)}; the newest: {first}') from first


def steps_of(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by env step, in rising order."""
    found = ((re.fullmatch(r'step_(\d+)\.safetensors', file.name), file) for file in folder.glob('step_*'))
    return dict(sorted((int(match[1]), file) for match, file in found if match))


def _leaves(state: State, prefix: str = '') -> Iterator[tuple[str, Any]]:
    """Path and value of every leaf; dicts with integers as keys, and empty ones, are leaves too."""
    for key, value in state.items():
        if isinstance(value, dict) and value and not is_numbered(value):
            yield from _leaves(value, f'{prefix}{key}/')
        else:
            yield prefix + key, value


def _fits(name: str, want: Any, have: Any) -> bool:
    """Whether a leaf may take the place of another; None stands for a number that is not known yet."""
    if isinstance(want, Tensor) or isinstance(have, Tensor):
        return _form(name, want) == _form(name, have)
    if want is None:
        return have is None or _form(name, have) == 'a number'
    return _form(name, want) == _form(name, have)


def _form(name: str, value: Any) -> str:
    """A leaf in words: shape and dtype of a tensor, the kind of other values."""
    if isinstance(value, Tensor):
        if name.rpartition('/')[2] == 'generator' and value.dtype == torch.uint8:
            return 'the state of a generator'  # its length depends on the kind of device
        return f'{list(value.shape)} {str(value.dtype).removeprefix("torch.")}'
    if type(value) in (int, float):
        return 'a number' if abs(value) < MAX_NUMBER else 'a number out of range'
    return {bool: 'a truth value', str: 'text', list: 'a list'}.get(type(value), 'null')
