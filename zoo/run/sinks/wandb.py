"""Weights & Biases."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from zoo.config.section import Section
from zoo.config.yaml_text import storable
from zoo.core.registry import SINK_REGISTRY
from zoo.run.sinks.tracker import Tracker, library


class WandbConfig(Section):
    """What wandb.init is given."""

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

    If the process has a W&B run already, of wandb.init, that one is used, and stays open.
    """

    config = WandbConfig
    name = 'wandb'

    def __init__(self, cfg: WandbConfig) -> None:
        self._cfg, self._wandb, self._run = cfg, library('wandb', 'init', 'wandb'), None

    def open(self, cfg: Any, run_dir: Path) -> None:
        super().open(cfg, run_dir)
        self._is_ours = self._wandb.run is None
        run = self._run = self._begin(cfg, run_dir) if self._is_ours else self._wandb.run
        run.config.update(storable(cfg), allow_val_change=True)
        run.define_metric('env_step')
        run.define_metric('*', step_metric='env_step')
        if self._cfg.upload:
            run.save(str(run_dir / 'config.yaml'), base_path=str(run_dir), policy='now')

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None:
            self._run.log({'env_step': env_step, **metrics})

    def video(self, env_step: int, path: Path) -> None:
        if self._run is not None:
            self._run.log({'env_step': env_step, 'eval/video': self._wandb.Video(str(path), format='mp4')})

    def close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if self._cfg.upload and self._best.exists():
            run.save(str(self._best), base_path=str(self._best.parents[1]), policy='now')
        if self._is_ours:
            run.finish(exit_code=int(self.has_failed))

    def _begin(self, cfg: Any, run_dir: Path) -> Any:
        given, known = self._cfg, self.remembered_id()
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
