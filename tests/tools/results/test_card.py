"""The model card: its text about a policy, and its code, which runs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from tests.real_runs import train_seeds
from zoo import load_policy
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.env.adapter import convert_space
from zoo.policy.ppo import PPOPolicy
from zoo.run.checkpoint.file import Checkpoint, load_checkpoint
from zoo.run.config import resolve_policy
from zoo.tools.export import Exported, Port
from zoo.tools.export.check import OutputCheck
from zoo.tools.results.card import card, space_words
from zoo.tools.results.read import read_run

INPUTS, OUTPUTS = (Port('obs', 'float32', ('batch', 4)),), (Port('action', 'int64', ('batch',)),)
ONNX = Exported(Path('policy.onnx'), 'onnx', INPUTS, OUTPUTS, {}, OutputCheck(1000, 3e-7, 0, 0, 'uniform'))


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(train_seeds(tmp_path_factory.mktemp('runs'), [3]).iterdir())


@pytest.fixture(scope='module')
def checkpoint(run_dir: Path) -> Checkpoint:
    return load_checkpoint(run_dir)


def blocks(text: str) -> list[str]:
    """The Python code blocks of a page."""
    return re.findall(r'```python\n(.*?)```', text, re.DOTALL)


@pytest.mark.slow
def test_card_says_what_how_good_and_how_it_was_trained(run_dir: Path, checkpoint: Checkpoint) -> None:
    text = card(checkpoint)
    run = read_run(run_dir)
    mean, std = (run.curve(f'eval/return_{name}')[1][-1] for name in ('mean', 'std'))
    half = 1.96 * std / math.sqrt(2 - 1)  # 2 episodes; the logged deviation divides by n, not by n - 1
    interval = f' (95% interval {mean - half:.4g} to {mean + half:.4g})' if std > 0 else ''
    assert yaml.safe_load(text.split('---')[1]) == {'tags': ['reinforcement-learning', 'ppo', 'CartPole-v1']}
    assert '# cartpole\\_ppo: ppo on CartPole-v1' in text
    assert f'trained with `ppo` on `CartPole-v1` for {run.env_step:,} env steps. ' in text
    assert f'Its mean return is {mean:.4g}{interval} over 2 greedy episodes' in text
    assert '| action | one of 2 choices, 0 to 1 |' in text and 'network `vac`, 64 x 64, tanh' in text
    assert '| `policy.learn.epoch_per_collect` | `10` | `4` |' in text
    assert f'{run.env_step:,} env steps, seed 3' in text and 'none is stated' in text


@pytest.mark.slow
def test_interval_of_given_returns_is_the_bootstrap_over_them(checkpoint: Checkpoint) -> None:
    text = card(checkpoint, returns=[10.0, 20.0, 30.0, 40.0], licence='Apache-2.0')
    low, high = map(float, re.findall(r'Its mean return is 25 \(95% interval (\S+) to (\S+)\) over 4 greedy', text)[0])
    assert 10 < low < 20 and 30 < high < 40
    tags = ['reinforcement-learning', 'ppo', 'CartPole-v1']
    assert yaml.safe_load(text.split('---')[1]) == {'license': 'Apache-2.0', 'tags': tags}
    assert '| licence of the weights | Apache-2.0 |' in text


@pytest.mark.slow
def test_episodes_of_drawn_actions_are_not_called_greedy(checkpoint: Checkpoint) -> None:
    config = checkpoint.meta['config']
    drawn = {**config['policy'], 'eval': {**config['policy']['eval'], 'deterministic': False}}
    text = card(checkpoint._replace(meta={**checkpoint.meta, 'config': {**config, 'policy': drawn}}))
    assert 'over 2 episodes with drawn actions of an evaluation during training' in text


@pytest.mark.slow
def test_card_of_the_best_checkpoint_says_that_its_return_is_too_high(run_dir: Path) -> None:
    assert 'a little too high' in card(load_checkpoint(run_dir / 'checkpoints' / 'best.safetensors'))


@pytest.mark.slow
def test_card_of_a_policy_saved_by_hand_knows_no_training(run_dir: Path, tmp_path: Path) -> None:
    policy = load_policy(run_dir)
    assert isinstance(policy, PPOPolicy)
    text = card(load_checkpoint(policy.save(tmp_path / 'mine.safetensors')))
    assert 'It was not evaluated.' in text and "load_policy('mine.safetensors')" in text


@pytest.mark.slow
def test_code_that_loads_the_checkpoint_runs(
    run_dir: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.path.parent)
    names = {'obs': np.zeros(4, dtype=np.float32)}
    [code] = blocks(card(checkpoint))
    exec(code, names)
    assert names['action'] in (0, 1)


@pytest.mark.slow
def test_code_that_loads_an_onnx_file_runs(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    obs = onnx.helper.make_tensor_value_info('obs', onnx.TensorProto.FLOAT, ['batch', 4])
    action = onnx.helper.make_tensor_value_info('action', onnx.TensorProto.INT64, ['batch'])
    node = onnx.helper.make_node('ArgMax', ['obs'], ['action'], axis=1, keepdims=0)
    opset = onnx.helper.make_opsetid('', 17)
    graph = onnx.helper.make_graph([node], 'greedy', [obs], [action])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), str(tmp_path / 'policy.onnx'))
    monkeypatch.chdir(tmp_path)
    text, names = card(checkpoint, ONNX), dict[str, object]()
    exec(blocks(text)[0], names)
    assert np.asarray(names['action']).tolist() == [0]
    assert '| input `obs` | float32 \\[batch, 4\\] |' in text
    assert 'on 1,000 random observations, the largest difference is 3e-07' in text


@pytest.mark.long
@pytest.mark.parametrize('form', ['onnx', 'torch-export'])
def test_example_input_of_a_card_is_a_valid_observation(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: `policy.act`, which refuses masks that forbid everything and indices outside of the space."""
    space = gymnasium.spaces.Dict(
        action_mask=gymnasium.spaces.MultiBinary(3),
        vector=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        n=gymnasium.spaces.Discrete(3, start=4),
        pair=gymnasium.spaces.Tuple((gymnasium.spaces.MultiDiscrete([2, 3], start=[5, 7]),)),
        same=gymnasium.spaces.MultiDiscrete([2, 3], start=[1, 1]),
    )
    spaces = convert_space(space, 'observation', 'x'), Discrete(3)
    policy = POLICY_REGISTRY.get('ppo')(resolve_policy({'type': 'ppo', 'device': 'cpu'}), *spaces)
    policy.save(tmp_path / 'a.safetensors')
    exported = policy.export(tmp_path / f'p.{"onnx" if form == "onnx" else "pt2"}', format=form)
    [code, *_] = blocks(card(load_checkpoint(tmp_path / 'a.safetensors'), exported))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    obs = {
        'action_mask': np.ones(3),
        'vector': np.zeros(2),
        'n': 4,
        'pair': (np.array([5, 7]),),
        'same': np.array([1, 1]),
    }
    got = names['action'] if form == 'onnx' else names['outputs'][0]
    assert np.asarray(got).tolist() == [policy.act(obs)]
    if form == 'onnx':
        given = {name: x[0].tolist() for name, x in names['inputs'].items()}
        assert given == {'action_mask': [1, 1, 1], 'vector': [0, 0], 'n': 4, 'pair.0': [5, 7], 'same': [1, 1]}


@pytest.mark.slow
def test_names_in_a_card_are_no_markup(checkpoint: Checkpoint) -> None:
    nasty = '<script>x</script> | `a` [b](http://c) *d*\n# e'
    config = {**checkpoint.meta['config'], 'exp_name': nasty}
    config['env'] = {**config['env'], 'id': nasty, 'kwargs': {'a': nasty}}
    text = card(checkpoint._replace(meta={**checkpoint.meta, 'config': config}), licence=nasty)
    body = text.split('---\n', 2)[2]
    outside = re.sub('`[^`]*`', '', body)
    assert '<script>' not in outside.replace('\\<script\\>', '') and not re.search(r'(?<!\\)\[b(?<!\\)\]', outside)
    assert not [line for line in body.splitlines() if line.startswith('# e')]
    rows = [line for line in body.splitlines() if line.startswith('| licence') or line.startswith('| env |')]
    assert [len(re.findall(r'(?<!\\)\|', row)) for row in rows] == [3, 3]


def test_spaces_in_words() -> None:
    bounds = np.array([-1.0, -2.0]), np.array([1.0, 4.5])
    whole = {
        'position': Box(*bounds),
        'speed': Box(np.full(3, -np.inf), np.full(3, np.inf), 'float64'),
        'kind': Discrete(3, 1),
        'switches': MultiBinary((2,)),
        'gears': MultiDiscrete((2, 3), (0, 0), (2,)),
    }
    assert space_words(Dict(whole)).split('; ') == [
        'position: float32 [2], -2 to 4.5',
        'speed: float64 [3]',
        'kind: one of 3 choices, 1 to 3',
        'switches: zeros and ones [2]',
        'gears: 2 choices at once, of 2, 3',
    ]
