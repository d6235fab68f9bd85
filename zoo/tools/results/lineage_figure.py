"""Picture of the lineage of a population: fitness and values of all lives over the env steps, and who descends from whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.core.errors import UserError
from zoo.core.streams import visible
from zoo.tools.results.lineage import Birth, Lineage
from zoo.tools.results.plot import COLORS, PAPER, Theme, style_axes, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_KEY = 4  # keys whose values are drawn
WIDTH = 8.0  # inches
HEIGHT = 3.6  # of the fitness; the values of a key take half of it
CAPTION = 'colour: the best member and its ancestors; a line begins where a copy was made, at the fitness of its parent'


class LifeCurve(NamedTuple):
    """The fitness of a life: its birth, and after each generation. points: env step and mean return."""

    birth: Birth
    points: list[tuple[int, float]]


def life_curves(lineage: Lineage) -> list[LifeCurve]:
    """Returns the curves of all lives in the order of their births; that of a copy begins with the fitness of its parent."""
    results: dict[str, list[tuple[int, float]]] = {life: [] for life in lineage.lives}
    for members in lineage.generations:
        for result in members:
            if result.fitness is not None and result.state == 'done':
                results[result.life].append((result.env_step, result.fitness))
    curves = []
    for life, birth in lineage.lives.items():
        before = []
        if birth.parent is not None:
            before = [point for point in results[birth.parent] if point[0] == birth.env_step]
        curves.append(LifeCurve(birth, [*before, *results[life]]))
    return curves


def drawn_keys(lineage: Lineage) -> list[str]:
    """Returns the keys that have a space and only numbers as values, at most MAX_KEY."""
    spaces = _spaces(lineage)
    values = [birth.values for birth in lineage.lives.values()]
    keys = [key for key in spaces if all(_number(texts.get(key)) is not None for texts in values)]
    return keys[:MAX_KEY]


def lineage_figure(folder: Path, theme: Theme = 'light') -> Figure:
    """Draws a population: the fitness of all lives above, below it the values of its keys, each over the env steps.

    Raises: UserError if the folder is no population, nothing is trained yet, or matplotlib is not installed.
    """
    lineage = Lineage.read(folder)
    place = lineage.best_place()
    if place is None:
        raise UserError(f'{folder} has no generation with a fitness yet, so there is nothing to draw')
    best = [birth.life for birth in lineage.ancestors(lineage.at_places[place])]
    keys = drawn_keys(lineage)
    paper = PAPER[theme]
    color = COLORS[theme][0]
    height = HEIGHT * (1 + len(keys) / 2)
    with styled_figure((WIDTH, height), theme) as drawn:
        grid: Any = drawn.subplots(1 + len(keys), sharex=True, squeeze=False, height_ratios=[2, *[1] * len(keys)])
        top: Axes = grid[0, 0]
        for curve in life_curves(lineage):
            look: dict[str, Any] = {'color': paper['other'], 'zorder': 2, 'linewidth': 0.7}
            if curve.birth.life in best:
                look = {'color': color, 'zorder': 3, 'linewidth': 1.8}
            steps = [step for step, _ in curve.points]
            returns = [value for _, value in curve.points]
            top.plot(steps, returns, marker='.', markersize=4, **look)
            for axes, key in zip(grid[1:, 0], keys, strict=True):
                _draw_value(axes, lineage, curve.birth, key, best, look)
        for axes in grid[:, 0]:
            style_axes(axes, paper)
        top.set_ylabel('fitness: return in evaluations', color=paper['ink'])
        for axes, key in zip(grid[1:, 0], keys, strict=True):
            axes.set_ylabel(visible(key.rpartition('.')[2]), color=paper['ink'], parse_math=False)
            if _spaces(lineage)[key].startswith('log('):
                axes.set_yscale('log')
        grid[-1, 0].set_xlabel('env steps', color=paper['ink'])
        words = f'{len(lineage.at_places)} members, {len(lineage.generations)} generations, {len(lineage.lives)} runs'
        top.set_title(visible(f'{folder.name}: {words}'), color=paper['ink'], loc='left', parse_math=False)
        drawn.supxlabel(CAPTION, fontsize=8, color=paper['ink'])
    return drawn


def _draw_value(axes: Axes, lineage: Lineage, birth: Birth, key: str, best: list[str], look: dict[str, Any]) -> None:
    """Draws the value of a key in a life: from its birth to its end, for an ancestor of the best to that of its child."""
    value: Any = _number(birth.values[key])
    end = lineage.env_step_of(birth.life)
    if birth.life in best[:-1]:
        child = lineage.lives[best[best.index(birth.life) + 1]]
        end = child.env_step
        after: Any = _number(child.values[key])
        axes.plot([end, end], [value, after], linestyle=':', **look)
    axes.plot([birth.env_step, max(end, birth.env_step)], [value, value], **look)


def _spaces(lineage: Lineage) -> dict[str, str]:
    """The spaces of a population as texts, by key."""
    assert lineage.beginning is not None, 'it has lives'
    spaces = lineage.beginning.words.get('spaces')
    return dict(_texts(spaces))


def _texts(spaces: object) -> Iterator[tuple[str, str]]:
    if isinstance(spaces, dict):
        for key, text in spaces.items():
            yield str(key), str(text)


def _number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return None
