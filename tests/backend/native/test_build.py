"""Tests of the command that compiles the native executor in place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.backend.native import build


@pytest.mark.parametrize(
    'compiler, said', [('no-such-compiler', "no C compiler 'no-such-compiler'"), ('false', 'failed')]
)
def test_rebuilding_that_fails_is_a_sentence_and_leaves_the_library_that_was_there(
    tmp_path: Path, compiler: str, said: str
) -> None:
    script = Path(shutil.copy(build.__file__, tmp_path))
    for name in (*build.SOURCES, *build.HEADERS):
        shutil.copy(build.FOLDER / name, tmp_path)
    (tmp_path / '_native.abi3.so').write_bytes(b'of the installation')
    environment = {**os.environ, 'CC': compiler}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and 'Traceback' not in done.stderr
    assert (tmp_path / '_native.abi3.so').read_bytes() == b'of the installation'
