"""Checkpoints of a run: the ones that are kept, files of single ranks, and failures to write one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.core.errors import RunError, UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.policy.base import Policy
from zoo.run.base_config import CheckpointConfig
from zoo.run.checkpoint.file import Checkpoint, State, load_checkpoint, save_checkpoint, split, steps_of, to_tree
from zoo.run.checkpoint.schema import space_problem

# keys of a state that hold samples of one rank; the main file has those of rank 0
RANK_STATE_KEYS = 'buffer', 'memory'
NO_OTHERS: Mapping[str, Any] = {}
logger = logging.getLogger(__name__)


class LearnerFile(NamedTuple):
    """The content of the file of a learner that is not the first one of its run."""

    state: State
    meta: dict[str, Any]


def learner_file(path: Path, name: str) -> Path:
    """step_N.safetensors -> step_N.NAME.safetensors."""
    return path.with_name(f'{path.stem}.{name}{path.suffix}')


def rank_file(path: Path, rank: int) -> Path:
    """step_N.safetensors -> step_N.rank_R.safetensors."""
    return path.with_name(f'{path.stem}.rank_{rank}{path.suffix}')


def save_own(path: Path, rank: int, state: dict[str, Any], meta: dict[str, Any]) -> None:
    """Writes the samples of a rank above 0 to a file next to the main file, if it has any. Raises: OSError."""
    own = {name: state[name] for name in RANK_STATE_KEYS if state.get(name)}
    if own:
        save_checkpoint(rank_file(path, rank), own, meta)


def of_rank(checkpoint: Checkpoint, ranks: Ranks, n_rank: int) -> Checkpoint:
    """The checkpoint with the samples of this rank, or without samples if another number of ranks wrote it.

    They are left out too if the file of a rank is missing, as for best.safetensors: all ranks must have equally many.
    Args: n_rank: how many ranks train together. Raises: CheckpointError if the file of this rank is damaged.
    """
    n_before = checkpoint.meta.get('rank_num', 1)
    path = Path(checkpoint.path)
    has_samples = any(checkpoint.state.get(name) for name in RANK_STATE_KEYS)
    if n_before == n_rank == 1 or not has_samples:
        return checkpoint
    own = rank_file(path, ranks.rank)
    if n_before != n_rank:
        return _without_samples(checkpoint, ranks, f'it was written by {n_before} ranks and this run has {n_rank}')
    missing_here = ''
    if ranks.rank > 0 and not own.exists():  # the main file has the samples of rank 0
        missing_here = own.name
    names = ranks.gather(missing_here)  # every rank calls this
    missing = [name for name in names if name]
    if missing:
        return _without_samples(checkpoint, ranks, f'there is no {", ".join(missing)}')
    if ranks.rank == 0:
        return checkpoint
    state_of_rank = load_checkpoint(own).state
    samples = {name: state_of_rank[name] for name in RANK_STATE_KEYS if name in state_of_rank}
    return checkpoint._replace(state={**checkpoint.state, **samples})


def _without_samples(checkpoint: Checkpoint, ranks: Ranks, why: str) -> Checkpoint:
    """The checkpoint with empty samples. Rank 0 warns. Args: why: a clause that says what does not fit."""
    if ranks.rank == 0:
        logger.warning('%s: %s, so that its samples (buffer, auxiliary memory) are left out', checkpoint.path, why)
    empty: State = {name: {} for name in RANK_STATE_KEYS if name in checkpoint.state}
    return checkpoint._replace(state={**checkpoint.state, **empty})


class SaveError(RunError):
    """A checkpoint could not be written, e.g. on a full disk.

    Attributes: result: the `TrainResult` with the trained policy, if the checkpoint was that of the end of a run; else None.
    """

    result: Any = None


class CheckpointManager:
    """Writes the checkpoints of one run to <run_dir>/checkpoints: the last few, and the best.

    A write that fails leaves older checkpoints intact.
    Args: last: path and env step of the checkpoint that the run continues from; keep_folder: called before each write,
      may raise OSError; ranks: those that train together: all of them call `save`, rank 0 writes the files of the learners,
      that of the first one, the main file, last.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        cfg: CheckpointConfig,
        last: tuple[Path, int] | None = None,
        keep_folder: Callable[[], None] = lambda: None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._folder = Path(run_dir) / 'checkpoints'
        self._cfg = cfg
        self._last = last
        self._keep_folder = keep_folder

    def save(
        self, env_step: int, state: State, meta: dict[str, Any], others: Mapping[str, LearnerFile] = NO_OTHERS
    ) -> Path:
        """Writes step_<env_step>.safetensors and removes all but the last `keep_last`.

        Checkpoints of later env steps are removed too: a resume from an earlier one has replaced them.
        Args: others: the learners of the run but the first, by name. Raises: SaveError.
        """
        path = self._folder / f'step_{env_step:09d}.safetensors'
        for name, other in others.items():
            self._save_ranks(learner_file(path, name), other.state, other.meta)
        self._save_ranks(path, state, meta)
        if self._ranks.rank > 0:
            return path
        self._write(path, env_step, state, meta, others)
        steps = steps_of(self._folder)
        now = [step for step in steps if step <= env_step]
        stale = [file for step, file in steps.items() if step not in now[-self._cfg.keep_last :]]
        _remove([*stale, *self._folder.glob('*.tmp')])  # a process killed during a save leaves *.tmp
        complete = {file.stem for file in steps_of(self._folder).values()}
        parts = self._folder.glob('step_*.*.safetensors')  # of ranks and of learners
        _remove([file for file in parts if file.name.partition('.')[0] not in complete])
        return path

    def _save_ranks(self, path: Path, state: State, meta: dict[str, Any]) -> None:
        """Writes the samples of each rank before the main file, which makes a checkpoint complete. Raises: SaveError."""
        problem = ''
        if self._ranks.rank > 0:
            try:
                save_own(path, self._ranks.rank, state, meta)
            except OSError as error:
                problem = f'the part of rank {self._ranks.rank} ({error.strerror or error})'
        problems = [text for text in self._ranks.gather(problem) if text]
        if problems:
            raise SaveError(f'checkpoint {path} could not be saved: {", ".join(problems)}; {self._last_saved()}')

    def save_best(
        self, env_step: int, state: State, meta: dict[str, Any], others: Mapping[str, LearnerFile] = NO_OTHERS
    ) -> Path:
        """Replaces best.safetensors, and the best file of each other learner. Raises: SaveError."""
        return self._write(self._folder / 'best.safetensors', env_step, state, meta, others)

    def _write(
        self, path: Path, env_step: int, state: State, meta: dict[str, Any], others: Mapping[str, LearnerFile]
    ) -> Path:
        try:
            self._keep_folder()
            for name, other in others.items():
                save_checkpoint(learner_file(path, name), other.state, other.meta)
            save_checkpoint(path, state, meta)
        except OSError as error:
            reason = f'checkpoint {path} could not be saved ({error.strerror or error})'
            raise SaveError(f'{reason}; {self._last_saved()}') from error
        self._last = path, env_step
        return path

    def _last_saved(self) -> str:
        path, env_step = self._last or (None, 0)
        if path is None or not path.exists():
            return 'no other one is saved'
        return f'saved last was env step {env_step}, in {path}'


def refuse_unsavable(policy: Policy) -> None:
    """Raises: UserError if no checkpoint can hold a policy's state or spaces; the first save would find this out too late."""
    problem = space_problem('observation', policy.obs_space) or space_problem('action', policy.action_space)
    if problem:
        raise UserError(problem)
    try:
        split(to_tree(policy.state_dict()))
    except TypeError as error:
        raise UserError(
            f'policy {policy.cfg.type!r} cannot be saved: {error}; return tensors, numbers, text, lists and dicts from its '
            '_state_dict_learn and _state_dict_collect'
        ) from error


def _remove(files: list[Path]) -> None:
    try:
        for file in files:
            file.unlink(missing_ok=True)
    except OSError as error:
        logger.warning('an old checkpoint could not be removed: %s', error)
