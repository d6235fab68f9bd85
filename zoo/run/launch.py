"""How a run was started: by torchrun as one of several ranks, or alone; and the folder that it continues in."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo.cluster.split import STARTED_BY, rank_device, split_problems
from zoo.config.section import Config, ConfigError
from zoo.core.ranks import ALONE, Ranks
from zoo.run.agreement import OfRank
from zoo.run.checkpoint import Checkpoint, load_checkpoint
from zoo.run.run_dir import newest_in, refuse_unwritable

FILE = 'launch_id'  # in the run folder: which start of torchrun made it

logger = logging.getLogger(__name__)
_runs = count(1)  # a script may make several


class Launch(NamedTuple):
    """ranks: the processes of this run; id: of the start of torchrun, the same after its restarts; '' without torchrun."""

    ranks: Ranks = ALONE
    id: str = ''
    n_restart: int = 0


@contextmanager
def launched(cfg: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Launch]:
    """The ranks that torchrun started, joined for this context; nothing of torch.distributed is loaded without it.

    Raises: ConfigError for sizes that do not divide among them, before they meet.
    """
    words = environ.get('WORLD_SIZE', '1')
    size = int(words) if words.isdecimal() else 0  # `join` says what is wrong with it
    launch_id, n_restart = _id_of(environ), int(environ.get('TORCHELASTIC_RESTART_COUNT', '0') or 0)
    if size == 1:
        yield Launch(ALONE, launch_id, n_restart)
        return
    if size and (problems := list(split_problems(cfg, size, environ.get(STARTED_BY, 'torchrun')))):
        raise ConfigError(problems)
    from zoo.cluster.torch_ranks import join

    ranks = join(rank_device(cfg.policy.get('device', 'auto'), environ))
    with ExitStack() as undo:
        undo.callback(ranks.close)
        if ranks.rank > 0:
            keep, handlers = OfRank(ranks.rank), list(logging.getLogger().handlers)
            for handler in handlers:
                handler.addFilter(keep)
                undo.callback(handler.removeFilter, keep)
        elif not torch.cuda.is_available() or cfg.policy.get('device') == 'cpu':
            logger.info('%d ranks learn together over gloo; each has %s', ranks.size, _share(cfg, ranks.size))
        yield Launch(ranks, launch_id, n_restart)


def continued(launch: Launch, cfg: Config, run_dir: Path | None) -> tuple[Path | None, Checkpoint | None]:
    """(run folder, its newest valid checkpoint) that this start goes on with; None, None for a new run.

    That is `run_dir`, or after a restart by torchrun the folder that the same start had made. Rank 0 looks, all follow.
    """
    folder, checkpoint = run_dir, None
    if launch.ranks.rank == 0:
        folder = run_dir if run_dir is not None else _of_launch(launch, cfg)
        if folder is not None and newest_in(folder) is not None:
            checkpoint = load_checkpoint(folder)
            logger.info('%s is there: the run continues from %s', folder, checkpoint.path.name)
    folder, file = launch.ranks.share((folder, None if checkpoint is None else checkpoint.path))
    if file is not None and checkpoint is None:
        checkpoint = load_checkpoint(file)
    return folder, checkpoint


def note(launch: Launch, run_dir: Path) -> None:
    """Writes into the run folder which start of torchrun made it. Raises: UserError if it cannot be written."""
    if launch.id and launch.ranks.rank == 0:
        with refuse_unwritable(run_dir):
            (run_dir / FILE).write_text(launch.id + '\n', encoding='utf-8')


def _id_of(environ: Mapping[str, str]) -> str:
    """What is the same for the n-th run after all restarts of one start of torchrun, and for no other run; '' without it."""
    name = environ.get('TORCHELASTIC_RUN_ID', '')
    # all starts without a rendezvous have the id 'none': the agent, whose children the ranks are, tells them apart
    name = f'{name}-{environ.get("MASTER_PORT", "")}-{os.getppid()}' if name == 'none' else name
    return f'{name} {next(_runs)}' if name else ''


def _of_launch(launch: Launch, cfg: Config) -> Path | None:
    if not launch.id or not launch.n_restart:
        return None
    folders = (Path(cfg.logger.root) / cfg.exp_name).glob(f'*/{FILE}')
    mine = [file.parent for file in folders if file.read_text(encoding='utf-8').strip() == launch.id]
    return max(mine, key=lambda folder: folder.stat().st_mtime, default=None)


def _share(cfg: Any, size: int) -> str:
    n_env, batch_size = cfg.env.collector_env_num // size, cfg.policy.learn.get('batch_size')
    return f'{n_env} envs' + ('' if batch_size is None else f' and minibatches of {batch_size // size}')
