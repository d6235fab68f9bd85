"""Runs on Ray in separate processes, and the processes that such a run leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import torch

from tests.processes import is_alive, wait_until, words_of
from zoo.core.data import leaves

REPO = Path(__file__).resolve().parents[2]
MARK = 'TEST_RUN'  # environment variable of a run and of every process that it starts
ONE = 'cluster.engine=ray', 'cluster.runner_num=1'
TWO = 'cluster.learner_num=2'
SCRIPT = """
import sys
from zoo import serial_pipeline
serial_pipeline('cartpole_ppo', overrides=['policy.eval.stop_value=null', 'max_env_step=100000000', 'logger.freq=1',
                *sys.argv[1:]])
"""


def driver(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    """Starts a run in its own process group. It ends only by a signal; its output is in folder/log."""
    env = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    env[MARK] = str(folder)
    env.pop('RAY_ADDRESS', None)
    folder.mkdir()
    command = [sys.executable, '-c', SCRIPT, f'logger.root={folder}', *overrides]
    with open(folder / 'log', 'w') as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)


def wait_for(folder: Path, process: subprocess.Popen[bytes], pattern: str, words: str = '') -> None:
    """Waits until a file in a driver's folder has these words."""
    wait_until(
        lambda: any(words in path.read_text(errors='replace') for path in folder.glob(pattern)),
        process,
        (folder / 'log').read_text,
    )


def processes_of(folder: Path) -> list[int]:
    """Returns the ids of the processes of a folder's run, with those of Ray if the run has started Ray."""
    mark, found = f'{MARK}={folder}\0'.encode(), []
    for path in Path('/proc').glob('[0-9]*/environ'):
        with suppress(OSError):
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
    return list(filter(is_alive, found))


def names(folder: Path) -> set[str]:
    """Returns the names of the processes of a folder's run: raylet, ray::RunnerProcess and so on."""
    return {Path(words_of(pid)[0]).name for pid in processes_of(folder)}


def waiting_env(marker: str) -> gymnasium.Env:
    """CartPole, except in a runner: there it writes the process id into the file `marker`, and sleeps for an hour."""
    if 'ray::RunnerProcess' in words_of(os.getpid())[0]:
        Path(marker).write_text(str(os.getpid()))
        time.sleep(3600)
    return gymnasium.make('CartPole-v1')


def same_state(a: Any, b: Any) -> bool:
    """Whether two policies' models are equal bit for bit."""
    pairs = zip(leaves(a.model.state_dict()), leaves(b.model.state_dict()), strict=True)
    return all(x[0] == y[0] and torch.equal(x[1], y[1]) for x, y in pairs)
