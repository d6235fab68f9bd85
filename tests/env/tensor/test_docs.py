"""The page on device envs: its env is learned, and the list of bundled envs is complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.forked import run_python
from zoo.env import TENSOR_ENV_REGISTRY

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / 'docs' / 'device_envs.md').read_text()


@pytest.mark.long
def test_page_env_of_ones_own_is_learned(tmp_path: Path) -> None:
    example = str(ROOT / 'examples' / 'device_env.py')
    done = run_python(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in next(tmp_path.glob('runs/corridor/*/metrics.jsonl')).read_text().splitlines()]
    last = [row['eval/return_mean'] for row in rows if 'eval/return_mean' in row][-1]
    # from place 2.5 on average to 12, 9 of 10 steps to the right and 1 to the left: 9.5 / 0.8 = 12 steps of 0.01 each
    assert last > 0.8


def test_page_lists_every_env_that_there_is() -> None:
    listed = re.findall(r'^\| `([\w-]+)` \|', PAGE, re.MULTILINE)
    own = [name for name in TENSOR_ENV_REGISTRY.names() if TENSOR_ENV_REGISTRY.where(name).startswith('zoo.')]
    assert listed == own
