"""The folder of a run: a new one, or the one that a run continues in; its lock; the check that its config is the same."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from zoo.config.section import differing_keys, has_key, value_at
from zoo.config.yaml_io import config_of_yaml, save_yaml, storable, value_text
from zoo.core.errors import UserError
from zoo.core.files import is_in_place, open_without_link, refuse_failure, refuse_links
from zoo.core.streams import printable
from zoo.run.base_config import JobConfig, LoggerConfig
from zoo.run.checkpoint import Checkpoint, CheckpointError, SavedRun, load_checkpoint, saved_run, steps_of
from zoo.run.config import explain_config, resolve_config, without_derived_values

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


NAME = 'run.lock'
TRIES = 5
ELSEWHERE = 'set logger.root to a folder that can be written'
OWN_CODE = re.compile(r'(?:.*[/\\])?([^/\\]+\.py:\w+)')
MAX_SHOWN = 3  # keys in a message
LENGTH = 'max_env_step'
FREE = (
    'stop',
    'policy.eval.stop_value',
    'init_from_keys',
    'logger',
    'checkpoint',
    'cluster',
    'policy.device',
    'policy.n_thread',
    'policy.learn.compile',
    'policy.learn.executor',
    'keep_freed_memory',
    'pipeline.port',
    'pipeline.silence_s',
    'env.check',
    'env.evaluator_env_num',
    'env.max_restarts',
    'env.on_error',
    'env.step_timeout',
    'env.vectorization',
)
"""Keys and sections that a run may change when it continues. They say when it ends, where and how it computes, what it writes,
and how it handles faults."""
logger = logging.getLogger(__name__)


class RunFolderInUseError(UserError):
    """Another process, or another job of this one, writes to the run folder."""


class RunLock:
    """A lock on a run folder, held until `close`; the file `run.lock` names the process that holds it.

    Where files cannot be locked (Windows, some network file systems) a warning says so, and there is no protection.
    Args: folder: must exist.
    Raises: RunFolderInUseError, which names the holder; UserError for a folder with links; OSError if it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        refuse_links(folder)
        self._handle = _open_locked(self._path)
        self._stat = os.fstat(self._handle)
        _held.add(self._handle)

    def is_in_place(self) -> bool:
        """Whether the lock still protects the folder: neither the folder nor the file was removed, moved or replaced."""
        return self._handle in _held and is_in_place(self._path, self._stat)

    def close(self) -> None:
        """Releases the lock; calling it again, or in a forked process, does nothing."""
        if self._handle not in _held:
            return
        if self.is_in_place():
            with suppress(OSError):
                self._path.unlink()  # still locked: nobody else can have taken it
        _held.discard(self._handle)
        with suppress(OSError):  # an env may have closed it
            os.close(self._handle)


_held: set[int] = set()  # descriptors of the locks that this process holds


def _forget_in_child() -> None:
    """Closes the locks in a forked env worker, which shares their descriptors and would hold them after a crash of the run."""
    while _held:
        os.close(_held.pop())


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_forget_in_child)


def is_locked(folder: Path) -> bool:
    """Whether a process writes to a run folder now, if the system has locks. The process is not disturbed."""
    if fcntl is None:
        return (folder / NAME).exists()
    try:
        handle = open_without_link(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _open_locked(path: Path) -> int:
    for _ in range(10):
        handle = open_without_link(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(handle, path)
            if is_in_place(path, os.fstat(handle)):  # else another holder removed the file after it was opened here
                _write_holder(handle, path)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise OSError(errno.EAGAIN, f'its file {NAME} is removed as soon as it is made')


def _lock(handle: int, path: Path) -> None:
    reason = 'this system has no flock'
    n_try = 0
    if fcntl is not None:
        n_try = TRIES
    for n_left in reversed(range(n_try)):  # `is_locked` holds the lock for a moment
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not n_left:
                raise RunFolderInUseError(
                    f'the run folder {path.parent} is in use by {_holder(handle)}; wait until that has ended or stop it, '
                    'or set exp_name to continue in a folder of that name'
                ) from None
            time.sleep(0.02)
        except OSError as error:
            reason = error.strerror or str(error)
            break
    logger.warning('the run folder %s cannot be locked (%s); let no other process resume it now', path.parent, reason)


def _write_holder(handle: int, path: Path) -> None:
    holder = {'pid': os.getpid(), 'host': socket.gethostname(), 'start': f'{datetime.now():%Y-%m-%d %H:%M:%S}'}
    try:
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(holder).encode() + b'\n')
    except OSError:  # the disk is full
        path.unlink()
        raise


def _holder(handle: int) -> str:
    """The process that holds the lock, in words. The file may have any content, and is empty for a moment."""
    try:
        holder = json.loads(os.pread(handle, 1000, 0))
        pid, host, start = (printable(str(holder[key])[:100]) for key in ('pid', 'host', 'start'))
    except (ValueError, LookupError, TypeError):
        return 'another process'
    return f'process {pid} on host {host} since {start}'


class RunFolder:
    """The folder that a run writes to, locked against other runs until `close`.

    A resume continues in the folder of its checkpoint only from the newest step there, so that nothing that the run
    logged or saved later is overwritten, and only if exp_name, seed and logger.root are unchanged; else it gets a new one.
    Args: path: the folder to use in all cases; None: the folder is chosen as above.
    Raises: UserError if that folder cannot be written, or another run is writing to it.
    """

    def __init__(self, cfg: JobConfig, checkpoint: Checkpoint | None, path: Path | None = None) -> None:
        self._cfg = cfg
        self._root = Path(cfg.logger.root).absolute()  # an env may change the current folder
        self._path: Path | None = None
        self._lock: RunLock | None = None
        self._was_there: set[Path] = set()  # paths that `discard` does not remove
        if path is not None:
            self._path = path.absolute()
            if os.path.isdir(path):
                self._was_there = {self._path, *_content(self._path)}
            with refuse_unwritable(path, 'name another folder'):
                path.mkdir(parents=True, exist_ok=True)
                self._lock = RunLock(self._path)
            return
        if checkpoint is not None:
            run = saved_run(checkpoint)
            if _keeps_its_place(cfg, run):
                self._continue_in(run.path.parents[1], run.path)

    def _continue_in(self, folder: Path, checkpoint: Path) -> None:
        """Takes the folder of a checkpoint if that is the newest one there."""
        guard: AbstractContextManager[None] = suppress(OSError)
        if newest_in(folder) == checkpoint:
            guard = refuse_unwritable(folder)
        with guard:
            lock = RunLock(folder)
            if newest_in(folder) == checkpoint:  # checked again: now nobody else saves there
                self._path = folder
                self._lock = lock
            else:
                lock.close()

    @property
    def path(self) -> Path:
        """The folder, known from `begin` on."""
        assert self._path is not None, 'begin was not called'
        return self._path

    def begin(self, is_over: bool = False) -> None:
        """Makes the folder if it is new, and writes config.yaml. Raises: UserError if it cannot be written.

        Args: is_over: nothing is left to train; config.yaml then remains that of the training.
        """
        if self._path is None:
            self._path = _new_run_dir(self._cfg, self._root)
        with refuse_unwritable(self._path):
            self._lock = self._lock or RunLock(self._path)
            for file in self._path.glob('config.yaml.*.tmp'):  # of a process that was killed while it wrote
                file.unlink()
            earlier: dict[str, Any] = {}
            if is_over:
                with suppress(UserError):
                    earlier = config_of_yaml(self._path / 'config.yaml')
            if not earlier.keys() >= set(self._cfg.keys()):
                save_yaml(self._cfg, self._path / 'config.yaml')

    def restore(self) -> bool:
        """Makes the folder again if it was removed or moved; returns whether it was. Raises: OSError."""
        assert self._lock is not None, 'begin was not called'
        if self._lock.is_in_place():
            return False
        self._lock.close()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = RunLock(self.path)
        except UserError as error:  # another process uses it, or made links in it
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
        """Removes the files made since the start, and the folder if it is new, unless it contains a checkpoint."""
        if self._path is None or newest_in(self._path) is not None:
            return
        self.close()
        for path in [*_content(self._path), self._path]:
            if path not in self._was_there:
                with suppress(OSError):
                    if path.is_dir():
                        path.rmdir()
                    else:
                        path.unlink()


def _content(folder: Path) -> list[Path]:
    """The paths that a run may write before its first checkpoint is complete: in its folder and in `checkpoints`."""
    return [*folder.glob('checkpoints/*'), *folder.glob('*')]


def newest_in(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder; None if it has none, or is not there."""
    return next(reversed(steps_of(folder / 'checkpoints').values()), None)


def refuse_unwritable(folder: Path, remedy: str = ELSEWHERE) -> AbstractContextManager[None]:
    """Turns the OSError of a first write to a run folder into a UserError."""
    return refuse_failure(f'the run folder {folder} cannot be written', f'make that possible, or {remedy}')


def refuse_no_run_folder(folder: Path, has_start: bool) -> None:
    """Checks that a run may begin or continue in a folder.

    Args: has_start: there is a config, or a run to fork, so that the folder needs no checkpoint.
    Raises: UserError if there is nothing to begin with, or the folder is inside a run, or in use.
    """
    if steps_of(folder):
        raise UserError(f'{folder} is the folder of the checkpoints of a run; name the run, {folder.absolute().parent}')
    if not has_start and newest_in(folder) is None:
        raise UserError(
            f'the run folder {folder} has no checkpoint to continue from; give a config to begin a run in it'
        )
    if is_locked(folder):  # its process may save once more after the newest checkpoint was looked for
        with refuse_unwritable(folder, 'name another folder'):
            RunLock(folder).close()


def refuse_same_run(resumed: Path, folder: Path) -> None:
    """Raises: UserError if the run to resume is the one of the folder, so that a choice between two meanings is left."""
    run = resumed
    if resumed.parent.name == 'checkpoints':
        run = resumed.parent.parent
    if run.absolute() == folder.absolute():
        raise UserError(
            f'the run to resume and its new folder are both {folder}; leave one of them out to continue that run, or name '
            'another folder to begin a fork of it there'
        )


def root_of(run: SavedRun) -> str:
    """The root for new run folders of a resumed run: that of the checkpoint's config, if it is below the current folder.

    Any other is replaced by the root of the checkpoint, if its path is <root>/<exp_name>/<run>/checkpoints/<file>, or else
    by the default. So a checkpoint cannot choose a place to write to.
    """
    root = Path(os.path.expanduser(run.config['logger']['root']))
    parents = run.path.parents
    if not root.anchor and '..' not in root.parts:
        return str(root)
    is_in_run = len(parents) > 3 and (parents[0].name, parents[2].name) == ('checkpoints', run.config['exp_name'])
    if is_in_run:
        return str(parents[3])
    return LoggerConfig().root


def _keeps_its_place(cfg: JobConfig, run: SavedRun) -> bool:
    return (
        run.path.parent.name == 'checkpoints'
        and (cfg.exp_name, cfg.seed) == (run.config['exp_name'], run.config['seed'])
        and cfg.logger.root in (run.config['logger']['root'], root_of(run))
    )


def _new_run_dir(cfg: JobConfig, root: Path) -> Path:
    """Makes <root>/<exp_name>/<time>_seed<k>, with a number appended if it exists."""
    base = root / cfg.exp_name / f'{datetime.now():%Y%m%d-%H%M%S}_seed{cfg.seed}'
    for n in range(1, 1000):
        if n == 1:
            path = base
        else:
            path = base.with_name(f'{base.name}_{n}')
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not base.parent.is_dir():
                break
        except (OSError, ValueError) as error:  # ValueError: no name of a file, e.g. '\ud800'
            why = getattr(error, 'strerror', None) or error
            raise UserError(f'the run folder {printable(str(path))} cannot be made ({why}); {ELSEWHERE}') from error
    raise UserError(
        f'the run folder {base} cannot be made: a file of that name exists; set logger.root or exp_name to another'
    )


def best_return_of(run_dir: Path) -> float | None:
    """The return of the best checkpoint that a run folder holds; None if it holds no valid one."""
    path = run_dir / 'checkpoints' / 'best.safetensors'
    if not path.is_file():
        return None
    try:
        return saved_run(load_checkpoint(path)).best_return
    except CheckpointError as error:
        logger.warning('%s; the next evaluation replaces it', error)
        return None


def refuse_other_configs(source: object, overrides: Sequence[Sequence[str]], folders: Sequence[Path | None]) -> None:
    """Calls `refuse_other_config` for several runs of a source.

    Args: overrides: of each run; folders: of each run, None for a new one.
    """
    for texts, folder in zip(overrides, folders, strict=True):
        if folder is not None:
            refuse_other_config(resolve_config(source, texts), source, texts, folder)


def refuse_other_config(cfg: JobConfig, source: object, texts: Sequence[str], folder: Path) -> None:
    """Raises: UserError if a folder has a run whose config differs from the one that is to be trained in it.

    max_env_step may be longer, init_from may be left out, and keys in FREE may differ. A run without checkpoints restarts.
    Args: cfg: the config of source and texts (the overrides), which say which keys the user gave.
    """
    if newest_in(folder) is None or not (folder / 'config.yaml').is_file():
        return  # nothing that could be continued
    was = storable(config_of_yaml(folder / 'config.yaml'))
    now = storable(cfg)
    different = list(_other_keys(was, now, source, texts))
    sections = [
        key for key in different if isinstance(value_at(was, key), dict) and isinstance(value_at(now, key), dict)
    ]
    wholes = tuple(f'{key}.' for key in different if key not in sections)  # a number in place of a schedule
    keys = [key for key in different if not key.startswith(wholes)]
    if keys:
        pairs = ', '.join(f'{key}={_text(was, key)}, not {_text(now, key)}' for key in keys[:MAX_SHOWN])
        more = ''
        if len(keys) > MAX_SHOWN:
            more = f' and {len(keys) - MAX_SHOWN} more'
        raise UserError(
            f'the run in {folder} has {pairs}{more}; name another --run-dir, or give the values that it has, to continue it '
            f'(zoo train --resume {shlex.quote(str(folder))} KEY=VALUE continues it with other values, in Python '
            f'resume={str(folder)!r})'
        )


def _other_keys(was: dict[str, Any], now: dict[str, Any], source: object, texts: Sequence[str]) -> Iterator[str]:
    """The keys that differ, in the order of the config of the run."""
    given_keys: set[str] | None = None
    for key in differing_keys([without_derived_values(was), without_derived_values(now)]):
        if any(key == free or key.startswith(f'{free}.') for free in FREE) or _is_same(was, now, key):
            continue
        if not has_key(was, key):  # also a key that the version of zoo which trained it did not know
            if given_keys is None:  # the keys that the config or an override gives
                rows = explain_config(source, texts)
                given_keys = {row.key for row in rows if row.origin not in ('default', 'derived')}
            if not any(key == one or key.startswith(f'{one}.') for one in given_keys):
                continue
        yield key


def _is_same(was: dict[str, Any], now: dict[str, Any], key: str) -> bool:
    """Whether a run may continue with a changed key: it becomes longer, or the value is only written in another way."""
    if not has_key(was, key) or not has_key(now, key):
        return False
    before = value_at(was, key)
    after = value_at(now, key)
    if key == LENGTH:
        return isinstance(before, int) and before <= after
    if key == 'init_from':
        return after is None or (isinstance(before, str) and os.path.abspath(before) == os.path.abspath(after))
    if isinstance(before, str) and isinstance(after, str):
        file_before = OWN_CODE.fullmatch(before)
        file_after = OWN_CODE.fullmatch(after)
        if file_before and file_after:  # the folder of a project may have been moved
            return file_before[1] == file_after[1]
    return bool(before == after)  # such as the length of a schedule, which is derived in one of the two


def _text(config: Mapping[str, Any], key: str) -> str:
    if has_key(config, key):
        return value_text(value_at(config, key))
    return 'nothing'
