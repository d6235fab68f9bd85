"""Envs that fail and are made anew: env.on_error and env.max_restarts."""

from __future__ import annotations

import logging

import numpy as np

from zoo.core.errors import show_error
from zoo.env.errors import BrokenContractError, EnvContractError, EnvError, raised_at

logger = logging.getLogger(__name__)

BROKEN = 'broken'  # key of the infos of a vector env: [B] bool, the env failed in this step and was made anew
CONSTRUCTION, RESET = 'its construction', 'its reset'  # when an env that is made anew may fail again
N_WARNING = 10  # restarts that are told one by one; then every hundredth is


class Restarts:
    """Counts the envs that failed and were made anew, over all vectors of envs of a run.

    Args: limit: most restarts. Attributes: count: restarts so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    def note(self, where: str, cause: BaseException) -> None:
        """Called before an env is made anew.

        Args: where: name and index of the env, and when it failed; cause: what it raised, or what became of its process.
        Raises: EnvError if that would be one restart too many; the cause where the env breaks the gymnasium interface.
        """
        if isinstance(cause, BrokenContractError | EnvContractError):
            raise cause
        words = str(cause) if isinstance(cause, EnvError) else f'{where}: {show_error(cause)} ({raised_at(cause)})'
        if self.count >= self.limit:
            raise EnvError(
                f'{words.rstrip(".;")}; envs were made anew {self.count} times before, wanted at most {self.limit} times in '
                'a run; mend the env, or raise env.max_restarts.'
            ) from cause
        self.count += 1
        if self.count <= N_WARNING or self.count % 100 == 0:
            logger.warning(
                '%s; it is made anew (%d of at most %d restarts)', words.rstrip('.;'), self.count, self.limit
            )


def restart_seed(seed: int | None, count: int) -> int | None:
    """The seed of an env that is made anew, from that of the env before and the number of restarts; None for None."""
    return None if seed is None else int(np.random.SeedSequence((seed, count)).generate_state(1)[0]) >> 1
