"""A network given by the caller instead of a registered one; fields of policy.model that nothing reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy.networks import Line
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, job_config, make_policy
from zoo import load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.policy import PPOPolicy
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.config import resolve_policy


def config(root: Path, **sections: Any) -> dict[str, Any]:
    """A job config without the section policy.model."""
    made = job_config(root, max_env_step=64, **sections)
    del made['policy']['model']
    return made


# --- fields of policy.model where a model is given


@pytest.mark.slow
def test_fields_that_a_given_model_does_not_read_are_named_once(tmp_path: Path, caplog: Any) -> None:
    cfg = config(tmp_path)
    cfg['policy']['model'] = dict(hidden_sizes=[32], activation='relu', obs_norm=False)  # the last one is the default
    serial_pipeline(cfg, model=Line())
    told = [text for text in caplog.messages if 'policy.model' in text]
    assert told == [
        'policy.model.hidden_sizes, policy.model.activation: without effect on the model given, a Line; leave this out'
    ]


def test_given_model_without_fields_is_used_in_silence(tmp_path: Path, caplog: Any) -> None:
    result = serial_pipeline(config(tmp_path), model=Line())
    load_policy(result.run_dir, model=Line())
    PPOPolicy(resolve_policy({}), ONE_NUMBER, TWO_ACTIONS, model=Line())
    assert not [text for text in caplog.messages if 'policy.model' in text]


def test_policy_that_only_evaluates_says_nothing_of_its_fields(caplog: Any) -> None:
    make_policy(ONE_NUMBER, TWO_ACTIONS, network=Line(), enable_field=['eval'], model=dict(hidden_sizes=[32]))
    assert not caplog.messages


# --- a run that was trained with a model given


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serial_pipeline(config(tmp_path_factory.mktemp('given')), model=Line()).run_dir


SENTENCE = re.escape(
    'is of a run that was trained with a model given as model=, a Line, whose code no checkpoint holds; pass one like '
    'it again: serial_pipeline(resume=.., model=..), load_policy(.., model=..)'
)


def test_run_with_a_given_model_asks_for_it_again(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=SENTENCE):
        load_policy(run_dir)
    with pytest.raises(CheckpointError, match=SENTENCE):
        serial_pipeline(resume=run_dir, max_env_step=128)
    with pytest.raises(CheckpointError, match=SENTENCE):
        serial_pipeline(config(tmp_path), max_env_step=128, resume=run_dir)
    assert load_policy(run_dir, model=Line()).model.layer.weight.shape == (3, 1)


def test_checkpoint_from_before_this_was_noted_loads_as_it_did(run_dir: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(run_dir)
    assert checkpoint.meta.pop('model') == 'Line'
    path = tmp_path / 'old.safetensors'
    save_checkpoint(path, checkpoint.state, checkpoint.meta)
    policy = load_policy(path, model=Line())
    assert torch.equal(policy.model.layer.weight, load_policy(run_dir, model=Line()).model.layer.weight)
    with pytest.raises(CheckpointError, match='a model like that of the run where it was given one as model='):
        load_policy(path)


# --- fields of policy.model that another distribution reads


@pytest.mark.slow
def test_new_run_refuses_such_a_field_and_a_resumed_one_takes_it(tmp_path: Path) -> None:
    """Older versions started runs with such a field, and these runs must continue."""
    result = serial_pipeline(job_config(tmp_path, max_env_step=64))
    checkpoint = load_checkpoint(result.run_dir)
    checkpoint.meta['config']['policy']['model']['log_std_init'] = -1.0
    path = tmp_path / 'old.safetensors'
    save_checkpoint(path, checkpoint.state, checkpoint.meta)
    assert serial_pipeline(resume=path, max_env_step=128).env_step > result.env_step
    load_policy(path)
    before = set(tmp_path.rglob('*'))
    with pytest.raises(UserError, match='policy.model.log_std_init is -1.0 but'):
        serial_pipeline(job_config(tmp_path, policy=dict(model=dict(log_std_init=-1.0))))
    assert set(tmp_path.rglob('*')) == before  # refused before anything is made
