"""The start of a run: alone, as one of torchrun's ranks, or with several learners on a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from zoo.cluster.config import STARTED_BY, rank_device, split_problems
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.processes import Interrupted, catch_signals
from zoo.core.ranks import ALONE, Ranks, RanksLostError
from zoo.core.streams import log_levels
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, give_imports, given_imports, load_checkpoint
from zoo.run.folder import newest_in, refuse_unwritable
from zoo.run.learner import SINGLE
from zoo.run.result import TrainResult
from zoo.worker.env_watch import EnvWatch
from zoo.worker.evaluator import OnEvaluation

FILE = 'launch_id'  # in the run folder: the id of the torchrun start that made it
logger = logging.getLogger(__name__)
_runs = count(1)  # a script may start several runs


class Launch(NamedTuple):
    """The start of a run. ranks: its processes; id: of the torchrun start, the same after its restarts; '' without torchrun."""

    ranks: Ranks = ALONE
    id: str = ''
    n_restart: int = 0


@contextmanager
def launched(cfg: JobConfig, environ: Mapping[str, str] = os.environ) -> Iterator[Launch]:
    """Joins the ranks that torchrun started, for this context. Without torchrun, torch.distributed is not loaded.

    Raises: ConfigError for sizes that the number of ranks does not divide, before the ranks connect.
    """
    world_size = environ.get('WORLD_SIZE', '1')
    size = 0  # of a wrong value, which `join` reports
    if world_size.isdecimal():
        size = int(world_size)
    name = environ.get('TORCHELASTIC_RUN_ID', '')
    n_restart = int(environ.get('TORCHELASTIC_RESTART_COUNT', '0') or 0)
    # all starts without a rendezvous have the id 'none': the id of the agent, the parent of the ranks, makes it unique
    if name == 'none':
        name = f'{name}-{environ.get("MASTER_PORT", "")}-{os.getppid()}'
    launch_id = ''
    if name:  # the same for the n-th run after all restarts, and for no other
        launch_id = f'{name} {next(_runs)}'
    if size == 1:
        yield Launch(ALONE, launch_id, n_restart)
        return
    if size:
        problems = list(split_problems(cfg, size, environ.get(STARTED_BY, 'torchrun')))
        if problems:
            raise ConfigError(problems)
    from zoo.cluster.torch_ranks import join

    ranks = join(rank_device(cfg.policy.get('device', 'auto'), environ))
    with ExitStack() as undo:
        undo.callback(ranks.close)
        if ranks.rank > 0:
            keep = partial(filter_rank_log, ranks.rank)
            handlers = list(logging.getLogger().handlers)
            for handler in handlers:
                handler.addFilter(keep)
                undo.callback(handler.removeFilter, keep)
        elif not torch.cuda.is_available() or cfg.policy.get('device') == 'cpu':
            n_env = cfg.env.collector_env_num // size
            batch_size = cfg.policy.learn.get('batch_size')
            share = f'{n_env} envs'
            if batch_size is not None:
                share += f' and minibatches of {batch_size // size}'
            logger.info('%d ranks learn together %s; each has %s', size, _carrier(ranks), share)
        yield Launch(ranks, launch_id, n_restart)


def _carrier(ranks: Ranks) -> str:
    """What carries the numbers of ranks on CPUs, as a clause."""
    if ranks.in_c is None or ranks.in_c.n_local == 1:
        return 'over gloo'
    if ranks.in_c.is_whole:
        return 'through shared memory'
    return 'through shared memory, and over gloo between machines'


def continued(launch: Launch, cfg: JobConfig, run_dir: Path | None) -> tuple[Path | None, Checkpoint | None]:
    """Finds the (run folder, its newest valid checkpoint) from which this start continues; each may be None.

    The folder is `run_dir`, or after a restart by torchrun the one that the same start had made. Rank 0 looks for all ranks.
    """
    folder = run_dir
    checkpoint: Checkpoint | None = None
    file: Path | None = None
    if launch.ranks.rank == 0:
        if folder is None and launch.id and launch.n_restart:
            files = (Path(cfg.logger.root) / cfg.exp_name).glob(f'*/{FILE}')
            mine = [file.parent for file in files if file.read_text(encoding='utf-8').strip() == launch.id]
            folder = max(mine, key=lambda folder: folder.stat().st_mtime, default=None)
        if folder is not None and newest_in(folder) is not None:
            checkpoint = load_checkpoint(folder)
            file = checkpoint.path
            logger.info('%s is there: the run continues from %s', folder, checkpoint.path.name)
    folder, file = launch.ranks.share((folder, file))
    if file is not None and checkpoint is None:
        checkpoint = load_checkpoint(file)
    return folder, checkpoint


def note(launch: Launch, run_dir: Path) -> None:
    """Writes the id of the torchrun start into the run folder. Raises: UserError if it cannot be written."""
    if launch.id and launch.ranks.rank == 0:
        with refuse_unwritable(run_dir):
            (run_dir / FILE).write_text(launch.id + '\n', encoding='utf-8')


def train_with_learners(
    pipeline: Callable[..., TrainResult],
    cfg: JobConfig,
    policy: Policy | None,
    on_evaluation: OnEvaluation | None,
    **options: Any,
) -> TrainResult:
    """Trains in cluster.learner_num processes, each of which calls the pipeline with the config and these options.

    Args: policy: must be None; on_evaluation: called in this process; options: more of `serial_pipeline`, copied to learners.
    Returns: the result of rank 0, with the policy of its last checkpoint.
    Raises: as `serial_pipeline`, also from a learner; UserError for a policy, which cannot be given to learners.
    """
    if policy is not None:
        raise UserError(
            f'serial_pipeline got a policy but cluster.learner_num is {cfg.cluster.learner_num}: a policy is not sent to '
            'other processes; give a config, and model= for a network of your own, or start the learners with torchrun'
        )
    problems = list(split_problems(cfg, cfg.cluster.learner_num, by='ray'))
    if problems:
        raise ConfigError(problems)
    for name in {'resume', 'run_dir'} & options.keys():
        if options[name] is not None:
            options[name] = str(Path(options[name]).absolute())
    config = cfg.to_dict()
    work = {
        'pipeline': pipeline,
        'config': config,
        'has_listener': on_evaluation is not None,
        'imports': tuple(given_imports),
        **options,
    }
    from zoo.cluster.ray_ranks import run_ranks

    with catch_signals() as received:
        try:
            from zoo.cluster.pickled_code import packed_call

            payload = packed_call({'work': _as_rank, 'options': work}, config)
            result: TrainResult = run_ranks(cfg, payload, received, on_evaluation)
        except RanksLostError as error:
            if received:
                raise Interrupted(128 + received[0]) from error
            raise
    if not result.run_dir.is_dir():
        raise UserError(
            f'the run folder {result.run_dir} of rank 0 is not on this machine; set logger.root to a folder that all nodes share'
        )
    from zoo.run.policy_file import load_policy

    least = max(logging.getLogger('zoo.backend').getEffectiveLevel(), logging.WARNING)
    with log_levels({'zoo.backend': least}):  # the learners have logged how steps are executed
        trained = load_policy(result.run_dir, trust=True, model=options['model'], fields='all')
    return replace(result, policy=trained, policies={SINGLE: trained})


def _as_rank(
    rank: int,
    ask: OnEvaluation,
    pipeline: Callable[..., TrainResult],
    has_listener: bool,
    imports: tuple[str, ...],
    **options: Any,
) -> TrainResult | None:
    """Runs the pipeline in a learner. Args: ask: calls on_evaluation in the process that started the learners."""
    give_imports(imports)
    EnvWatch.owns_process = True
    if rank > 0:
        pipeline(on_evaluation=None, **options)
        return None
    result = pipeline(on_evaluation=ask if has_listener else None, **options)
    return replace(result, policy=cast('Policy', None), policies={})  # policies are not sent to other processes


def filter_rank_log(rank: int, record: logging.LogRecord) -> bool:
    """Filter for the log of a rank above 0: only warnings and errors, each with the number of the rank."""
    if record.levelno >= logging.WARNING and not getattr(record, 'has_rank', False):
        record.msg = f'rank {rank}: {record.msg}'
        record.has_rank = True
    return record.levelno >= logging.WARNING
