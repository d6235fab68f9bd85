"""Exported files act as `policy.act`, for every policy, space and distribution; a file that does not is removed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiBinary
from gymnasium.vector.utils import concatenate as stack, create_empty_array
from torch import Tensor

from tests.tools.export.policies import IMAGE, load_onnx, make_policy, samples
from zoo.core.errors import RunError, UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.spaces import ACTION_MASK
from zoo.env.toy.targets import ACTION_SPACES, OBS_SPACES
from zoo.run.checkpoint import load_checkpoint
from zoo.tools.export import FORMATS
from zoo.tools.results.card import card

onnxruntime = pytest.importorskip('onnxruntime', reason='the extra export is not installed')

pytestmark = pytest.mark.slow

BUNDLED = sorted(name for name in POLICY_REGISTRY.names() if POLICY_REGISTRY.get(name).__module__.startswith('zoo.'))
SMALL = {'type': 'cnn', 'channels': [8], 'kernels': [3], 'strides': [2], 'hidden_size': 16, 'precision': 'fp32'}
ACTORS, ACTIONS = [name for name in BUNDLED if name != 'dqn'], list(ACTION_SPACES)
KINDS = [
    *((ACTORS[i % len(ACTORS)], obs, ACTIONS[i % len(ACTIONS)]) for i, obs in enumerate(OBS_SPACES)),
    ('dqn', 'box', 'discrete'),
]
"""Triples of policy, observation space and action space; each kind occurs at least once."""


def batch(space: gymnasium.Space, n: int = 1000) -> Any:
    """n random observations, stacked as a vector env returns them."""
    return stack(space, samples(space, n), create_empty_array(space, n))


def leaves(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, dict):
        return [x for each in tree.values() for x in leaves(each)]
    return [x for each in tree for x in leaves(each)] if isinstance(tree, tuple) else [np.asarray(tree)]


def rows(tree: Any, n: int) -> Any:
    if isinstance(tree, dict):
        return {name: rows(each, n) for name, each in tree.items()}
    return tuple(rows(each, n) for each in tree) if isinstance(tree, tuple) else tree[:n]


def check_acts_as(policy: Any, path: Path, obs: Any, tolerance: float = 1e-5) -> None:
    """Asserts that the file returns the actions of `policy.act`, for 1,000 observations at once and for one."""
    run = load_onnx(path)
    for n in (1000, 1):
        got, wanted = run(*leaves(rows(obs, n))), leaves(policy.act(rows(obs, n)))
        for x, y in zip(got, wanted, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            assert np.array_equal(x, y) if x.dtype.kind != 'f' else np.abs(x - y).max() <= tolerance


@pytest.mark.soak
@pytest.mark.parametrize('name', ['ppo', 'ppg', 'dqn'])
def test_choices_over_images_are_the_same(name: str, tmp_path: Path) -> None:
    policy = make_policy(name, IMAGE, encoder=SMALL)
    exported = policy.export(tmp_path / 'p.onnx')
    assert exported.inputs == (('obs', 'uint8', ('batch', 8, 8, 3)),)
    found = exported.comparison
    assert (found.n, found.error, found.n_differ) == (1000, None, 0)
    obs = batch(IMAGE)
    check_acts_as(policy, tmp_path / 'p.onnx', obs)
    assert len(set(policy.act(obs).tolist())) > 1


@pytest.mark.long
@pytest.mark.parametrize('name', ['ppo', 'ppg'])
def test_numbers_are_within_1e_5(name: str, tmp_path: Path) -> None:
    space = Box(-np.inf, np.inf, (4,), np.float32)
    policy = make_policy(name, space, 'box_2d', 'rescale', obs_norm=True)
    assert 0 < policy.export(tmp_path / 'p.onnx').comparison.error < 1e-5
    obs = np.random.default_rng(0).normal(3, 2, (1000, 4)).astype(np.float32)
    check_acts_as(policy, tmp_path / 'p.onnx', obs)
    assert policy.act(obs).std() > 0.5  # the bounds are some 2 apart


@pytest.mark.soak
@pytest.mark.parametrize('encoder', ['impala', 'nature', 'simba'])
def test_encoders_of_zoo_give_the_same_actions(encoder: str, tmp_path: Path) -> None:
    space = Box(0, 255, (4, 36, 36), np.uint8) if encoder != 'simba' else Box(-1.0, 1.0, (3,))
    policy = make_policy('ppo', space, 'box', encoder=encoder, precision='fp32')
    assert 0 < policy.export(tmp_path / 'p.onnx').comparison.error < 1e-5


@pytest.mark.soak
def test_sets_of_entities_give_the_same_actions_for_any_number_of_rows(tmp_path: Path) -> None:
    space = Dict({'items': Box(-1.0, 1.0, (3, 2), np.float32), 'mask': MultiBinary(3)})
    policy = make_policy('ppo', space, 'box', encoder={'type': 'entities', 'hidden_size': 16})
    assert 0 < policy.export(tmp_path / 'p.onnx').comparison.error < 1e-5
    check_acts_as(policy, tmp_path / 'p.onnx', batch(space))


@pytest.mark.soak
@pytest.mark.parametrize('name, obs, action', KINDS)
def test_every_policy_and_kind_of_space_acts_as_the_env_has_it(
    name: str, obs: str, action: str, tmp_path: Path
) -> None:
    policy = make_policy(name, obs, action, encoder=SMALL if 'image' in obs or obs == 'dict' else 'auto')
    exported = policy.export(tmp_path / 'p.onnx')
    drawn = batch(OBS_SPACES[obs]())
    assert [port.dtype for port in exported.inputs] == [str(x.dtype) for x in leaves(drawn)]
    check_acts_as(policy, tmp_path / 'p.onnx', drawn)


@pytest.mark.long
def test_choices_have_the_number_type_of_the_env_in_the_file(tmp_path: Path) -> None:
    space = gymnasium.spaces.MultiDiscrete([3, 4], dtype=np.int32)
    policy = make_policy('ppo', 'box', space)
    assert policy.export(tmp_path / 'p.onnx').outputs[0].dtype == 'int32'
    check_acts_as(policy, tmp_path / 'p.onnx', batch(OBS_SPACES['box']()))
    assert space.contains(policy.act(OBS_SPACES['box']().sample()))


@pytest.mark.long
@pytest.mark.parametrize('distribution', ['squashed_gaussian', 'beta', 'gsde'])
def test_bounded_distributions_give_their_mode_as_the_env_takes_it(distribution: str, tmp_path: Path) -> None:
    policy = make_policy('ppo', 'box', 'box_2d', distribution=distribution)
    policy.export(tmp_path / 'p.onnx')
    check_acts_as(policy, tmp_path / 'p.onnx', batch(OBS_SPACES['box']()))


@pytest.mark.long
def test_beta_whose_parameters_are_1_gives_the_middle_and_no_nan(tmp_path: Path) -> None:
    policy = make_policy('ppo', 'box', Box(-2.0, 6.0, (1,)), distribution='beta')
    with torch.no_grad():
        policy.model.policy_head.layer.weight.zero_()
        policy.model.policy_head.layer.bias.fill_(-20.0)  # 1 + softplus(-20) is 1 in float32
    policy.export(tmp_path / 'p.onnx')
    action = load_onnx(tmp_path / 'p.onnx')(batch(OBS_SPACES['box']()))[0]
    assert np.abs(action - 2.0).max() < 1e-5


@pytest.mark.long
def test_normaliser_network_and_rescaling_equal_numpy(tmp_path: Path) -> None:
    policy = make_policy('ppo', Box(-np.inf, np.inf, (3,)), Box(-2.0, 6.0, (1,)), 'rescale', obs_norm=True)
    with torch.no_grad():
        policy.model.policy_head.mu.weight.mul_(5)  # so that actions reach the bounds
    policy.export(tmp_path / 'p.onnx')
    weights = {name: x.detach().double().numpy() for name, x in policy.model.state_dict().items()}
    obs = np.random.default_rng(0).normal(3, 2, (50, 3)).astype(np.float32)
    x = np.clip((obs - weights['input.mean']) / np.sqrt(weights['input.var']), -10, 10)
    for i in range(2):
        layer = f'actor_encoder.layers.{i}'
        x = np.tanh(x @ weights[f'{layer}.weight'].T + weights[f'{layer}.bias'])
    mu = x @ weights['policy_head.mu.weight'].T + weights['policy_head.mu.bias']
    wanted = np.clip(2 + 4 * mu, -2, 6)  # -1 becomes -2, 1 becomes 6
    assert np.abs(load_onnx(tmp_path / 'p.onnx')(obs)[0] - wanted).max() < 1e-5
    assert 0 < (np.abs(mu) > 1).mean() < 1


@pytest.mark.long
@pytest.mark.parametrize('action', ['discrete', 'multi_discrete', 'tuple'])
def test_forbidden_actions_are_never_given(action: str, tmp_path: Path) -> None:
    n = {'discrete': 4, 'multi_discrete': 5, 'tuple': 9}[action]  # tuple: 2 + 2 + 3 choices and 2 bits
    space = Dict({ACTION_MASK: gymnasium.spaces.MultiBinary(n), 'place': Box(-1.0, 1.0, (3,))})
    policy = make_policy('ppo', space, action)
    exported = policy.export(tmp_path / 'p.onnx')
    assert exported.inputs[0] == (ACTION_MASK, 'int8', ('batch', n))
    place = batch(space['place'])
    mask = np.zeros((1000, n), np.int8)
    allowed = {'discrete': [[0, 1, 2, 3]], 'multi_discrete': [[0, 1, 2], [3, 4]], 'tuple': [[0, 1], [2, 3], [4, 5, 6]]}
    rng = np.random.default_rng(0)
    for options in allowed[action]:
        mask[np.arange(1000), rng.choice(options, 1000)] = 1
    check_acts_as(policy, tmp_path / 'p.onnx', {ACTION_MASK: mask, 'place': place})
    if action == 'discrete':  # each mask allows one action
        assert np.array_equal(load_onnx(tmp_path / 'p.onnx')(mask, place)[0], mask.argmax(1))


@pytest.mark.soak
@pytest.mark.parametrize('cell', ['lstm', 'gru', 'mingru', 'trxl'])
def test_memory_is_carried_through_episodes_by_state_in_and_out(cell: str, tmp_path: Path) -> None:
    policy = make_policy('ppo', 'box', 'box', recurrent={'cell': cell, 'hidden_size': 8, 'n_layer': 2})
    exported = policy.export(tmp_path / 'p.onnx', value=True)
    assert exported.state == {f'state.{part}': f'next_state.{part}' for part in ('actor', 'critic')}
    assert [port.name for port in exported.outputs][:2] == ['action', 'value']
    run, session, rng = load_onnx(tmp_path / 'p.onnx'), policy.session(), np.random.default_rng(0)
    state = [np.zeros((20, *port.shape[1:]), np.float32) for port in exported.inputs[1:]]
    critic = policy.model.initial_state(20)
    for t in range(50):
        obs, begins = rng.uniform(-1, 1, (20, 3)).astype(np.float32), rng.random(20) < 0.1
        state = [np.where(begins[:, None], 0, x).astype(np.float32) for x in state]
        action, value, *state = run(obs, *state)
        assert np.abs(action - session.act(obs, begins)).max() < 1e-5
        critic = {name: torch.where(torch.from_numpy(begins)[:, None], 0.0, x) for name, x in critic.items()}
        with torch.no_grad():
            wanted, critic = policy.model.compute_critic(torch.from_numpy(obs), critic)
        assert np.abs(value - wanted.numpy()).max() < 1e-5
        assert t == 0 or np.abs(action - policy.act(obs)).max() > 1e-3  # the memory changes the action


@pytest.mark.long
def test_memory_of_the_critic_is_left_out_where_its_value_is(tmp_path: Path) -> None:
    exported = make_policy('ppo', recurrent={'cell': 'gru', 'hidden_size': 8}).export(tmp_path / 'p.onnx')
    assert [port.name for port in exported.inputs] == ['obs', 'state.actor']
    assert [port.name for port in exported.outputs] == ['action', 'next_state.actor']


@pytest.mark.long
@pytest.mark.parametrize('name', list(FORMATS))
def test_value_is_that_of_the_policy_in_return_units(name: str, tmp_path: Path) -> None:
    policy = make_policy('ppg', 'box', 'box', fields=None)  # a policy that could continue to learn
    before = {key: x.clone() for key, x in policy.model.state_dict().items()}
    exported = policy.export(tmp_path / f'p{FORMATS[name].suffix}', value=True)
    obs = batch(OBS_SPACES['box'](), 7)
    action, value = FORMATS[name].load(exported.path)([obs])
    assert np.abs(action - policy.act(obs)).max() < 1e-6 and np.abs(value - policy.value(obs).numpy()).max() < 1e-6
    assert all(torch.equal(x, before[key]) for key, x in policy.model.state_dict().items())


@pytest.mark.long
def test_entries_that_only_the_critic_sees_are_inputs_with_its_value_alone(tmp_path: Path) -> None:
    space = Dict({'camera': Box(-1.0, 1.0, (2,)), 'secret': Box(-1.0, 1.0, (3,))})
    policy = make_policy('ppo', space, actor_obs=['camera'], critic_obs=['secret'])
    assert [port.name for port in policy.export(tmp_path / 'p.onnx').inputs] == ['camera']
    assert [port.name for port in policy.export(tmp_path / 'p.onnx', value=True).inputs] == ['camera', 'secret']


@pytest.mark.soak
def test_file_says_what_it_is_and_names_no_folder(tmp_path: Path) -> None:
    policy = make_policy('ppo', 'dict', 'dict')
    for name, each in FORMATS.items():
        policy.export(tmp_path / f'p{each.suffix}', name)
    about = onnxruntime.InferenceSession(tmp_path / 'p.onnx').get_modelmeta().custom_metadata_map
    with zipfile.ZipFile(tmp_path / 'p.pt2') as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert json.loads(next(text for name, text in parts.items() if name.endswith('zoo.json'))) == about
    assert about['policy'] == 'ppo' and about['torch'] == torch.__version__
    assert json.loads(about['obs_space']) == json.loads(json.dumps(policy.obs_space.to_json()))
    assert [each['name'] for each in json.loads(about['inputs'])] == ['image', 'vector']
    folder = str(Path(__file__).parents[3]).encode()
    for text in (*parts.values(), (tmp_path / 'p.onnx').read_bytes()):
        assert folder not in text and not re.search(rb'zoo/\w+/\w+\.py', text)


@pytest.mark.long
def test_torch_export_file_runs_without_zoo(tmp_path: Path) -> None:
    policy = make_policy('ppo', 'box', 'box')
    policy.export(tmp_path / 'p.pt2')
    code = (
        "import sys; sys.modules['zoo'] = None; import torch\n"
        "found = torch.export.load('p.pt2').module()(torch.full((5, 3), 0.5))\n"
        'print(found[0].tolist())'
    )
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = policy.act(np.full((5, 3), 0.5, np.float32))
    assert np.abs(np.array(json.loads(done.stdout)) - wanted).max() < 1e-6


def own(change: Any) -> Any:
    """A ppo policy whose network has a changed `compute_actor`."""
    policy = make_policy('ppo')
    kind = type(policy.model)
    policy.model.__class__ = type('Own', (kind,), {'compute_actor': change(kind.compute_actor)})
    return policy


def draws(before: Any) -> Any:
    return lambda self, obs: before(self, obs) + torch.randn(obs.shape[0], 4)


def branches(before: Any) -> Any:
    return lambda self, obs: before(self, obs) if obs.sum() > 0 else -before(self, obs)


def counts_rows(before: Any) -> Any:
    return lambda self, obs: before(self, obs) + torch.zeros(len(obs), 1)


def branches_on_one_row(before: Any) -> Any:
    return lambda self, obs: before(self, obs) if obs.shape[0] > 1 else -before(self, obs)


def eigenvalues(before: Any) -> Any:
    def compute(self: Any, obs: Tensor) -> Tensor:
        return before(self, obs) + torch.linalg.eigvalsh(obs.unsqueeze(-1) * obs.unsqueeze(-2)).sum(-1, keepdim=True)

    return compute


@pytest.mark.long
@pytest.mark.parametrize('change, name', [(draws, 'onnx'), (branches_on_one_row, 'torch-export')])
def test_file_that_acts_otherwise_is_not_kept(change: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / f'p{FORMATS[name].suffix}'
    path.write_text('old')
    with pytest.raises(RunError, match='acts otherwise than policy.act'):
        own(change).export(path)
    assert path.read_text() == 'old' and list(tmp_path.iterdir()) == [path]


BRANCHES = 'its code branches on the values of tensors; use torch.where'


@pytest.mark.long
@pytest.mark.parametrize(
    'change, name, said',
    [
        (branches, 'onnx', f'onnx ({BRANCHES}), nor to any other (torch-export)'),
        (branches, 'torch-export', 'nor to any other (onnx); a checkpoint takes every policy'),
        (counts_rows, 'onnx', 'use x.shape[0], not len(x)'),
        (eigenvalues, 'onnx', 'torch-export takes it: --format torch-export'),
    ],
)
def test_network_that_a_format_cannot_take_is_refused_with_those_that_can(
    change: Any, name: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as found:
        own(change).export(tmp_path / f'p{FORMATS[name].suffix}', name)
    assert said in str(found.value) and '\n' not in str(found.value)
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ('', '')


def test_torch_export_takes_what_onnx_cannot(tmp_path: Path) -> None:
    assert own(eigenvalues).export(tmp_path / 'p.pt2').comparison.n_differ == 0


def test_policies_without_values_are_refused_the_value(tmp_path: Path) -> None:
    for name, said in (('pg', 'trains no critic'), ('dqn', 'nor a critic')):
        with pytest.raises(UserError, match=said):
            make_policy(name).export(tmp_path / 'p.onnx', value=True)
    assert not list(tmp_path.iterdir())


EXPORT = """
from zoo import load_policy, make_policy
policy = make_policy('cartpole_ppo')
policy.export('p.onnx')
"""


@pytest.mark.long
@pytest.mark.parametrize(
    'code', ['export', *(pytest.param(code, marks=pytest.mark.soak) for code in ('example', 'card'))]
)
def test_telemetry_of_onnxruntime_never_starts(code: str, tmp_path: Path) -> None:
    """Oracle: the home folder, in which its telemetry keeps an id and a database, stays empty."""
    root, home = Path(__file__).parents[3], tmp_path / 'home'
    home.mkdir()
    if code != 'card':
        run_code(tmp_path, EXPORT, home if code == 'export' else tmp_path)
    if code == 'example':
        run_code(tmp_path, (root / 'examples' / 'run_onnx.py').read_text(), home, 'p.onnx', 'CartPole-v1')
    if code == 'card':
        policy = make_policy('ppo', Box(-1.0, 1.0, (4,)))
        policy.save(tmp_path / 'a.safetensors')
        text = card(load_checkpoint(tmp_path / 'a.safetensors'), policy.export(tmp_path / 'p.onnx'))
        run_code(tmp_path, re.search('```python\n(.*?)```', text, re.S)[1], home)
    assert list(home.rglob('*')) == []


def run_code(folder: Path, code: str, home: Path, *arguments: str) -> None:
    """Runs code in a new process with a home folder; onnxruntime is imported once in a process."""
    unset = ('ORT_DISABLE_TELEMETRY', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'XDG_DATA_HOME')
    environ = {name: x for name, x in os.environ.items() if name not in unset}
    environ |= {'HOME': str(home), 'PYTHONPATH': str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, '-c', code, *arguments], cwd=folder, env=environ, check=True, timeout=300)


def test_path_that_is_none_is_refused() -> None:
    """tests/tools/cli/test_export.py has the cases of wrong folders and endings."""
    with pytest.raises(UserError, match='the path of a file'):
        make_policy('ppo').export(3)
