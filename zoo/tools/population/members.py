"""Members of a population: the run folder of each life, its config in a generation, and its view for mutations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from zoo.config.section import ConfigError, value_at
from zoo.config.source import split_override
from zoo.config.yaml_io import config_of_yaml, storable, value_text
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, load_checkpoint, steps_of
from zoo.run.config import frozen_config, resolve_config
from zoo.tools.population.plan import PopulationPlan
from zoo.tools.results.lineage import MEMBERS, Birth, Lineage
from zoo.tools.sweep.spaces import Space

SAME_POLICY = ('founder', 'none', 'hyper', 'explore')
"""Kinds of births after which a policy acts as its parent did."""


class Stage(NamedTuple):
    """The training of a life in one generation.

    texts: overrides of its config; env_step: with which it begins, 0 if new; parent: the checkpoint of a life that a mutation
    has just changed, from which its policy is to be measured.
    """

    life: str
    folder: Path
    texts: tuple[str, ...]
    env_step: int
    parent: Path | None = None


def folder_of(plan: PopulationPlan, life: str) -> Path:
    """The run folder of a life."""
    return plan.folder / MEMBERS / life


def stage_of(plan: PopulationPlan, birth: Birth, generation: int, env_step: int) -> Stage:
    """The training of a life in a generation, which it begins with an env step."""
    texts = stage_texts(plan, birth.values, birth.seed, generation)
    return Stage(birth.life, folder_of(plan, birth.life), texts, env_step, _measured_from(plan, birth, env_step))


def _measured_from(plan: PopulationPlan, birth: Birth, env_step: int) -> Path | None:
    """The checkpoint of the parent, if a life begins and its mutation changed the policy, and not only how it learns."""
    is_new = birth.parent is not None and birth.env_step == env_step
    if not is_new or birth.kind in SAME_POLICY or plan.cfg.agents.policies:
        return None
    return folder_of(plan, str(birth.parent)) / 'checkpoints' / f'step_{env_step:09d}.safetensors'


def stage_texts(plan: PopulationPlan, values: Mapping[str, str], seed: int, generation: int) -> tuple[str, ...]:
    """The overrides of a run that ends with a generation.

    It is saved only at its end, so that a generation that was interrupted begins again where it began, and ends equal.
    """
    cfg = plan.cfg
    last = (generation + 1) * plan.every
    rollout = cfg.policy.collect.n_step * cfg.env.collector_env_num
    rules = [*storable(cfg.stop), {'type': 'env_step', 'n': max(last - rollout // 2, 1)}]  # the nearest whole rollout
    texts = [
        *(f'{key}={text}' for key, text in values.items()),
        f'seed={seed}',
        f'max_env_step={plan.max_env_step}',
        f'stop={json.dumps(rules)}',
        'policy.eval.stop_value=null',
        f'checkpoint.freq={plan.max_env_step + 1}',
        'checkpoint.keep_last=2',  # those of the beginning and the end of the generation
        'logger.console=off',
    ]
    if generation > 0:
        texts.append('env.check=false')  # the founders have checked it
    if cfg.policy.n_thread is None:
        texts.append('policy.n_thread=1')  # the same sums in every process
    return (*plan.overrides, *texts)


class ForkedMember:
    """A life as mutations see it, see `MutableMember`: its config, its newest checkpoint, and other values of its config."""

    def __init__(self, plan: PopulationPlan, lineage: Lineage, life: str) -> None:
        self._plan = plan
        self.birth = lineage.lives[life]
        self._generation = len(lineage.generations)
        self.env_step = lineage.env_step_of(life)
        self.place = self.birth.place
        self.folder = folder_of(plan, life)

    @cached_property
    def config(self) -> JobConfig:
        """Its resolved config."""
        return self.resolve(())

    @property
    def spaces(self) -> Mapping[str, Space]:
        """The values that keys of the config may take."""
        return self._plan.spaces

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Its newest checkpoint, of the end of its last generation. Raises: CheckpointError."""
        return load_checkpoint(checkpoint_at(self.folder, self.env_step))

    def values_with(self, overrides: Sequence[str]) -> dict[str, str]:
        """Its values by key, as texts of overrides, with other ones."""
        return {**self.birth.values, **dict(map(split_override, overrides))}

    def resolve(self, overrides: Sequence[str]) -> JobConfig:
        """Its config with other values. Raises: ConfigError if they are refused."""
        texts = stage_texts(self._plan, self.values_with(overrides), self.birth.seed, self._generation)
        return frozen_config(resolve_config(self._plan.source, texts))

    def value_text(self, key: str) -> str:
        """A value of its config as a text."""
        return value_text(value_at(self.config, key))


def checkpoint_at(folder: Path, env_step: int) -> Path:
    """The path of the checkpoint of a run folder at an env step."""
    return folder / 'checkpoints' / f'step_{env_step:09d}.safetensors'


def undo_stage(folder: Path, env_step: int) -> None:
    """Removes what a generation that was interrupted has left: the checkpoints of a run after an env step.

    After a power cut config.yaml may be damaged too: it is then written again.
    """
    for step, path in steps_of(folder / 'checkpoints').items():
        if step > env_step:
            path.unlink()
    config = folder / 'config.yaml'
    if config.is_file():
        try:
            config_of_yaml(config)
        except ConfigError:
            config.unlink()


def drop_checkpoints(plan: PopulationPlan, lineage: Lineage) -> None:
    """Removes the checkpoints of lives that have ended, unless the plan keeps them; their logs stay.

    Those of the parents of lives whose first generation is not trained yet stay too.
    """
    if plan.keep == 'all':
        return
    trained = {result.life for results in lineage.generations for result in results}
    parents = {birth.parent for birth in lineage.lives.values() if birth.life not in trained}
    for life in lineage.lives.keys() - set(lineage.at_places) - parents:
        shutil.rmtree(folder_of(plan, life) / 'checkpoints', ignore_errors=True)
