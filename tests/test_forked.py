"""Forked programs behave as in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_python

PROGRAM = """
import atexit, os, sys, json
import beside
atexit.register(lambda: print('at exit'))
print(json.dumps([__name__, sys.argv, os.getcwd(), os.environ.get('OF_TEST'), os.path.basename(__file__), sys.stdin.read()]))
print('to stderr', file=sys.stderr)
if sys.argv[1] == 'raise':
    raise ValueError('wrong')
if sys.argv[1] == 'kill':
    os.kill(os.getpid(), 9)
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('how', 'what'),
    [(['program.py'], 'exit'), (['-m', 'program'], 'exit'), (['program.py'], 'raise'), (['program.py'], 'kill')],
)
def test_output_and_code_are_those_of_a_new_interpreter(how: list[str], what: str, tmp_path: Path) -> None:
    (tmp_path / 'program.py').write_text(PROGRAM)
    (tmp_path / 'beside.py').touch()
    found = run_python(*how, what, 'b c', cwd=tmp_path, OF_TEST='1')
    env = {**os.environ, 'OF_TEST': '1'}
    wanted = subprocess.run(
        [sys.executable, *how, what, 'b c'],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert found.returncode == {'exit': 3, 'raise': 1, 'kill': -9}[what]
    assert found.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]


@pytest.mark.slow
def test_safe_path_leaves_the_folder_out(tmp_path: Path) -> None:
    (tmp_path / 'program.py').write_text(PROGRAM)
    assert 'No module named program' in run_python('-P', '-m', 'program', cwd=tmp_path).stderr


@pytest.mark.long
def test_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    (tmp_path / 'program.py').write_text('import time, os\nopen("pid", "w").write(str(os.getpid()))\ntime.sleep(100)')
    with pytest.raises(subprocess.TimeoutExpired):
        run_python('program.py', cwd=tmp_path, timeout=2)
    assert not Path('/proc', (tmp_path / 'pid').read_text()).exists()
    (tmp_path / 'program.py').write_text('print(1)')
    assert run_python('program.py', cwd=tmp_path).stdout == '1\n'
