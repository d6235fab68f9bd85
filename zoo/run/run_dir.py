"""Where a run writes: a new folder, or, when a run goes on from its newest checkpoint, the folder it had."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from zoo.config.section import Config
from zoo.core.errors import UserError
from zoo.run.checkpoint import Checkpoint, CheckpointError, load_checkpoint, steps_of

logger = logging.getLogger(__name__)


def continues_in_place(cfg: Config, checkpoint: Checkpoint) -> bool:
    """Whether a resume goes on in the folder of its checkpoint.

    Only from the newest step of that folder, and where a new run would be named as it is: from an older or the best
    one, what the run logged and saved since then would be overwritten.
    """
    was = Config(checkpoint.meta['config'])
    folder = checkpoint.path.parent
    newest = list(steps_of(folder).values())[-1:]
    return (
        folder.name == 'checkpoints'
        and [checkpoint.path] == newest
        and (cfg.exp_name, cfg.seed, cfg.logger.root) == (was.exp_name, was.seed, was.logger.root)
    )


def new_run_dir(cfg: Config) -> Path:
    """Makes <logger.root>/<exp_name>/<time>_seed<k>, numbered if there is one already."""
    base = Path(cfg.logger.root) / cfg.exp_name / f'{datetime.now():%Y%m%d-%H%M%S}_seed{cfg.seed}'
    for n in range(1, 1000):
        path = base if n == 1 else base.with_name(f'{base.name}_{n}')
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not base.parent.is_dir():
                break
        except OSError as error:
            raise UserError(
                f'the run folder {path} cannot be made ({error.strerror}); set logger.root to a folder '
                'that can be written'
            ) from error
    raise UserError(
        f'the run folder {base} cannot be made: something of that name is in the way; set logger.root or '
        'exp_name to another'
    )


def best_return_of(run_dir: Path) -> float | None:
    """The return of the best checkpoint that a run folder holds; None if it holds no valid one."""
    path = run_dir / 'checkpoints' / 'best.safetensors'
    if not path.exists():
        return None
    try:
        return load_checkpoint(path).meta['best_return']
    except CheckpointError as error:
        logger.warning('%s; the next evaluation replaces it', error)
        return None
