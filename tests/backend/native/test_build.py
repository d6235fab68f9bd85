"""The command that compiles the native executor in place, and sweep.py under the sanitizers of addresses and undefined behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.backend.native import build

COMPILERS = {'no-such-compiler': "no C compiler 'no-such-compiler'", 'false': 'failed'}


@pytest.mark.parametrize(('compiler', 'said'), COMPILERS.items())
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


FLAGS = ('-fsanitize=address,undefined', '-fno-sanitize-recover=all', '-fno-omit-frame-pointer', '-O1', '-g')


def _runtime() -> str:
    """The path of gcc's address sanitizer, which the process has to load before any other library."""
    try:
        path = subprocess.run(['gcc', '-print-file-name=libasan.so'], capture_output=True, text=True).stdout.strip()
    except OSError:
        path = ''
    if not Path(path).is_absolute() or sys.platform != 'linux':
        pytest.skip('no address sanitizer')
    return path


@pytest.mark.soak
def test_sweep_is_clean_under_sanitizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _runtime()
    monkeypatch.setenv('CC', 'gcc')
    build.build(tmp_path, FLAGS)
    options = {'LD_PRELOAD': runtime, 'ASAN_OPTIONS': 'detect_leaks=0', 'OMP_NUM_THREADS': '1'}
    env = {**os.environ, **options, 'PYTHONPATH': str(Path(build.__file__).parents[3])}
    words = [sys.executable, str(Path(__file__).with_name('sweep.py')), str(tmp_path)]
    result = subprocess.run(words, capture_output=True, text=True, env=env)
    assert result.returncode == 0 and result.stdout == 'swept\n', result.stderr[-3000:]
