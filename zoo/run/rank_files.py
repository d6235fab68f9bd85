"""What belongs to one rank of several in a checkpoint: its buffer and auxiliary memory, in a file beside the main one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from zoo.core.ranks import Ranks
from zoo.run.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

OWN = ('buffer', 'memory')
"""Pieces of a state that hold samples of one rank; the main file has those of rank 0."""

logger = logging.getLogger(__name__)


def rank_file(path: Path, rank: int) -> Path:
    """step_N.safetensors -> step_N.rank_R.safetensors."""
    return path.with_name(f'{path.stem}.rank_{rank}{path.suffix}')


def save_own(path: Path, rank: int, state: dict[str, Any], meta: dict[str, Any]) -> None:
    """Writes what rank R > 0 has beside the main file; nothing where it has nothing. Raises: OSError."""
    own = {name: state[name] for name in OWN if state.get(name)}
    if own:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(rank_file(path, rank), own, meta)


def of_rank(checkpoint: Checkpoint, ranks: Ranks) -> Checkpoint:
    """A checkpoint with the samples of this rank, or without any where another number of ranks wrote it.

    They are left out too where the file of a rank is missing, as it is of best.safetensors: all ranks have as many samples.
    Raises: CheckpointError if the file of this rank is damaged.
    """
    n_before, path = checkpoint.meta.get('rank_num', 1), Path(checkpoint.path)
    has_samples = any(checkpoint.state.get(name) for name in OWN)
    if n_before == ranks.size == 1 or not has_samples:
        return checkpoint
    own = rank_file(path, ranks.rank)
    if n_before != ranks.size:
        why = f'it was written by {n_before} ranks and this run has {ranks.size}'
    elif missing := [name for name in ranks.gather('' if ranks.rank == 0 or own.exists() else own.name) if name]:
        why = f'there is no {", ".join(missing)}'
    else:
        return checkpoint if ranks.rank == 0 else _with_samples_of(checkpoint, own)
    if ranks.rank == 0:
        logger.warning('%s: %s, so that its samples (buffer, auxiliary memory) are left out', path, why)
    return checkpoint._replace(state={**checkpoint.state, **{name: {} for name in OWN if name in checkpoint.state}})


def _with_samples_of(checkpoint: Checkpoint, file: Path) -> Checkpoint:
    own = load_checkpoint(file).state
    return checkpoint._replace(state={**checkpoint.state, **{name: own[name] for name in OWN if name in own}})
