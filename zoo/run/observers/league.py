"""Takes snapshots of a policy that plays against itself, in the folder `league` of the run."""

from __future__ import annotations

import logging
import shutil

from zoo.agents.self_play import League
from zoo.run.observers.base import Observer, RunView
from zoo.run.result import TrainResult

logger = logging.getLogger(__name__)


class LeagueObserver(Observer):
    """Takes the first snapshot when the run begins, further ones when they are due, and shows the ratings at its end."""

    def __init__(self, league: League) -> None:
        self._league = league

    def on_start(self, job: RunView) -> None:
        folder = job.run_dir / 'league'
        before = self._league.folder
        if before is not None and before != folder:  # a resumed run in a new folder
            folder.mkdir(parents=True, exist_ok=True)
            for step in self._league.snapshots:
                shutil.copy2(before / f'{step}.safetensors', folder)
        self._league.folder = folder
        self._take_if_due(job)

    def after_round(self, job: RunView) -> None:
        self._take_if_due(job)

    def on_end(self, job: RunView, result: TrainResult) -> None:
        logger.info('ratings (Elo):\n%s', self._league.table())

    def _take_if_due(self, job: RunView) -> None:
        if self._league.is_due(job.env_step):
            self._league.take(job.policy.save, job.env_step)
