"""A column added by a policy stays with its rows, from `_process_transition` to every minibatch of an update step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.buffer.samples import replay
from tests.envs import LimitEnv
from tests.learning import Learner
from zoo.buffer import RolloutBuffer
from zoo.core.data import Metrics
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_vector_env
from zoo.policy import PPOOffPolicy, PPOPolicy
from zoo.policy.ppo import ppo_step
from zoo.run.config import resolve_policy
from zoo.worker.collector import Collector

N_STEP, N_ENV, BATCH = 12, 4, 8
pytestmark = pytest.mark.usefixtures('native')


def mark(obs: Tensor, action: Tensor) -> Tensor:
    """A number that no other column holds, computed from two of them."""
    return 10 * obs[..., 0] + action


class Marked:
    """Adds numbers, a pair and a flag to each transition, and records the minibatches that its update step receives."""

    seen: list[dict[str, Any]]

    def _process_transition(self: Any, obs: Tensor, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        transition = super()._process_transition(obs, output, timestep)  # type: ignore[misc]
        number = mark(obs, output['action'])
        pair = torch.stack((number, -number), -1)
        return {**transition, 'number': number, 'pair': pair, 'flag': timestep.terminated, 'part': {'deep': number}}

    def _forward_learn(self: Any, batch: Any) -> Metrics:
        cfg, optimizers = self.cfg.learn, [self.optimizers['all']]
        return self._train_policy(batch, cfg.epoch_per_collect, self.own_step, optimizers, cfg.batch_size)

    def own_step(self, model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: Any, numbers: Any) -> Metrics:
        self.seen.append(minibatch)
        return ppo_step(model, dist, optimizers, minibatch, loss, numbers)

    def _monitor_vars_learn(self) -> list[str]:
        names = ['policy_loss', 'entropy', 'approx_kl', 'clipfrac', 'value_loss', 'grad_norm']
        return [*names, 'kl', 'ratio_max', 'n_epoch', 'adv_abs_max']


class MarkedPPO(Marked, PPOPolicy):
    pass


class MarkedOffPolicy(Marked, PPOOffPolicy):
    pass


def job(cls: Any, executor: str) -> tuple[Any, Collector]:
    """Returns a policy and its collector; every episode has 5 steps."""
    env = EnvConfig(id=lambda: LimitEnv(5, 'terminated'), collector_env_num=N_ENV, vectorization='sync')
    vector = make_vector_env(env, N_ENV)
    learn = dict(batch_size=BATCH, epoch_per_collect=2, executor=executor)
    cfg = dict(type='ppo', collect=dict(n_step=N_STEP), learn=learn, model=dict(hidden_sizes=[8]))
    policy = cls(resolve_policy(cfg), vector.obs_space, vector.action_space)
    policy.seen = []
    collector = Collector([vector], policy.collect_mode)
    collector.reset(stream(0, 'test'))
    return policy, collector


def check_rows(seen: list[dict[str, Any]]) -> None:
    for minibatch in seen:
        number = mark(minibatch['obs'], minibatch['action'])
        assert torch.equal(minibatch['number'], number)
        assert torch.equal(minibatch['pair'], torch.stack((number, -number), 1))
        assert torch.equal(minibatch['part']['deep'], number)
        assert minibatch['flag'].dtype == torch.bool
        assert torch.equal(minibatch['flag'], minibatch['obs'][:, 0] == 4)  # the fifth step ends the episode


@pytest.mark.parametrize('executor', ['eager', 'native'])
def test_added_columns_reach_the_step_with_their_rows(executor: str) -> None:
    """The native executor does not support this step and runs it eagerly."""
    policy, collector = job(MarkedPPO, executor)
    assert policy.executor_name.startswith(executor)
    learner = Learner(policy.learn_mode, buffer := RolloutBuffer())
    for rollout in range(2):
        samples = policy.collect_mode.get_train_sample(collector.collect())
        buffer.push(samples)
        learner.train(rollout)
        assert len(policy.seen) == 2 * N_STEP * N_ENV // BATCH
        check_rows(policy.seen)
        for epoch in (policy.seen[:6], policy.seen[6:]):
            found = torch.cat([minibatch['number'] for minibatch in epoch])
            assert torch.equal(found.sort().values, samples['number'].sort().values)
        policy.seen.clear()


@pytest.mark.slow
@pytest.mark.parametrize('executor', ['eager', 'native'])
def test_added_columns_come_back_from_a_replay_buffer_with_their_rows(executor: str) -> None:
    policy, collector = job(MarkedOffPolicy, executor)
    buffer = replay(size=96, n_sample=32, update_per_collect=3)
    learner = Learner(policy.learn_mode, buffer)
    for rollout in range(4):  # 48 samples each: the third rollout overwrites the first one
        buffer.push(policy.collect_mode.get_train_sample(collector.collect()))
        learner.train(rollout)
    assert len(policy.seen) == 4 * 3 * 2 * 32 // BATCH
    check_rows(policy.seen)


def test_a_transition_that_is_no_dict_of_tensors_is_refused() -> None:
    class Forgets(PPOPolicy):
        def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> Any:
            super()._process_transition(obs, output, timestep)

    _, collector = job(Forgets, 'eager')
    with pytest.raises(ValueError, match=r'_process_transition gave .* but it must begin with \(12, 4\)'):
        collector.collect()


def test_added_column_of_another_shape_than_the_rollout_is_refused() -> None:
    class Wrong(PPOPolicy):
        def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
            return {**super()._process_transition(obs, output, timestep), 'mean': obs.mean()}

    _, collector = job(Wrong, 'eager')
    with pytest.raises(
        ValueError, match=r"_process_transition gave 'mean' of shape \(\) but it must begin with \(12, 4\)"
    ):
        collector.collect()
