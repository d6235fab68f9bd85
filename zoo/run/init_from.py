"""A new run begins with the parameters of another one: init_from."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from zoo.config.messages import shown
from zoo.config.section import Config
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.policy.base import Policy
from zoo.run.checkpoint import Checkpoint, check_finite, load_checkpoint
from zoo.run.saved_run import saved_run

logger = logging.getLogger(__name__)
PARTS = 'model', 'normalizer'


def start_from(
    policy: Policy, path: str | os.PathLike[str], only: Sequence[str] = ('*',), ranks: Ranks = ALONE
) -> None:
    """Copies parameters and running statistics of a checkpoint into a new policy, by name, where their shapes agree.

    The file is read by rank 0 alone. Nothing that it names is imported. The log says what was taken and what did not fit.
    Args: path: a run folder (its newest checkpoint) or a file; only: patterns of names.
    Raises: CheckpointError; UserError if nothing fits.
    """
    state = ranks.share(_state_of(path) if ranks.rank == 0 else None)
    for part in PARTS:
        check_finite(state.get(part, {}), state.get(part, {}), path)
    try:
        report = policy.load_state_dict(state, strict=False, only=only)
    except UserError as error:
        raise UserError(f'init_from {path}: {error}') from error
    assert report is not None, 'it is not strict'
    if ranks.rank == 0:
        logger.info('begins with parameters of %s\n%s', path, report.text())
        left_out = [name for name in report.unused if any(fnmatchcase(name, each) for each in only)]
        if report.misfits:
            logger.warning('%d parameters of %s do not fit and begin anew', len(report.misfits), path)
        if left_out:
            logger.warning('%s of %s have no place in this policy; is its config another?', _some(left_out), path)


def with_saved_start(cfg: Config, checkpoint: Checkpoint) -> Config:
    """The config of a run that continues, with the init_from and init_from_keys that the run began with.

    They stay in its config.yaml and checkpoints, although a run that continues reads no parameters of another one.
    Raises: UserError if the config has an init_from of its own: it would have no effect.
    """
    saved = saved_run(checkpoint).config
    before, now = saved.get('init_from'), cfg.init_from
    before = before if isinstance(before, str) else None  # a file may hold anything
    if now is not None and (before is None or os.path.abspath(now) != os.path.abspath(before)):
        has = 'no init_from' if before is None else f'init_from {before}'
        raise UserError(
            f'init_from is {now} but {checkpoint.path}, from which the run continues, was saved with {has}, and its '
            'parameters count; leave init_from out, or begin a new run in another folder'
        )
    start = {'init_from': before, 'init_from_keys': saved.get('init_from_keys', ['*'])}
    return cfg if all(cfg[name] == value for name, value in start.items()) else Config({**cfg.to_dict(), **start})


def _some(names: Sequence[str]) -> str:
    return ', '.join(names[:4]) + (f' and {len(names) - 4} more' if len(names) > 4 else '')


def _state_of(path: str | os.PathLike[str]) -> dict[str, object]:
    if not Path(path).exists():
        raise UserError(f'init_from is {shown(str(path))}, which does not exist; name a run folder or a checkpoint')
    state = saved_run(load_checkpoint(path)).state.policy
    return {part: state[part] for part in PARTS if part in state}
