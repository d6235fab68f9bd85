"""The runs that the words of a command name, and whether they may be compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from zoo.core.errors import UserError
from zoo.results.read import Run, find_runs, groups, read_run
from zoo.run.logger import LoggerConfig


def named_runs(words: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """The runs of words that are run folders, folders that hold some, or names of experiments in the folder `runs`.

    Raises: UserError as `find_runs`.
    """
    root = Path(LoggerConfig().root)
    paths = [root / word if not Path(word).exists() and (root / word).is_dir() else Path(word) for word in words]
    return [read_run(path) for path in find_runs(paths)]


def sides_of(words: Sequence[str | os.PathLike[str]]) -> dict[str, list[Run]]:
    """The groups of runs to compare, by their labels.

    Of two words each is a side of its own (or several, where it holds runs of several configs), also if both are runs of
    the same config. Of more words, or one folder, the runs are grouped by their config.
    Raises: UserError for fewer than two groups; as `named_runs`.
    """
    parts = [[word] for word in words] if len(words) == 2 else [words]
    sides = [(label, part[0], runs) for part in parts for label, runs in groups(named_runs(part)).items()]
    labels = [label for label, _, _ in sides]
    found = {f'{label} ({word})' if labels.count(label) > 1 else label: runs for label, word, runs in sides}
    if len(found) < 2:
        label, _, runs = sides[0]
        what = 'the one run is' if len(runs) == 1 else f'all {len(runs)} runs are'
        raise UserError(
            f'{what} of one config, {label}; name two to compare, e.g. zoo compare runs/cartpole_ppo runs/cartpole_ppg'
        )
    return found


def check_same_env(runs: Iterable[Run], allow: bool = False) -> None:
    """Raises: UserError if runs are of different envs, whose returns say nothing about each other, unless `allow`."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.env_id, run)
    if len(first) > 1 and not allow:
        (env, run), (other_env, other), *_ = first.items()
        raise UserError(
            f'{run.path} is of the env {env} but {other.path} of {other_env}, and returns of different envs do not compare; '
            'name runs of one env, or add --allow-different-envs'
        )
