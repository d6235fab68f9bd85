"""Sinks that write to an experiment tracker: Weights & Biases, and MLflow with a local database or a server."""

from __future__ import annotations

import importlib
import json
import logging
import os
import posixpath
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from zoo.config.section import ConfigError, Section, leaf_items
from zoo.config.yaml_io import storable
from zoo.core.errors import missing_extra
from zoo.core.files import read_small, whole_file
from zoo.core.registry import SINK_REGISTRY
from zoo.core.streams import HIDDEN, without_passwords
from zoo.run.base_config import JobConfig
from zoo.run.log.sinks import Sink

logger = logging.getLogger(__name__)
_ID = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]{0,63}')
_MAX_ID_FILE = 1_000  # bytes


class Tracker(Sink):
    """A sink that writes to a run of an experiment tracker. The id of that run is kept in the run folder for a resume.

    Attributes: name: registered name, also that of the extra that installs its library.
    """

    name: str

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        self._file = run_dir / f'{self.name}_run.json'
        self._best = run_dir / 'checkpoints' / 'best.safetensors'

    def remembered_id(self) -> str | None:
        """The id of the tracker's run for this run folder; None if there is none yet."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads(read_small(self._file, _MAX_ID_FILE))['id']
            if _ID.fullmatch(found):
                return str(found)
            logger.warning('%s has no id of a run; the tracker gets a new run', self._file)
        return None

    def remember_id(self, run_id: str) -> None:
        with whole_file(self._file) as file:
            file.write(json.dumps({'id': run_id}).encode())


def library(module: str, needs: str, extra: str) -> Any:
    """Imports a tracker's module. Raises: ConfigError that names the extra if it is not installed."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if error.name is None or error.name.partition('.')[0] != module.partition('.')[0]:
            raise
        found = None
    if not hasattr(found, needs):  # a folder of that name, such as W&B's own output, is imported as an empty module
        raise ConfigError(f'{missing_extra(f"logger.sinks names {extra!r}, which", extra)}, or leave it out.')
    return found


class WandbConfig(Section):
    """Options for wandb.init and uploads."""

    project: str | None = Field(None, description='project; null: WANDB_PROJECT, else exp_name')
    entity: str | None = Field(None, description='user or team; null: your default')
    group: str | None = Field(None, description='group of runs, e.g. the seeds of one config')
    name: str | None = Field(None, description='name of the run; null: that of the run folder')
    job_type: str | None = Field(None, description='kind of run within a group')
    tags: list[str] = Field([], description='words to find the run by')
    notes: str | None = Field(None, description='text about the run')
    mode: Literal['online', 'offline', 'disabled'] | None = Field(
        None, description='offline: keeps all in the run folder, for `wandb sync`; null: WANDB_MODE, else online'
    )
    upload: bool = Field(True, description='upload config.yaml, and at the end the best checkpoint')


@SINK_REGISTRY.register('wandb')
class WandbSink(Tracker):
    """Weights & Biases (extra wandb): metrics over env_step, config, best checkpoint; a resume continues its run.

    If the process already has a W&B run, from wandb.init, that run is used, and stays open.
    """

    config = WandbConfig
    name = 'wandb'

    def __init__(self, cfg: WandbConfig) -> None:
        self._cfg = cfg
        self._wandb = library('wandb', 'init', 'wandb')

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        super().open(cfg, run_dir)
        self._is_ours = self._wandb.run is None
        run = self._run = self._begin(cfg, run_dir) if self._is_ours else self._wandb.run
        run.config.update(storable(cfg, hides=True), allow_val_change=True)
        run.define_metric('env_step')
        run.define_metric('*', step_metric='env_step')
        if self._cfg.upload:
            run.save(str(run_dir / 'config.yaml'), base_path=str(run_dir), policy='now')

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({'env_step': env_step, **metrics})

    def video(self, env_step: int, path: Path) -> None:
        self._run.log({'env_step': env_step, 'eval/video': self._wandb.Video(str(path), format='mp4')})

    def close(self) -> None:
        if self._cfg.upload and self._best.exists():
            self._run.save(str(self._best), base_path=str(self._best.parents[1]), policy='now')
        if self._is_ours:
            self._run.finish(exit_code=int(self.has_failed))

    def _begin(self, cfg: JobConfig, run_dir: Path) -> Any:
        given = self._cfg
        known = self.remembered_id()
        names = ('entity', 'group', 'job_type', 'notes', 'mode')
        run_id = known or secrets.token_hex(6)
        run = self._wandb.init(
            project=given.project or os.environ.get('WANDB_PROJECT') or cfg.exp_name,
            name=given.name or run_dir.name,
            tags=list(given.tags) or None,
            id=run_id,
            resume='allow' if known else None,
            dir=str(run_dir),
            settings=self._wandb.Settings(console='off'),  # what stderr shows is progress, redrawn twice a second
            **{name: getattr(given, name) for name in names},
        )
        self.remember_id(run_id)
        return run


RETRY_S = 30.0
CLOSE_S = 60.0
"""Seconds from a failure to the next try; seconds that the end of a run waits for what is not written yet."""
MAX_WAITING = 10_000  # lines that are kept for a server that does not answer
# parameters of one request, characters of one: limits of MLflow's API
N_PARAM = 100
N_TEXT = 6_000

REACHED = 'http', 'https', 'databricks', 'sqlite', 'mysql', 'postgresql', 'mssql'  # schemes of databases and servers


class MlflowConfig(Section):
    """Options of MLflow: its server, the run, uploads."""

    uri: str | None = Field(
        None,
        description="'sqlite:///mlflow.db', 'http://host:5000', ...; null: MLFLOW_TRACKING_URI, else MLflow's default",
    )
    experiment: str | None = Field(None, description='experiment; null: exp_name')
    name: str | None = Field(None, description='name of the run; null: that of the run folder')
    tags: dict[str, str] = Field({}, description='tags of the run, name to text')
    upload: bool = Field(True, description='upload config.yaml, and at the end the best checkpoint, as artifacts')


@SINK_REGISTRY.register('mlflow')
class MlflowSink(Tracker):
    """MLflow (extra mlflow): metrics by env step, config as parameters, best checkpoint; a resume continues its run.

    A thread writes, so that a slow server does not slow the run. While it fails, lines are kept and tried again.
    """

    config = MlflowConfig
    name = 'mlflow'

    def __init__(self, cfg: MlflowConfig) -> None:
        self._cfg = cfg
        os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')  # reports to MLflow's makers are on by default
        self._client_class = library('mlflow.tracking', 'MlflowClient', 'mlflow').MlflowClient
        self._entities = library('mlflow.entities', 'Metric', 'mlflow')
        self._refuse_for_good()
        self._lines: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._waiting: list[list[Any]] = []  # lines of the log, each as MLflow's metrics
        self._client: Any = None
        self._run_id = ''
        self._has_warned = False
        self._retry_at = 0.0

    def _refuse_for_good(self) -> None:
        """Raises: ConfigError if MLflow takes no such place at all, as newer versions refuse folders: it would never be written."""
        uri = self._uri() or os.environ.get('MLFLOW_TRACKING_URI')
        if not uri or uri.partition(':')[0].partition('+')[0] in REACHED:
            return  # a database or server that fails now may answer later
        try:
            self._client_class(tracking_uri=uri)
        except Exception as error:
            if getattr(error, 'error_code', None) != 'INVALID_PARAMETER_VALUE':
                raise
            said = without_passwords(' '.join(str(error).split()))
            raise ConfigError(f'logger.sinks: MLflow does not take {without_passwords(uri)!r}: {said}') from error

    def _uri(self) -> str | None:
        return self._cfg.uri and self._cfg.uri.replace(HIDDEN, '')  # in a resume the config has no password

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        super().open(cfg, run_dir)
        self._run_cfg = cfg
        self._run_dir = run_dir
        self._thread = threading.Thread(target=self._work, name='zoo-mlflow', daemon=True)
        self._thread.start()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        ms = int(time.time() * 1000)
        self._lines.put([self._entities.Metric(_name(key), float(x), ms, env_step) for key, x in metrics.items()])

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning('MLflow lacks the last lines of the log; metrics.jsonl in %s has all', self._run_dir)

    def _work(self) -> None:
        """The body of the thread: begins the run, writes lines as they come, ends the run."""
        self._try(self._begin)
        while (line := self._lines.get()) is not None:
            self._waiting = [*self._waiting, line][-MAX_WAITING:]
            if time.monotonic() >= self._retry_at:
                self._try(self._flush)
        self._try(self._finish)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
            self._has_warned = False
        except Exception as error:  # a tracker that fails does not stop the run
            if not self._has_warned:
                what = without_passwords(' '.join(str(error).split()))[:2_000]
                logger.warning('MLflow cannot be written (%s: %s); training continues', type(error).__name__, what)
            self._has_warned = True
            self._retry_at = time.monotonic() + RETRY_S

    def _begin(self) -> None:
        client = self._client_class(tracking_uri=self._uri())
        known = self.remembered_id()
        if known:
            self._run_id = self._continued(client, known)
        else:
            self._run_id = ''
        if not self._run_id:
            self._run_id = self._new_run(client)
            self.remember_id(self._run_id)
        if self._cfg.upload:
            client.log_artifact(self._run_id, str(self._run_dir / 'config.yaml'))
        self._client = client

    def _continued(self, client: Any, run_id: str) -> str:
        """Marks the run of that id as running, and returns the id; '' if the server does not have it."""
        try:
            client.update_run(run_id, status='RUNNING')
        except Exception as error:  # MLflow has one class for this and for an unreachable server
            if getattr(error, 'error_code', None) != 'RESOURCE_DOES_NOT_EXIST':
                raise
            logger.warning('MLflow has no run %s any more; it gets a new one', run_id)
            return ''
        return run_id

    def _new_run(self, client: Any) -> str:
        name = self._cfg.experiment or self._run_cfg.exp_name
        found = client.get_experiment_by_name(name)
        if found is None:
            experiment = client.create_experiment(name)
        else:
            experiment = found.experiment_id
        run = client.create_run(experiment, run_name=self._cfg.name or self._run_dir.name, tags=dict(self._cfg.tags))
        values = leaf_items(storable(self._run_cfg, hides=True))
        params = [self._entities.Param(_name(key), str(value)[:N_TEXT]) for key, value in values]
        for i in range(0, len(params), N_PARAM):
            client.log_batch(run.info.run_id, params=params[i : i + N_PARAM])
        return str(run.info.run_id)

    def _flush(self) -> None:
        if self._client is None:
            self._begin()
        refused: Exception | None = None
        while self._waiting:
            try:
                self._client.log_batch(self._run_id, metrics=self._waiting[0])
            except Exception as error:
                if getattr(error, 'error_code', None) != 'INVALID_PARAMETER_VALUE':
                    raise
                refused = error  # such a line is always refused: those after it must not wait for it
            self._waiting = self._waiting[1:]
        if refused is not None:
            raise refused

    def _finish(self) -> None:
        self._try(self._flush)
        if self._waiting or self._client is None:  # still not written: the run is not marked as finished
            return
        if self._cfg.upload and self._best.exists():
            self._client.log_artifact(self._run_id, str(self._best), artifact_path='checkpoints')
        self._client.set_terminated(self._run_id, status='FAILED' if self.has_failed else 'FINISHED')


def _name(name: str) -> str:
    """A name that MLflow accepts, also as the path of a file below a folder."""
    return posixpath.normpath(re.sub(r'[^\w\-. /]', '_', name)[:250]).lstrip('./') or '_'
