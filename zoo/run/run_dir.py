"""The folder of a run: a new one, or that of the run which it continues from its newest checkpoint."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from zoo.config.messages import printable
from zoo.config.section import Config
from zoo.config.yaml_text import config_of_yaml, save_yaml
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks
from zoo.run.checkpoint import Checkpoint, load_checkpoint, steps_of
from zoo.run.checkpoint_file import CheckpointError
from zoo.run.logger import LoggerConfig
from zoo.run.run_lock import RunFolderInUseError, RunLock
from zoo.run.saved_run import SavedRun, saved_run

ELSEWHERE = 'set logger.root to a folder that can be written'

logger = logging.getLogger(__name__)


class RunFolder:
    """The folder that a run writes to, locked against other runs until `close`.

    A resume continues in the folder of its checkpoint only from the newest step there, so that nothing that the run
    logged or saved later is overwritten, and only if exp_name, seed and logger.root are unchanged; else it has a new one.
    Args: path: the folder, in any case; None: as above.
    Raises: UserError if that folder cannot be written, or another run is writing to it.
    """

    def __init__(self, cfg: Config, checkpoint: Checkpoint | None, path: Path | None = None) -> None:
        self._cfg = cfg
        self._path: Path | None = None
        self._lock: RunLock | None = None
        self._was_there: set[Path] = set()  # what `discard` leaves alone
        if path is not None:
            self._path = path.absolute()
            self._was_there = {self._path, *_content(self._path)} if path.exists() else set()
            with refuse_unwritable(path, 'name another folder'):
                path.mkdir(parents=True, exist_ok=True)
                self._lock = RunLock(self._path)
            return
        run = None if checkpoint is None else saved_run(checkpoint)
        if run is not None and _keeps_its_place(cfg, run):
            self._continue_in(run.path)

    @property
    def path(self) -> Path:
        """Known from `begin` on."""
        assert self._path is not None, 'begin was not called'
        return self._path

    def begin(self, is_over: bool = False) -> None:
        """Makes the folder if it is new, and writes config.yaml. Raises: UserError if it cannot be written.

        Args: is_over: nothing is left to train; config.yaml then stays that of the training.
        """
        if self._path is None:
            self._path = _new_run_dir(self._cfg)
        with refuse_unwritable(self._path):
            self._lock = self._lock or RunLock(self._path)
            for file in self._path.glob('config.yaml.*.tmp'):  # of a process that was killed while it wrote
                file.unlink()
            if not is_over or not self._has_whole_config():
                save_yaml(self._cfg, self._path / 'config.yaml')

    def _has_whole_config(self) -> bool:
        with suppress(UserError):
            return config_of_yaml(self.path / 'config.yaml').keys() >= self._cfg.keys()
        return False

    def restore(self) -> bool:
        """Makes the folder anew if it was removed or moved; returns whether it was. Raises: OSError."""
        assert self._lock is not None, 'begin was not called'
        if self._lock.is_in_place():
            return False
        self._lock.close()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = RunLock(self.path)
        except RunFolderInUseError as error:
            raise OSError(errno.EBUSY, str(error)) from error
        try:
            save_yaml(self._cfg, self.path / 'config.yaml')
        except OSError:
            lock.close()
            raise
        self._lock = lock
        logger.warning('the run folder %s or its lock was removed or moved; what is missing is begun anew', self.path)
        return True

    def close(self) -> None:
        """Lets other runs write to the folder."""
        if self._lock is not None:
            self._lock.close()

    def discard(self) -> None:
        """Removes what was made in the folder, and the folder if it was made too, unless a checkpoint is in it."""
        if self._path is None or newest_in(self._path) is not None:
            return
        self.close()
        for path in [*_content(self._path), self._path]:
            if path not in self._was_there:
                with suppress(OSError):
                    path.rmdir() if path.is_dir() else path.unlink()

    def _continue_in(self, file: Path) -> None:
        folder = file.parents[1]
        try:
            lock = RunLock(folder)
        except OSError as error:
            if _is_newest(file):
                raise _unwritable(folder, error) from error
            return
        if _is_newest(file):  # known only now that nobody else saves there
            self._path, self._lock = folder, lock
        else:
            lock.close()


def _content(folder: Path) -> list[Path]:
    """What a run may write before its first checkpoint is whole: the files of a folder and those in its `checkpoints`."""
    return [*folder.glob('checkpoints/*'), *folder.glob('*')]


def folder_of(
    cfg: Config, checkpoint: Checkpoint | None, path: Path | None, ranks: Ranks
) -> RunFolder | FollowedFolder:
    """The folder of a run: rank 0 makes it, the others are told. Args, Raises: of RunFolder."""
    return RunFolder(cfg, checkpoint, path) if ranks.rank == 0 else FollowedFolder(lambda: ranks.share(None))


class FollowedFolder:
    """The folder of a run that another rank made and alone writes to. Args: find: waits for its path."""

    def __init__(self, find: Callable[[], Path]) -> None:
        self._find = find
        self.path = Path()

    def begin(self, is_over: bool = False) -> None:
        """Waits until the folder is there."""
        self.path = self._find()

    def restore(self) -> bool:
        """Nothing: that is up to the other rank."""
        return False

    def close(self) -> None:
        """Nothing was opened."""


def newest_in(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder; None if it has none, or is not there."""
    return next(reversed(steps_of(folder / 'checkpoints').values()), None)


@contextmanager
def refuse_unwritable(folder: Path, remedy: str = ELSEWHERE) -> Iterator[None]:
    """Turns the OSError of a first write to a run folder into a UserError."""
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error, remedy) from error


def refuse_no_run_folder(folder: Path, has_config: bool) -> None:
    """Raises: UserError for a folder that a run cannot begin or continue in: without anything to begin with, or inside a run."""
    if steps_of(folder):
        raise UserError(f'{folder} is the folder of the checkpoints of a run; name the run, {folder.absolute().parent}')
    if not has_config and newest_in(folder) is None:
        raise UserError(
            f'the run folder {folder} has no checkpoint to continue from; give a config to begin a run in it'
        )


def root_of(run: SavedRun) -> str:
    """The folder for new run folders that a checkpoint may name: one below the current folder.

    Any other is replaced: by the one that the checkpoint lies in as <root>/<exp_name>/<run>/checkpoints/<file>, or else
    by the default. So a file chooses no place to write to.
    """
    root, parents = Path(run.config['logger']['root']), run.path.parents
    if not root.anchor and '..' not in root.parts:
        return str(root)
    is_in_run = len(parents) > 3 and (parents[0].name, parents[2].name) == ('checkpoints', run.config['exp_name'])
    return str(parents[3]) if is_in_run else LoggerConfig().root


def _keeps_its_place(cfg: Config, run: SavedRun) -> bool:
    return (
        run.path.parent.name == 'checkpoints'
        and (cfg.exp_name, cfg.seed) == (run.config['exp_name'], run.config['seed'])
        and cfg.logger.root in (run.config['logger']['root'], root_of(run))
    )


def _unwritable(folder: Path, error: OSError, remedy: str = ELSEWHERE) -> UserError:
    return UserError(
        f'the run folder {folder} cannot be written ({error.strerror or error}); make that possible, or {remedy}'
    )


def _is_newest(file: Path) -> bool:
    return list(steps_of(file.parent).values())[-1:] == [file]


def _new_run_dir(cfg: Config) -> Path:
    """Makes <logger.root>/<exp_name>/<time>_seed<k>, with a number appended if it exists."""
    base = Path(cfg.logger.root) / cfg.exp_name / f'{datetime.now():%Y%m%d-%H%M%S}_seed{cfg.seed}'
    for n in range(1, 1000):
        path = base if n == 1 else base.with_name(f'{base.name}_{n}')
        try:
            path.mkdir(parents=True)
            return path.absolute()  # an env may change the current folder
        except FileExistsError:
            if not base.parent.is_dir():
                break
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = getattr(error, 'strerror', None) or error
            raise UserError(
                f'the run folder {printable(str(path))} cannot be made ({why}); set logger.root to a folder '
                'that can be written'
            ) from error
    raise UserError(
        f'the run folder {base} cannot be made: a file of that name exists; set logger.root or exp_name to another'
    )


def best_return_of(run_dir: Path) -> float | None:
    """The return of the best checkpoint that a run folder holds; None if it holds no valid one."""
    path = run_dir / 'checkpoints' / 'best.safetensors'
    if not path.exists():
        return None
    try:
        return saved_run(load_checkpoint(path)).best_return
    except CheckpointError as error:
        logger.warning('%s; the next evaluation replaces it', error)
        return None
