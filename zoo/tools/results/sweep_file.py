"""The file trials.json of a sweep: its rules and its trials, best first, as `zoo sweep` writes them and `zoo report` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from zoo.core.files import read_small, whole_file
from zoo.core.streams import without_passwords
from zoo.tools.results.read import Run

NAME = 'trials.json'


class SweptTrial(BaseModel):
    """A trial. label: of its runs; values: the tried ones by key; value: what is compared; result: that in words, '' without one."""

    model_config = ConfigDict(strict=True)
    label: str = Field(pattern=r'^trial_\d{3,9}$')
    state: str
    values: dict[str, str]
    value: FiniteFloat | None
    result: str
    reason: str


class SweptTrials(BaseModel):
    """The trials of a sweep, best first.

    n_trial: planned; metric: what is compared, in words; result_name: the same in few words; minimises: whether lower is better;
    n_tied: trials as good as the first one.
    """

    model_config = ConfigDict(strict=True)
    name: str
    metric: str
    result_name: str
    minimises: bool
    n_trial: int
    n_seed: int
    n_tied: int
    keys: list[str]
    trials: list[SweptTrial]


class SweepView(NamedTuple):
    """The sweep to which all runs of a page belong. trials: by the label of their runs, best first."""

    sweep: SweptTrials
    trials: dict[str, SweptTrial]


def write_trials(folder: Path, sweep: SweptTrials) -> None:
    """Writes the file. Raises: OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / NAME) as file:
        file.write(sweep.model_dump_json(indent=1).encode())


def read_trials(folder: Path) -> SweptTrials | None:
    """Reads the file; None if there is none, or it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        text = without_passwords(read_small(folder / NAME).decode())
        return SweptTrials.model_validate(json.loads(text))
    return None


def sweep_of(runs: Iterable[Run]) -> SweepView | None:
    """Returns the sweep that all these runs belong to; None if they belong to none, or to several."""
    folders = {folder for run in runs for folder in run.path.absolute().parents[:2] if (folder / NAME).is_file()}
    if len(folders) != 1:
        return None
    found = read_trials(*folders)
    if found is None:
        return None
    trials = {trial.label: trial for trial in found.trials}
    if all(run.label in trials for run in runs):
        return SweepView(found, trials)
    return None
