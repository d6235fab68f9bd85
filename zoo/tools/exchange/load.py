"""Import of models of other libraries: recognises the library of a file or folder, and makes a policy and a run folder of it."""

from __future__ import annotations

import io
import logging
import os
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from zoo.core.errors import UserError, show_error, unknown_name
from zoo.core.processes import machine_memory
from zoo.policy.base import Policy
from zoo.tools.exchange.agilerl import is_agilerl, of_agilerl
from zoo.tools.exchange.build import policy_of, save_run
from zoo.tools.exchange.cleanrl import is_cleanrl, of_cleanrl
from zoo.tools.exchange.di_engine import is_di_engine, of_di_engine
from zoo.tools.exchange.form import ForeignModel, ModelFileError
from zoo.tools.exchange.pickles import ArchiveError, PickleError, open_zip, read_torch
from zoo.tools.exchange.rllib import MARK, env_of, read_rllib
from zoo.tools.exchange.sb3 import is_sb3, read_sb3

logger = logging.getLogger(__name__)
SOURCES = ('sb3', 'cleanrl', 'rllib', 'di-engine', 'agilerl')
"""Libraries whose models are imported."""
KINDS = "zips of stable-baselines3's model.save, checkpoint folders of RLlib, checkpoints of DI-engine's ppo and AgileRL's PPO, and parameters of CleanRL's ppo_continuous_action"


class Imported(NamedTuple):
    """A policy made of a model of another library. model: what its file held; run_dir: None: no run was written."""

    policy: Policy
    model: ForeignModel
    run_dir: Path | None


def import_policy(
    path: str | os.PathLike[str],
    run_dir: str | os.PathLike[str] | None = None,
    *,
    env: str | None = None,
    normalizer: str | os.PathLike[str] | None = None,
    source: str | None = None,
    overrides: Sequence[str] = (),
) -> Policy:
    """Makes a policy of a model that another library trained: it acts equally, and continues to learn.

    Nothing of the file is executed: arrays, tensors and plain values are read, objects of all other classes stay closed.
    The log says what became of each entry.

    Args:
      path: a zip of stable-baselines3 or sb3-contrib, a checkpoint folder of RLlib, a checkpoint of DI-engine or
        AgileRL, or parameters of CleanRL.
      run_dir: folder of a new run with this policy, for `zoo train --resume`; it needs env. None: no run is written.
      env: the id of the env that the model was trained on, which its file does not name.
      normalizer: the file that VecNormalize.save of stable-baselines3 wrote next to the model.
      source: one of SOURCES; None: the content of the file says it.
      overrides: 'key=value' texts that change the config, as of `serial_pipeline`.
    Raises: ModelFileError for a file that cannot be imported, with the reason; UserError, ConfigError, EnvError.
    """
    found = import_model(path, run_dir, env, normalizer, source, overrides)
    for line in found.model.text().splitlines():
        logger.info('%s', line)
    return found.policy


def import_model(
    path: str | os.PathLike[str],
    run_dir: str | os.PathLike[str] | None = None,
    env: str | None = None,
    normalizer: str | os.PathLike[str] | None = None,
    source: str | None = None,
    overrides: Sequence[str] = (),
) -> Imported:
    """As `import_policy`, with what was read."""
    if source is not None and source not in SOURCES:
        raise UserError(unknown_name('library', source, SOURCES, listed='known'))
    if not isinstance(path, str | os.PathLike):
        raise UserError(f'a model is named by the path of its file, got {path!r:.60}; pass one')
    if run_dir is not None and env is None and (Path(path) / MARK).is_file():
        env = env_of(Path(path))
    if run_dir is not None and env is None:
        raise UserError(
            f'the run folder {os.fspath(run_dir)} needs an env, and files of models do not name theirs; give it: --env ID '
            '(env=ID), or leave the run folder out to get a policy alone'
        )
    if run_dir is not None and (Path(run_dir) / 'config.yaml').exists():
        raise UserError(f'{os.fspath(run_dir)} is the folder of a run; name another one')
    model = read_model(Path(path), env, normalizer)
    policy, cfg = policy_of(model, env, overrides)
    folder = None
    if run_dir is not None:
        folder = save_run(policy, cfg, model, Path(run_dir))
    return Imported(policy, model, folder)


def read_model(path: Path, env: str | None = None, normalizer: str | os.PathLike[str] | None = None) -> ForeignModel:
    """Reads a model. Raises: ModelFileError."""
    if (path / MARK).is_file():
        return _read(path, lambda: read_rllib(path, env))
    content = _content(path)
    statistics = None
    if normalizer is not None:
        statistics = _content(Path(normalizer))
    names = _members(path, content)
    if is_sb3(names):
        return _read(path, lambda: read_sb3(path, content, statistics, env))
    if any(name.endswith('data.pkl') for name in names):
        return _of_torch(path, content)
    raise ModelFileError(path, f'is of no kind that is known; {KINDS} are imported: name one')


def _members(path: Path, content: bytes) -> list[str]:
    """The names of the members of an archive, none of another file. Raises: ModelFileError for a damaged one."""
    memory = io.BytesIO(content)
    if not zipfile.is_zipfile(memory):
        return []
    try:
        with open_zip(memory) as archive:
            return archive.namelist()
    except ArchiveError as error:
        raise ModelFileError(path, f'{error}; save it again') from error


def _of_torch(path: Path, content: bytes) -> ForeignModel:
    """Reads a file of torch.save. Raises: ModelFileError."""
    try:
        found = read_torch(content)
    except (ArchiveError, PickleError) as error:
        raise ModelFileError(path, f'is a file of torch.save that cannot be read: {error}; save it again') from error
    for is_its, read in ((is_agilerl, of_agilerl), (is_di_engine, of_di_engine), (is_cleanrl, of_cleanrl)):
        if is_its(found):
            return _read(path, partial(read, path, found))
    raise ModelFileError(
        path, f'is a file of torch.save with entries of no library that is known; {KINDS} are imported'
    )


def _read(path: Path, read: Callable[[], ForeignModel]) -> ForeignModel:
    """What a reader makes of the entries of a file or folder. Raises: ModelFileError."""
    try:
        return read()
    except UserError:
        raise
    except Exception as error:  # an entry of another type than the library writes may fail in any way
        raise ModelFileError(
            path, f'has an entry of a type that its library does not write ({show_error(error, 200)}); save it again'
        ) from error


def _content(path: Path) -> bytes:
    """The bytes of a file. Raises: ModelFileError if it is none, cannot be read or is too large."""
    if path.is_dir():
        raise ModelFileError(
            path,
            'is a folder without the files of a model that is known; name the file of the model, or the folder that RLlib saved',
        )
    if not path.is_file():
        raise ModelFileError(path, 'does not exist; check the path')
    size = path.stat().st_size
    if size > machine_memory() // 4:
        raise ModelFileError(path, f'has {size / 1e6:,.0f} MB, more than fits into memory; use a machine with more')
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(path, f'cannot be read ({error.strerror})') from error
