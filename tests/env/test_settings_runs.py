"""Envs whose settings follow the env steps of a run; the samples of a rollout that a policy learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy_envs import differing, flat, job_config, rows, run_config
from zoo import Callback, evaluate, load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.run.checkpoint import consent
from zoo.run.checkpoint.file import CheckpointError
from zoo.run.config import resolve_config

STEER, OTHER = 'tests.steer_envs:steer_env', 'tests.steer_envs:SteerEnv'
WIND = {'wind': {'start': 0.0, 'end': 256.0}}  # over 256 env steps, so the wind equals the env step


class Keeps(Callback):
    """Callback that copies each rollout and its samples, and the winds of the envs."""

    def __init__(self) -> None:
        self.rollouts: list[Any] = []
        self.samples: list[Any] = []
        self.winds: list[Any] = []
        self.eval_winds: list[Any] = []

    def on_rollout(self, job: Any, rollout: Any) -> None:
        self.rollouts.append({name: x.clone() for name, x in rollout.data.items()})
        self.winds.append(job.envs.get_attr('wind', of='training'))

    def on_samples(self, job: Any, samples: Any) -> None:
        self.samples.append({name: x.clone() for name, x in samples.items()})

    def on_evaluate(self, job: Any, evaluation: Any) -> None:
        self.eval_winds.append(job.envs.get_attr('wind', of='evaluation'))


def train(root: Path, name: str = '', **sections: Any) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Trains 4 envs for 256 env steps, 16 steps per rollout; returns (result, its `Keeps`, log). name: of the policy."""
    keeps = Keeps()
    cfg = run_config(root, name, STEER, **sections) if name else job_config(root, STEER, **sections)
    result = serial_pipeline(cfg, callbacks=[keeps])
    return result, keeps, rows(result.run_dir)


def winds(log: list[dict[str, Any]]) -> dict[int, float]:
    return {row['env_step']: row['env/schedule/wind'] for row in log if 'env/schedule/wind' in row}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_a_schedule_is_applied_at_each_rollout_and_evaluation_and_logged(tmp_path: Path, how: str) -> None:
    env = dict(schedule=WIND, vectorization=how, collector_env_num=2)
    policy = dict(collect=dict(n_step=32), eval=dict(eval_freq=128))
    _, keeps, log = train(tmp_path, env=env, policy=policy)
    assert keeps.winds == [[float(step)] * 2 for step in (0, 64, 128, 192)]
    assert keeps.rollouts[1]['obs'][1:, :, 2].unique().tolist() == [64.0]  # obs[2] is the wind
    assert winds(log) == {64: 0.0, 128: 64.0, 192: 128.0, 256: 192.0}
    assert keeps.eval_winds == [[128.0] * 2, [256.0] * 2]


def test_evaluation_envs_may_have_a_schedule_of_their_own(tmp_path: Path) -> None:
    policy = dict(eval=dict(eval_freq=128, env={'schedule': {'wind': 7.0}}))
    _, keeps, _ = train(tmp_path, env=dict(schedule=WIND), policy=policy)
    assert keeps.winds[1] == [64.0] * 4 and keeps.eval_winds == [[7.0] * 2] * 2


def test_an_evaluation_on_another_env_has_neither_schedule_nor_options_of_training(tmp_path: Path) -> None:
    policy = dict(eval=dict(eval_freq=128, sets={'other': {'id': OTHER}}))
    _, keeps, _ = train(tmp_path, env=dict(schedule=WIND, reset_options={'goal': 4.0}), policy=policy)
    assert keeps.eval_winds == [[128.0] * 2 + [0.5] * 2, [256.0] * 2 + [0.5] * 2]


@pytest.mark.parametrize('key', ['env', 'policy.eval.env', 'policy.eval.sets.far'])
@pytest.mark.parametrize(
    ('section', 'words'),
    [
        ({'schedule': {'winds': 1.0}}, r"schedule.winds: .*did you mean 'wind'"),
        ({'schedule': {'title': 1.0}}, r"schedule.title: it is 'sea' \(str\)"),
        ({'id': 'tests.steer_envs:NoOptionsEnv', 'reset_options': {'goal': 1.0}}, 'reset_options is set but'),
    ],
)
def test_what_the_envs_refuse_is_said_with_its_key(tmp_path: Path, key: str, section: Any, words: str) -> None:
    env, differs = {'check': False}, {'check': False, **section}
    options: Any = {'env': {}, 'policy.eval.env': {'env': differs}}.get(key, {'sets': {'far': differs}})
    with pytest.raises(UserError, match=f'^{key}.{words}'):
        train(tmp_path, env=env | (section if key == 'env' else {}), policy=dict(eval=options))


@pytest.mark.slow
def test_a_schedule_continues_at_a_resume(tmp_path: Path) -> None:
    cfg = dict(env=dict(schedule=WIND), max_env_step=512)
    whole, _, log = train(tmp_path / 'whole', **cfg)
    first, _, _ = train(tmp_path / 'part', **cfg, checkpoint=dict(freq=256), policy=dict(eval=dict(eval_freq=10**6)))
    path = next(p for p in sorted(first.run_dir.rglob('*')) if '256' in p.name)
    keeps = Keeps()
    again = serial_pipeline(resume=path, overrides=[f'logger.root={tmp_path / "again"}'], callbacks=[keeps])
    assert keeps.winds[0] == [128.0] * 4 and again.env_step == 512  # 256 / 512 of the schedule
    assert winds(rows(again.run_dir))[512] == winds(log)[512] == 448 / 2


def test_a_callback_changes_training_and_evaluation_envs(tmp_path: Path) -> None:
    class Harder(Callback):
        def on_update(self, job: Any, metrics: Any) -> None:
            if job.env_step >= 128:
                job.envs.set_attr('wind', 3.0)

    keeps = Keeps()
    cfg = job_config(tmp_path, STEER, policy=dict(eval=dict(eval_freq=128)))
    serial_pipeline(cfg, callbacks=[Harder(), keeps])
    assert keeps.winds == [[0.5] * 4] * 2 + [[3.0] * 4] * 2
    assert keeps.eval_winds[-1] == [3.0] * 2


def test_options_follow_the_run_and_are_there_at_its_first_reset(tmp_path: Path) -> None:
    options = {'goal': {'points': [[0, 1.0], [100, 2.0]], 'kind': 'step'}}
    _, keeps, _ = train(tmp_path, env=dict(reset_options=options))
    goals = [rollout['obs'][..., 1].unique().tolist() for rollout in keeps.rollouts]
    assert goals == [[1.0], [1.0], [1.0, 2.0], [2.0]]  # running episodes keep their goal


@pytest.mark.slow
def test_envs_are_reset_every_so_many_rollouts(tmp_path: Path) -> None:
    """rl8 resets the envs before each rollout: in 16 steps each env ends 3 episodes of 5 steps, and 1 step is lost."""
    _, keeps, log = train(tmp_path, env=dict(reset_every=1))
    assert all(rollout['obs'][0, :, 0].tolist() == [0.0] * 4 for rollout in keeps.rollouts)
    lines = [row for row in log if 'collect/episode' in row]
    assert [(row['env_step'], row['collect/episode']) for row in lines] == [(64 * n, 12 * n) for n in (1, 2, 3, 4)]
    assert lines[-1]['collect/return_mean'] == 5.0
    _, keeps, _ = train(tmp_path, env=dict(reset_every=2))
    assert [rollout['obs'][0, 0, 0].item() for rollout in keeps.rollouts] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize('env', [dict(reset_every=1), dict(reset_every=2), {}])
def test_a_resume_counts_the_resets_of_the_envs_once(tmp_path: Path, env: dict[str, Any]) -> None:
    """Rollouts of 16 steps, episodes of 5. The resume resets the 4 envs; this counts only if no reset was due anyway."""
    cfg = dict(env=env, policy=dict(eval=dict(eval_freq=1024)))
    *_, whole = train(tmp_path / 'whole', **cfg)
    half, *_ = train(tmp_path / 'half', max_env_step=128, **cfg)
    serial_pipeline(resume=half.run_dir, max_env_step=256)
    resets = [[row['env/reset'] for row in log if 'env/reset' in row] for log in (whole, rows(half.run_dir))]
    more = 0 if env else 4
    assert resets[1] == [n if i < 2 else n + more for i, n in enumerate(resets[0])] and len(resets[0]) == 4


@pytest.mark.slow
def test_a_run_that_resets_at_each_rollout_resumes_bit_for_bit(tmp_path: Path) -> None:
    cfg = dict(env=dict(id='CartPole-v1', vectorization='sync', reset_every=1))
    whole = serial_pipeline(job_config(tmp_path / 'whole', **cfg))
    part = serial_pipeline(job_config(tmp_path / 'part', **cfg), max_env_step=128)
    again = serial_pipeline(resume=part.run_dir, max_env_step=256)
    assert again.env_step == whole.env_step
    assert not differing(flat(again.policy.state_dict()), flat(whole.policy.state_dict()))


@pytest.mark.parametrize(
    ('name', 'autoreset'),
    [
        *(('ppo', autoreset) for autoreset in ('same_step', 'next_step', 'disabled')),
        ('ppg', 'next_step'),
        ('a2c', 'disabled'),
        ('ppo_offpolicy', 'same_step'),
    ],
)
def test_whole_episodes_train_and_cut_ones_do_not(tmp_path: Path, name: str, autoreset: str) -> None:
    """Episodes of 3, 5, 7 steps end with rows 2, 7, 14 of 16 rows, and the episode of row 15 is cut. With rows that only
    reset an env, the third episode is cut before its last step."""
    env = dict(kwargs={'lengths': [3, 5, 7]}, autoreset=autoreset, action_mask='off')
    _, keeps, _ = train(tmp_path, name, env=env, policy=dict(collect=dict(batch_mode='episode')))
    for samples, rollout in zip(keeps.samples, keeps.rollouts, strict=True):
        weight = samples['weight'].view(16, 4)
        if autoreset == 'next_step':  # rows 3 and 9 are resets; 6 of 7 steps of episode 3 fit
            kept = [0, 1, 2, 4, 5, 6, 7, 8]
        else:
            kept = list(range(15))
        first = rollout['obs'][:, 0, 0].tolist()
        assert first[0] == 0.0
        if first[3] == 0.0 or autoreset == 'next_step':  # the rollout begins with an episode of 3
            assert weight[:, 0].nonzero().flatten().tolist() == kept
        assert weight.mean().item() == pytest.approx(1.0, abs=1e-6)
        assert len(weight[weight > 0].unique()) == 1


@pytest.mark.parametrize('name', ['ppo', 'ppg'])
def test_samples_that_nothing_is_learned_from_are_not_logged_as_trained_on(tmp_path: Path, name: str) -> None:
    """Each episode has 5 steps and one row that only resets the env: 13 or 14 of 16 rows are steps."""
    _, keeps, log = train(tmp_path, name, env=dict(autoreset='next_step'))
    assert all((samples['weight'] == 0).any() for samples in keeps.samples)
    logged = [row['learn/sample'] for row in log if 'learn/sample' in row]
    assert logged[-1] == sum(int((samples['weight'] > 0).sum()) for samples in keeps.samples) < 256


def test_a_rollout_without_a_whole_episode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'no episode ended within a rollout of 16 steps in each of 4 envs.*n_step'):
        train(tmp_path, env=dict(kwargs={'lengths': [50]}), policy=dict(collect=dict(batch_mode='episode')))


@pytest.mark.slow
def test_episodes_longer_than_a_rollout_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = dict(collect=dict(batch_mode='episode', n_step=64))
    serial_pipeline(job_config(tmp_path, 'CartPole-v1', policy=policy))
    assert 'a rollout has 64 steps in each env and episodes may last 500' in caplog.text
    caplog.clear()
    serial_pipeline(job_config(tmp_path, 'CartPole-v1', policy=policy, env=dict(max_episode_steps=64)))
    assert 'batch_mode' not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'executor'),
    [('ppo', 'auto'), ('ppo', 'eager'), ('ppg', 'auto'), ('ppg_offpolicy', 'auto'), ('a2c', 'eager')],
)
def test_info_columns_reach_the_samples_and_change_no_parameter(tmp_path: Path, name: str, executor: str) -> None:
    policy = dict(learn=dict(executor=executor))
    env = dict(info_columns=['step', 'even', 'place'])
    plain, _, _ = train(tmp_path, name, policy=policy)
    result, keeps, _ = train(tmp_path, name, policy=policy, env=env)
    assert keeps.samples[0]['info/step'].view(16, 4)[:6, 0].tolist() == [1.0, 2, 3, 4, 5, 1]
    assert keeps.samples[0]['info/place'].shape == (64, 2)
    assert not differing(flat(result.policy.state_dict()), flat(plain.policy.state_dict()))


def test_a_policy_of_the_users_own_learns_from_an_info_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.policy.ppo import PPOPolicy

    monkeypatch.setattr(POLICY_REGISTRY, 'entries', dict(POLICY_REGISTRY.entries))  # other tests list all policies

    seen: list[torch.Tensor] = []

    def train_sample(self: Any, rollout: Any) -> Any:
        rollout.data['reward'] = rollout.data['reward'] + rollout.data['info/step']
        seen.append(rollout.data['reward'].clone())
        return PPOPolicy._get_train_sample(self, rollout)

    PPOPolicy.with_updates('paid_by_info', _get_train_sample=train_sample)
    train(tmp_path, policy=dict(type='paid_by_info'), env=dict(info_columns=['step']))
    assert seen[0][:6, 0].tolist() == [2.0, 3, 4, 5, 6, 2]


@pytest.mark.slow
def test_schedules_are_completed_and_the_run_of_a_longer_resume_stretches_them(tmp_path: Path) -> None:
    cfg = resolve_config(job_config(tmp_path, STEER, env=dict(schedule=WIND, reset_options={'goal': WIND['wind']})))
    assert cfg.env.schedule.wind.over == cfg.env.reset_options.goal.over == 256
    part, _, _ = train(tmp_path, env=dict(schedule=WIND), max_env_step=128)
    again = serial_pipeline(resume=part.run_dir, max_env_step=512)
    assert winds(rows(again.run_dir))[512] == 448 / 2


def test_an_evaluation_without_a_run_has_the_last_values_of_schedules(tmp_path: Path) -> None:
    result, _, _ = train(tmp_path, env=dict(schedule=WIND))
    seen: list[Any] = []
    policy = load_policy(result.run_dir)
    env = dict(id=STEER, schedule={'wind': {'start': 1.0, 'end': 2.0, 'over': 10}}, evaluator_env_num=1)
    forward = policy._forward_eval
    policy._forward_eval = lambda obs, state=None: (seen.append(obs[0, 2].item()), forward(obs, state))[1]
    evaluate(policy, env, n_episode=1)
    assert set(seen) == {2.0}


@pytest.mark.slow
def test_a_buffer_keeps_info_columns_over_a_resume(tmp_path: Path) -> None:
    cfg = dict(env=dict(info_columns=['step']), max_env_step=128)
    part, _, _ = train(tmp_path, 'ppo_offpolicy', **cfg)
    again = serial_pipeline(resume=part.run_dir, max_env_step=256)
    assert again.env_step == 256


def test_code_that_a_checkpoint_names_for_its_options_needs_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = dict(reset_options='tests.env.test_settings:goal_of')
    part, _, _ = train(tmp_path, env=env, max_env_step=128)
    monkeypatch.setattr(consent, 'given', {STEER})
    with pytest.raises(CheckpointError, match=r'env.reset_options is .*goal_of'):
        serial_pipeline(resume=part.run_dir, max_env_step=256)
    again = serial_pipeline(resume=part.run_dir, max_env_step=256, trust=['tests.env.test_settings'])
    assert again.env_step == 256
