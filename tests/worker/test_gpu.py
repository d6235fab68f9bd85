"""Rollouts as one graph equal those of single steps: a recorded graph of operations without a GPU, a CUDA graph on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.gpu import needs_gpu, no_waiting
from tests.policy_envs import job_config
from zoo.backend.graph import GraphActing
from zoo.core.data import map_tensors
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_vector_env
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.job import SerialJob
from zoo.worker import gpu as module
from zoo.worker.collector import Collector
from zoo.worker.gpu import CapturedRollout, Fetch

T, B = 6, 5


class Recorded:
    """Replaces a CUDA graph: records the operations of the second call and replays them on the same memory from then on."""

    calls: ClassVar[list[int]] = []

    def __init__(self, run: Callable[[Sequence[Tensor]], list[Tensor]], n_fixed: int) -> None:
        self._run, self._n_fixed, self.n_call = run, n_fixed, 0

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.n_call += 1
        self.calls.append(self.n_call)
        if self.n_call == 1:
            return self._run(inputs)
        fixed, others = inputs[: self._n_fixed], inputs[self._n_fixed :]
        if self.n_call == 2:
            self._fixed, self._others = fixed, [x.clone() for x in others]
            before = [x.clone() for x in fixed]
            self._graph = make_fx(lambda *x: self._run(x))(*fixed, *self._others)  # this also runs it, unlike a capture
            for x, y in zip(fixed, before, strict=True):
                x.copy_(y)
        assert all(x.data_ptr() == y.data_ptr() for x, y in zip(fixed, self._fixed, strict=True))
        for place, x in zip(self._others, others, strict=True):
            place.copy_(x)
        self._graph(*self._fixed, *self._others)
        return []


def collector_of(game: str, captured: bool) -> tuple[Collector, PPOPolicy]:
    """A collector of a tensor env that acts with the graph executor."""
    env = make_vector_env(EnvConfig(id='torch', game=game, max_episode_steps=4), B)
    cfg = resolve_policy(dict(type='ppo', device='cpu', collect=dict(n_step=T), model=dict(hidden_sizes=[8])))
    torch.manual_seed(0)
    policy = PPOPolicy(cfg, env.obs_space, env.action_space, enable_field=['collect'])
    collector = Collector([env], policy.collect_mode)
    group, generator = collector.groups[0], torch.Generator().manual_seed(3)
    group.acting = GraphActing(
        policy.model,
        policy.dist,
        group.block.obs,
        lambda n: policy.dist.noise((T, n), generator, torch.device('cpu')),
        False,
    )
    if captured:
        collector.take_steps = CapturedRollout(collector)
    collector.reset(stream(0, 'test'))
    return collector, policy


def rollouts(collector: Collector, policy: PPOPolicy, n: int = 4) -> list[Any]:
    """Collects n rollouts; before the third the weights change, before the fourth all envs are reset."""
    found = []
    for i in range(n):
        if i == 2:
            with torch.no_grad():
                for p in policy.model.parameters():
                    p.add_(0.05)
        if i == 3:
            collector.reset(stream(1, 'test'))
        if collector.take_steps == collector.in_turns:
            env = collector.groups[0].env
            env.follow(env.draw(T))  # as a captured rollout draws
        found.append(map_tensors(torch.clone, dict(collector.collect().data)))
    return found


@pytest.mark.long
@pytest.mark.parametrize('game', ['CartPole-v1', 'Pendulum-v1'])
def test_rollout_as_one_graph_is_that_of_single_steps(
    game: str, monkeypatch: pytest.MonkeyPatch, graphs: list[torch.fx.GraphModule]
) -> None:
    monkeypatch.setattr(module, 'CapturedCall', Recorded)
    monkeypatch.setattr(Recorded, 'calls', [])
    one, many = collector_of(game, True), collector_of(game, False)
    for got, wanted in zip(rollouts(*one), rollouts(*many), strict=True):
        assert got.keys() == wanted.keys()
        for name, x in wanted.items():
            torch.testing.assert_close(got[name], x, rtol=0, atol=0, msg=name)
    assert Recorded.calls == [1, 2, 3, 4]


def test_rollout_that_cannot_be_captured_is_taken_step_by_step(
    monkeypatch: pytest.MonkeyPatch, graphs: list[torch.fx.GraphModule], caplog: pytest.LogCaptureFixture
) -> None:
    """The capture fails in the fourth step of the second call."""
    monkeypatch.setattr(module, 'CapturedCall', lambda run, n_fixed: run)
    one, many = collector_of('CartPole-v1', True), collector_of('CartPole-v1', False)
    group, n_step = one[0].groups[0], count(1)
    step = group.step

    def failing(t: int) -> None:
        if next(n_step) == T + 4:
            raise RuntimeError('operation not permitted when stream is capturing\nand more')
        step(t)

    group.step = failing
    for got, wanted in zip(rollouts(*one), rollouts(*many), strict=True):
        assert all(torch.equal(got[name], x) for name, x in wanted.items())
    assert [record.getMessage() for record in caplog.records if record.levelname == 'WARNING'] == [
        'a rollout could not be captured; its steps are taken one by one: RuntimeError: operation not permitted when stream '
        'is capturing'
    ]


def test_rollout_that_is_too_large_or_eager_is_taken_step_by_step(
    monkeypatch: pytest.MonkeyPatch, graphs: list[torch.fx.GraphModule]
) -> None:
    monkeypatch.setattr(module, 'CapturedCall', None)
    monkeypatch.setattr(module, 'MAX_STEPS', T - 1)
    collector, _ = collector_of('CartPole-v1', True)
    assert collector.collect().data['obs'].shape == (T, B, 4) and collector.groups[0].acting.captures
    monkeypatch.setattr(module, 'MAX_STEPS', T)
    eager, policy = collector_of('CartPole-v1', True)
    eager.groups[0].acting = policy.collect_mode.start(eager.block.obs, 0)
    assert eager.collect().data['obs'].shape == (T, B, 4)


@needs_gpu
@pytest.mark.parametrize('game', ['CartPole-v1', 'Pendulum-v1'])
def test_rollouts_on_a_gpu_are_one_launch_each_and_what_single_steps_give(
    game: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learn, env = dict(executor='graph', compile='on'), dict(game=game, collector_env_num=16, max_episode_steps=7)
    policy = dict(device='cuda', learn=learn)
    with SerialJob(resolve_config(job_config(tmp_path, 'torch', env=env, policy=policy))) as job:
        for _ in range(3):  # warmed up, captured, replayed; the weights move in between
            job.iteration()
        group, block = job.collector.groups[0], job.collector.block
        before = block.steps.reward.clone()
        for wait in (nullcontext(), no_waiting()):
            block.restart()
            with wait, torch.no_grad():
                group.begin()
                job.collector.take_steps()
        steps, obs, output = block.steps, block.obs, group.acting.output
        assert game == 'CartPole-v1' or not torch.equal(steps.reward, before)
        with torch.no_grad():
            logit = job.policy.model.compute_actor(obs[:-1].flatten(0, 1)).view_as(output['logit'])
        torch.testing.assert_close(logit, output['logit'], rtol=1e-4, atol=1e-5)
        goes_on = ~(steps.terminated | steps.truncated)
        torch.testing.assert_close(obs[1:][goes_on], steps.next_obs[goes_on])
        assert not goes_on.all() and len(output['action'].unique()) > 1
        if game == 'CartPole-v1':  # its state is its observation
            for t in range(len(steps.reward)):
                state, *_ = group.env.program.env.step(obs[t], output['action'][t], obs[t])
                torch.testing.assert_close(state, steps.next_obs[t], rtol=1e-4, atol=1e-5)
    assert not [record for record in caplog.records if record.levelname == 'WARNING']


@needs_gpu
def test_fetch_brings_one_after_another_though_the_device_is_busy_with_what_came_later() -> None:
    fetch, busy = Fetch(), torch.rand(4096, 4096, device='cuda')
    for k in range(3):
        result = fetch.start(torch.full((4,), k, device='cuda'))
        busy = busy @ busy
        assert result().tolist() == [k] * 4 and not result().is_cuda
