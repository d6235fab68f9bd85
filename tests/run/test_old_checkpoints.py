"""Checkpoints that zoo 0.1.0 wrote (commit 9645090) load, act the same, and resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo import load_policy, serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint

FOLDER = Path(__file__).parent / 'old_checkpoints'
NAMES = sorted(path.stem for path in FOLDER.glob('*.safetensors'))


def wanted(name: str) -> dict[str, Any]:
    """Returns random observations and the policy's outputs for them, recorded by the commit that wrote the checkpoint."""
    return json.loads((FOLDER / f'{name}.json').read_text())


def test_there_is_one_of_every_bundled_policy_and_kind_of_action() -> None:
    kinds = ('ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy')
    assert NAMES == sorted(f'{kind}_{action}' for kind in kinds for action in ('categorical', 'gaussian'))


@pytest.mark.parametrize('name', NAMES)
def test_old_checkpoint_acts_as_it_did(name: str) -> None:
    policy, want = load_policy(FOLDER / f'{name}.safetensors'), wanted(name)
    obs = np.array(want['obs'], dtype=np.float32)
    # 1e-5: tanh was then computed as 2 * sigmoid(2x) - 1, which differs from torch's tanh by 2e-7
    np.testing.assert_allclose(policy.act(obs), want['action'], rtol=0, atol=1e-5)
    with torch.no_grad():
        logit, value = (
            policy.model.compute_actor(torch.from_numpy(obs)),
            policy.model.compute_critic(torch.from_numpy(obs)),
        )
    np.testing.assert_allclose(logit, want['logit'], rtol=0, atol=1e-5)
    np.testing.assert_allclose(value, want['value'], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ('name', 'executor'), [*((name, 'auto') for name in NAMES), ('ppg_offpolicy_gaussian', 'eager')]
)
def test_old_checkpoint_resumes(name: str, executor: str, tmp_path: Path) -> None:
    path, want = FOLDER / f'{name}.safetensors', wanted(name)
    more = [f'max_env_step={want["env_step"] + 3 * 32}', f'logger.root={tmp_path}', f'policy.learn.executor={executor}']
    result = serial_pipeline(resume=path, overrides=more)
    assert want['env_step'] + 32 < result.env_step <= want['env_step'] + 96
    assert result.train_iter > want['train_iter']


def test_old_replay_buffer_keeps_its_rows_with_flat_logits() -> None:
    state = load_checkpoint(FOLDER / 'ppo_offpolicy_gaussian.safetensors').state
    data = state['buffer']['ring']['data'] if 'ring' in state['buffer'] else state['buffer']['data']
    assert data['logit'].shape == (len(data['adv']), 2)  # mu and sigma of one action
    assert (data['logit'][:, 1] > 0).all()


@pytest.mark.slow
def test_checkpoint_names_the_executor_and_a_resume_with_another_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = [f'logger.root={tmp_path}']
    first = serial_pipeline(resume=FOLDER / 'ppo_categorical.safetensors', overrides=['max_env_step=192', *root])
    name = load_checkpoint(first.run_dir).meta['version']['executor']
    assert name == first.policy.executor_name
    serial_pipeline(resume=first.run_dir, overrides=['max_env_step=256', 'policy.learn.executor=eager'])
    assert name == 'eager' or f'executor {name} and continues with eager' in caplog.text


def test_old_policy_knows_no_mask() -> None:
    """An env that offers action masks today still gets the spaces that its old policy was trained on."""
    assert load_checkpoint(FOLDER / 'ppo_offpolicy_gaussian.safetensors').meta['config']['env']['action_mask'] == 'off'
