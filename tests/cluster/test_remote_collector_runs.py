"""Runs with runners equal serial runs bit for bit, and lost runners change no count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import zoo.cluster.remote_collector as engine_module
from tests.policy_envs import differing, rows
from zoo import TrainResult, serial_pipeline
from zoo.cluster.engine import InlineEngine
from zoo.cluster.messages import Lost, Reply, Request
from zoo.core.errors import UserError
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

BASE = ('policy.eval.n_episode=2', 'logger.freq=1', 'logger.console=off')
RUNNERS = ('cluster.runner_num=2', 'cluster.engine=inline')
NOT_EQUAL = ('time', 'cluster/', 'collect/lag_', 'memory/')


def train(folder: Path, config: Any, n_step: int, *overrides: str) -> tuple[TrainResult, list[dict[str, Any]]]:
    result = serial_pipeline(config, max_env_step=n_step, overrides=[f'logger.root={folder}', *BASE, *overrides])
    return result, rows(result.run_dir)


def assert_same(serial: tuple[TrainResult, Any], remote: tuple[TrainResult, Any]) -> None:
    """Asserts that the policies of two runs are equal bit for bit, and their logs equal except for metrics of runners."""
    assert not differing(serial[0].policy.state_dict(), remote[0].policy.state_dict())
    assert comparable(serial[1]) == comparable(remote[1])


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: x for key, x in row.items() if not key.startswith(NOT_EQUAL)} for row in lines]


CASES = {
    'discrete actions, rows that only reset': ('cartpole_ppo', 3072, ()),
    'continuous actions': ('pendulum_ppo', 4096, ()),
    'normalised observations and rewards': ('acrobot_ppo', 4096, ('policy.model.obs_norm=true', 'policy.learn.reward_norm=true')),
    'two auxiliary phases': ('cartpole_ppg', 4096, ('policy.learn.aux_freq=2',)),
    'a buffer': ('cartpole_ppg_offpolicy', 3072, ()),
    'exploration that follows env steps': ('cartpole_dqn', 2048, ()),
    'acting in PyTorch, with weights at any address': ('pendulum_ppo', 4096, ('policy.learn.executor=eager',)),
    'acting in PyTorch, on rows at any address': (
        'halfcheetah_ppo',
        256,
        ('policy.learn.executor=eager', 'policy.model.obs_norm=false', 'env.collector_env_num=4', 'policy.collect.n_step=32',
         'policy.learn.batch_size=32'),
    ),
    'a recurrent state': ('remember_cue_ppo', 2048, ()),
    'recorded parts of a recurrent state': ('remember_cue_ppo', 2048, ('policy.model.recurrent={cell: trxl, memory: 8}',)),
    'masks, the own numbers of envs and columns of infos': (
        'taxi_ppo',
        2048,
        ('env.info_columns=[prob]', 'logger.info_keys=[prob]', 'logger.info_step_keys=[prob]'),
    ),
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize('name', CASES)
def test_two_runners_end_with_the_bits_of_two_groups(tmp_path: Path, name: str) -> None:
    config, n_step, overrides = CASES[name]
    serial = train(tmp_path, config, n_step, *overrides, 'env.collector_group_num=2')
    remote = train(tmp_path, config, n_step, *overrides, *RUNNERS)
    assert_same(serial, remote)
    assert any('cluster/runner' in row for row in remote[1])
    assert not any('cluster/runner' in row for row in serial[1])


class Dotted(gymnasium.Env[Any, Any]):
    """Observations with the names 'a' and 'a.b'; an episode has 6 steps."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {'a': gymnasium.spaces.Box(-1, 1, (2,)), 'a.b': gymnasium.spaces.Box(-1, 1, (3,))}
    )
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(action), self.t == 6, False, {}

    def _obs(self) -> dict[str, Any]:
        return {
            name: self.np_random.uniform(-1, 1, n_number).astype(np.float32)
            for name, n_number in (('a', 2), ('a.b', 3))
        }


def test_names_of_observations_may_have_dots(tmp_path: Path) -> None:
    config = {
        'env': {'id': 'tests.cluster.test_remote_collector_runs:Dotted', 'collector_env_num': 2},
        'policy': {'collect': {'n_step': 32}, 'learn': {'batch_size': 64}},
    }
    assert_same(train(tmp_path, config, 64, 'env.collector_group_num=2'), train(tmp_path, config, 64, *RUNNERS))


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_one_rollout_behind_is_the_same_each_time(tmp_path: Path) -> None:
    one, two = (train(tmp_path, 'cartpole_ppo', 4096, *RUNNERS, 'cluster.max_lag=1') for _ in range(2))
    assert_same(one, two)
    lags = [row['collect/lag_max'] for row in one[1] if 'collect/lag_max' in row]
    assert lags == [0, *[1] * (len(lags) - 1)] and len(lags) > 3  # rollout 0 has no older weights to act with


@pytest.mark.slow
def test_a_resumed_run_continues_with_runners(tmp_path: Path) -> None:
    first, _ = train(tmp_path, 'cartpole_ppo', 2048, *RUNNERS)
    result = serial_pipeline(resume=first.run_dir, overrides=['max_env_step=4096', *BASE])
    assert 4096 - 1024 < result.env_step <= 4096 and result.env_step > first.env_step


class LosingEngine(InlineEngine):
    """Loses runner 1 at its third request, and delivers the latest earlier reply again before each new one."""

    def __init__(self) -> None:
        super().__init__()
        self.n_request, self.sent = 0, []  # type: ignore[var-annotated]

    def ask(self, request: Request) -> None:
        super().ask(request)
        self.n_request += request.group
        if self.n_request == 3 and request.group == 1:
            self.kill(1, 'its process was ended by signal 9')

    def wait(self, timeout: float) -> list[Reply | Lost]:
        found = super().wait(timeout)
        again, self.sent = self.sent[-1:], [*self.sent, *(item for item in found if isinstance(item, Reply))]
        return [*again, *found] if found else found


@pytest.mark.slow
@pytest.mark.parametrize('max_lag', [0, 1])
def test_a_lost_runner_changes_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_lag: int) -> None:
    monkeypatch.setattr(engine_module, 'InlineEngine', LosingEngine)
    extra = ('env.vectorization=sync', 'policy.learn.reward_norm=true', f'cluster.max_lag={max_lag}')
    result, lines = train(tmp_path, 'cartpole_ppo', 5120, *RUNNERS, *extra)
    assert result.env_step == 5120  # sync envs have no rows that only reset an env
    assert lines[-2]['cluster/restart'] == 1 and lines[-2]['cluster/discarded_step'] > 0
    steps = [row['env_step'] for row in lines if 'collect/iter' in row]
    assert steps == sorted(set(steps))
    assert max(row.get('collect/episode_len_mean', 0) for row in lines) <= 500  # no two episodes were joined


@pytest.mark.slow
def test_the_unfinished_episodes_of_a_lost_runner_leave_the_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, 'InlineEngine', LosingEngine)
    config = {
        'env': {'id': 'Pendulum-v1', 'collector_env_num': 4, 'max_episode_steps': 20, 'vectorization': 'sync'},
        'policy': {'type': 'ppo', 'collect': {'n_sample': 64}, 'learn': {'batch_size': 64, 'reward_norm': True}},
    }
    _, lines = train(tmp_path, config, 512, *RUNNERS)  # rollouts of 16 steps: each loss is within an episode
    last = [row for row in lines if 'collect/episode_len_mean' in row][-1]
    assert last['collect/episode_len_mean'] == 20.0 and last['cluster/restart'] == 1


GROUPS = 'env.vectorization=sync', 'env.collector_group_num=4'
STEERED = (
    'env.vectorization=sync',
    'env.schedule={gravity: {start: 9.8, end: 1.0, over: 2000}}',
    'env.reset_options={low: -0.2, high: 0.2}',
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('of_both', 'of_serial'),
    [(GROUPS, ()), (STEERED, ('env.collector_group_num=2',))],
    ids=['two groups in each runner', 'schedules and reset options'],
)
def test_envs_of_runners_are_those_of_groups(
    tmp_path: Path, of_both: tuple[str, ...], of_serial: tuple[str, ...]
) -> None:
    serial = train(tmp_path, 'cartpole_ppo', 2048, *of_both, *of_serial)
    assert_same(serial, train(tmp_path, 'cartpole_ppo', 2048, *of_both, *RUNNERS))


@pytest.mark.slow
def test_envs_of_runners_are_read_and_set(tmp_path: Path) -> None:
    overrides = [f'logger.root={tmp_path}', *BASE, *RUNNERS, 'env.vectorization=sync']
    with SerialJob(resolve_config('cartpole_ppo', overrides)) as job:
        n_env = job.cfg.env.collector_env_num
        assert job.envs.get_attr('gravity', of='training') == [9.8] * n_env
        job.envs.set_attr('gravity', 5.0, of='training')
        job.iteration()
        assert job.envs.get_attr('gravity', of='training') == [5.0] * n_env
        job.collector.engine.kill(1, 'a test')  # type: ignore[attr-defined]
        job.iteration()
        assert job.envs.get_attr('gravity', of='training') == [5.0] * n_env  # also in the replacement
        assert job.collector.metrics()['cluster/restart'] == 1


@pytest.mark.slow
def test_envs_are_not_reset_while_runners_are_ahead(tmp_path: Path) -> None:
    overrides = [f'logger.root={tmp_path}', *BASE, *RUNNERS]
    with SerialJob(resolve_config('cartpole_ppo', [*overrides, 'cluster.max_lag=1'])) as job:
        job.reset_env()  # allowed: no rollout has been requested yet
        job.iteration()
        with pytest.raises(UserError, match='cannot be reset now: cluster.max_lag is 1, .*; use cluster.max_lag=0'):
            job.reset_env()
    with SerialJob(resolve_config('cartpole_ppo', [*overrides, 'env.reset_every=2'])) as job:
        for _ in range(3):
            job.iteration()
        assert job.collector.episodes.n_reset >= 2 * job.cfg.env.collector_env_num


def test_tensor_envs_with_runners_are_refused(tmp_path: Path) -> None:
    config = {'env': {'id': 'torch', 'game': 'CartPole-v1'}, 'policy': {'type': 'ppo'}}
    with pytest.raises(UserError, match="env 'torch/CartPole-v1' is a tensor program, .*; use runner_num=0"):
        train(tmp_path, config, 2048, *RUNNERS)
