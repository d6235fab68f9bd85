"""Checkpoint folders of RLlib 2.60 act and value as recorded, with the moments of Adam; `benchmarks/imports/make_rllib.py` made them."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from imports.check import compared

from zoo.tools.exchange.form import ModelFileError
from zoo.tools.exchange.load import import_model, import_policy
from zoo.tools.exchange.pickles import read_pickle
from zoo.tools.exchange.rllib import MODULE, cut_in_two

MODELS = Path(__file__).parent / 'models'


@pytest.mark.parametrize('name', ['rllib_discrete', 'rllib_box', 'rllib_shared'])
def test_checkpoint_acts_values_and_learns_as_recorded(name: str) -> None:
    found = compared(MODELS / name)
    assert found.action <= 1e-6 and found.value <= 1e-5
    assert found.learned is not None and found.learned <= 1e-6  # 10 steps of Adam move a parameter by up to 5e-4


def test_moments_and_settings_are_those_of_the_checkpoint() -> None:
    policy: Any = import_policy(MODELS / 'rllib_box')
    optimizer = policy.optimizers['all']
    rows = read_pickle((MODELS / 'rllib_box' / 'learner_group' / 'learner' / 'state.pkl').read_bytes())
    rows = rows['optimizer']['default_policy_default_optimizer']['state']['state']
    moments = optimizer.cut(optimizer.exp_avg)
    assert optimizer.step_count == float(rows[0]['step'])
    # arrays 8 and 9 are weight and bias of the layer of one mean and one deviation
    both = torch.cat((moments['policy_head.mu.bias'], moments['policy_head.log_std_layer.bias']))
    assert torch.equal(both, torch.from_numpy(rows[9]['exp_avg']))
    assert policy.cfg.learn.batch_size == 64 and policy.cfg.learn.clip_ratio == 0.3


def test_run_takes_the_env_of_the_checkpoint(tmp_path: Path) -> None:
    found = import_model(MODELS / 'rllib_discrete', tmp_path / 'run')
    assert found.run_dir == tmp_path / 'run' and found.policy.run.config['env']['id'] == 'CartPole-v1'


def test_layer_of_means_and_deviations_is_cut_between_them() -> None:
    tensors = {'pi.weight': torch.arange(4.0).reshape(4, 1), 'pi.bias': torch.arange(4.0)}
    cut_in_two(tensors, 'pi')
    assert tensors['pi.mean.bias'].tolist() == [0, 1] and tensors['pi.log_std.weight'].tolist() == [[2], [3]]


@pytest.mark.parametrize(
    ('name', 'content', 'said'),
    [
        (f'{MODULE}/module_state.pkl', None, 'lacks the file'),
        (f'{MODULE}/module_state.pkl', b'', 'cannot be read'),
        (f'{MODULE}/module_state.pkl', pickle.dumps({'a': print}), 'other entries than arrays'),
        (f'{MODULE}/class_and_ctor_args.pkl', pickle.dumps({}), 'observation_space that is of the kind NoneType'),
        (
            'env_runner/env_to_module_connector/class_and_ctor_args.pkl',
            b'MeanStdFilter',
            'MeanStdFilter, which is not read',
        ),
    ],
)
def test_damaged_or_filtered_checkpoint_gets_a_sentence(
    name: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / 'c'
    shutil.copytree(MODELS / 'rllib_discrete', folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=said):
        import_policy(folder)
