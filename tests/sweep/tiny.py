"""Sweeps that take seconds: CartPole, a few rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 120.0  # seconds, on a busy machine
LR = 'policy.learn.learning_rate'


def config(root: Path, max_env_step: int = 512, **evaluation: Any) -> dict[str, Any]:
    """Rollouts of 256 env steps, evaluated after each."""
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


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """`zoo sweep` in a process of its own, in a folder that has tiny.json as its config."""
    script = folder / 'tiny.py'
    script.write_text(f'import json\nconfig = json.loads({json.dumps(json.dumps(config(folder, 4096)))})\n')
    command = [sys.executable, '-m', 'zoo', 'sweep', str(script), *words]
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=env)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a process prints with --json."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out)


def wait_for(condition: Callable[[], Any]) -> Any:
    """What the function returns once that is true."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, 'it never happened'
        time.sleep(0.02)
    return found
