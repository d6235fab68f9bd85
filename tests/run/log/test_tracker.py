"""Code that all trackers share: the id in the run folder, and the error if their library is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zoo.config.section import Config, ConfigError
from zoo.run.base_config import LoggerConfig
from zoo.run.log.sinks import make_sinks
from zoo.run.log.trackers import Tracker


@pytest.mark.parametrize(('name', 'module'), [('wandb', 'wandb'), ('mlflow', 'mlflow.tracking')])
def test_missing_library_is_refused_with_its_extra(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # makes its import fail, as if it were not installed
    with pytest.raises(ConfigError, match=rf"pip install '\.\[{name}\]'"):
        make_sinks(LoggerConfig(sinks=[name], tensorboard=False))


class Own(Tracker):
    name = 'own'


def test_id_is_kept_in_the_run_folder_and_a_broken_one_is_not_used(tmp_path: Path) -> None:
    for _ in range(2):
        tracker = Own()
        tracker.open(Config(), tmp_path)
        assert tracker.remembered_id() in (None, 'abc-1')
        tracker.remember_id('abc-1')
    assert tracker.remembered_id() == 'abc-1'
    for text in ('{"id": "../../x"}', '{"id": 3}', 'nothing', '{}'):
        (tmp_path / 'own_run.json').write_text(text)
        assert tracker.remembered_id() is None
