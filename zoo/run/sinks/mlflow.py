"""MLflow: a local database or a tracking server."""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from zoo.config.section import Section
from zoo.core.registry import SINK_REGISTRY
from zoo.run.sinks.tracker import Tracker, flat, library

logger = logging.getLogger(__name__)

RETRY_S, CLOSE_S = 30.0, 60.0
"""Seconds from a failure to the next try; seconds that the end of a run waits for what is not written yet."""
MAX_WAITING = 10_000  # lines that are kept for a server that does not answer
N_PARAM, N_TEXT = 100, 500  # parameters of one request, characters of one: limits of MLflow's API


class MlflowConfig(Section):
    """Where MLflow writes."""

    uri: str | None = Field(
        None,
        description="'sqlite:///mlflow.db', 'http://host:5000', ...; null: MLFLOW_TRACKING_URI, else MLflow's default",
    )
    experiment: str | None = Field(None, description='experiment; null: exp_name')
    name: str | None = Field(None, description='name of the run; null: that of the run folder')
    tags: dict[str, str] = Field({}, description='tags of the run, name to text')
    upload: bool = Field(True, description='upload config.yaml, and at the end the best checkpoint, as artifacts')


class _Line(NamedTuple):
    time_ms: int
    env_step: int
    metrics: dict[str, float]


@SINK_REGISTRY.register('mlflow')
class MlflowSink(Tracker):
    """MLflow (extra mlflow): metrics by env step, config as parameters, best checkpoint; a resume continues its run.

    A thread writes, so that a slow server does not slow the run. While it fails, lines are kept and tried again.
    """

    config = MlflowConfig
    name = 'mlflow'

    def __init__(self, cfg: MlflowConfig) -> None:
        self._cfg = cfg
        self._client_class = library('mlflow.tracking', 'MlflowClient', 'mlflow').MlflowClient
        self._entities = library('mlflow.entities', 'Metric', 'mlflow')
        self._lines: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        self._waiting: list[_Line] = []
        self._client: Any = None
        self._run_id, self._has_warned, self._retry_at = '', False, 0.0

    def open(self, cfg: Any, run_dir: Path) -> None:
        super().open(cfg, run_dir)
        self._run_cfg, self._run_dir = cfg, run_dir
        self._thread = threading.Thread(target=self._work, name='zoo-mlflow', daemon=True)
        self._thread.start()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        self._lines.put(_Line(int(time.time() * 1000), env_step, dict(metrics)))

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning('MLflow lacks the last lines of the log; metrics.jsonl in %s has all', self._run_dir)

    def _work(self) -> None:
        """What the thread does: begins the run, writes lines as they come, ends the run."""
        self._try(self._begin)
        while (line := self._lines.get()) is not None:
            self._waiting = [*self._waiting, line][-MAX_WAITING:]
            if time.monotonic() >= self._retry_at:
                self._try(self._flush)
        self._try(self._finish)

    def _try(self, step: Any) -> None:
        try:
            step()
            self._has_warned = False
        except Exception as error:  # a tracker that fails does not concern the run
            if not self._has_warned:
                what = ' '.join(str(error).split())[:300]
                logger.warning('MLflow cannot be written (%s: %s); training continues', type(error).__name__, what)
            self._has_warned, self._retry_at = True, time.monotonic() + RETRY_S

    def _begin(self) -> None:
        client = self._client_class(tracking_uri=self._cfg.uri)
        known = self.remembered_id()
        self._run_id = self._continued(client, known) if known else ''
        if not self._run_id:
            self._run_id = self._new_run(client)
            self.remember_id(self._run_id)
        if self._cfg.upload:
            client.log_artifact(self._run_id, str(self._run_dir / 'config.yaml'))
        self._client = client

    def _continued(self, client: Any, run_id: str) -> str:
        """The run of that id, marked as running; '' if the server has none such."""
        try:
            client.update_run(run_id, status='RUNNING')
        except Exception as error:  # MLflow has one class for this and for a server that is away
            if getattr(error, 'error_code', None) != 'RESOURCE_DOES_NOT_EXIST':
                raise
            logger.warning('MLflow has no run %s any more; it gets a new one', run_id)
            return ''
        return run_id

    def _new_run(self, client: Any) -> str:
        name = self._cfg.experiment or self._run_cfg.exp_name
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        run = client.create_run(experiment, run_name=self._cfg.name or self._run_dir.name, tags=dict(self._cfg.tags))
        params = [self._entities.Param(key, text[:N_TEXT]) for key, text in _params(self._run_cfg)]
        for i in range(0, len(params), N_PARAM):
            client.log_batch(run.info.run_id, params=params[i : i + N_PARAM])
        return str(run.info.run_id)

    def _flush(self) -> None:
        if self._client is None:
            self._begin()
        while self._waiting:
            line = self._waiting[0]
            metrics = [
                self._entities.Metric(_name(key), float(x), line.time_ms, line.env_step)
                for key, x in line.metrics.items()
            ]
            self._client.log_batch(self._run_id, metrics=metrics)
            self._waiting = self._waiting[1:]

    def _finish(self) -> None:
        self._flush()
        if self._cfg.upload and self._best.exists():
            self._client.log_artifact(self._run_id, str(self._best), artifact_path='checkpoints')
        self._client.set_terminated(self._run_id, status='FAILED' if self.has_failed else 'FINISHED')


def _params(cfg: Any) -> Iterator[tuple[str, str]]:
    return ((_name(key), text) for key, text in flat(cfg))


def _name(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r'[^\w\-. /]', '_', name)[:250]
