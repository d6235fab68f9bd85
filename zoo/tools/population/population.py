"""A population as data: its members, the best one, its lineage; read from its folder without training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zoo.config.section import short_keys, value_at
from zoo.tools.results.lineage import MEMBERS, Birth, Lineage, StageResult
from zoo.tools.results.read import columns_of_log


class PopulationMember(NamedTuple):
    """A life at a place of a population.

    values: of the keys with a space and those that mutations changed, as texts of overrides; parent: the name of the life
    that it was forked from; fitness: its mean return in the last evaluation of the generation, None if it failed; reason: why.
    """

    place: int
    life: str
    run_dir: Path
    parent: str | None
    values: dict[str, str]
    fitness: float | None
    env_step: int
    state: str
    reason: str


class Population:
    """A population in a folder. Attributes: folder; lineage: all its events."""

    def __init__(self, folder: Path, lineage: Lineage) -> None:
        self.folder = folder
        self.lineage = lineage

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Population:
        """Reads a population. Raises: UserError if the folder has none."""
        path = Path(folder)
        return cls(path, Lineage.read(path))

    @property
    def members(self) -> list[PopulationMember]:
        """The members after the last generation, by place."""
        if not self.lineage.generations:
            return []
        return self.generation(len(self.lineage.generations) - 1)

    @property
    def best(self) -> PopulationMember | None:
        """The fittest member after the last generation; None if there is none."""
        place = self.lineage.best_place()
        if place is None:
            return None
        return self.members[place]

    def generation(self, k: int) -> list[PopulationMember]:
        """The members after the k-th generation, from 0 on, by place. Raises: IndexError if it is not trained yet."""
        return [self._member(result) for result in self.lineage.generations[k]]

    def _member(self, result: StageResult) -> PopulationMember:
        birth = self.lineage.lives[result.life]
        return PopulationMember(
            place=result.place,
            life=result.life,
            run_dir=self.folder / MEMBERS / result.life,
            parent=birth.parent,
            values=birth.values,
            fitness=result.fitness,
            env_step=result.env_step,
            state=result.state,
            reason=result.reason,
        )

    def __repr__(self) -> str:
        best = self.best
        words = 'not trained'
        if best is not None:
            words = f'best {best.life} with {best.fitness:.5g}'
        return f'Population({str(self.folder)!r}, {len(self.lineage.generations)} generations, {words})'


def member_rows(population: Population) -> list[tuple[str, ...]]:
    """Returns the members as texts, the best first, below a row of headings."""
    members = sorted(population.members, key=lambda member: (-_number(member.fitness), member.place))
    keys = list(dict.fromkeys(key for member in members for key in member.values))
    rows = [('member', 'return', 'env steps', 'parent', *short_keys(keys))]
    for member in members:
        fitness = 'failed'
        if member.fitness is not None:
            fitness = f'{member.fitness:.5g}'
        values = [member.values.get(key, '-') for key in keys]
        rows.append((member.life, fitness, f'{member.env_step:,}', member.parent or '-', *values))
    return rows


def _number(fitness: float | None) -> float:
    if fitness is None:
        return float('-inf')
    return fitness


def env_step_words(population: Population) -> str:
    """Returns a line with the env steps of all lives together, and those of evaluations."""
    lineage = population.lineage
    trained = sum(_last_step(lineage, life) - birth.env_step for life, birth in lineage.lives.items())
    n_episode = 0
    if lineage.beginning is not None:
        n_episode = int(value_at(lineage.beginning.words, 'config.policy.eval.n_episode') or 0)  # no key of a mutation
    evaluated = 0.0
    wall_s = 0.0
    n_lost = 0
    for life, birth in lineage.lives.items():
        folder = population.folder / MEMBERS / life
        if not (folder / 'config.yaml').exists():  # it failed before it began, as on a full disk, or it was removed
            n_lost += 1
            continue
        columns = columns_of_log(folder / 'metrics.jsonl')
        evaluated += n_episode * _evaluated_length(columns, birth)
        wall_s += _own_seconds(columns, birth)
    words = (
        f'{trained:,} env steps of training of {len(lineage.lives)} runs in all, {evaluated:,.0f} of evaluation, '
        f'{wall_s:.1f} s of runs'
    )
    if n_lost:
        words += f'; runs without a folder, which the last two numbers leave out: {n_lost}'
    return words


def _evaluated_length(columns: Mapping[str, np.ndarray], birth: Birth) -> float:
    """Sum of the mean lengths of the evaluations of a life, without those of its parent, which its log has too."""
    if 'eval/episode_len_mean' not in columns:
        return 0.0
    lengths = columns['eval/episode_len_mean'][columns['env_step'] > birth.env_step]
    return float(np.nansum(lengths))


def _own_seconds(columns: Mapping[str, np.ndarray], birth: Birth) -> float:
    """Seconds of a life up to the last line of its log, without those of its parent."""
    wall_s = columns['wall_s'][np.isfinite(columns['wall_s'])]
    if not len(wall_s):
        return 0.0
    start = 0.0
    before = columns['wall_s'][columns['env_step'] <= birth.env_step]
    if birth.parent is not None and len(before):
        start = float(before[-1])
    return max(float(wall_s[-1]) - start, 0.0)


def _last_step(lineage: Lineage, life: str) -> int:
    return max(lineage.env_step_of(life), lineage.lives[life].env_step)
