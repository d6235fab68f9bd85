"""Restarts of failed envs: their number, and its limit."""

from __future__ import annotations

import logging

from zoo.core.errors import show_error
from zoo.env.errors import BrokenContractError, EnvContractError, EnvError, raised_at

logger = logging.getLogger(__name__)
# calls in which a recreated env may fail again
CONSTRUCTION = 'its construction'
RESET = 'its reset'
N_LOGGED = 10  # the first restarts are logged one by one; later only every hundredth


class Restarts:
    """Counts the failed envs that were recreated, over all vector envs of a run.

    Args: limit: the largest number of restarts. Attributes: count: restarts so far.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def note(self, where: str, cause: BaseException) -> None:
        """Counts a restart, before the env is recreated.

        Args: where: name and index of the env, and when it failed; cause: its exception, or an error about its process.
        Raises: EnvError if the limit was reached before; `cause` itself if the env breaks the gymnasium interface.
        """
        if isinstance(cause, BrokenContractError | EnvContractError):
            raise cause
        failure = f'{where}: {show_error(cause)} ({raised_at(cause)})'
        if isinstance(cause, EnvError):
            failure = str(cause)
        failure = failure.rstrip('.;')
        if self.count >= self.limit:
            raise EnvError(
                f'{failure}; envs were made anew {self.count} times before, wanted at most {self.limit} times in '
                'a run; fix the env, or raise env.max_restarts.'
            ) from cause
        self.count += 1
        if self.count <= N_LOGGED or self.count % 100 == 0:
            logger.warning('%s; it is made anew (%d of at most %d restarts)', failure, self.count, self.limit)
