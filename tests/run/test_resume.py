"""Resumes: their messages, other components than the run had, and checkpoints of zoo 0.1.0."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import flat, job_config
from zoo import load_policy, serial_pipeline
from zoo.run.checkpoint import file as module
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint


def resumed(caplog: pytest.LogCaptureFixture, run_dir: Path, *overrides: str, **kwargs: Any) -> list[str]:
    """Resumes a run; returns the messages after the line that says where it continues."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        serial_pipeline(resume=run_dir, overrides=overrides, **kwargs)
    at = next(i for i, message in enumerate(caplog.messages) if message.startswith('resuming at'))
    return caplog.messages[at + 1 :]


@pytest.mark.slow
def test_resume_says_which_values_differ_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn = dict(learning_rate={'start': 1e-3, 'end': 0.0})  # as long as the run
    first = serial_pipeline(job_config(tmp_path, policy=dict(learn=learn), env=dict(kwargs=dict(limit=5))))
    overrides = ['policy.learn.entropy_weight=0.5', 'env.collector_env_num=8', 'env.kwargs.limit=7']
    message, rate = resumed(caplog, first.run_dir, *overrides, max_env_step=512)
    # it was 0 after all 256 env steps, and is half of 1e-3 after 256 of 512
    assert rate.startswith('policy.learn.learning_rate continues at 0.0005 (was 0): its schedule is as long as the run')
    assert message == (
        'changed since it was saved: max_env_step 256 -> 512, '
        'env.kwargs {limit: 5} -> {limit: 7}, env.collector_env_num 4 -> 8, policy.learn.entropy_weight 0.0 -> 0.5'
    )


def test_resume_shows_changed_values_whole_and_as_they_are_typed(
    finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rate = '{start: 0.00123456789, end: 0.000123456789, over: 100000}'
    keys = f'[{", ".join(f"key_{n}" for n in range(10, 30))}]'  # 140 characters
    overrides = [f'policy.learn.learning_rate={rate}', f'logger.info_keys={keys}']
    message = next(text for text in resumed(caplog, finished, *overrides) if text.startswith('changed'))
    assert f' -> {rate}, ' in f'{message}, ' and f' -> {keys}, ' in f'{message}, '


@pytest.mark.parametrize(
    ('limit', 'changed'), [(256, []), (128, ['changed since it was saved: max_env_step 256 -> 128'])]
)
def test_resume_of_a_run_that_is_long_enough_says_that_nothing_is_left(
    finished: Path, caplog: pytest.LogCaptureFixture, limit: int, changed: list[str]
) -> None:
    assert resumed(caplog, finished, max_env_step=limit) == [
        *changed,
        f'nothing is left to train: the run has 256 env steps, a rollout 64, and max_env_step is {limit}; raise that',
    ]


def test_resume_with_many_changes_cuts_the_list(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ['learning_rate', 'clip_ratio', 'value_weight', 'entropy_weight', 'grad_clip', 'adam_eps']
    learn = [f'policy.learn.{key}=0.123' for key in keys]
    learn += ['policy.collect.gae_lambda=0.9', 'policy.collect.discount_factor=0.9']
    others = ['policy.eval.n_episode=3', 'env.step_timeout=7', 'checkpoint.keep_last=7', 'checkpoint.freq=77']
    (message,) = resumed(caplog, finished, *learn, *others, max_env_step=320)
    assert message.count(' -> ') == 10 and message.endswith(' and 3 more') and len(message) < 1000


# --- checkpoints that zoo 0.1.0 wrote (commit 9645090) ---


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


# --- other components than the run had ---


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


def continued(run_dir: Path, limit: int = 192, **learn: Any) -> Any:
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
        again = continued(finished, 320, **{key: in_yaml(x) for key, x in learn.items()})
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
        again = continued(first.run_dir, **{key: plain.get(key, 'null') for key in learn})
    assert again.env_step == 192 and not any(piece in path for path in flat(again.policy.state_dict()))
    (message,) = [x for x in caplog.messages if 'of the checkpoint is not used' in x]
    assert piece in message


@pytest.mark.parametrize(('was', 'now'), [('adam', 'sgd'), ('adam', 'muon'), ('muon', 'adam'), ('sgd', 'adam')])
def test_other_rule_is_refused_by_its_key(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, optimizer=was))
    with pytest.raises(CheckpointError, match=f"policy.learn.optimizer was '{was}' and is '{now}' now.* resume with"):
        continued(first.run_dir, optimizer=now)


@pytest.mark.slow
@pytest.mark.parametrize(('was', 'now'), [('adam', 'adamw')])
def test_rule_with_the_same_moments_takes_them_over(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, optimizer=was))
    again = continued(first.run_dir, optimizer=now)
    steps = [
        next(int(x) for path, x in flat(run.policy.state_dict()).items() if path.endswith('/step_count'))
        for run in (first, again)
    ]
    assert steps == [8, 12]  # 2 passes of 2 minibatches for each of 2 and of 3 rollouts


@pytest.mark.parametrize(('was', 'now'), [('mse', 'hl_gauss'), ('hl_gauss', 'mse')])
def test_value_loss_with_another_network_is_refused_by_its_key(was: str, now: str, tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, value_loss=was))
    with pytest.raises(CheckpointError, match=f"policy.learn.value_loss was '{was}' and is '{now}' now"):
        continued(first.run_dir, value_loss=now)


def test_other_model_is_not_blamed_on_the_optimizer(finished: Path) -> None:
    overrides = ['policy.model.hidden_sizes=[9]', 'policy.learn.optimizer=adamw']
    with pytest.raises(CheckpointError, match='use the config that it was saved with'):
        serial_pipeline(resume=finished, overrides=overrides)


@pytest.mark.slow
def test_other_intrinsic_network_is_refused_by_its_key(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, intrinsic=RND))
    with pytest.raises(CheckpointError, match='policy.learn.intrinsic was .* now, which has other state'):
        continued(first.run_dir, intrinsic='{type: rnd, hidden_sizes: [8], feature_size: 5}')


@pytest.mark.slow
def test_aux_window_made_smaller_keeps_the_newest(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, 'ppg', aux_freq=1, aux_window=2, aux_batch_size=64))
    again = continued(first.run_dir, aux_window=1)
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
    assert continued(path).env_step == 192
