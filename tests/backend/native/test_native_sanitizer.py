"""Runs sweep.py on the native executor under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.backend.native import build

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
    env = {
        **os.environ,
        'LD_PRELOAD': runtime,
        'ASAN_OPTIONS': 'detect_leaks=0',
        'OMP_NUM_THREADS': '1',
        'PYTHONPATH': str(Path(build.__file__).parents[3]),
    }
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name('sweep.py')), str(tmp_path)],
        capture_output=True,
        text=True,
        env=env,
    )
    assert result.returncode == 0 and result.stdout == 'swept\n', result.stderr[-3000:]
