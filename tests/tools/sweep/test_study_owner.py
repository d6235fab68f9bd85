"""Whether the process that owns a trial is still alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.tools.sweep.study import LOST_S, beating, is_lost, this_process


@pytest.mark.long
def test_process_lives_until_it_ends_and_no_other_one_has_its_name(tmp_path: Path) -> None:
    code = 'import json; from zoo.tools.sweep.study import this_process; print(json.dumps(this_process()), flush=True); input()'
    with subprocess.Popen(
        [sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        owner = json.loads(child.stdout.readline())
        assert not is_lost(owner, tmp_path) and not is_lost(this_process(), tmp_path)
        assert is_lost({**owner, 'start': 'another'}, tmp_path)  # another process has the pid now
        child.kill()
    assert is_lost(owner, tmp_path)


def test_process_of_another_host_lives_while_its_file_is_young(tmp_path: Path) -> None:
    with beating(tmp_path / 'workers'):
        file = next((tmp_path / 'workers').iterdir())
        other = {**this_process(), 'host': 'elsewhere'}
        moved = file.rename(file.with_name(file.name.replace(this_process()['host'], 'elsewhere', 1)))
        assert not is_lost(other, tmp_path / 'workers')
        old = moved.stat().st_mtime - LOST_S - 10
        os.utime(moved, (old, old))
        assert is_lost(other, tmp_path / 'workers')
        moved.unlink()
        assert is_lost(other, tmp_path / 'workers')


def test_signs_of_life_leave_nothing_behind(tmp_path: Path) -> None:
    with beating(tmp_path / 'workers'):
        assert len(list((tmp_path / 'workers').iterdir())) == 1
    assert not list(tmp_path.iterdir())
