"""Env groups that step in turns: their rollouts equal those of one group, with every kind of vector env."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs import LimitEnv
from tests.gpu import needs_gpu
from tests.policy_envs import job_config
from zoo import serial_pipeline
from zoo.backend.executor import ForwardActing
from zoo.config.section import ConfigError
from zoo.core.data import map_tensors
from zoo.core.seeding import stream
from zoo.env import EnvConfig, EnvError, UnsupportedEnvError, VectorEnv, make_env_groups
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.job import SerialJob
from zoo.worker.collector import Collector, EnvGroup

CARTPOLE = dict(id='CartPole-v1', collector_env_num=6)
needs_envpool = pytest.mark.skipif(importlib.util.find_spec('envpool') is None, reason='the extra envpool is missing')
KINDS = [
    pytest.param(dict(CARTPOLE, vectorization='sync', autoreset='same_step'), 2, id='sync'),
    pytest.param(dict(CARTPOLE, vectorization='sync', autoreset='next_step'), 3, id='next_step'),
    pytest.param(dict(CARTPOLE, vectorization='sync', autoreset='disabled'), 2, id='disabled'),
    pytest.param(dict(CARTPOLE, vectorization='async'), 2, id='async'),
    pytest.param(dict(id='Pendulum-v1', collector_env_num=6, max_episode_steps=20), 3, id='box'),
    pytest.param(dict(id='envpool', game='CartPole-v1', collector_env_num=6), 2, id='envpool', marks=needs_envpool),
]


class Greedy(PPOPolicy):
    """A PPO that acts without noise, so that every way of collecting takes the same actions."""

    def _forward_collect(self, obs: torch.Tensor, state: Any = None) -> dict[str, Any]:
        output = super()._forward_collect(obs, state)
        return {**output, 'action': self._forward_eval(obs)['action'].clone()}


def collect(n_group: int, env: dict[str, Any], n_rollout: int = 3) -> tuple[list[Any], Collector]:
    groups = make_env_groups(EnvConfig(**env, collector_group_num=n_group))
    try:
        cfg = resolve_policy(dict(type='ppo', collect=dict(n_step=16), model=dict(hidden_sizes=[8])))
        policy = Greedy(cfg, groups[0].obs_space, groups[0].action_space, enable_field=['collect'])
        collector = Collector(groups, policy.collect_mode)
        collector.reset(stream(0, 'test'))
        return [clone(collector.collect()) for _ in range(n_rollout)], collector
    finally:
        for group in groups:
            group.close()


def clone(rollout: Any) -> dict[str, Any]:
    ends = [(tuple(index), obs) for index, obs in zip(rollout.final_index.tolist(), rollout.final_obs, strict=True)]
    return {**map_tensors(torch.clone, rollout.data), 'last_obs': rollout.last_obs.clone(), 'ends': dict(sorted(ends))}


@pytest.mark.slow
@pytest.mark.parametrize(('env', 'n_group'), KINDS)
def test_groups_collect_what_one_group_collects(env: dict[str, Any], n_group: int) -> None:
    (whole, one), (parts, several) = collect(1, env), collect(n_group, env)
    assert len(one.groups) == 1 and len(several.groups) == n_group
    assert sum(data['traj_flag'].sum() for data in whole) > 3  # some episodes ended, in the middle of blocks
    for got, want in zip(parts, whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)  # matrix products of 2, 3, 6 rows round differently
    assert one.env_step == several.env_step
    assert list(one.episodes.lengths) == list(several.episodes.lengths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('n_env', 'vectorization', 'device', 'n_group'),
    [
        (4, 'async', 'cpu', 2),  # processes
        (3, 'async', 'cpu', 1),
        (4, 'sync', 'cpu', 1),
        (4, 'sync', 'cuda', 2),  # envs on the host, for a policy on a GPU
        (4, 'batched', 'cuda', 2),
        (5, 'sync', 'cuda', 1),
    ],
)
def test_envs_are_in_two_groups_where_one_can_step_while_the_other_acts_if_nobody_says_how_many(
    n_env: int, vectorization: Any, device: str, n_group: int
) -> None:
    env = EnvConfig(id='CartPole-v1', collector_env_num=n_env, vectorization=vectorization)
    groups = make_env_groups(env, device)
    for group in groups:
        group.close()
    assert len(groups) == n_group


def test_batched_envs_of_a_group_have_a_seed_of_their_own() -> None:
    groups = make_env_groups(EnvConfig(**CARTPOLE, collector_group_num=2))
    first, second = (group.reset(3) for group in groups)
    assert first.shape == second.shape == (3, 4) and not torch.equal(first, second)
    assert torch.equal(groups[1].reset(3), second)


def noted(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, name: Any, order: list[str]) -> None:
    """Records the calls of a method in `order`. Args: name: computes the text for a call from the method's arguments."""
    inner = getattr(owner, method)

    def call(self: Any, *args: Any) -> Any:
        order.append(f'{method} {name(self, *args)}')
        return inner(self, *args)

    monkeypatch.setattr(owner, method, call)


def test_policy_acts_for_one_group_while_another_has_a_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two halves of a group's step the other group has a whole turn, so that acting and stepping overlap."""
    order: list[str] = []
    for method in ('act', 'step'):
        noted(monkeypatch, EnvGroup, method, lambda group, t: f'{group.env.name[-4:-1]} {t}', order)
    collect(2, dict(CARTPOLE, vectorization='sync'), n_rollout=1)
    assert order[:6] == ['act 0:3 0', 'act 3:6 0', 'step 0:3 0', 'act 0:3 1', 'step 3:6 0', 'act 3:6 1']
    assert order[-2:] == ['step 0:3 15', 'step 3:6 15'] and len(order) == 64


@pytest.mark.long
@pytest.mark.slow
def test_asynchronous_envs_have_their_actions_before_the_policy_acts_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    for method in ('send', 'receive'):
        noted(monkeypatch, VectorEnv, method, lambda env, *args: env.name[-4:-1], order)
    found = {}
    for vectorization in ('async', 'sync'):
        collect(2, dict(CARTPOLE, vectorization=vectorization), n_rollout=1)
        found[vectorization] = order[:]
        order.clear()
    beside = ['send 0:3', 'send 3:6', *['receive 0:3', 'send 0:3', 'receive 3:6', 'send 3:6'] * 15]
    assert found['async'] == [*beside, 'receive 0:3', 'receive 3:6']
    assert found['sync'] == ['send 0:3', 'receive 0:3', 'send 3:6', 'receive 3:6'] * 16


class Reusing(Greedy):
    """Returns every action in the same tensor."""

    def _forward_collect(self, obs: torch.Tensor, state: Any = None) -> dict[str, Any]:
        output = super()._forward_collect(obs, state)
        if not hasattr(self, 'place'):
            self.place = output['action']
        return {**output, 'action': self.place.copy_(output['action'])}


def test_actions_that_a_policy_overwrites_are_still_those_that_are_taken() -> None:
    env = dict(id='tests.envs:limit_env', collector_env_num=4, vectorization='sync', kwargs=dict(action='box'))
    groups = make_env_groups(EnvConfig(**env, collector_group_num=2))
    cfg = resolve_policy(dict(type='ppo', collect=dict(n_step=3)))
    policy = Reusing(cfg, groups[0].obs_space, groups[0].action_space, enable_field=['collect'])
    collector = Collector(groups, policy.collect_mode)
    collector.reset(stream(0, 'test'))
    for env_ in (one for group in groups for one in group.env.envs):
        env_.unwrapped.limit = 10**6 if env_ in groups[0].env.envs else 2  # so that observations of the groups differ
    data = collector.collect().data
    taken = [env_.unwrapped.last_action for group in groups for env_ in group.env.envs]
    assert not torch.equal(data['action'][-1, :2], data['action'][-1, 2:])
    assert data['action'][-1].clamp(-1, 1).tolist() == [action.tolist() for action in taken]


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize(
    ('env_id', 'shared_encoder', 'n_group'),
    [('CartPole-v1', False, 1), ('CartPole-v1', True, 2), ('Pendulum-v1', True, 1), ('Pendulum-v1', False, 2)],
)
def test_native_executor_collects_what_the_eager_one_collects(
    env_id: str, shared_encoder: bool, n_group: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each group draws its own noise, the same with both executors."""
    found = []
    for name in ('native', 'eager'):
        env = EnvConfig(id=env_id, collector_env_num=4, vectorization='sync', collector_group_num=n_group)
        groups = make_env_groups(env)
        cfg = dict(collect=dict(n_step=8), learn=dict(executor=name), model=dict(shared_encoder=shared_encoder))
        policy = PPOPolicy(resolve_policy(cfg), groups[0].obs_space, groups[0].action_space)
        collector = Collector(groups, policy.collect_mode)
        assert policy.executor_name.startswith(name) and isinstance(collector.groups[-1].acting, ForwardActing) == (
            name == 'eager'
        )
        collector.reset(stream(0, 'test'))
        found.append([clone(collector.collect()) for _ in range(2)])
    assert ('value' in found[0][0]) == shared_encoder
    if env_id == 'CartPole-v1':
        assert torch.equal(found[0][1]['action'], found[1][1]['action'])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_output_that_is_not_of_the_envs_is_refused() -> None:
    class Chatty(PPOPolicy):
        def _forward_collect(self, obs: torch.Tensor, state: Any = None) -> dict[str, Any]:
            return {**super()._forward_collect(obs, state), 'temperature': torch.ones(())}

    groups = make_env_groups(EnvConfig(**CARTPOLE))
    cfg = resolve_policy(dict(type='ppo', collect=dict(n_step=8)))
    policy = Chatty(cfg, groups[0].obs_space, groups[0].action_space, enable_field=['collect'])
    collector = Collector(groups, policy.collect_mode)
    collector.reset(stream(0, 'test'))
    with pytest.raises(ValueError, match=r"output 'temperature' has shape \(\) but must begin with the 6 envs"):
        collector.collect()


@pytest.mark.long
def test_run_with_groups_learns_and_resumes(tmp_path: Path) -> None:
    env = dict(collector_group_num=2, vectorization='async')
    result = serial_pipeline(job_config(tmp_path, 'CartPole-v1', env=env))
    assert result.env_step == 256
    assert serial_pipeline(None, resume=result.run_dir, overrides=['max_env_step=512']).env_step == 512
    assert multiprocessing.active_children() == []


@pytest.mark.long
def test_worker_of_a_group_that_is_killed_is_named(tmp_path: Path) -> None:
    env = dict(collector_group_num=2, vectorization='async')
    with SerialJob(resolve_config(job_config(tmp_path, 'CartPole-v1', env=env))) as job:
        job.iteration()
        os.kill(job.parts.envs[1].env.processes[0].pid, signal.SIGKILL)
        with pytest.raises(EnvError, match=r"env 'CartPole-v1\[2:4\]', index 0: its worker process died"):
            job.iteration()


@pytest.mark.slow
def test_groups_are_closed_when_one_of_them_cannot_be_made() -> None:
    parent, made = os.getpid(), []

    class Scarce(LimitEnv):
        def __init__(self) -> None:  # the parent makes one env of each group to read its spaces
            super().__init__()
            made.append(os.getpid())
            if made.count(parent) > 1:
                raise RuntimeError('no more')

    with pytest.raises(RuntimeError, match='no more'):
        make_env_groups(EnvConfig(id=Scarce, collector_env_num=4, collector_group_num=2, vectorization='async'))
    assert multiprocessing.active_children() == []


def test_bad_numbers_of_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='collector_group_num is 3: it must divide env.collector_env_num, which is 4'):
        resolve_config(job_config(tmp_path, env=dict(collector_group_num=3)))
    with pytest.raises(ConfigError, match='collector_group_num is 0'):
        resolve_config(job_config(tmp_path, env=dict(collector_group_num=0)))
    with pytest.raises(UnsupportedEnvError, match=r"'torch/CartPole-v1' is a tensor program.*; leave it out"):
        make_env_groups(EnvConfig(id='torch', game='CartPole-v1', collector_env_num=4, collector_group_num=2))


@needs_gpu
@pytest.mark.parametrize('executor', ['graph', 'eager'])
def test_envs_on_the_host_have_two_groups_where_the_policy_acts_on_a_gpu(
    tmp_path: Path, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = dict(device='cuda', learn=dict(executor=executor))
    with SerialJob(resolve_config(job_config(tmp_path, 'CartPole-v1', policy=policy))) as job:
        assert len(job.parts.envs) == 2
        for _ in range(3):
            job.iteration()
        rollout = job.collector.collect()
        want = job.policy.model.compute_actor(rollout.data['obs'].to('cuda'))
        torch.testing.assert_close(rollout.data['logit'], want, rtol=1e-4, atol=1e-5)
        assert job.policy.executor_name.startswith(executor)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
