"""`zoo pretrain`: the loss by hand, statistics, recurrent policies, the run folder, interrupts and refusals."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.forked import run_python
from zoo import load_policy, make_policy, read_run, serial_pipeline
from zoo.core.errors import UserError
from zoo.core.processes import Interrupted
from zoo.run.config import resolve_config
from zoo.tools.imitation.demonstrations import Demonstrations, record_demonstrations, save_demonstrations
from zoo.tools.imitation.pretrain import Student, pretrain, split

SHORT = ['policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off', 'policy.learn.value_norm=false']


def lean(n_episode: int, n_step: int, seed: int = 0) -> Demonstrations:
    """Random observations of CartPole, each with the action that pushes to the side to which the pole leans."""
    obs = torch.randn(n_episode * n_step, 4, generator=torch.Generator().manual_seed(seed)) * 0.05
    action = (obs[:, 2] > 0).long().numpy()
    ends = np.arange(1, n_episode + 1) * n_step
    return Demonstrations(obs, {'': action}, ends, np.ones(len(obs)), np.ones(n_episode, bool))


def student(config: str, demos: Demonstrations, *words: str) -> Any:
    cfg = resolve_config(config, [*SHORT, *words])
    return Student(make_policy(config, [*SHORT, *words]), demos, cfg)


def test_returns_are_discounted_rewards_to_the_end_of_each_episode() -> None:
    demos = lean(2, 3)._replace(reward=np.array([1.0, 2.0, 4.0, 8.0, 0.0, 2.0]))
    found = student('cartpole_ppo', demos, 'policy.collect.discount_factor=0.5').return_
    assert found.tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 0 + 0.5, 1, 2]  # 1 + .5 (2 + .5 * 4) = 3, ..


def test_loss_is_minus_log_p_and_agreement_that_of_greedy_actions() -> None:
    demos = lean(1, 4)
    one = student('cartpole_ppo', demos)
    with torch.no_grad():
        for name, p in one.policy.model.named_parameters():
            p.zero_() if name != 'policy_head.bias' else p.copy_(torch.tensor([0.0, math.log(3.0)]))
    loss, error, agrees = one.judge(torch.arange(4))
    expected = [-math.log(0.75 if a == 1 else 0.25) for a in demos.action['']]
    np.testing.assert_allclose(loss.detach(), expected, rtol=1e-6)
    assert agrees.tolist() == [float(a == 1) for a in demos.action['']]
    np.testing.assert_allclose(error.detach(), one.return_.square(), rtol=1e-6)  # all values are 0


def test_statistics_that_the_config_asks_for_are_those_of_the_demonstrations() -> None:
    demos = lean(3, 20)._replace(reward=np.tile(np.arange(20.0), 3))
    words = 'policy.model.obs_norm=true', 'policy.learn.reward_norm=true', 'policy.learn.value_norm=true'
    one = student('cartpole_ppo', demos, *words, 'policy.collect.discount_factor=0.9')
    np.testing.assert_allclose(one.policy.model.input.mean, demos.obs.double().mean(0), rtol=1e-6)
    so_far = np.array([sum(0.9 ** (t - k) * k for k in range(t + 1)) for t in range(20)] * 3)  # R <- .9 R + t
    np.testing.assert_allclose(one.policy.normalizers['reward'].var, so_far.var(), rtol=1e-5)
    to_go = np.array([sum(0.9 ** (k - t) * k for k in range(t, 20)) for t in range(20)] * 3) / so_far.std()
    np.testing.assert_allclose(one.return_, to_go, rtol=1e-5)
    np.testing.assert_allclose(one.policy.normalizers['value'].mean, to_go.mean(), rtol=1e-5)


def test_policy_with_memory_reads_whole_episodes_from_their_start() -> None:
    """The losses equal those of the model called step by step, with a new state at the start of each episode."""
    demos = lean(3, 5)._replace(episode_ends=np.array([4, 9, 15]))
    one = student('cartpole_ppo', demos, 'policy.model.recurrent={cell: gru, hidden_size: 8}')
    batches = list(one.batches(one.episodes, 8, None))
    assert [len(batch) for batch in batches] == [2, 1]
    model, expected, state = one.policy.model, [], None
    with torch.no_grad():
        loss = torch.cat([one.judge(batch)[0] for batch in batches])
        for t in range(15):
            logit, state = model.compute_actor(
                demos.obs[t : t + 1], model.initial_state(1) if t in (0, 4, 9) else state
            )
            expected.append(float(-one.dist.log_prob(logit, torch.tensor(demos.action[''][t : t + 1]))))
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.soak
def test_policy_imitates_and_leaves_a_run_that_others_read(tmp_path: Path) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(20, 100))
    found = pretrain('cartpole_ppo', str(tmp_path / 'a.npz'), overrides=SHORT, run_dir=tmp_path / 'run')
    assert found.agreement is not None and found.agreement > 0.95
    unseen = lean(1, 500, seed=1)
    assert (load_policy(tmp_path / 'run').act(unseen.obs.numpy()) == unseen.action['']).mean() > 0.95
    assert read_run(tmp_path / 'run').state == 'done' and read_run(tmp_path / 'run').env_step == 0
    words = [*SHORT, f'init_from={tmp_path / "run"}', 'max_env_step=1_024', 'policy.learn.learning_rate=1e-12']
    after = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'b').policy
    for name, value in found.policy.model.named_parameters():
        torch.testing.assert_close(after.model.get_parameter(name), value, rtol=0, atol=1e-7)


class CtrlC(logging.Handler):
    """Sends SIGINT to this process when a log message begins with a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._text):
            os.kill(os.getpid(), signal.SIGINT)


def interrupted(text: str, demos: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> None:
    """Runs an imitation that gets SIGINT at a log message; asserts exit code 130 and that the signal handler is restored."""
    log, handler = logging.getLogger('zoo.tools.imitation.pretrain'), CtrlC(text)
    before = signal.getsignal(signal.SIGINT)
    log.addHandler(handler)
    try:
        with caplog.at_level('INFO'), pytest.raises(Interrupted) as stopped:
            pretrain('cartpole_ppo', str(demos), **options)
    finally:
        log.removeHandler(handler)
    assert stopped.value.code == 130 and signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
@pytest.mark.parametrize('place', ['given', 'made'])
def test_ctrl_c_leaves_the_best_parameters_so_far(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(20, 100))
    words = [*SHORT, f'logger.root={tmp_path / "runs"}']
    options = {'run_dir': tmp_path / 'runs' / 'a'} if place == 'given' else {}
    interrupted('epoch 2 of 50', tmp_path / 'a.npz', caplog, overrides=words, epoch=50, **options)
    [config] = (tmp_path / 'runs').rglob('config.yaml')
    assert (run := read_run(config.parent)).state == 'stopped' and run.result['pretrain_epoch'] == 2
    assert 'stopped by Ctrl-C in epoch 2 of 50' in caplog.text
    assert f'are saved; train on from them with init_from={config.parent}' in caplog.text
    unseen = lean(1, 500, seed=1)
    assert (load_policy(config.parent).act(unseen.obs.numpy()) == unseen.action['']).mean() > 0.6


@pytest.mark.slow
def test_ctrl_c_after_the_last_epoch_leaves_a_whole_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(20, 100))
    options = {'overrides': SHORT, 'epoch': 2, 'run_dir': tmp_path / 'run'}
    interrupted('epoch 2 of 2', tmp_path / 'a.npz', caplog, **options)
    assert (run := read_run(tmp_path / 'run')).state == 'done' and run.result['pretrain_epoch'] == 2
    assert 'Ctrl-C came after the last epoch: all is done and saved' in caplog.text
    assert 'stopped by' not in caplog.text


TWICE = """
import logging, os, signal, sys
from zoo import pretrain

class Twice(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith('epoch 2 of'):
            os.kill(os.getpid(), signal.SIGINT)
            if moment == 'in an epoch':
                os.kill(os.getpid(), signal.SIGINT)

def fsync(file):  # the temporary file has its content now, and is not yet in its place
    name = os.readlink(f'/proc/self/fd/{file}')
    is_saved = 'result.json' in name and os.path.exists(f'{os.path.dirname(name)}/checkpoints/step_0.safetensors')
    if moment == 'while it saves' and '.safetensors.' in name or moment == 'when it is saved' and is_saved:
        os.kill(os.getpid(), signal.SIGINT)
    sync(file)

moment, sync, os.fsync = sys.argv[2], os.fsync, fsync
logging.getLogger('zoo').setLevel('INFO')
logging.getLogger('zoo.tools.imitation.pretrain').addHandler(Twice())
pretrain('cartpole_ppo', 'a.npz', overrides=sys.argv[3:], epoch=50, run_dir=sys.argv[1] or None)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    'moment, place',
    [
        ('in an epoch', 'new'),
        ('in an epoch', 'there'),
        ('while it saves', 'there'),
        ('while it saves', ''),
        ('when it is saved', ''),
        ('when it is saved', 'new'),
    ],
)
def test_second_ctrl_c_leaves_nothing_or_what_can_be_loaded(moment: str, place: str, tmp_path: Path) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(20, 100))
    (tmp_path / 'twice.py').write_text(TWICE)
    (tmp_path / 'there').mkdir()
    (tmp_path / 'there' / 'notes.txt').write_text('mine')
    done = run_python('twice.py', place, moment, *SHORT, cwd=tmp_path)
    assert done.returncode == 130 and 'Traceback' not in done.stderr, done.stderr
    found = [file.parent for file in tmp_path.rglob('config.yaml')]
    if moment == 'when it is saved':
        assert len(found) == 1 and load_policy(found[0]).act(lean(1, 5).obs.numpy()).shape == (5,)
    else:
        files = [file for file in tmp_path.rglob('*') if file.is_file() and file.suffix != '.pyc']
        left = {str(file.relative_to(tmp_path)) for file in files}
        assert left == {'a.npz', 'twice.py', 'there/notes.txt'} and not (tmp_path / 'new').exists()
        assert not list(tmp_path.glob('runs/*/*')) and sorted(os.listdir(tmp_path / 'there')) == ['notes.txt']
    assert (tmp_path / 'there' / 'notes.txt').read_text() == 'mine'


@pytest.mark.slow
@pytest.mark.parametrize(
    'config, words',
    [
        ('pendulum_ppo', []),
        ('pendulum_ppo', ['policy.model.distribution=squashed_gaussian']),
        ('cartpole_ppg', []),
        ('taxi_ppo', []),
        ('remember_cue_ppo', []),
    ],
)
def test_kinds_of_policies_come_nearer_to_what_was_shown(config: str, words: list[str], tmp_path: Path) -> None:
    expert = make_policy(config, [*SHORT, *words, 'seed=1'])
    section = resolve_config(config, words).env
    demos, _ = record_demonstrations(expert, dict(section), 3, deterministic=False)
    save_demonstrations(tmp_path / 'a.npz', demos)
    policy = make_policy(config, [*SHORT, *words])
    first = mean_loss(Student(policy, demos, resolve_config(config, words)))
    found = pretrain(config, str(tmp_path / 'a.npz'), overrides=[*SHORT, *words], epoch=3, run_dir=tmp_path / 'run')
    assert mean_loss(Student(found.policy, demos, resolve_config(config, words))) < first


@torch.no_grad()
def mean_loss(one: Student) -> float:
    return float(torch.cat([one.judge(batch)[0] for batch in one.batches(one.episodes, 256, None)]).mean())


@pytest.mark.parametrize(
    'options, words',
    [
        ({'epoch': 0}, 'epoch is 0'),
        ({'batch_size': 0}, 'batch_size is 0'),
        ({'learning_rate': 0.0}, 'above 0'),
        ({'learning_rate': 2.0}, 'at most 1'),
    ],
)
def test_numbers_without_meaning_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        pretrain('cartpole_ppo', 'a.npz', run_dir=tmp_path / 'run', **options)


def test_policy_without_a_distribution_is_refused(tmp_path: Path) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(2, 10))
    with pytest.raises(UserError, match="policy 'dqn' has no distribution"):
        pretrain('cartpole_dqn', str(tmp_path / 'a.npz'), run_dir=tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


def test_steps_before_a_time_limit_teach_the_critic_less() -> None:
    """The weight is 1 - gamma^k, k steps before a time limit; 1 if the episode terminated."""
    demos = lean(2, 3)._replace(terminated=np.array([False, True]))
    one = student('cartpole_ppo', demos, 'policy.collect.discount_factor=0.5')
    np.testing.assert_allclose(one.known, [1 - 0.125, 1 - 0.25, 1 - 0.5, 1, 1, 1])
    with torch.no_grad():
        for p in one.policy.model.parameters():
            p.zero_()
    np.testing.assert_allclose(one.judge(torch.arange(6))[1].detach(), one.return_.square() * one.known, rtol=1e-6)


def test_a_tenth_is_held_out_whole_episodes_where_there_are_several() -> None:
    episodes = [slice(10 * i, 10 * i + 10) for i in range(20)]
    used, held = split(episodes, np.random.default_rng(0))
    assert len(held) == 2 and sorted([*used, *held], key=lambda each: each.start) == episodes
    assert split(episodes[:1], np.random.default_rng(0)) == ([slice(0, 9)], [slice(9, 10)])


def test_action_that_its_mask_forbids_is_refused() -> None:
    env = {'id': 'any_space', 'kwargs': {'obs': 'nested_mask', 'action': 'discrete'}}
    policy = make_policy({'env': env})
    demos, _ = record_demonstrations(policy, env, 2)
    mask = demos.obs['action_mask']
    step = int((~mask).any(1).nonzero()[3])
    demos.action[''][step] = int((~mask[step]).nonzero()[0]) + policy.action_space.start
    with pytest.raises(
        UserError, match=f'1 of {demos.n_step} demonstrated actions .* first that of step {step}: the action mask'
    ):
        Student(policy, demos, resolve_config({'env': env}))


@pytest.mark.slow
def test_deviation_of_actions_is_put_back_unless_it_is_to_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The expert is deterministic, so imitation lowers the policy's deviation; the option does not change greedy actions."""
    obs = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    action = obs[:, :1].tanh().numpy()
    demos = Demonstrations(obs, {'': action}, np.arange(1, 5) * 100)
    save_demonstrations(tmp_path / 'a.npz', demos)
    config, options = 'pendulum_ppo', {'overrides': SHORT, 'epoch': 20}
    kept = pretrain(config, str(tmp_path / 'a.npz'), run_dir=tmp_path / 'a', keep_std=True, **options)
    with caplog.at_level('INFO'):
        back = pretrain(config, str(tmp_path / 'a.npz'), run_dir=tmp_path / 'b', **options)
    assert kept.policy.model.policy_head.log_std.item() < -0.05 and 'put back to 1' in caplog.text
    saved, new = (each.model.policy_head.log_std.item() for each in (load_policy(tmp_path / 'b'), make_policy(config)))
    assert saved == new
    assert (back.policy.act(obs) == kept.policy.act(obs)).all()


@pytest.mark.slow
def test_frozen_parts_do_not_imitate(tmp_path: Path) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(4, 50))
    words = [*SHORT, 'policy.learn.freeze=[actor_encoder]']
    found = pretrain('cartpole_ppo', str(tmp_path / 'a.npz'), overrides=words, epoch=2, run_dir=tmp_path / 'run').policy
    new = make_policy('cartpole_ppo', words).model.state_dict()
    same = {name.partition('.')[0] for name, x in found.model.state_dict().items() if torch.equal(x, new[name])}
    assert same == {'actor_encoder'}


def test_folder_of_a_run_is_left_as_it_is(tmp_path: Path) -> None:
    save_demonstrations(tmp_path / 'a.npz', lean(2, 10))
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'config.yaml').write_text('mine')
    with pytest.raises(UserError, match='run is the folder of a run; name another one'):
        pretrain('cartpole_ppo', str(tmp_path / 'a.npz'), overrides=SHORT, run_dir=tmp_path / 'run')
    assert [path.name for path in (tmp_path / 'run').iterdir()] == ['config.yaml']
    assert (tmp_path / 'run' / 'config.yaml').read_text() == 'mine'


def test_imitation_that_fails_says_so_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_gradients(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        for p in parameters:
            if p.grad is not None:
                p.grad.fill_(math.nan)

    save_demonstrations(tmp_path / 'a.npz', lean(4, 50))
    monkeypatch.setattr(torch.nn.utils, 'clip_grad_norm_', lose_gradients)
    with pytest.raises(UserError, match='the loss of epoch 1 is nan; lower --learning-rate'):
        pretrain('cartpole_ppo', str(tmp_path / 'a.npz'), overrides=SHORT, run_dir=tmp_path / 'run')
    assert read_run(tmp_path / 'run').state == 'failed' and not list((tmp_path / 'run').glob('checkpoints/*'))
