"""The README's examples are complete: each Python block runs as the file it claims to be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'```python\n(.*?)```', README, re.DOTALL)


def _run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize('block', BLOCKS, ids=lambda block: block.split('\n')[0].strip('# '))
def test_readme_block_runs_as_a_script(block: str, tmp_path: Path) -> None:
    (tmp_path / 'example.py').write_text(block)
    done = _run('example.py', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = list(tmp_path.glob('runs/*/*'))
    if 'serial_pipeline' not in block:
        return
    assert len(runs) == 1 and list(runs[0].glob('checkpoints/step_*.safetensors'))


def test_readme_own_policy_trains_by_name_from_the_command_line(tmp_path: Path) -> None:
    block = next(b for b in BLOCKS if b.startswith('# my_ppo.py'))
    (tmp_path / 'my_ppo.py').write_text(block)
    done = _run('-m', 'zoo', 'train', 'my_ppo.py', 'policy.learn.end_penalty=2', 'max_env_step=4_000', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    config = next(tmp_path.glob('runs/my_ppo/*/config.yaml')).read_text()
    assert 'type: my_ppo' in config and 'end_penalty: 2' in config


def test_readme_reading_path_of_ppo_is_short() -> None:
    path = re.findall(r'`(zoo/[^`]*\.py)`', README[README.index('How PPO works') :])
    n_line = sum(len((ROOT / name).read_text().splitlines()) for name in path)
    assert 0 < len(path) <= 9 and n_line <= 1500, (len(path), n_line)


def test_readme_names_only_files_that_exist() -> None:
    table = README[README.index('## Where things are') :]
    for name in re.findall(r'`((?:zoo|dizoo_configs|tests|benchmarks)/[^`]*)`', table):
        assert list(ROOT.glob(name.rstrip('/'))), f'{name} does not exist'
