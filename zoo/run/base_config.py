"""The config sections of a run: JobConfig, its log, its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from zoo.agents.config import AgentsConfig
from zoo.buffer.base import BufferConfig
from zoo.cluster.config import ClusterConfig
from zoo.config.components import component_of, components_of
from zoo.config.section import Section
from zoo.config.user_code import with_absolute_names
from zoo.core.registry import PIPELINE_REGISTRY, SINK_REGISTRY, STOP_REGISTRY
from zoo.env import EnvConfig
from zoo.policy.config import PolicyConfig


def _folder(path: str) -> str:
    if '\0' in path:
        raise ValueError('no folder has a NUL in its name; leave it out.')
    return os.path.expanduser(path)  # a shell does not expand the ~ of logger.root=~/runs


class LoggerConfig(Section):
    """The log of a run: its folder, its sinks, its console."""

    root: Annotated[str, AfterValidator(_folder)] = Field('runs', min_length=1, description='folder for run folders')
    freq: int = Field(1_000, gt=0, description='env steps between log lines; at most one line per rollout')
    tensorboard: bool = Field(True, description='write TensorBoard files to the folder tb of the run')
    sinks: components_of(SINK_REGISTRY, 'logger.sinks') = Field(  # type: ignore[valid-type]
        [],
        description='where metrics go besides metrics.jsonl: csv, {type: wandb, project: x}, {type: mlflow}, or '
        "your own, 'module:Class' or 'path/file.py:Class'",
    )
    info_keys: list[str] | Literal['auto'] = Field(
        'auto',
        description="the env's own numbers: entries of an episode's last info, logged as collect/info/<entry>_mean and "
        'eval/info/<entry>_mean; auto: all numbers and bools; []: none',
    )
    info_step_keys: list[str] = Field(
        [], description="entries of the info of every step, whose mean over each episode is logged like info_keys'"
    )
    video_freq: int = Field(
        0,
        ge=0,
        description='evaluations between videos of one episode, videos/step_<env step>.mp4 in the run folder (extra video); '
        '0: none',
    )
    console: Literal['auto', 'live', 'plain', 'table', 'off'] = Field(
        'auto',
        description='progress on stderr: a live line, plain lines, a table of all metrics at each line of the log, or none; '
        'auto: live on a terminal and in a notebook, else plain',
    )
    console_freq: float | None = Field(
        None, gt=0, description='seconds between updates of the console; null: 0.5 for live, 5 for plain'
    )


class CheckpointConfig(Section):
    """The frequency of checkpoints, and the ones that are kept."""

    freq: int = Field(50_000, gt=0, description='env steps between checkpoints, and one at the end')
    keep_last: int = Field(3, ge=1, description='number of newest checkpoints to keep')
    keep_best: bool = Field(True, description='also keep the checkpoint with the best evaluation')
    aux_memory: bool = Field(
        True,
        description="save the samples of past rollouts (PPG's auxiliary memory); if false, files are smaller and a "
        'resumed run starts a new phase',
    )


class JobConfig(Section):
    """The config of a run. `policy`, `policy.model` and `buffer` have the fields of the class that their `type` names."""

    exp_name: str = Field('run', description='folder name for the runs of this experiment')
    seed: int = Field(0, ge=0, description='seed of all random streams of the run; 3 or more seeds to compare results')
    max_env_step: int = Field(
        100_000, ge=1, description='env steps of the run, at most; it ends with the last complete rollout'
    )
    keep_freed_memory: bool = Field(
        True,
        description='let malloc keep up to 512 MB of freed memory in the process, which speeds up updates of image '
        'networks by a tenth (glibc only); false where memory is scarce or the process does other work',
    )
    init_from: str | None = Field(
        None,
        description='a run folder or checkpoint whose parameters and statistics a new run begins with, as far as they fit; the '
        'optimiser and all counters start from zero',
    )
    init_from_keys: list[str] = Field(
        ['*'], description="names of the parameters that init_from takes, as patterns: ['actor_*']"
    )
    pipeline: component_of(PIPELINE_REGISTRY, 'pipeline') = Field(  # type: ignore[valid-type]
        'serial',
        description="what a round of the run does, by name or as {type: name, its options}; 'serial': collect, learn",
    )
    callbacks: Annotated[list[str | Callable[..., Any]], AfterValidator(with_absolute_names)] = Field(
        [],
        description="classes that the run calls at its events, as 'module:Class' or 'path/file.py:Class', see zoo.Callback",
    )
    stop: components_of(STOP_REGISTRY, 'stop') = Field(  # type: ignore[valid-type]
        [],
        description='rules that end the run before max_env_step, as {type: patience, n: 5} or your own, '
        "'module:function' or 'path/file.py:function'; the first that holds ends it",
    )
    env: EnvConfig
    agents: AgentsConfig
    policy: PolicyConfig
    buffer: BufferConfig
    checkpoint: CheckpointConfig
    logger: LoggerConfig
    cluster: ClusterConfig

    @field_validator('exp_name')
    @classmethod
    def _is_folder_name(cls, name: str) -> str:
        fits = 0 < len(name) <= 100 and len(name.encode()) <= 200  # file systems count bytes, most up to 255
        if not fits or not name.strip() or name.startswith('.') or set('/\\:') & set(name) or not name.isprintable():
            raise ValueError(
                'it must name a folder, not a path: 1 to 100 characters without / \\ : and no leading '
                'dot; use e.g. cartpole_ppo, and logger.root for its place.'
            )
        return name
