"""The file lineage.jsonl of a population: one JSON object a line for each event, as `zoo evolve` writes and others read them.

A population has places. The run at a place is a life: it ends when it is replaced by a child of another life, or of itself.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from zoo.core.errors import UserError
from zoo.core.files import open_without_link

NAME = 'lineage.jsonl'
MEMBERS = 'members'
"""Folder of the run folders of all lives, by their names."""
MAX_LINE = 1 << 22  # most bytes of a line: that of a generation takes about 100 for each member
MAX_EVENT = 100_000
_LIFE = r'^m\d{2,6}_g\d{2,6}$'
_Life = Annotated[str, Field(pattern=_LIFE)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Text = Annotated[str, Field(max_length=10_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra='ignore')


class Birth(_Strict):
    """The beginning of a life: its place, its parent, and what differs from it.

    parent: None for a founder; env_step: of the parent's checkpoint, 0 for a founder; kind: of the mutation; values: of all
    keys with a space, and of those that mutations changed, as texts of overrides; changed: the keys that differ from the
    parent, each with the two texts; exact: of an architecture, whether the child computes what its parent did; refused: why no
    mutation was accepted.
    """

    place: _Count
    life: _Life
    parent: _Life | None
    env_step: _Count
    seed: Annotated[int, Field(ge=0, lt=2**128)]
    kind: _Text
    values: dict[str, _Text]
    changed: dict[str, tuple[str | None, str]] = Field({}, strict=False)
    exact: bool | None = None
    refused: _Text = ''
    note: _Text = ''


class StageResult(_Strict):
    """The result of a life in one generation.

    fitness: None if it failed, or is not finite; reason: why it failed or ended; kl: after a mutation of its policy, the mean
    KL(parent || child) on its first rollout, in nats.
    """

    place: _Count
    life: _Life
    fitness: FiniteFloat | None
    env_step: _Count
    state: Literal['done', 'failed']
    reason: _Text = ''
    kl: FiniteFloat | None = None


class Beginning(_Strict):
    """The first line. words: what must be equal in a command that continues the population."""

    event: Literal['begin'] = 'begin'
    seed: Annotated[int, Field(ge=0, lt=2**128)]
    n_member: Annotated[int, Field(ge=2, lt=10**6)]
    words: dict[str, Any]


class Births(_Strict):
    """The lives that begin with a generation: the founders with the first one, then those that replace others."""

    event: Literal['births'] = 'births'
    generation: _Count
    children: list[Birth]


class Generation(_Strict):
    """The results of all members after a generation, in the order of their places."""

    event: Literal['generation'] = 'generation'
    generation: _Count
    members: list[StageResult]


Event = Beginning | Births | Generation
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator='event')])


class Lineage:
    """The events of a population so far.

    Attributes: path: of the file; beginning: None before the first line; lives: by name; at_places: the name of the present
      life at each place; generations: the results of each generation; n_births: generations whose births are known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beginning: Beginning | None = None
        self.lives: dict[str, Birth] = {}
        self.at_places: list[str] = []
        self.generations: list[list[StageResult]] = []
        self.n_births = 0

    @classmethod
    def read(cls, folder: Path) -> Lineage:
        """Reads the file of a population; a last line that was cut off is ignored.

        Raises: UserError if there is none, or it has a line that no population writes.
        """
        lineage = cls(folder / NAME)
        if not lineage.path.is_file():
            raise UserError(f'{folder} is no population: it has no {NAME}; name the folder that zoo evolve printed')
        for n, line in enumerate(_whole_lines(lineage.path), 1):
            try:
                lineage._take(_EVENT.validate_json(line))
            except (ValidationError, ValueError, LookupError) as error:
                raise UserError(
                    f'{lineage.path} has a line {n} that no population writes; name another folder'
                ) from error
        return lineage

    def add(self, event: Event) -> None:
        """Takes an event, and appends it to the file, which is then on the disk. Raises: OSError."""
        self._take(event)
        line = json.dumps(event.model_dump(mode='json', exclude_defaults=False)).encode() + b'\n'
        self.path.parent.mkdir(parents=True, exist_ok=True)
        end = sum(map(len, _whole_lines(self.path)))
        with open(self.path, 'ab', opener=open_without_link) as file:
            file.truncate(end)  # without a line that was cut off
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def result_of(self, life: str) -> StageResult | None:
        """The newest result of a life; None if it has not trained a whole generation."""
        results = (result for members in reversed(self.generations) for result in members if result.life == life)
        return next(results, None)

    def env_step_of(self, life: str) -> int:
        """The env step from which a life continues: that of its last whole generation, else of its birth."""
        steps = (
            result.env_step
            for members in reversed(self.generations)
            for result in members
            if result.life == life and result.state == 'done'
        )
        return next(steps, self.lives[life].env_step)

    def ancestors(self, life: str) -> list[Birth]:
        """The lives from a founder to a life, which is the last one."""
        chain: list[Birth] = []
        name: str | None = life
        while name is not None:
            chain.append(self.lives[name])
            name = chain[-1].parent
        return chain[::-1]

    def best_place(self) -> int | None:
        """The place of the fittest member after the last generation; None if no member has a fitness."""
        if not self.generations:
            return None
        best = max(self.generations[-1], key=_by_fitness)
        if best.fitness is None:
            return None
        return best.place

    def _take(self, event: Event) -> None:
        """Raises: ValueError for an event that cannot follow those before."""
        if isinstance(event, Beginning):
            if self.beginning is not None:
                raise ValueError('a second beginning')
            self.beginning = event
            return
        if self.beginning is None or len(self.lives) + len(self.generations) > MAX_EVENT:
            raise ValueError('no beginning, or too many lines')
        if isinstance(event, Births):
            self._take_births(event)
        else:
            if event.generation != len(self.generations) or self.n_births != event.generation + 1:
                raise ValueError('a generation that does not follow')
            if [result.life for result in event.members] != self.at_places:
                raise ValueError('a generation of other members')
            self.generations.append(event.members)

    def _take_births(self, event: Births) -> None:
        if event.generation != self.n_births or event.generation != len(self.generations):
            raise ValueError('births that do not follow')
        assert self.beginning is not None, 'checked by the caller'
        places = [birth.place for birth in event.children]
        is_first = event.generation == 0
        if is_first and places != list(range(self.beginning.n_member)):
            raise ValueError('founders without a place')
        for birth in event.children:
            if birth.life in self.lives or (birth.parent not in self.lives) != is_first:
                raise ValueError('a life twice, or without its parent')
        self.lives |= {birth.life: birth for birth in event.children}
        if is_first:
            self.at_places = [''] * self.beginning.n_member
        for birth in event.children:
            self.at_places[birth.place] = birth.life
        self.n_births += 1


def _by_fitness(result: StageResult) -> tuple[float, int]:
    fitness = -math.inf
    if result.fitness is not None:
        fitness = result.fitness
    return fitness, -result.place


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file up to one that was cut off."""
    if not path.exists():
        return
    with open(path, 'rb', opener=open_without_link) as file:
        for line in iter(partial(file.readline, MAX_LINE), b''):
            if not line.endswith(b'\n'):
                return
            yield line


def is_population(folder: Path) -> bool:
    """Whether a folder is that of a population, whose runs are in its folder `members`."""
    return (folder / NAME).is_file()
