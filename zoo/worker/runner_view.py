"""The view that callbacks have of a process that collects: its envs, its rollout, and numbers that go to the log of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zoo.env import AnyVectorEnv
from zoo.env.settings import RunEnvs
from zoo.worker.collector import Collector
from zoo.worker.own_numbers import Logged, OwnNumbers, Reduce, Reduction

TellRunner = Callable[['RunnerView', dict[str, Any]], None]
"""Calls the callbacks with the view of a runner and the columns of its rollout."""


class RunnerView:
    """A process that collects, as the event `on_runner_rollout` sees it: a runner, or the run itself if it has no runners.

    Args: group: index of the runner; envs: those of this process.
    Attributes: group; envs: their attributes may be read and set; collect_iter: rollouts of the run before this one;
      env_step: env steps of the run when the rollout began.
    """

    def __init__(self, group: int, envs: Sequence[AnyVectorEnv]) -> None:
        self.group = group
        self.envs = RunEnvs(envs, [])
        self.collect_iter = 0
        self.env_step = 0
        self._numbers = OwnNumbers()
        self._entries: list[Logged] = []

    def log(
        self, name: str, value: Any, reduce: Reduce = 'mean', window: int | None = None, lifetime: bool = False
    ) -> None:
        """Gives the log of the run a number, as `job.log` does; the numbers of all runners are reduced together.

        It travels with the rollout, and counts when the learner uses that: numbers of a lost runner are not counted twice.
        Raises: UserError, as `job.log`.
        """
        self._entries.append(self._numbers.checked(name, value, Reduction(reduce, window, lifetime)))

    def see(self, tell: TellRunner, collector: Collector, columns: dict[str, Any]) -> list[Logged]:
        """Tells callbacks of a rollout that this process collected; returns the numbers that they logged."""
        self.collect_iter = collector.collect_iter
        self.env_step = collector.env_step
        self._entries = []
        tell(self, columns)
        return self._entries
