"""Zips of stable-baselines3 2.9.2 and sb3-contrib, recorded with what they did, act, value and learn equally here.

`benchmarks/imports/make_sb3.py --small` made the files in models/. No test needs these libraries.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from imports.check import compared
from torch import Tensor, nn

from zoo.tools.exchange.form import ModelFileError
from zoo.tools.exchange.load import import_model, import_policy

MODELS = Path(__file__).parent / 'models'
KINDS = sorted(path.stem for path in MODELS.glob('*.npz') if path.with_suffix('.zip').exists())


@pytest.mark.slow
@pytest.mark.parametrize('name', KINDS)
def test_model_acts_values_and_learns_as_recorded(name: str) -> None:
    found = compared(MODELS / f'{name}.zip')
    assert found.action <= 1e-6 and found.value <= 1e-5
    # 10 steps of the library's own optimiser; the deviation of advantages is over n - 1 samples there: 1 % of 64
    assert found.learned is None or found.learned <= 1e-4


def test_env_step_and_schedules_continue_where_the_file_ends() -> None:
    imported = import_model(MODELS / 'ppo_schedules.zip')
    policy = imported.policy
    assert imported.model.env_step == 256  # 4 rollouts of 32 steps in 2 envs
    # LinearSchedule(1e-3, 1e-4, 0.5) over 256 steps: 1e-4 from half of them on, 128
    assert policy.cfg.learn.learning_rate.value(64) == pytest.approx(5.5e-4)
    assert policy.cfg.learn.learning_rate.value(200) == pytest.approx(1e-4)
    assert policy.cfg.learn.clip_ratio.value(128) == pytest.approx(0.2)


def test_schedule_that_is_code_stays_closed_and_its_last_rate_is_kept() -> None:
    imported = import_model(MODELS / 'ppo_function.zip')
    said = dict(imported.model.left_out)
    assert 'is a function, which is code and is not opened' in said['learning_rate']
    # 1e-3 * (x + 1), and the last update of 4 was made when x was 0: SB3 sets x after each rollout
    assert imported.policy.cfg.learn.learning_rate == pytest.approx(1e-3)


def test_statistics_of_vec_normalize_go_on_counting() -> None:
    path = MODELS / 'ppo_box_normalized'
    policy = import_policy(path.with_suffix('.zip'), normalizer=path.with_suffix('.pkl'))
    norm = policy.model.input
    # a count of 1e-4 at the start; 128 steps of 2 envs, and the observations of one reset
    assert norm.count.item() == pytest.approx(258 + 1e-4)
    assert norm.clip == 1.5
    assert policy.normalizers['reward'].count.item() == pytest.approx(256 + 1e-4)


def test_masks_are_an_entry_of_observations() -> None:
    policy = import_policy(MODELS / 'maskable_multi_discrete.zip')
    mask = np.array([0, 0, 1, 0, 1, 0, 0], np.int8)
    assert policy.act({'obs': np.zeros(3, np.float32), 'action_mask': mask}).tolist() == [2, 1]


@pytest.mark.parametrize(('name', 'said'), [('dqn', 'is of DQN'), ('sac', 'is of SAC')])
def test_algorithm_without_counterpart_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        import_policy(MODELS / f'{name}.zip')


def changed(tmp_path: Path, change: Callable[[dict[str, bytes]], None], name: str = 'ppo_discrete') -> Path:
    """A copy of a zip with other entries."""
    with zipfile.ZipFile(MODELS / f'{name}.zip') as archive:
        entries = {each: archive.read(each) for each in archive.namelist()}
    change(entries)
    path = tmp_path / 'changed.zip'
    with zipfile.ZipFile(path, 'w') as archive:
        for each, content in entries.items():
            archive.writestr(each, content)
    return path


def set_data(**values: Any) -> Callable[[dict[str, bytes]], None]:
    def change(entries: dict[str, bytes]) -> None:
        entries['data'] = json.dumps({**json.loads(entries['data']), **values}).encode()

    return change


def serialized(value: object) -> dict[str, str]:
    return {':type:': 'x', ':serialized:': base64.b64encode(pickle.dumps(value)).decode()}


def saved(tensors: dict[str, Tensor]) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def set_tensors(entries: dict[str, bytes], **tensors: Tensor) -> None:
    state = torch.load(io.BytesIO(entries['policy.pth']), weights_only=True)
    entries['policy.pth'] = saved({**state, **{name.replace('__', '.'): x for name, x in tensors.items()}})


BAD: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    'no parameters': (lambda entries: entries.update({'policy.pth': b''}), 'is no zip archive'),
    'cut parameters': (lambda e: e.update({'policy.pth': e['policy.pth'][:900]}), 'is no zip archive'),
    'no JSON': (lambda entries: entries.update(data=b'{'), 'data that is no JSON'),
    'a list': (lambda entries: entries.update(data=b'[]'), 'other entries'),
    'another tensor': (lambda e: set_tensors(e, extra__weight=torch.ones(2)), "the entry 'extra.weight'"),
    'not finite': (lambda e: set_tensors(e, action_net__bias=torch.full((2,), torch.nan)), 'not finite'),
    'another size': (lambda e: set_tensors(e, action_net__bias=torch.ones(3)), 'does not fit'),
    'own policy': (set_data(policy_class=serialized(nn.Tanh)), 'Tanh, a class of its own'),
    'own extractor': (set_data(policy_kwargs=serialized({'features_extractor_class': nn.Tanh})), 'a class of its own'),
    'no space': (set_data(action_space=serialized(gymnasium.spaces.Text(3))), 'of the kind Text'),
    'no pickle': (set_data(action_space={':serialized:': 'AAAA'}), "'action_space' that cannot be read"),
    'squashed': (set_data(policy_kwargs={'squash_output': True}), 'squash_output is True'),
}


@pytest.mark.parametrize('kind', BAD)
def test_changed_file_gets_one_sentence(kind: str, tmp_path: Path) -> None:
    change, said = BAD[kind]
    with pytest.raises(ModelFileError, match=said) as error:
        import_policy(changed(tmp_path, change))
    assert '\n' not in str(error.value) and str(error.value).startswith(f'model {tmp_path / "changed.zip"} ')


class Nature(nn.Module):
    """The network of SB3's CnnPolicy, written by its documentation: three convolutions, flattened as C, H, W, a layer."""

    def __init__(self, n_feature: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.linear = nn.Sequential(nn.Linear(64 * 1 * 2, n_feature), nn.ReLU())  # of images of 36 x 48

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.cnn(x))


def test_images_are_flattened_as_their_network_expects(tmp_path: Path) -> None:
    torch.manual_seed(0)
    extractor, action_net, value_net = Nature(7), nn.Linear(7, 4), nn.Linear(7, 1)
    parts = {'features_extractor': extractor, 'action_net': action_net, 'value_net': value_net}
    tensors = {f'{name}.{key}': x for name, part in parts.items() for key, x in part.state_dict().items()}
    aliases = {f'pi_{name}': x for name, x in tensors.items() if name.startswith('features')}
    space = gymnasium.spaces.Box(0, 255, (3, 36, 48), np.uint8)
    policy_class = {
        ':serialized:': base64.b64encode(b'cstable_baselines3.common.policies\nActorCriticCnnPolicy\n.').decode()
    }

    def change(entries: dict[str, bytes]) -> None:
        spaces = {'observation_space': serialized(space), 'action_space': serialized(gymnasium.spaces.Discrete(4))}
        set_data(policy_class=policy_class, policy_kwargs={}, **spaces)(entries)
        entries['policy.pth'] = saved(tensors | aliases)
        del entries['policy.optimizer.pth']

    policy = import_policy(changed(tmp_path, change))
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 36, 48), np.uint8)
    with torch.no_grad():
        feature = extractor(torch.from_numpy(images) / 255)
    assert (torch.from_numpy(policy.act(images)) == action_net(feature).argmax(-1)).all()
    assert torch.allclose(policy.value(images), value_net(feature)[:, 0], atol=1e-5)


def test_moments_of_trpo_are_those_of_its_critic_alone() -> None:
    policy: Any = import_policy(MODELS / 'trpo_box.zip')
    critic = policy.optimizers['critic']
    assert critic.step_count > 0 and critic.exp_avg.abs().max() > 0
    assert compared(MODELS / 'trpo_box.zip').learned is not None
