"""Import of models: the run that it writes continues, and files of other kinds get one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from zoo.core.errors import UserError
from zoo.run.checkpoint import load_checkpoint
from zoo.tools.exchange.form import ModelFileError

MODEL = Path(__file__).parent / 'models' / 'ppo_discrete.zip'


def test_run_folder_acts_and_trains_on_with_the_moments_of_the_file(tmp_path: Path) -> None:
    policy = zoo.import_policy(MODEL, tmp_path / 'run', env='CartPole-v1')
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    loaded = zoo.load_policy(tmp_path / 'run')
    assert (loaded.act(obs) == policy.act(obs)).all()
    state: Any = load_checkpoint(tmp_path / 'run').state['policy']['learn']['optimizer']['all']
    assert state['step_count'] == 32  # 4 rollouts of 64 samples, 2 passes in minibatches of 16
    result = zoo.serial_pipeline(resume=tmp_path / 'run', overrides=['max_env_step=384', 'logger.console=off'])
    assert result.env_step > 256 and result.run_dir == tmp_path / 'run'
    after: Any = load_checkpoint(tmp_path / 'run').state['policy']['learn']['optimizer']['all']
    assert after['step_count'] > 32


@pytest.mark.parametrize('name', ['di_discrete.tar', 'agilerl_discrete.pt'])
def test_file_without_an_env_of_its_own_becomes_a_run_of_the_given_one(name: str, tmp_path: Path) -> None:
    found = zoo.import_policy(MODEL.with_name(name), tmp_path / 'run', env='CartPole-v1')
    assert found.cfg is not None and load_checkpoint(tmp_path / 'run').meta['config']['env']['id'] == 'CartPole-v1'


def test_overrides_change_the_run_and_not_the_policy(tmp_path: Path) -> None:
    policy = zoo.import_policy(MODEL, env='CartPole-v1', overrides=['policy.learn.learning_rate=0.5'])
    other = zoo.import_policy(MODEL)
    assert policy.cfg.learn.learning_rate == 0.5
    for one, two in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_policy_without_env_is_saved_without_one(tmp_path: Path) -> None:
    zoo.import_policy(MODEL).save(tmp_path / 'p.safetensors')
    assert load_checkpoint(tmp_path / 'p.safetensors').meta['config']['env']['id'] == ''


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (None, 'does not exist; check the path'),
        (b'', 'of no kind that is known'),
        (b'PK\x03\x04 cut', 'of no kind that is known'),
        (MODEL.read_bytes()[:5000], 'of no kind that is known'),
    ],
)
def test_other_files_get_a_sentence(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / 'model.zip'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=said):
        zoo.import_policy(path)


def test_damaged_byte_is_noticed(tmp_path: Path) -> None:
    content = bytearray(MODEL.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / 'model.zip').write_bytes(content)
    with pytest.raises(ModelFileError, match='damaged entry|cannot be read|no zip'):
        zoo.import_policy(tmp_path / 'model.zip')


def test_run_needs_an_env_and_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='needs an env'):
        zoo.import_policy(MODEL, tmp_path / 'run')
    with pytest.raises(ModelFileError, match="env 'Pendulum-v1' has Box"):
        zoo.import_policy(MODEL, tmp_path / 'run', env='Pendulum-v1')
    assert not (tmp_path / 'run').exists()
    (tmp_path / 'config.yaml').write_text('')
    with pytest.raises(UserError, match='is the folder of a run'):
        zoo.import_policy(MODEL, tmp_path, env='CartPole-v1')
    with pytest.raises(UserError, match="unknown library 'sb4'"):
        zoo.import_policy(MODEL, source='sb4')
