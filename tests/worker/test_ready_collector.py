"""Rollouts of envs that step asynchronously: every transition once and in order, cuts, ages, counts and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.core.data import Rollout
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_env_groups
from zoo.env.interface import EnvCommand
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_policy
from zoo.run.job import SerialJob
from zoo.worker.ready_collector import ReadyCollector, env_order

LEDGER = 'tests.worker.ledger_env:LedgerEnv'
N_ENV, N_STEP = 4, 8
INDEX, EPISODE, STEP, ACTION = range(4)  # of its observations


@contextmanager
def collecting(
    n_ready: int, n_step: int = N_STEP, policy: Any = None, **env: Any
) -> Iterator[tuple[ReadyCollector, Any, Any]]:
    section = EnvConfig(**{'id': LEDGER, 'collector_env_num': N_ENV, 'ready_num': n_ready, **env})
    (envs,) = make_env_groups(section)
    try:
        cfg = resolve_policy(
            dict(type='ppo', collect=dict(n_step=n_step), model=dict(hidden_sizes=[8]), **(policy or {}))
        )
        acting: Any = PPOPolicy(cfg, envs.obs_space, envs.action_space)
        collector = ReadyCollector([envs], acting.collect_mode)
        collector.reset(stream(0, 'test'))
        yield collector, acting, envs
    finally:
        envs.close()


def rows(rollout: Rollout) -> dict[str, np.ndarray]:
    return {name: x[:, 0].numpy().copy() for name, x in rollout.data.items() if isinstance(x, torch.Tensor)}


def test_env_order_of_a_hand_made_rollout_goes_env_by_env() -> None:
    # envs 0 and 1 begin; then 2 and 0 answer, then 0 and 2: env 1 gives nothing
    order = env_order(np.array([[0, 1], [2, 0], [0, 2]]))
    assert order.env.tolist() == [0, 0, 2, 2]
    assert order.result.tolist() == [1, 2, 0, 3]  # places in [[2, 0], [0, 2]]
    # env 0 was acted for in row 0 and, after its answer, in row 1; env 2 before the rollout, then in row 1
    assert order.source.tolist() == [0, 3, -1, 2]
    assert order.place.tolist() == [0, 1, 0, 1]


def next_row(row: np.ndarray, action: int) -> list[float]:
    """The observation that follows one of LedgerEnv: steps 1, 2, 3 of an episode, then the next episode."""
    if row[STEP] == 2:
        return [row[INDEX], row[EPISODE] + 1, 0, -1]
    return [row[INDEX], row[EPISODE], row[STEP] + 1, action]


@pytest.mark.long
@pytest.mark.parametrize('n_ready', [1, 2, 4])
@pytest.mark.slow(ci=True)
def test_every_step_of_every_env_is_one_row_in_order_over_rollouts(n_ready: int) -> None:
    with collecting(n_ready) as (collector, *_):
        follows: dict[int, list[float]] = {}
        for i in range(5):
            found = rows(collector.collect())
            assert len(found['reward']) == N_ENV * N_STEP
            assert collector.env_step == (i + 1) * N_ENV * N_STEP
            assert np.all(np.diff(found['env_index']) >= 0)  # env after env
            for obs, action, reward, env in zip(
                found['obs'], found['action'], found['reward'], found['env_index'], strict=True
            ):
                assert obs[INDEX] == env
                assert obs.tolist() == follows.get(int(env), [env, 1, 0, -1])  # no step is missing, none comes twice
                assert reward == obs[STEP] + 1
                follows[int(env)] = next_row(obs, int(action))
        assert len(follows) == N_ENV


def test_final_observations_follow_ends_and_cuts() -> None:
    with collecting(2) as (collector, *_):
        rollout = collector.collect()
        found = rows(rollout)
        after = rollout.next_obs()[:, 0].numpy()
        # the true successor: the step's own number, which is 3 at ends, where the next row is of another episode
        assert np.array_equal(after[:, STEP], found['obs'][:, STEP] + 1)
        assert np.array_equal(after[:, INDEX], found['env_index'])
        assert np.array_equal(after[:, ACTION], found['action'])
        changes = np.append(np.diff(found['env_index']) != 0, False)
        ends = found['obs'][:, STEP] == 2
        assert np.array_equal(found['is_open'], changes & ~ends)
        assert np.array_equal(found['traj_flag'], changes | ends)
        assert not found['done'].any()


def test_advantages_are_those_of_each_env_alone() -> None:
    with collecting(2) as (collector, policy, _):
        rollout = collector.collect()
        samples = policy.collect_mode.get_train_sample(rollout)
        value = policy.compute_critic(rollout.data['obs'][:, 0]).numpy()
        next_value = policy.compute_critic(rollout.next_obs()[:, 0]).numpy()
        found = rows(rollout)
        gamma, lambda_ = policy.cfg.collect.discount_factor, policy.cfg.collect.gae_lambda
        for env in range(N_ENV):  # the recursion, env by env; all ends are time limits, which bootstrap
            index = np.flatnonzero(found['env_index'] == env)
            adv = 0.0
            for n in index[::-1]:
                is_end = found['obs'][n, STEP] == 2
                delta = found['reward'][n] + gamma * next_value[n] - value[n]
                adv = delta + (0.0 if is_end or n == index[-1] else gamma * lambda_ * adv)
                assert samples['adv'][n].item() == pytest.approx(adv, abs=1e-4)
        assert torch.equal(samples['age'], torch.zeros(N_ENV * N_STEP))


def test_watchers_see_each_action_with_its_own_result() -> None:
    with collecting(2) as (collector, *_):
        seen: list[dict[str, Any]] = []
        collector.watchers.append(seen.append)
        for _ in range(2):
            collector.collect()
        assert len(seen) == 2
        for columns in seen:
            assert columns['obs'].shape[:2] == columns['action'].shape == columns['reward'].shape == (N_ENV * N_STEP, 1)
            # the reward is the number of the step, which the observation before it does not know yet
            step = columns['obs'][..., STEP]
            is_step = ~columns['is_reset'] if 'is_reset' in columns else torch.ones_like(step, dtype=torch.bool)
            assert torch.equal(columns['reward'][is_step], step[is_step] + 1)
            assert torch.equal(columns['truncated'][is_step], step[is_step] == 2)


def test_a_slow_env_is_not_waited_for_and_its_row_tells_its_age(tmp_path: Path) -> None:
    gate = tmp_path / 'gate'
    with collecting(2, kwargs=dict(gate=str(gate))) as (collector, *_):
        for _ in range(3):
            found = rows(collector.collect())
            assert set(found['env_index']) == {1, 2, 3}  # copy 0 cannot have answered
            assert not found['age'].any() or found['age'].max() <= 1
        gate.touch()
        n = 3
        while 0 not in found['env_index']:
            found = rows(collector.collect())
            n += 1
        first = np.flatnonzero(found['env_index'] == 0)[0]
        assert found['obs'][first].tolist() == [0, 1, 0, -1]
        assert found['age'][first] == n - 1  # acted in rollout 0, learned with rollout n - 1
        metrics = collector.metrics()
        assert metrics['collect/age_max'] == n - 1
        assert 0 < metrics['collect/env_share_min'] < 1
        assert collector.metrics() == {}  # of the rollouts since


def test_episodes_are_counted_by_env() -> None:
    with collecting(2, n_step=9) as (collector, *_):  # 36 steps
        collector.collect()
        tracker = collector.episodes
        assert set(tracker.newest.returns) == {6.0}  # 1 + 2 + 3
        assert set(tracker.newest.lengths) == {3}
        n = len(tracker.newest.returns)
        collector.collect()
        # an episode that spans the rollouts has all its rewards
        assert set(tracker.newest.returns) == {6.0}
        # 72 steps are at most 24 episodes; each of the 4 envs has at most 2 steps of an unfinished one
        assert 24 - 4 <= n + len(tracker.newest.returns) <= 24


def test_a_reset_drops_steps_that_are_not_answered(tmp_path: Path) -> None:
    with collecting(2) as (collector, *_):
        collector.collect()
        collector.reset(stream(0, 'test'))
        found = rows(collector.collect())
        for env in range(N_ENV):
            own = found['obs'][found['env_index'] == env]
            assert own[0, STEP] == 0 and own[0, ACTION] == -1  # a new episode


def test_a_process_that_dies_gives_rows_of_weight_0(tmp_path: Path) -> None:
    with collecting(2, kwargs=dict(gate=str(tmp_path / 'gate'), dies=2), on_error='restart', n_step=12) as (
        collector,
        *_,
    ):
        (tmp_path / 'gate').touch()
        n_row = 0
        found = rows(collector.collect())
        while not found['is_reset'].any():  # copy 1 may be slow
            n_row += N_ENV * 12
            assert collector.env_step == n_row
            found = rows(collector.collect())
        assert collector.env_step == n_row + N_ENV * 12 - 1  # the step without an answer is none
        lost = np.flatnonzero(found['is_reset'])
        env_1 = np.flatnonzero(found['env_index'] == 1)
        # the steps of the episode that broke off: the second one, in which the process died, and the first if it is here
        assert lost.tolist() == env_1[: len(lost)].tolist() and len(lost) <= 2
        assert found['obs'][lost[-1]].tolist()[:3] == [1, 1, 1]
        while len(env_1) == len(lost):
            found = rows(collector.collect())
            env_1, lost = np.flatnonzero(found['env_index'] == 1), []
        assert found['obs'][env_1[len(lost)]].tolist() == [1, 1, 0, -1]  # the new copy begins its first episode


def test_settings_reach_all_envs_between_rollouts() -> None:
    with collecting(2) as (collector, _, envs):
        collector.collect()
        envs.command(EnvCommand('set', 'shift', (10.0,)))
        collector.collect()
        found = rows(collector.collect())  # all steps of it began after the command
        assert np.array_equal(found['reward'], found['obs'][:, STEP] + 11)


def test_infos_are_columns_of_their_rows() -> None:
    with collecting(2, info_columns=['step']) as (collector, *_):
        found = rows(collector.collect())
        assert np.array_equal(found['info/step'], found['obs'][:, STEP] + 1)


@pytest.mark.parametrize(
    'change, sentence',
    [
        ({'env': dict(ready_num=3, collector_env_num=2)}, 'it must be at most env.collector_env_num, which is 2'),
        ({'env': dict(ready_num=3)}, '64 % 3 = 1 would be left over'),
        ({'env': dict(ready_num=2, vectorization='sync')}, "env.vectorization is 'sync'"),
        ({'env': dict(ready_num=2, autoreset='next_step')}, "env.autoreset is 'next_step'"),
        ({'env': dict(ready_num=2, collector_group_num=2)}, 'env.collector_group_num is 2'),
        ({'env': dict(ready_num=2, id='torch', game='CartPole-v1')}, 'steps all its envs at once'),
        ({'env': dict(ready_num=2), 'policy': dict(model=dict(recurrent=dict(cell='gru')))}, 'has a memory'),
        (
            {'env': dict(ready_num=2), 'policy': dict(collect=dict(batch_mode='episode'))},
            "policy.collect.batch_mode is 'episode'",
        ),
        ({'env': dict(ready_num=2), 'policy': dict(learn=dict(intrinsic='rnd'))}, 'policy.learn.intrinsic'),
        ({'env': dict(ready_num=2), 'logger': dict(info_step_keys=['x'])}, 'logger.info_step_keys'),
        ({'env': dict(ready_num=2), 'cluster': dict(runner_num=2)}, 'runners step their envs together'),
    ],
)
@pytest.mark.slow(ci=True)
def test_settings_that_need_steps_together_are_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    cfg = job_config(tmp_path, LEDGER, **change)
    with pytest.raises(UserError) as error:
        SerialJob(cfg)
    assert sentence in str(error.value)


def test_a_run_learns_from_all_rows_and_its_samples_carry_their_age(tmp_path: Path) -> None:
    class Ages:
        found: list[torch.Tensor] = []

        def on_samples(self, job: Any, samples: Any) -> None:
            self.found.append(samples['age'].clone())

    cfg = job_config(tmp_path, LEDGER, env=dict(ready_num=2), policy=dict(learn=dict(reward_norm=True)))
    result = serial_pipeline(cfg, callbacks=[Ages()])
    assert result.env_step == 256  # 4 rollouts of 4 envs and 16 steps
    assert [len(each) for each in Ages.found] == [64] * 4
    assert float(Ages.found[0].max()) == 0.0
