"""Checkpoints of AgileRL 2.58's PPO act, value and learn as recorded; `benchmarks/imports/make_agilerl.py` made them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from imports.check import compared

import zoo
from zoo.run.checkpoint import load_checkpoint
from zoo.tools.exchange.agilerl import of_agilerl
from zoo.tools.exchange.form import ModelFileError
from zoo.tools.exchange.load import import_model, import_policy
from zoo.tools.exchange.pickles import read_torch

MODELS = Path(__file__).parent / 'models'
DISCRETE = MODELS / 'agilerl_discrete.pt'


@pytest.mark.parametrize('name', ['agilerl_discrete', 'agilerl_apart', 'agilerl_box'])
def test_checkpoint_acts_values_and_learns_as_recorded(name: str) -> None:
    found = compared(MODELS / f'{name}.pt')
    assert found.action <= 1e-6 and found.value <= 1e-5
    assert found.learned is not None and found.learned <= 1e-4


def test_norm_after_the_latent_has_nothing_to_learn() -> None:
    model: Any = import_policy(DISCRETE).model
    first, last = model.actor_encoder.norms
    assert first.weight.shape == (6,) and last.weight is None and model.policy_head[0].norms[0].weight.shape == (7,)


def test_settings_are_those_of_the_file() -> None:
    found = import_model(DISCRETE)
    cfg: Any = found.policy.cfg
    assert cfg.learn.learning_rate == cfg.learn.critic_learning_rate == 1e-3  # each network's gradient is limited alone
    assert cfg.learn.value_loss == 'clip' and cfg.learn.value_weight == 0.5 and cfg.learn.entropy_weight == 0.01
    assert cfg.learn.batch_size == 32 and cfg.learn.epoch_per_collect == 2 and cfg.collect.n_step == 16  # 64 of 4 envs
    assert found.model.train_iter == 12  # 3 rollouts of 64, 2 passes in minibatches of 32
    assert 'optimizer  ->  exp_avg, exp_avg_sq and 12 steps of Adam' in found.model.text()


def test_run_trains_on_with_the_moments_of_the_file(tmp_path: Path) -> None:
    import_policy(DISCRETE, tmp_path / 'run', env='CartPole-v1')
    result = zoo.serial_pipeline(resume=tmp_path / 'run', overrides=['max_env_step=128', 'logger.console=off'])
    state: Any = load_checkpoint(tmp_path / 'run').state['policy']['learn']['optimizer']
    assert result.env_step > 64 and all(each['step_count'] > 12 for each in state.values())


def _changed(**changes: Any) -> dict[str, Any]:
    """The entries of a file, some of them others."""
    return {**read_torch(DISCRETE.read_bytes()), **changes}


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'algo': 'DQN'}, "is of 'DQN' of AgileRL"),
        ({'recurrent': True}, 'PPO with a memory'),
        ({'network_info': {'modules': {}}}, 'has no parameters'),
        ({'observation_space': None}, 'observation_space that is of the kind NoneType'),
        ({'lr': 'fast'}, "has lr = 'fast', which is no number"),
        ({'lr': math.nan}, 'has lr = nan, which is no number'),
        ({'num_envs': math.inf}, 'has num_envs = inf, which is no number'),
        ({'batch_size': 32.5}, 'has batch_size = 32.5, which is no number'),
        ({'learn_step': 10**30}, r'has learn_step = 1\d+, which is no number'),
        ({'algo': torch.zeros(2, 2)}, r'^[^\n]* is of tensor\(\[\[0., 0.\], \[0., 0.\]\]\) of AgileRL'),
    ],
)
def test_other_file_gets_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        of_agilerl(DISCRETE, _changed(**changes))


@pytest.mark.parametrize(
    ('part', 'key', 'value', 'said'),
    [
        ('actor_init_dict', 'squash_output', True, 'simba, squash_output or an encoder'),
        ('critic_init_dict', 'simba', True, 'simba, squash_output or an encoder'),
        (
            'actor_state_dict',
            'encoder.model.shared_encoder_conv_layer_1.weight',
            torch.ones(1),
            'fully connected layer',
        ),
        ('actor_state_dict', 'encoder.model.other', 3, 'other entries than parameters'),
    ],
)
def test_other_network_gets_a_sentence(part: str, key: str, value: Any, said: str) -> None:
    content = _changed()
    content['network_info']['modules'][part][key] = value
    with pytest.raises(ModelFileError, match=said):
        of_agilerl(DISCRETE, content)


@pytest.mark.parametrize(
    ('part', 'key', 'value', 'said'),
    [
        ('encoder_config', 'activation', 'Softmax', 'has the activations'),
        ('head_config', 'noisy', True, 'noisy layers'),
        ('encoder_config', 'noisy', True, 'ways that differ'),
    ],
)
def test_other_layers_get_a_sentence(part: str, key: str, value: Any, said: str) -> None:
    content = _changed()
    content['network_info']['modules']['actor_init_dict'][part][key] = value
    with pytest.raises(ModelFileError, match=said):
        of_agilerl(DISCRETE, content)


@pytest.mark.parametrize(
    ('n', 'size', 'expected'), [(64, 32, 32), (2048, 100, 128), (96, 20, 16), (97, 50, 97), (12, 5, 4)]
)
def test_batch_is_the_divisor_nearest_to_that_of_the_file(n: int, size: int, expected: int) -> None:
    """By hand: 96 has 16 and 24 around 20, 12 has 4 and 6 around 5: the smaller one counts."""
    found = of_agilerl(DISCRETE, _changed(num_envs=1, learn_step=n, batch_size=size))
    assert found.config['policy']['learn']['batch_size'] == expected


def test_entry_of_another_type_gets_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / 'odd.pt'
    torch.save({'agilerl_version': '2.58.0', 'algo': 'PPO', 'recurrent': torch.ones(2)}, file)
    with pytest.raises(
        ModelFileError, match='an entry of a type that its library does not write .*ambiguous.*; save it'
    ):
        import_model(file)


def test_file_without_moments_begins_the_optimiser_anew() -> None:
    content = _changed()
    content['network_info']['optimizers']['optimizer_state_dict']['state'] = {}
    model = of_agilerl(DISCRETE, content)
    assert model.moments is None and ('optimizer' in dict(model.left_out))
