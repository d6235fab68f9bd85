"""The settings of the best member as configs without a population: its last values, and its values over the env steps."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.config.section import ConfigError
from zoo.config.source import parse_value
from zoo.config.yaml_io import value_text, yaml_text
from zoo.core.files import whole_file
from zoo.run.config import resolve_config
from zoo.tools.population.plan import PopulationPlan
from zoo.tools.results.lineage import MEMBERS, Birth, Lineage
from zoo.tools.sweep.sweep import given_config

BEST = 'best.yaml'
SCHEDULE = 'schedule.yaml'


def write_best(plan: PopulationPlan, lineage: Lineage) -> None:
    """Writes best.yaml and schedule.yaml, and the link `best` to the run folder of the best member.

    Nothing is written if no member has a fitness. Raises: OSError.
    """
    place = lineage.best_place()
    if place is None:
        return
    life = lineage.at_places[place]
    result = lineage.result_of(life)
    assert result is not None and result.fitness is not None, 'it is the best'
    about = (
        f'{life} of the population {plan.folder.name}: mean return {result.fitness:.5g} at env step {result.env_step:,}'
    )
    births = lineage.ancestors(life)
    values = births[-1].values
    _write(plan.folder / BEST, f'# the last values of {about}', _config(plan, values))
    texts, single = schedule_texts(plan, births)
    head = f'# the values over the env steps of {about}'
    if single:
        head += f'\n# {", ".join(single)}: no schedule is possible, this is the last value'
    _write(plan.folder / SCHEDULE, head, _config(plan, texts))
    _link(plan.folder / 'best', Path(MEMBERS) / life)


def schedule_texts(plan: PopulationPlan, births: list[Birth]) -> tuple[dict[str, str], list[str]]:
    """Returns the values of a life and its ancestors as texts of schedules, by key, and the keys that had no schedule.

    A value holds from the env step of its birth to that of the next one. A key whose value never changed has it as a number.
    """
    texts: dict[str, str] = {}
    single = []
    for key, last in births[-1].values.items():
        texts[key] = last
        points = _points(births, key)
        if len(points) < 2:
            continue
        schedule = value_text({'points': [[step, parse_value(text)] for step, text in points], 'kind': 'step'})
        try:
            resolve_config(plan.source, [*plan.overrides, f'{key}={schedule}'])
        except ConfigError:
            single.append(key)
        else:
            texts[key] = schedule
    return texts, single


def _points(births: list[Birth], key: str) -> list[tuple[int, str]]:
    """The env steps at which the value of a key changed, each with the new value."""
    points: list[tuple[int, str]] = []
    for birth in births:
        text = birth.values.get(key)
        if text is None or (points and points[-1][1] == text):
            continue
        if points and points[-1][0] == birth.env_step:
            points.pop()
        points.append((birth.env_step, text))
    return points


def _config(plan: PopulationPlan, texts: dict[str, str]) -> dict[str, Any]:
    return given_config(plan.source, [*plan.overrides, *(f'{key}={text}' for key, text in texts.items())])


def _write(path: Path, head: str, config: dict[str, Any]) -> None:
    with whole_file(path) as file:
        file.write(f'{head}\n{yaml_text(config)}'.encode())


def _link(path: Path, target: Path) -> None:
    """Makes a link, or does nothing where that is not possible, as on some systems."""
    with suppress(OSError, NotImplementedError):
        if path.is_symlink():
            path.unlink()
        os.symlink(target, path, target_is_directory=True)
