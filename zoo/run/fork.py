"""Forks of runs: a new run folder that begins with a checkpoint of another run, with other settings or a changed state."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from zoo.config.yaml_io import save_yaml, storable
from zoo.core.errors import UserError
from zoo.core.files import open_without_link, read_small, whole_file
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, CheckpointError, State, load_checkpoint, save_checkpoint, saved_run
from zoo.run.checkpoint.consent import Trust, is_started_here, remember_started
from zoo.run.checkpoint.manager import learner_file, rank_file
from zoo.run.config import frozen_config, resolve_config
from zoo.run.folder import RunLock, newest_in, refuse_no_run_folder, refuse_unwritable
from zoo.run.resume import changes, config_to_continue, with_saved_start

Change = Callable[[State], State]
"""Maps the state of a learner, as its checkpoint holds it, to another one that fits the config of the new run."""
RECORD = 'fork.json'
"""File of a run folder that says which checkpoint the run began with."""
MAX_LINE = 1 << 20  # most bytes of a line of metrics.jsonl: a metric takes about 40
MAX_SNAPSHOT = 1 << 32  # most bytes of a snapshot of self-play
REMEDY = 'name another folder'
logger = logging.getLogger(__name__)


def fork(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    change: Change | None = None,
    trust: Trust = (),
) -> Path:
    """Begins a new run with the state of another one, without training it; the other run is not changed.

    The new run has the parent's parameters, statistics of normalisers, moments of the optimiser, samples and counters. Its
    log begins with the lines of the parent. Without overrides and `change` it continues as the parent would, bit for bit;
    with another seed its env steps and noise differ from the first one on. `serial_pipeline(run_dir=folder)` trains it.

    Args:
      run: a run folder, whose newest checkpoint is taken, or a checkpoint file.
      folder: of the new run; it may exist if no run has a checkpoint there.
      overrides: 'key=value' texts, for the new run.
      change: maps the state of each learner to another one, e.g. with other parameters.
      trust: as of `serial_pipeline`.
    Returns: the path of the new checkpoint.
    Raises: CheckpointError; ConfigError; UserError if the folder has a run, or cannot be written.
    """
    checkpoint = load_checkpoint(run)
    saved = saved_run(checkpoint)
    source = config_to_continue(saved, trust, overrides)
    return begin_fork(checkpoint, Path(folder), frozen_config(resolve_config(source, overrides)), change)


def begin_fork(checkpoint: Checkpoint, folder: Path, cfg: JobConfig, change: Change | None = None) -> Path:
    """Writes the folder of a fork: its config, the log of the parent up to the checkpoint, and last its first checkpoint.

    If it is interrupted, the folder has no checkpoint, and the same call writes it again.
    Args: cfg: the resolved config of the new run; others, returns, raises: as of `fork`.
    """
    refuse_no_run_folder(folder, has_start=True)
    if newest_in(folder) is not None:
        raise UserError(f'{folder} has a run already; {REMEDY}, or continue that one: zoo train --resume {folder}')
    saved = saved_run(checkpoint)
    cfg = with_saved_start(cfg, checkpoint)
    name = f'step_{saved.env_step:09d}.safetensors'
    parent = checkpoint.path.parent.parent
    record = {
        'run': str(parent),
        'checkpoint': str(checkpoint.path),
        'env_step': saved.env_step,
        'changed': changes(cfg, saved),
        'state_changed': change is not None,
    }
    with refuse_unwritable(folder, REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
        with closing(RunLock(folder)):
            save_yaml(cfg, folder / 'config.yaml')
            _write(folder / RECORD, [f'{json.dumps(record, indent=1)}\n'.encode()])
            _write(folder / 'metrics.jsonl', _lines_of(parent / 'metrics.jsonl', saved.env_step))
            _copy_league(parent, folder, saved.env_step)
            first = folder / 'checkpoints' / name
            for of_part in _parts(checkpoint):
                _copy(load_checkpoint(of_part(checkpoint.path)), of_part(first), change)
            _copy(checkpoint, first, change, config=storable(cfg))
    if is_started_here(saved):
        remember_started(folder, storable(cfg))
    logger.info('%s begins as a fork of %s at env step %d', folder, parent, saved.env_step)
    return first


def _write(path: Path, pieces: Sequence[bytes] | Iterator[bytes]) -> None:
    with whole_file(path) as file:
        for piece in pieces:
            file.write(piece)


def _lines_of(log: Path, env_step: int) -> Iterator[bytes]:
    """Yields the whole lines of a log up to an env step; none if there is no log, as next to a file that was moved."""
    if not log.is_file():
        return
    with open(log, 'rb', opener=open_without_link) as file:
        for line in iter(partial(file.readline, MAX_LINE), b''):
            try:
                step = json.loads(line)['env_step']
            except (ValueError, LookupError, TypeError, RecursionError):
                return
            if not isinstance(step, int) or step > env_step or not line.endswith(b'\n'):
                return
            yield line


def _copy_league(parent: Path, folder: Path, env_step: int) -> None:
    """Copies the snapshots of self-play up to an env step."""
    for file in parent.glob('league/*.safetensors'):
        if file.stem.isdecimal() and int(file.stem) <= env_step:
            (folder / 'league').mkdir(exist_ok=True)
            _write(folder / 'league' / file.name, [read_small(file, MAX_SNAPSHOT)])


def _parts(checkpoint: Checkpoint) -> list[Callable[[Path], Path]]:
    """Functions from the path of a main file to that of each other file of the checkpoint: of learners, of ranks."""
    others = saved_run(checkpoint).learners[1:]
    files: list[Callable[[Path], Path]] = [partial(learner_file, name=name) for name in others]
    n_rank = checkpoint.meta.get('rank_num', 1)
    if type(n_rank) is int:
        mains = [lambda path: path, *files]
        files += [partial(_of_rank, of_main, rank) for of_main in mains for rank in range(1, n_rank)]
    return [of_part for of_part in files if of_part(checkpoint.path).exists()]


def _of_rank(of_main: Callable[[Path], Path], rank: int, path: Path) -> Path:
    return rank_file(of_main(path), rank)


def _copy(checkpoint: Checkpoint, path: Path, change: Change | None, **more: Any) -> None:
    """Writes a file of a checkpoint for the new run. Args: more: of its meta. Raises: CheckpointError for a state that no
    file holds."""
    state = checkpoint.state
    if change is not None and 'policy' in state:  # the files of ranks hold samples alone
        state = change(state)
    try:
        save_checkpoint(path, state, {**checkpoint.meta, **more})
    except TypeError as error:
        raise CheckpointError(path, f'cannot be written: {error}') from error
