"""Sweeps that take seconds, with a few rollouts of CartPole, and trials that a test can stop and continue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium

from tests.processes import PATIENCE
from zoo.core import processes

ROOT = Path(__file__).parents[3]
LR = 'policy.learn.learning_rate'


def config(root: Path, max_env_step: int = 512, **evaluation: Any) -> dict[str, Any]:
    """A config with rollouts of 256 env steps and an evaluation after each."""
    return dict(
        exp_name='tiny',
        max_env_step=max_env_step,
        env=dict(id='CartPole-v1', collector_env_num=4, evaluator_env_num=1),
        policy=dict(
            type='ppo',
            learn=dict(batch_size=64, epoch_per_collect=1),
            collect=dict(n_step=64),
            eval=dict(eval_freq=256, n_episode=1, **evaluation),
        ),
        logger=dict(root=str(root), tensorboard=False),
    )


class Held(gymnasium.Wrapper):
    """CartPole that waits in `step` while the file of `hold()` says so, unless its process was asked to stop."""

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.make('CartPole-v1'))
        self._folder = Path(folder)

    def step(self, action: Any) -> Any:
        while not processes._stop.is_requested and (n := self._number()) is not None and len(folders(self._folder)) > n:
            time.sleep(0.01)
        return super().step(action)

    def _number(self) -> int | None:
        try:
            return int((self._folder / 'hold').read_text())
        except (OSError, ValueError):  # the file does not exist, or is being written
            return None


def held_env(folder: str) -> gymnasium.Env:
    return Held(folder)


class Failing(gymnasium.Wrapper):
    """CartPole that raises in the 50th step of each env."""

    n_step = 0

    def step(self, action: Any) -> Any:
        self.n_step += 1
        if self.n_step == 50:
            raise ValueError('it broke')
        return super().step(action)


def failing_env() -> gymnasium.Env:
    return Failing(gymnasium.make('CartPole-v1'))


def hold(folder: Path, n_trial: int) -> None:
    """From now on all trials in this folder wait at their next env step while more than n_trial trials have begun."""
    (folder / 'hold').write_text(str(n_trial))


def release(folder: Path) -> None:
    """Lets the trials continue."""
    (folder / 'hold').unlink()


def folders(root: Path) -> list[str]:
    """The names of the folders of trials that have begun."""
    return sorted(path.name for path in (root / 'tiny_sweep').glob('trial_*'))


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Starts `zoo sweep` in a separate process, in a folder with its config; `hold` stops its trials."""
    script, held = folder / 'tiny.py', config(folder, 4096)
    held['env'] |= dict(
        id='tests.tools.sweep.tiny:held_env', kwargs=dict(folder=str(folder)), vectorization='sync', check=False
    )
    script.write_text(f'import json\nconfig = json.loads({json.dumps(json.dumps(held))})\n')
    command = [sys.executable, '-m', 'zoo', 'sweep', str(script), *words]
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=env)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for a process; returns the JSON that it prints."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out)
