"""The file of a sweep: what is written is read again, a damaged file is none, and runs belong to one sweep or to none."""

from __future__ import annotations

from pathlib import Path

from tests.tools.results.made_runs import swept, whole_run
from zoo.tools.results.sweep_file import NAME, read_trials, sweep_of


def test_trials_that_are_written_are_read_best_first(tmp_path: Path) -> None:
    swept(tmp_path, 3)
    sweep = read_trials(tmp_path)
    assert sweep is not None and sweep.n_trial == 3 and sweep.minimises
    assert [(trial.label, trial.value) for trial in sweep.trials] == [
        ('trial_002', 1000.0),
        ('trial_001', 2000.0),
        ('trial_000', 3000.0),
    ]


def test_missing_and_damaged_files_are_none(tmp_path: Path) -> None:
    assert read_trials(tmp_path) is None
    for data in (b'', b'{"name": ', b'[]', b'\xff', b'[' * 100_000):
        (tmp_path / NAME).write_bytes(data)
        assert read_trials(tmp_path) is None


def test_runs_belong_to_the_sweep_that_has_all_of_them(tmp_path: Path) -> None:
    runs = swept(tmp_path / 'one', 2)
    view = sweep_of(runs)
    assert view is not None and list(view.trials) == ['trial_001', 'trial_000']
    assert sweep_of([*runs, *swept(tmp_path / 'other', 2)]) is None
    assert sweep_of([whole_run()]) is None
