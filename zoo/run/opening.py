"""The beginning of a run: the log it opens, the parameters of a new one, what is said of one that continues."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zoo.config.section import Config
from zoo.core.ranks import Ranks
from zoo.policy.base import Policy
from zoo.run.checkpoint import Checkpoint
from zoo.run.init_from import start_from
from zoo.run.logger import Logger, LoggerConfig
from zoo.run.resume import changes
from zoo.run.run_dir import FollowedFolder, RunFolder, refuse_unwritable
from zoo.run.saving import refuse_unsavable

if TYPE_CHECKING:
    from zoo.run.job import SerialJob

logger = logging.getLogger(__name__)


def begin_new(policy: Policy, cfg: Config, is_given: bool, ranks: Ranks) -> None:
    """Checks the policy of a new run, and gives it the parameters of init_from.

    Args: is_given: it began with what its maker chose.
    """
    policy.check_fields()
    refuse_unsavable(policy)
    if cfg.init_from is not None and not is_given:
        start_from(policy, cfg.init_from, cfg.init_from_keys, ranks)


def open_log(
    cfg: Config, folder: RunFolder | FollowedFolder, env_step: int, sinks: Sequence[Any], leads: bool
) -> Logger:
    """The log of a run; that of a process which does not lead writes nothing. Raises: UserError if it cannot be written."""
    run_dir = folder.path
    with refuse_unwritable(run_dir):
        if not leads:
            return Logger(run_dir, LoggerConfig(console='off'), cfg.exp_name, cfg.max_env_step, run_cfg=cfg, sinks=[])
        return Logger(
            run_dir,
            cfg.logger,
            cfg.exp_name,
            cfg.max_env_step,
            env_step,
            restore=folder.restore,
            run_cfg=cfg,
            sinks=sinks,
        )


def announce(job: SerialJob, checkpoint: Checkpoint, has_stopped: bool, rule: str | None) -> None:
    """Logs where a run continues, what changed since it was saved, and whether anything is left to train.

    Args: has_stopped: it reached its stop_value; rule: the words of a stop rule that ends it, if one does.
    """
    logger.info('resuming at env step %d in %s', job.env_step, job.run_dir)
    if changed := changes(job.cfg, checkpoint):
        logger.info('changed since it was saved: %s', changed)
    if has_stopped:
        logger.warning('this run had reached policy.eval.stop_value; to continue it: policy.eval.stop_value=null')
    if rule:
        logger.warning('this run ends by a stop rule: %s; to continue it change `stop`, e.g. stop=[]', rule)
    elif job.done and not has_stopped:
        logger.warning(
            'nothing is left to train: the run has %d env steps, a rollout %d, and max_env_step is %d; raise that',
            job.env_step,
            job.step_per_iteration,
            job.cfg.max_env_step,
        )
