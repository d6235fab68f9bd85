"""benchmarks/startup.py: the processes that it starts, and the seconds of imports that it reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import startup

# what `-X importtime` writes: the microseconds of a module itself, those with its imports, its name by depth
LINES = """
import time: self [us] | cumulative | imported package
import time:       200 |        200 |     zoo.core.lazy
import time:       300 |        500 |   zoo.core
import time:      9000 |       9500 | torch
import time:         7 |          7 | zoology
zoo: a line of the log
"""


def test_own_import_s_is_the_sum_of_the_modules_of_the_package_alone() -> None:
    assert startup.own_import_s(LINES) == pytest.approx(500e-6)  # 200 + 300
    assert startup.own_import_s(LINES, 'torch') == pytest.approx(9e-3)


def test_users_env_keeps_bytecode_and_imports_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
    env = startup.users_env(tmp_path / 'zoo', tmp_path / 'bytecode')
    assert 'PYTHONDONTWRITEBYTECODE' not in env and env['PYTHONPYCACHEPREFIX'] == str(tmp_path / 'bytecode')
    assert env['PYTHONPATH'] == str(tmp_path / 'zoo')


def test_process_that_ends_before_it_is_done_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='no such config'):
        startup.started([sys.executable, '-S', '-c', 'raise SystemExit("no such config")'], {}, tmp_path, lambda: False)


def test_start_has_the_time_of_the_process_and_its_words(tmp_path: Path) -> None:
    code = (
        'import pathlib, sys, time\nprint("begun", file=sys.stderr, flush=True)\n'
        'while time.process_time() < 0.05: pass\n'  # the system counts processor time in steps of 0.01 s
        'pathlib.Path("done").touch(); input()'
    )
    command = [sys.executable, '-S', '-c', code]
    found = startup.started(command, {}, tmp_path, (tmp_path / 'done').exists)
    assert found.wall_s > 0 and found.cpu_s >= 0.03 and found.stderr == 'begun\n'
