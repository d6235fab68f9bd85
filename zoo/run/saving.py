"""Which checkpoints a run keeps, and what becomes of one that cannot be written."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo.core.errors import RunError, UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.policy.base import Policy
from zoo.run.checkpoint import CheckpointConfig, State, check_state, save_checkpoint, steps_of
from zoo.run.rank_files import save_own

logger = logging.getLogger(__name__)


class SaveError(RunError):
    """A checkpoint could not be written, e.g. on a full disk.

    Attributes: result: where it was that of the end of a run, its `TrainResult`, which has the trained policy.
    """

    result: Any = None


class CheckpointManager:
    """Writes the checkpoints of one run to <run_dir>/checkpoints: the last few, and the best.

    A write that fails leaves older checkpoints intact.
    Args: last: path and env step of the checkpoint that the run continues from; keep_folder: called before each write,
      may raise OSError; ranks: those that train together: all of them call `save`, rank 0 writes the main file, last.
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
        self._cfg, self._last, self._keep_folder = cfg, last, keep_folder

    def save(self, env_step: int, state: State, meta: dict[str, Any]) -> Path:
        """Writes step_<env_step>.safetensors and removes all but the last `keep_last`.

        Checkpoints of later env steps are removed too: a resume from an earlier one has replaced them.
        Raises: SaveError.
        """
        path = self._folder / f'step_{env_step:09d}.safetensors'
        if self._ranks.size > 1:
            self._save_ranks(path, state, meta)
            if self._ranks.rank > 0:
                return path
        self._write(path.name, env_step, state, meta)
        steps = steps_of(self._folder)
        now = [step for step in steps if step <= env_step]
        stale = [file for step, file in steps.items() if step not in now[-self._cfg.keep_last :]]
        _remove([*stale, *self._folder.glob('*.tmp')])  # a process killed during a save leaves *.tmp
        kept = {file.stem for file in steps_of(self._folder).values()}
        _remove([file for file in self._folder.glob('step_*.rank_*') if file.name.partition('.')[0] not in kept])
        return path

    def _save_ranks(self, path: Path, state: State, meta: dict[str, Any]) -> None:
        """Writes what each rank has of its own, before the main file: a step counts only when it is whole. Raises: SaveError."""
        problem = ''
        if self._ranks.rank > 0:
            try:
                save_own(path, self._ranks.rank, state, meta)
            except OSError as error:
                problem = f'the part of rank {self._ranks.rank} ({error.strerror or error})'
        if problems := [text for text in self._ranks.gather(problem) if text]:
            raise SaveError(f'checkpoint {path} could not be saved: {", ".join(problems)}; {self._last_saved()}')

    def save_best(self, env_step: int, state: State, meta: dict[str, Any]) -> Path | None:
        """Replaces best.safetensors; None if `keep_best` is off. Raises: SaveError."""
        return self._write('best.safetensors', env_step, state, meta) if self._cfg.keep_best else None

    def _write(self, name: str, env_step: int, state: State, meta: dict[str, Any]) -> Path:
        path = self._folder / name
        try:
            self._keep_folder()
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
    """Raises: UserError if the state of a policy is of a kind that no checkpoint holds: at the first save it is too late."""
    try:
        check_state(policy.state_dict())
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
