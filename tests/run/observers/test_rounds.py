"""Rounds of updates on the batches of a buffer: samples are counted, names of metrics checked, metrics averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learning import Learner
from tests.policy_envs import TWO_ACTIONS, job_config, make_policy
from tests.worker.collectors import SAME_STEP, make_collector
from zoo.buffer import ReplayConfig, RolloutBuffer
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY
from zoo.core.spaces import Box
from zoo.policy.base import Policy
from zoo.policy.ppo import PPOPolicy
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.observers.rounds import mean_metrics
from zoo.worker.collector import Collector

OBS = Box(torch.zeros(1).numpy(), torch.full((1,), torch.inf).numpy())


def policy_and_samples(**fields: Any) -> tuple[Policy, dict[str, Any]]:
    learn = dict(batch_size=8, epoch_per_collect=3, learning_rate={'start': 1e-2, 'end': 0.0, 'over': 100})
    policy = make_policy(OBS, TWO_ACTIONS, **{'collect': dict(n_step=8), 'learn': learn, **fields})
    return policy, policy.collect_mode.get_train_sample(make_collector(SAME_STEP, 8).collect())


def ppg_and_samples() -> tuple[Policy, dict[str, Any]]:
    return policy_and_samples(type='ppg', learn=dict(batch_size=8, aux_freq=2, aux_batch_size=16, aux_train_epoch=3))


def learner_of(mode: Any, *blocks: dict[str, Any]) -> Learner:
    """A learner whose buffer holds these blocks."""
    buffer = RolloutBuffer()
    for block in blocks:
        buffer.push(block)
    return Learner(mode, buffer)


def test_train_uses_each_pushed_block_once() -> None:
    policy, samples = policy_and_samples()
    learner = learner_of(policy.learn_mode, samples)
    learner.train(0)
    assert learner.train_iter == 6  # 16 samples, 2 minibatches, 3 epochs
    with pytest.raises(UserError, match='^there is nothing to learn from: the buffer is empty; collect a rollout'):
        learner.train(0)  # nothing new was pushed
    assert learner.train_iter == 6


def test_train_with_a_replay_buffer_that_was_never_filled_says_so() -> None:
    policy, samples = policy_and_samples()
    buffer = BUFFER_REGISTRY.build('replay', validate(ReplayConfig, dict(size=64, n_sample=64)), seed=0)
    learner = Learner(policy.learn_mode, buffer)
    with pytest.raises(UserError, match='the buffer is empty'):
        learner.train(0)
    buffer.push(samples)
    assert learner.train(0) == {}  # 16 samples are too few for a draw of 64, as early in any run


def test_train_averages_the_metrics_of_all_blocks() -> None:
    (one, samples), (two, _) = policy_and_samples(), policy_and_samples()
    singles = [one.learn_mode.forward(samples) for _ in range(2)]
    for name, value in learner_of(two.learn_mode, samples, samples).train(0).items():
        both = torch.stack([singles[0][name], singles[1][name]])
        torch.testing.assert_close(value, both.max() if name in ('ratio_max', 'adv_abs_max') else both.mean())


def test_metrics_of_one_batch_are_its_own_and_a_list_becomes_numbers() -> None:
    found = mean_metrics([{'loss': torch.tensor(0.1), 'lr': [1.0, 2.0]}])
    assert {name: float(x) for name, x in found.items()} == {'loss': pytest.approx(0.1), 'lr/0': 1.0, 'lr/1': 2.0}
    assert all(x.dim() == 0 for x in found.values())


def test_samples_of_weight_0_do_not_count() -> None:
    policy, samples = policy_and_samples()
    n = len(samples['adv'])
    weight = torch.ones(n).index_fill(0, torch.tensor([1, 4, 5]), 0.0) * n / (n - 3)
    learner = Learner(policy.learn_mode, Given([samples], *[[{**samples, 'weight': weight}]] * 2))
    for want in (n, 2 * n - 3, 3 * n - 6):
        learner.train(0)
        assert learner.n_sample == want


def test_train_sets_the_schedules_first() -> None:
    policy, samples = policy_and_samples()
    metrics = learner_of(policy.learn_mode, samples).train(75)
    assert metrics['learning_rate'].item() == pytest.approx(2.5e-3, rel=1e-12)


@pytest.mark.parametrize('before', [0, 1])
@pytest.mark.parametrize('whole', [True, False])
def test_train_refuses_names_that_differ_at_the_first_batch_for_the_whole_update(whole: bool, before: int) -> None:
    policy, samples = ppg_and_samples()
    mode = policy.learn_mode._replace(monitor_vars=lambda: ['policy_loss', 'never_given'])
    batch = samples if whole else {'policy': samples, 'value': samples}
    learner = Learner(mode, Given(*[[{'value': samples}]] * before, [batch]))
    for _ in range(before):
        learner.train(0)
    with pytest.raises(ValueError, match="'value_loss'.*names .'never_given', 'policy_loss'.; make the two agree"):
        learner.train(0)


def test_train_runs_the_auxiliary_phase_after_the_updates() -> None:
    class Phasic(PPOPolicy):
        def learn_aux(self) -> dict[str, torch.Tensor]:
            return {'aux_at': torch.tensor(self.learn_mode.train_iter())}

    plain, samples = policy_and_samples()
    policy = Phasic(plain.cfg, OBS, TWO_ACTIONS)
    assert learner_of(policy.learn_mode, samples).train(0)['aux_at'] == 6


class Given:
    """A buffer that yields given batches: in each round the next list."""

    def __init__(self, *rounds: list[dict[str, Any] | dict[str, dict[str, Any]]]) -> None:
        self._rounds = list(rounds)

    def batches(self):
        yield from self._rounds.pop(0)


def test_train_gives_the_metrics_of_an_auxiliary_phase_in_the_round_that_has_it() -> None:
    policy, samples = ppg_and_samples()
    learner = Learner(policy.learn_mode, Given(*[[samples]] * 4))
    metrics = [learner.train(0) for _ in range(4)]
    assert ['auxiliary_loss' in m for m in metrics] == [False, True, False, True]
    assert learner.train_iter == 4 * 4 + 2 * 6  # a round: 16 samples, 2 + 2 minibatches; a phase: 3 epochs of 32 / 16


def test_train_runs_the_auxiliary_phase_between_the_batches_of_a_round() -> None:
    (policy, samples), (by_hand, _) = ppg_and_samples(), ppg_and_samples()
    metrics = Learner(policy.learn_mode, Given([samples] * 5)).train(0)
    found = []
    for _ in range(5):
        found.append(by_hand.learn_mode.forward(samples))
    assert ['auxiliary_loss' in m for m in found] == [False, True, False, True, False]
    assert torch.equal(policy.optimizers['actor'].param, by_hand.optimizers['actor'].param)
    torch.testing.assert_close(metrics['aux_kl_after'], (found[1]['aux_kl_after'] + found[3]['aux_kl_after']) / 2)


def test_train_averages_each_metric_over_the_batches_that_gave_it() -> None:
    """One batch is for policy and critic, three are for the critic alone."""
    (policy, samples), (by_hand, _) = ppg_and_samples(), ppg_and_samples()
    parts: list[dict[str, dict[str, Any]]] = [{'policy': samples, 'value': samples}, *[{'value': samples}] * 3]
    metrics = Learner(policy.learn_mode, Given(parts)).train(0)
    singles = [by_hand.learn_mode.forward(part) for part in parts]
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    for name in ('policy_loss', 'entropy', 'n_epoch'):
        assert metrics[name] == singles[0][name] and name not in singles[1]
    torch.testing.assert_close(metrics['value_loss'], sum(m['value_loss'] for m in singles) / 4)


def test_train_takes_rounds_for_one_part_of_the_update_before_it_knows_all_names() -> None:
    policy, samples = ppg_and_samples()
    learner = Learner(
        policy.learn_mode,
        Given([{'value': samples}], [], [{'policy': samples}], [{'policy': samples, 'value': samples}]),
    )
    assert 'policy_loss' not in learner.train(0) and learner.train(0) == {}
    assert 'value_loss' not in learner.train(0)
    assert learner.train(0).keys() >= set(policy.learn_mode.monitor_vars())


def test_envs_are_reset_before_each_rollout_of_whole_episodes_unless_they_just_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets = []
    reset = Collector.reset

    def counted(self: Collector, seed: Any) -> None:
        resets.append(self.collect_iter)
        reset(self, seed)

    monkeypatch.setattr(Collector, 'reset', counted)
    config = job_config(tmp_path, policy=dict(collect=dict(batch_mode='episode')))
    with SerialJob(resolve_config(config)) as job:
        job.iteration()
        job.iteration()
        assert resets == [0, 1]
        job.reset_env()  # as after a resume
        job.iteration()
        assert resets == [0, 1, 2]
        job.iteration()
        assert resets == [0, 1, 2, 3]
