"""Runs on Ray in processes of their own, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from zoo.core.data import leaves

PATIENCE = 60.0
REPO = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from zoo import serial_pipeline
serial_pipeline('cartpole_ppo', overrides=['policy.eval.stop_value=null', 'max_env_step=100000000', 'logger.freq=1',
                *sys.argv[1:]])
"""


def driver(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    """A run in a process group of its own, which ends only by a signal; its output is in folder/log."""
    env = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    env.pop('RAY_ADDRESS', None)
    folder.mkdir()
    command = [sys.executable, '-c', SCRIPT, f'logger.root={folder}', *overrides]
    with open(folder / 'log', 'w') as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)


def wait_for(folder: Path, process: subprocess.Popen[bytes], pattern: str, words: str = '') -> None:
    """Returns when a file in a driver's folder has these words."""
    deadline = time.monotonic() + PATIENCE
    while not any(words in path.read_text(errors='replace') for path in folder.glob(pattern)):
        assert process.poll() is None and time.monotonic() < deadline, (folder / 'log').read_text()
        time.sleep(0.1)


def stat_of(pid: int) -> list[str]:
    """State, parent and more of a process; [] if there is none."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """The processes under a process."""
    parents = {int(path.name): stat_of(int(path.name)) for path in Path('/proc').glob('[0-9]*')}
    found = [pid]
    for each in found:
        found += [child for child, stat in parents.items() if stat and int(stat[1]) == each]
    return found[1:]


def left(pids: list[int], seconds: float = 10.0) -> list[int]:
    """Those that are not gone in time; one that only waits for its parent to take its exit code is."""
    deadline = time.monotonic() + seconds
    while any(stat_of(pid)[:1] not in ([], ['Z'], ['X']) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [pid for pid in pids if stat_of(pid)[:1] not in ([], ['Z'], ['X'])]


def same_state(a: Any, b: Any) -> bool:
    """Whether two policies have the same bits."""
    pairs = zip(leaves(a.model.state_dict()), leaves(b.model.state_dict()), strict=True)
    return all(x[0] == y[0] and torch.equal(x[1], y[1]) for x, y in pairs)
