"""The folder of a run: a new one, or that of the run which it continues from its newest checkpoint."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from zoo.config.section import Config
from zoo.core.errors import UserError
from zoo.run.checkpoint import Checkpoint, CheckpointError, load_checkpoint, steps_of

logger = logging.getLogger(__name__)


def run_dir_of(cfg: Config, checkpoint: Checkpoint | None) -> Path:
    """The folder that a run writes to, made if it is new.

    A resume continues in the folder of its checkpoint only from the newest step there, so that nothing that the run
    logged or saved later is overwritten, and only if exp_name, seed and logger.root are unchanged.
    """
    in_place = checkpoint is not None and _continues_in_place(cfg, checkpoint)
    return checkpoint.path.parents[1] if checkpoint is not None and in_place else _new_run_dir(cfg)


def _continues_in_place(cfg: Config, checkpoint: Checkpoint) -> bool:
    was = Config(checkpoint.meta['config'])
    folder = checkpoint.path.parent
    newest = list(steps_of(folder).values())[-1:]
    return (
        folder.name == 'checkpoints'
        and [checkpoint.path] == newest
        and (cfg.exp_name, cfg.seed, cfg.logger.root) == (was.exp_name, was.seed, was.logger.root)
    )


def _new_run_dir(cfg: Config) -> Path:
    """Makes <logger.root>/<exp_name>/<time>_seed<k>, with a number appended if it exists."""
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
        f'the run folder {base} cannot be made: a file of that name exists; set logger.root or exp_name to another'
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
