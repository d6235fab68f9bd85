"""Zips for stable-baselines3 have the entries that it writes itself: those of imported models come back bit for bit."""

from __future__ import annotations

import io
import json
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zoo
from zoo.core.errors import UserError
from zoo.tools.exchange.pickles import Closed, read_pickle
from zoo.tools.exchange.sb3_writer import ByName, Instance, pickled, write_sb3

MODELS = Path(__file__).parent / 'models'
BACK = [
    'ppo_discrete',
    'ppo_towers',
    'ppo_linear',
    'ppo_multi_binary',
    'ppo_multi_discrete',
    'ppo_gsde',
    'a2c_discrete',
]


def parameters(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Tensor] = torch.load(io.BytesIO(archive.read('policy.pth')), weights_only=True)
    return found


@pytest.mark.slow
@pytest.mark.parametrize('name', BACK)
def test_parameters_and_settings_of_an_imported_model_come_back(name: str, tmp_path: Path) -> None:
    policy = zoo.import_policy(MODELS / f'{name}.zip')
    written = write_sb3(policy, tmp_path / 'p.zip')
    assert written.error == 0 and written.normalizer is None
    wanted = parameters(MODELS / f'{name}.zip')
    found = parameters(tmp_path / 'p.zip')
    assert list(found) == list(wanted)
    assert all(torch.equal(found[key], x) for key, x in wanted.items())
    data = [json.loads(zipfile.ZipFile(path).read('data')) for path in (tmp_path / 'p.zip', MODELS / f'{name}.zip')]
    same = ('n_steps', 'gamma', 'gae_lambda', 'vf_coef', 'ent_coef', 'max_grad_norm', 'use_sde', 'normalize_advantage')
    assert {key: data[0][key] for key in same} == {key: data[1][key] for key in same}


def test_statistics_of_observations_come_back(tmp_path: Path) -> None:
    path = MODELS / 'ppo_box_normalized'
    policy = zoo.import_policy(path.with_suffix('.zip'), normalizer=path.with_suffix('.pkl'))
    written = write_sb3(policy, tmp_path / 'p.zip')
    assert written.normalizer == tmp_path / 'p.pkl'
    found, wanted = (read_pickle(file.read_bytes()) for file in (tmp_path / 'p.pkl', path.with_suffix('.pkl')))
    assert found.name == wanted.name and found['clip_obs'] == wanted['clip_obs'] == 1.5
    for key in ('mean', 'var', 'count'):
        assert np.array_equal(found['obs_rms'][key], wanted['obs_rms'][key])


def test_values_are_in_units_of_returns_where_the_critic_has_others(tmp_path: Path) -> None:
    policy = zoo.make_policy({'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo', 'learn': {'value_norm': True}}})
    policy.normalizers['value'].update(torch.tensor([10.0, 30.0]))  # mean 20, deviation 10
    write_sb3(policy, tmp_path / 'p.zip')
    obs = np.zeros((1, 4), np.float32)
    assert zoo.import_policy(tmp_path / 'p.zip').value(obs).item() == pytest.approx(policy.value(obs).item(), rel=1e-5)
    assert policy.value(obs).item() == pytest.approx(20, abs=5)


def test_pickle_names_classes_that_are_not_installed() -> None:
    data = pickled(Instance(ByName('no_package.place', 'Thing'), {'a': np.arange(3), 'b': {'c': [1, None]}}))
    assert [x[1] for x in pickletools.genops(data) if x[0].name == 'GLOBAL'][0] == 'no_package.place Thing'
    found: Any = read_pickle(data)
    assert isinstance(found, Closed) and found.name == 'no_package.place.Thing'
    assert found['a'].tolist() == [0, 1, 2] and found['b'] == {'c': [1, None]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    'memory': (
        {'model': {'recurrent': {'cell': 'gru'}}, 'learn': {'sequence': {'len': 8}}},
        'its network has a memory',
    ),
    'norm': ({'model': {'layer_norm': True}}, 'its MLP is no network'),
    'q values': ({'type': 'dqn'}, 'its network is a|it trains no critic'),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_network_that_sb3_does_not_have_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    section, said = REFUSED[kind]
    policy = zoo.make_policy({'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppo', **section}})
    with pytest.raises(UserError, match=said):
        write_sb3(policy, tmp_path / 'p.zip')
    assert not (tmp_path / 'p.zip').exists()
