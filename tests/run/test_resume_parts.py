"""A resume with other components than the run had: new ones start from scratch; unfit ones are refused with the key to change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import flat, job_config
from zoo import load_policy
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import file as module
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint

RND = {'type': 'rnd', 'hidden_sizes': [8], 'feature_size': 4}
PARTS: dict[str, tuple[dict[str, Any], str]] = {
    'rate': ({'learning_rate': {'start': 1e-3, 'kl_target': 0.01}}, 'learn/adaptive_rate'),
    'penalty': ({'penalties': [{'type': 'kl', 'weight': 1.0, 'target': 0.01}]}, 'learn/penalty_weight'),
    'ewma': ({'proximal': {'type': 'ewma'}}, 'average'),
    'rnd': ({'intrinsic': RND}, 'learn/intrinsic'),
    'plasticity': ({'plasticity': {'type': 'shrink_perturb'}}, 'learn/plasticity'),
}


def config(root: Path, kind: str = 'ppo', **learn: Any) -> dict[str, Any]:
    cfg = job_config(root, max_env_step=128, policy=dict(type=kind, learn=learn))
    if kind == 'ppg':
        del cfg['policy']['learn']['epoch_per_collect']
    return cfg


def resumed(run_dir: Path, limit: int = 192, **learn: Any) -> Any:
    overrides = [f'policy.learn.{key}={value}' for key, value in learn.items()]
    return serial_pipeline(resume=run_dir, overrides=overrides, max_env_step=limit)


def in_yaml(value: Any) -> str:
    if isinstance(value, dict):
        return '{' + ', '.join(f'{key}: {in_yaml(x)}' for key, x in value.items()) + '}'
    return '[' + ', '.join(map(in_yaml, value)) + ']' if isinstance(value, list) else str(value)


@pytest.mark.parametrize('name', PARTS)
def test_part_that_is_turned_on_starts_again(name: str, finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn, piece = PARTS[name]
    with caplog.at_level(logging.INFO):
        again = resumed(finished, 320, **{key: in_yaml(x) for key, x in learn.items()})
    assert again.env_step == 320
    (message,) = [x for x in caplog.messages if 'is not in the checkpoint: it begins anew' in x]
    assert piece in message


@pytest.mark.slow
@pytest.mark.parametrize('name', PARTS)
def test_part_that_is_turned_off_is_left_out(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn, piece = PARTS[name]
    first = serial_pipeline(config(tmp_path, **learn))
    plain = {'learning_rate': '0.001', 'penalties': '[]', 'proximal': 'behaviour'}
    with caplog.at_level(logging.INFO):
        again = resumed(first.run_dir, **{key: plain.get(key, 'null') for key in learn})
    assert again.env_step == 192 and not any(piece in path for path in flat(again.policy.state_dict()))
    (message,) = [x for x in caplog.messages if 'of the checkpoint is not used' in x]
    assert piece in message


@pytest.mark.parametrize(('was', 'now'), [('adam', 'sgd'), ('adam', 'muon'), ('muon', 'adam'), ('sgd', 'adam')])
def test_other_rule_is_refused_by_its_key(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, optimizer=was))
    with pytest.raises(CheckpointError, match=f"policy.learn.optimizer was '{was}' and is '{now}' now.* resume with"):
        resumed(first.run_dir, optimizer=now)


@pytest.mark.slow
@pytest.mark.parametrize(('was', 'now'), [('adam', 'adamw')])
def test_rule_with_the_same_moments_takes_them_over(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, optimizer=was))
    again = resumed(first.run_dir, optimizer=now)
    steps = [
        next(int(x) for path, x in flat(run.policy.state_dict()).items() if path.endswith('/step_count'))
        for run in (first, again)
    ]
    assert steps == [8, 12]  # 2 passes of 2 minibatches for each of 2 and of 3 rollouts


@pytest.mark.parametrize(('was', 'now'), [('mse', 'hl_gauss'), ('hl_gauss', 'mse')])
def test_value_loss_with_another_network_is_refused_by_its_key(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, value_loss=was))
    with pytest.raises(CheckpointError, match=f"policy.learn.value_loss was '{was}' and is '{now}' now"):
        resumed(first.run_dir, value_loss=now)


def test_other_model_is_not_blamed_on_the_optimizer(finished: Path) -> None:
    overrides = ['policy.model.hidden_sizes=[9]', 'policy.learn.optimizer=adamw']
    with pytest.raises(CheckpointError, match='use the config that it was saved with'):
        serial_pipeline(resume=finished, overrides=overrides)


@pytest.mark.slow
def test_other_intrinsic_network_is_refused_by_its_key(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, intrinsic=RND))
    with pytest.raises(CheckpointError, match='policy.learn.intrinsic was .* now, which has other state'):
        resumed(first.run_dir, intrinsic='{type: rnd, hidden_sizes: [8], feature_size: 5}')


@pytest.mark.slow
def test_aux_window_made_smaller_keeps_the_newest(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, 'ppg', aux_freq=1, aux_window=2, aux_batch_size=64))
    again = resumed(first.run_dir, aux_window=1)
    assert len(again.policy.memory_state_dict()['return_']) == 64


def old(run_dir: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], **learn: Any) -> Path:
    """Writes a run's checkpoint again, in format 3 and with these values in its config; returns the path."""
    found = load_checkpoint(run_dir)
    found.meta['config']['policy']['learn'] |= learn
    found.meta['config']['policy']['model'] |= model
    path = run_dir / 'old.safetensors'
    with monkeypatch.context() as patch:
        patch.setattr(module, 'FORMAT', 3)
        save_checkpoint(path, found.state, found.meta)
    return path


@pytest.mark.parametrize(
    ('arch', 'was', 'now'), [('dual', 0.5, None), ('detach', 0.3, None), ('shared', 0.5, None), ('shared', 0.3, 0.3)]
)
def test_old_value_weight_keeps_its_effect(
    arch: str, was: float, now: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no effect in separate networks: null now. In the policy phase of shared networks, null means 0.5."""
    cfg = config(tmp_path, 'ppg', aux_batch_size=64)
    cfg['policy']['model']['arch'] = arch
    path = old(serial_pipeline(cfg).run_dir, monkeypatch, {}, value_weight=was)
    assert load_checkpoint(path).meta['config']['policy']['learn']['value_weight'] == now


def test_value_weight_of_a_new_run_stays(tmp_path: Path) -> None:
    run = serial_pipeline(config(tmp_path, 'ppg', aux_batch_size=64, value_weight=0.5))
    assert load_checkpoint(run.run_dir).meta['config']['policy']['learn']['value_weight'] == 0.5


def test_old_value_weight_of_ppo_stays(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old(finished, monkeypatch, {}, value_weight=0.5)
    assert load_checkpoint(path).meta['config']['policy']['learn']['value_weight'] == 0.5


@pytest.mark.slow
def test_old_run_with_a_kl_weight_that_nothing_used_loads_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old(serial_pipeline(config(tmp_path, 'ppg', aux_batch_size=64)).run_dir, monkeypatch, {}, kl_weight=2.0)
    assert load_policy(path).cfg.learn.kl_weight == 1.0
    assert resumed(path).env_step == 192
