"""`zoo export`: files, model cards and output of real runs; a refused export leaves no file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.real_runs import train_seeds
from tests.tools.cli.commands import Zoo
from zoo import load_policy
from zoo.core import errors

onnxruntime = pytest.importorskip('onnxruntime', reason='the extra export is not installed')
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('in_tmp')]

EXAMPLE = Path(__file__).parents[3] / 'examples' / 'run_onnx.py'
OWN = """
import torch
from zoo import POLICY_REGISTRY
from zoo.policy import PPOPolicy

@POLICY_REGISTRY.register('noisy')
class Noisy(PPOPolicy):
    def _forward_eval(self, obs, state=None):
        return {'action': torch.randint(2, (obs.shape[0],))}
"""


HALF = """
import gymnasium

def make():
    env = gymnasium.make('CartPole-v1')
    low, high = env.observation_space.low[[0, 2]], env.observation_space.high[[0, 2]]
    return gymnasium.wrappers.TransformObservation(env, lambda x: x[[0, 2]], gymnasium.spaces.Box(low, high))

if 'Half-v0' not in gymnasium.registry:
    gymnasium.register('Half-v0', make)
"""


def run_of(root: Path, config: str, *overrides: str) -> Path:
    return next(train_seeds(root, [0], config, *overrides).iterdir())


@pytest.fixture(scope='module')
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp('runs'), 'cartpole_ppo')


@pytest.fixture(scope='module')
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp('runs'), 'cartpole_no_velocity_ppo', 'policy.collect.n_step=64')


def returns_by_example(path: str, env: str) -> float:
    """The mean return that the example prints in a process that can import neither zoo nor PyTorch."""
    code = (
        "import runpy, sys; sys.modules |= dict.fromkeys(('zoo', 'torch')); "
        f'sys.argv = ["run_onnx.py", {path!r}, {env!r}]; runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")'
    )
    environ = {name: text for name, text in os.environ.items() if name != 'PYTHONPATH'}
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=environ, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def mean_return(run: Path, env: gymnasium.Env) -> float:
    """The mean return of the policy itself in the episodes that the example plays."""
    session, returns = load_policy(run).session(), []
    for episode in range(10):
        obs, total, begins, done = env.reset(seed=episode)[0], 0.0, True, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(session.act(obs, begins))
            total, begins, done = total + float(reward), False, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


@pytest.mark.soak
def test_exported_policy_earns_without_zoo_what_it_earns_with_it(cartpole: Path, zoo: Zoo) -> None:
    printed = zoo('export -o policy.onnx', cartpole)
    assert printed.err == '' and 'policy.onnx.md: model card' in printed.out
    assert 'compared with policy.act on 1,000 random observations' in printed.out and 'no choice differs' in printed.out
    wanted = mean_return(cartpole, gymnasium.make('CartPole-v1'))
    assert returns_by_example('policy.onnx', 'CartPole-v1') == pytest.approx(wanted, abs=0.05)


@pytest.mark.soak
def test_memory_is_carried_by_the_example(memory: Path, zoo: Zoo) -> None:
    zoo('export --value', memory)
    about = onnxruntime.InferenceSession('policy.onnx').get_modelmeta().custom_metadata_map
    assert set(json.loads(about['state'])) == {'state.actor', 'state.critic'}
    assert about['env_id'] == 'cartpole_no_velocity' and about['exp_name'] == 'cartpole_no_velocity_ppo'
    Path('half.py').write_text(HALF)
    names: dict[str, Any] = {}
    exec(HALF, names)
    wanted = mean_return(memory, names['make']())
    assert returns_by_example('policy.onnx', 'half:Half-v0') == pytest.approx(wanted, abs=0.05)


@pytest.mark.long
def test_torch_export_and_json(cartpole: Path, zoo: Zoo) -> None:
    found = zoo('export --format torch-export --value --best --licence Apache-2.0 --json', cartpole).data
    assert (found['file'], found['card']) == ('policy.pt2', 'policy.pt2.md')
    assert (found['n_checked'], found['n_differ']) == (1000, 0)
    assert found['inputs'] == [{'name': 'obs', 'dtype': 'float32', 'shape': ['batch', 4]}]
    assert [port['name'] for port in found['outputs']] == ['action', 'value'] and found['error'] < 1e-5
    card = Path('policy.pt2.md').read_text()
    assert 'license: Apache-2.0' in card and 'CartPole-v1' in card and "torch.export.load('policy.pt2')" in card


@pytest.mark.long
def test_code_of_the_card_runs(cartpole: Path, zoo: Zoo) -> None:
    zoo('export -o policy.onnx', cartpole)
    code = Path('policy.onnx.md').read_text().split('```python\n')[1].split('```')[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names['action'].shape == (1,)


@pytest.mark.parametrize(
    'words, said',
    [
        ('--format onx', "did you mean 'onnx'? known: onnx, torch-export"),
        ('--format torchscript', 'known: onnx, torch-export'),
        ('-o policy.pt', 'policy.pt names no export format by its ending; use .onnx (onnx) or .pt2 (torch-export)'),
        ('-o none/policy.onnx', 'there is no folder none'),
        ('--format onnx -o policy.pt2', 'files end in .onnx'),
        ('-o folder.onnx', 'a folder; name a file in it'),
        ('policy.type=ppg', 'does not take'),
    ],
)
def test_words_that_do_not_fit_are_refused(words: str, said: str, cartpole: Path, zoo: Zoo) -> None:
    Path('folder.onnx').mkdir()
    error = zoo(f'export {cartpole} {words}', code=2).err
    assert said in error and error.count('\n') == 1
    assert [path.name for path in Path().iterdir()] == ['folder.onnx']


def test_no_run_and_a_missing_package_are_said(cartpole: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'none' in zoo('export none', code=2).err
    monkeypatch.setattr(errors.importlib.util, 'find_spec', lambda name: None if name == 'onnxscript' else name)
    assert "pip install '.[export]' in the checkout of zoo" in zoo('export', cartpole, code=2).err
    assert not list(Path().iterdir())


@pytest.mark.long
def test_file_that_acts_otherwise_ends_with_1_and_code_needs_consent(zoo: Zoo) -> None:
    Path('noisy_policy.py').write_text(OWN)
    own = '--import noisy_policy.py'
    zoo(f'train cartpole_ppo policy.type=noisy {own} --run-dir run --quiet max_env_step=1024')
    Path('policy.onnx').write_text('old')
    before = sorted(path.name for path in Path().iterdir())
    assert 'acts otherwise than policy.act' in zoo(f'export run {own}', code=1).err
    assert Path('policy.onnx').read_text() == 'old' and sorted(path.name for path in Path().iterdir()) == before
    done = subprocess.run([sys.executable, '-m', 'zoo', 'export', 'run'], capture_output=True, text=True)
    assert done.returncode == 2 and "'noisy'" in done.stderr and '--import' in done.stderr
