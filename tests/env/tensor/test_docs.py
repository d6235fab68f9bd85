"""The page on device envs: its examples run as the files they claim to be, and say what is so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.env import TENSOR_ENV_REGISTRY

pytestmark = pytest.mark.slow  # every test starts processes

PAGE = (Path(__file__).parents[3] / 'docs' / 'device_envs.md').read_text()
BLOCKS = {block.split('\n')[0].strip('# '): block for block in re.findall(r'```python\n(.*?)```', PAGE, re.DOTALL)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('docs')
    for name, block in BLOCKS.items():
        (folder / name).write_text(block)
    return folder


def run(folder: Path, name: str) -> None:
    done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_page_env_of_ones_own_is_learned(folder: Path) -> None:
    run(folder, 'my_corridor.py')
    rows = [json.loads(line) for line in next(folder.glob('runs/corridor/*/metrics.jsonl')).read_text().splitlines()]
    last = [row['eval/return_mean'] for row in rows if 'eval/return_mean' in row][-1]
    # from place 2.5 on average to 12, 9 of 10 steps to the right and 1 to the left: 9.5 / 0.8 = 12 steps of 0.01 each
    assert last > 0.8


def test_page_trial_of_the_env_runs(folder: Path) -> None:
    run(folder, 'try_corridor.py')


def test_page_lists_every_env_that_there_is() -> None:
    listed = re.findall(r'^\| `([\w-]+)` \|', PAGE, re.MULTILINE)
    own = [name for name in TENSOR_ENV_REGISTRY.names() if TENSOR_ENV_REGISTRY.where(name).startswith('zoo.')]
    assert listed == own
