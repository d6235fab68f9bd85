"""Rollout scheduler: requests to runners, retries, staleness; each rollout is used once and none is too old."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from zoo.cluster.engine import Engine
from zoo.cluster.messages import Lost, Reply, Request
from zoo.core.errors import RunError
from zoo.core.seeding import stream
from zoo.env.interface import EnvCommand

HOUR = 3600.0  # seconds
N_ROUND = 3  # times that all runners may be lost in a row without a single rollout
logger = logging.getLogger(__name__)


@dataclass
class RunnerState:
    """Requests and replies of one runner. `since`: time of its last reply, or of a request when none was outstanding."""

    attempt: int = 0
    outstanding: dict[int, Request] = field(default_factory=dict)  # by collect_iter
    ready: dict[int, Reply] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)  # rollouts that begin new episodes because earlier ones were lost
    is_new: bool = False  # its next request must reset its envs
    starts: bool = False  # it was replaced and has not replied yet
    n_lost: int = 0  # losses in a row, without a reply of any runner in between
    since: float = 0.0


class RolloutScheduler:
    """Requests rollouts from an engine, and requests lost rollouts again.

    Args:
      seed: of the run.   max_lag: most rollouts by which the weights of a used reply may be older than the newest.
      timeout: seconds without a rollout after which a runner is ended; None: never.   limit: most losses in an hour.
      start_s: additional seconds for a runner that was replaced.
    Attributes:
      n_restart: losses; n_discarded: env steps that arrived and were not used, for any reason.
      commands, reset_options: sent to a replaced runner before its first reset.
    """

    def __init__(
        self,
        engine: Engine,
        run_id: str,
        n_runner: int,
        seed: int,
        max_lag: int = 0,
        timeout: float | None = None,
        limit: int = 20,
        start_s: float = 0.0,
    ) -> None:
        self._engine = engine
        self._run_id = run_id
        self._seed = seed
        self._max_lag = max_lag
        self._limit = limit
        self._start_s = start_s
        if timeout is None:
            self._timeout = math.inf
        else:
            self._timeout = timeout
        self._asked = {group: RunnerState() for group in range(n_runner)}
        self._losses: list[float] = []
        self.n_restart = self.n_discarded = 0
        self.commands: dict[str, EnvCommand] = {}
        self.reset_options: Mapping[str, Any] | None = None
        self._env_step = 0
        self._n_again = 0
        self._version: int | None = None  # of the newest requests
        self._waiting: int | None = None  # rollout whose replies are used before the engine's next wait

    @property
    def is_idle(self) -> bool:
        """Whether no request is outstanding and no reply waits to be used."""
        return not any(asked.outstanding or asked.ready for asked in self._asked.values())

    def ask(
        self, collect_iter: int, version: int | None, env_step: int, reset_seed: tuple[int, ...] | None = None
    ) -> None:
        """Requests a rollout from every runner."""
        self._env_step = env_step
        self._version = version
        for group in self._asked:
            self._send(group, collect_iter, reset_seed)

    def wait(self, collect_iter: int, use: Callable[[Reply, bool], None]) -> None:
        """Waits for this rollout of every runner; calls `use` with each reply, and whether it begins with new episodes.

        Raises: RunError after too many losses; what the engine raises.
        """
        missing = set(self._asked)
        self._waiting = collect_iter
        self.settle()
        while True:
            for group in sorted(missing):
                reply = self._asked[group].ready.pop(collect_iter, None)
                if reply is not None and self._is_fit(reply, collect_iter):
                    fresh = self._asked[group].fresh
                    use(reply, collect_iter in fresh)
                    fresh.discard(collect_iter)
                    missing.remove(group)
            if not missing:
                self._waiting = None
                return
            ends = (asked.since + self._allowed(asked) for asked in self._asked.values() if asked.outstanding)
            patience = min(max(min(ends, default=math.inf) - monotonic(), 0.0), HOUR)
            if not self._take(self._engine.wait(patience)):
                self._end_hanging()

    def settle(self) -> None:
        """Takes the items that have arrived, so that losses are known."""
        self._take(self._engine.wait(0.0))

    def _take(self, found: list[Reply | Lost]) -> bool:
        for item in found:
            if isinstance(item, Lost):
                self._lost(item)
            else:
                self._arrived(item)
        return bool(found)

    def _arrived(self, reply: Reply) -> None:
        # else of another run
        asked = None
        if reply.run_id == self._run_id:
            asked = self._asked.get(reply.group)
        if asked is None or reply.attempt != asked.attempt or reply.collect_iter not in asked.outstanding:
            self._discard(reply)
            return
        if not reply.blocks:
            self._lost(Lost(reply.group, 'its process was replaced'))
            return
        del asked.outstanding[reply.collect_iter]
        is_early = reply.collect_iter != self._waiting  # its blocks are valid up to the engine's next wait
        if is_early:
            asked.ready[reply.collect_iter] = reply.copied()
        else:
            asked.ready[reply.collect_iter] = reply
        asked.since = monotonic()
        asked.starts = False
        for each in self._asked.values():
            each.n_lost = 0

    def _is_fit(self, reply: Reply, collect_iter: int) -> bool:
        """Whether a reply is new enough; if not, requests it again, together with the runner's outstanding rollouts."""
        if collect_iter - reply.version <= self._max_lag:
            return True
        asked = self._asked[reply.group]
        self._discard(reply)
        logger.warning(
            'a rollout of runner %d came with weights of %d rollouts ago, at most %d are allowed: it is asked again',
            reply.group,
            collect_iter - reply.version,
            self._max_lag,
        )
        self._again(reply.group, [collect_iter, *asked.outstanding])
        return False

    def _lost(self, lost: Lost) -> None:
        asked = self._asked[lost.group]
        now = monotonic()
        self.n_restart += 1
        asked.n_lost += 1
        self._losses = [at for at in self._losses if now - at < HOUR] + [now]
        if len(self._losses) > self._limit:
            raise RunError(
                f'{len(self._losses)} runners were lost within an hour, the last one since {lost.cause}, and '
                f'cluster.restart_limit is {self._limit}; remove the cause, or raise that, and continue the run'
            )
        if min(each.n_lost for each in self._asked.values()) >= N_ROUND:
            raise RunError(
                f'all {len(self._asked)} runners were lost {N_ROUND} times and none gave a rollout in between, the last one '
                f'since {lost.cause}; remove the cause and continue the run'
            )
        words = ''
        if self.n_restart == 1:
            words = ' and asked again. From here on the run is not that of its seed'
        logger.warning('runner %d is lost (%s); it is made anew%s', *lost, words)
        asked.starts = True
        self._again(lost.group, list(asked.outstanding))

    def _again(self, group: int, wanted: list[int]) -> None:
        """Requests lost rollouts of a runner again, the first with new episodes, and all later ones."""
        asked = self._asked[group]
        # later replies continue the episodes of the lost rollout, not those of the new one
        later = [i for i in asked.ready if wanted and i > min(wanted)]
        for i in later:
            self._discard(asked.ready.pop(i))
        asked.attempt += 1
        asked.is_new = True
        asked.since = monotonic()
        asked.outstanding.clear()
        asked.fresh.difference_update([*wanted, *later])
        for i in sorted([*wanted, *later]):
            self._send(group, i, None)

    def _send(self, group: int, collect_iter: int, reset_seed: tuple[int, ...] | None) -> None:
        """Requests a rollout. If the runner must reset its envs and no seed is given, the request gets a seed of its own."""
        asked = self._asked[group]
        request = Request(self._run_id, group, collect_iter, self._version, self._env_step, reset_seed, asked.attempt)
        if asked.is_new:
            if reset_seed is None:
                self._n_again += 1
                asked.fresh.add(collect_iter)
                seed = stream(self._seed, 'collect', self._env_step, 'again', self._n_again)
                request = request._replace(reset_seed=entropy_of(seed))
            request = request._replace(commands=tuple(self.commands.values()), reset_options=self.reset_options)
        asked.is_new = False
        if not asked.outstanding:
            asked.since = monotonic()
        asked.outstanding[collect_iter] = request
        self._engine.ask(request)

    def _discard(self, reply: Reply) -> None:
        reward = reply.blocks.get('steps.reward')
        if reward is not None:
            self.n_discarded += reward.size

    def _allowed(self, asked: RunnerState) -> float:
        """Returns the seconds that a runner may be silent; a replaced runner also has the seconds of its start."""
        return self._timeout + (self._start_s if asked.starts else 0.0)

    def _end_hanging(self) -> None:
        now = monotonic()
        for group, asked in self._asked.items():
            if asked.outstanding and now - asked.since >= self._allowed(asked):
                asked.since = now
                more = ''
                if asked.starts:
                    more = ' and did not start in cluster.start_timeout'
                self._engine.kill(
                    group, f'it gave nothing for {self._timeout:,.0f} s, see cluster.runner_timeout{more}'
                )


def entropy_of(seed: Any) -> tuple[int, ...]:
    """Returns the entropy of a seed as plain integers; `np.random.SeedSequence` makes the same stream from them."""
    return tuple(int(word) for word in seed.entropy)
