"""Selection rules of populations: the places whose members are replaced after a generation, and by copies of whom.

A rule takes the fitness of all places, [P], and a generator. It returns for each place the one that its next member descends
from: None: the member continues unmodified; its own index: it continues from its own checkpoint, with a mutation; another
index: it becomes a mutated copy of the member there.

A fitness that is not finite means that the member failed: it is worse than any number, is always replaced, and never
copied. Equal members rank by their index, the smaller one first. If all members have the same fitness, nothing is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from zoo.config.components import make_component, section_of
from zoo.config.source import parse_value
from zoo.core.registry import Component, Registry

Parents = list[int | None]
Selection = Callable[[Sequence[float], np.random.Generator], Parents]
SELECTION_REGISTRY: Registry[Callable[..., Parents]] = Registry(
    'selection', 'zoo.selections', ('zoo.tools.population.selection',)
)
MAX_QUANTILE = 0.5
"""With a larger share of the members, the best and the worst would overlap."""


@SELECTION_REGISTRY.register('truncation')
def truncation(
    fitness: Sequence[float],
    generator: np.random.Generator,
    *,
    quantile: Annotated[
        float, Field(gt=0, le=MAX_QUANTILE, description='share of the members that are replaced')
    ] = 0.25,
) -> Parents:
    """The k worst become copies of the k best, each of one drawn with replacement; k = ceil(quantile P), at most floor(P / 2).

    If more than k members failed, all of these are replaced.
    Source: Jaderberg et al. 2017, arXiv:1711.09846, sec. 4.1, with 20%; the default is that of Ray Tune.
    """
    n = len(fitness)
    ranked, failed = ranking(fitness)
    parents: Parents = [None] * n
    if is_settled(ranked, failed, fitness):
        return parents
    n_replaced = min(math.ceil(quantile * n), n // 2)
    worst = [*ranked, *failed][-max(n_replaced, len(failed)) :]
    best = ranked[:n_replaced]
    for place in sorted(worst):
        parents[place] = best[generator.integers(len(best))]
    return parents


@SELECTION_REGISTRY.register('tournament')
def tournament(
    fitness: Sequence[float],
    generator: np.random.Generator,
    *,
    size: Annotated[
        int, Field(ge=1, description='members that take part in a tournament; more: stronger selection')
    ] = 2,
) -> Parents:
    """The best member stays; every other place goes to the fittest of `size` members, which are drawn with replacement.

    Where all members of a tournament failed, the best member wins. Departs from AgileRL: there the best member is mutated
    too by default, and a fitness of nan wins.
    """
    ranked, failed = ranking(fitness)
    parents: Parents = [None] * len(fitness)
    if is_settled(ranked, failed, fitness):
        return parents
    rank_of = {place: rank for rank, place in enumerate(ranked)}
    elite = ranked[0]
    for place in range(len(fitness)):
        if place == elite:
            continue
        drawn = generator.integers(len(fitness), size=size).tolist()
        parents[place] = min((each for each in drawn if each in rank_of), key=rank_of.__getitem__, default=elite)
    return parents


@SELECTION_REGISTRY.register('threshold')
def threshold(
    fitness: Sequence[float],
    generator: np.random.Generator,
    *,
    deviations: Annotated[float, Field(ge=0, description='distance from the mean, in standard deviations')] = 0.1,
    distance: Annotated[float, Field(ge=0, description='least distance from the mean, in units of return')] = 0.05,
) -> Parents:
    """Members clearly below the mean become copies of members clearly above it, each of one drawn with replacement.

    below: fitness < mean - d,  above: fitness > mean + d,  d = max(deviations * sd, distance), of the members that did not fail.
    If no member is above the mean, failed ones become copies of the best, and all others stay.
    Source: rl_games and Isaac Lab, whose members are compared while they train.
    """
    ranked, failed = ranking(fitness)
    parents: Parents = [None] * len(fitness)
    if is_settled(ranked, failed, fitness):
        return parents
    scores = np.array([fitness[place] for place in ranked])
    width = max(deviations * scores.std(), distance)
    leaders = [place for place in ranked if fitness[place] > scores.mean() + width]
    replaced = list(failed)
    if leaders:
        replaced += [place for place in ranked if fitness[place] < scores.mean() - width]
    else:
        leaders = ranked[:1]
    for place in sorted(replaced):
        parents[place] = leaders[generator.integers(len(leaders))]
    return parents


def ranking(fitness: Sequence[float]) -> tuple[list[int], list[int]]:
    """Returns the places of the members with a finite fitness, the best first, and the places of the failed ones."""
    places = range(len(fitness))
    succeeded = [place for place in places if math.isfinite(fitness[place])]
    failed = [place for place in places if not math.isfinite(fitness[place])]
    return sorted(succeeded, key=lambda place: -fitness[place]), failed


def is_settled(ranked: Sequence[int], failed: Sequence[int], fitness: Sequence[float]) -> bool:
    """Whether nothing can be selected: no member is left to be copied, or all are equal."""
    if not ranked:
        return True
    return not failed and fitness[ranked[0]] == fitness[ranked[-1]]


def make_selection(text: str) -> Component:
    """Returns the rule of a text such as 'truncation' or 'tournament:3', whose number is the first option of the rule.

    Raises: ConfigError in a sentence for an unknown name and for a value that the rule refuses.
    """
    name, has_value, raw = text.partition(':')
    spec: dict[str, object] = {'type': name}
    if has_value:
        fields = section_of(SELECTION_REGISTRY, name, 'select').keys()
        option = next((field for field in fields if field != 'type'), 'value')
        spec[option] = parse_value(raw)
    section_of(SELECTION_REGISTRY, spec, 'select')
    made: Component = make_component(SELECTION_REGISTRY, spec)
    return made


def why_not_selection(selection: Component, n_member: int) -> str:
    """Returns a sentence if a rule is of no use for so many members; else ''."""
    if n_member < 2:
        return f'a population of {n_member} has nothing to select from; give it 2 members or more, e.g. --pop 8'
    if selection.name == 'truncation' and n_member < 4:
        return f'truncation needs a population of 4 or more, and --pop is {n_member}; use --pop 4, or --select tournament:2'
    size = dict(selection.options).get('size', 0)
    if selection.name == 'tournament' and size > n_member:
        return f'a tournament of {size} is larger than the population of {n_member}; use --select tournament:{n_member} or less'
    return ''
