"""The folder of a run: a new one, or that of the run which it continues from its newest checkpoint."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from zoo.config.section import Config
from zoo.core.errors import UserError
from zoo.run.checkpoint import Checkpoint, load_checkpoint, steps_of
from zoo.run.checkpoint_file import CheckpointError
from zoo.run.logger import LoggerConfig
from zoo.run.saved_run import SavedRun, saved_run

logger = logging.getLogger(__name__)


def run_dir_of(cfg: Config, checkpoint: Checkpoint | None) -> Path:
    """The folder that a run writes to, made if it is new.

    A resume continues in the folder of its checkpoint only from the newest step there, so that nothing that the run
    logged or saved later is overwritten, and only if exp_name, seed and logger.root are unchanged.
    """
    run = None if checkpoint is None else saved_run(checkpoint)
    return run.path.parents[1] if run is not None and _continues_in_place(cfg, run) else _new_run_dir(cfg)


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


def _continues_in_place(cfg: Config, run: SavedRun) -> bool:
    newest = list(steps_of(run.path.parent).values())[-1:]
    return (
        run.path.parent.name == 'checkpoints'
        and [run.path] == newest
        and (cfg.exp_name, cfg.seed) == (run.config['exp_name'], run.config['seed'])
        and cfg.logger.root in (run.config['logger']['root'], root_of(run))
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
        return saved_run(load_checkpoint(path)).best_return
    except CheckpointError as error:
        logger.warning('%s; the next evaluation replaces it', error)
        return None
