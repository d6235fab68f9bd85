"""Metrics of an update, against numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import TWO_ACTIONS, make_policy
from tests.step_parts import PolicyNumbers
from zoo.backend.native.bindings import Level, load
from zoo.core.spaces import Box
from zoo.policy.base import Policy
from zoo.policy.metrics import adv_abs_max, explained_variance, over_ranks, summaries, summary, total_loss

# returns 1, 3, 5 have variance 8/3, errors 0, 1, -1 have variance 2/3: the explained variance is 1 - 1/4
RETURN, VALUE = [1.0, 3.0, 5.0], [1.0, 2.0, 6.0]


@pytest.mark.parametrize('others', [[], [1e6], [float('nan')], [float('inf')]])
def test_explained_variance_by_hand_is_of_the_rows_with_a_weight(others: list[float]) -> None:
    batch = {'return_': torch.tensor(RETURN + others), 'value': torch.tensor(VALUE + others)}
    if others:
        batch['weight'] = torch.tensor([4 / 3, 4 / 3, 4 / 3, 0])
    assert explained_variance(batch).item() == pytest.approx(0.75)


OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
N = 64
EXECUTORS = ['eager', 'native', 'graph']
PPO = dict(epoch_per_collect=1, batch_size=N, adv_norm='off', reward_norm=False, value_norm=False, clip_ratio=0.1)
PPO |= dict(entropy_weight=0.03, value_weight=0.7)
PPG = {name: x for name, x in PPO.items() if name != 'epoch_per_collect'}


def policy_of(executor: str, type: str = 'ppo', **learn: Any) -> Policy:
    learn = {**(PPO if type == 'ppo' else PPG), **learn, 'executor': executor}
    return make_policy(OBS, TWO_ACTIONS, type=type, learn=learn, collect=dict(n_step=16))


def batch_of(weighted: bool) -> dict[str, torch.Tensor]:
    """Samples of another policy than the one that learns, so that ratios are far from 1."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    batch = {'obs': normal(N, 3), 'action': (normal(N) > 0).long(), 'logit': normal(N, 2)}
    batch |= {'value': normal(N), 'adv': 3 * normal(N), 'return_': normal(N)}
    if weighted:
        weight = (normal(N) > -0.5).float()
        batch['weight'] = weight * N / weight.sum()
    return batch


def by_numpy(policy: Policy, batch: dict[str, torch.Tensor], value_loss: str) -> dict[str, float]:
    """The metrics of one PPO step on the whole batch, in float64, from the outputs of the networks before the step."""
    with torch.no_grad():
        logit = policy.model.compute_actor(batch['obs']).double().numpy()
        v = policy.model.compute_critic(batch['obs']).double().numpy()
    x = {name: column.double().numpy() for name, column in batch.items()}
    w, a, old = x.get('weight', np.ones(N)), x['action'].astype(int), x['logit']
    logp, logp_old = (each - np.log(np.exp(each).sum(-1, keepdims=True)) for each in (logit, old))
    d = logp[np.arange(N), a] - logp_old[np.arange(N), a]
    ratio, r, c = np.exp(d), x['return_'], 0.1
    gain = np.minimum(ratio * x['adv'], ratio.clip(1 - c, 1 + c) * x['adv'])
    error, outside = (v - r) ** 2, np.abs(v - x['value']) > c
    if value_loss == 'clip':
        error = np.maximum(error, (x['value'] + (v - x['value']).clip(-c, c) - r) ** 2)
    elif value_loss == 'error_clip':
        error, outside = error.clip(max=0.5), error > 0.5
    found = {
        'policy_loss': -(gain * w).mean(),
        'value_loss': 0.5 * (error * w).mean(),
        'entropy': (-(np.exp(logp) * logp).sum(-1) * w).mean(),
        'approx_kl': -np.average(d, weights=w),
        'kl': np.average(ratio - 1 - d, weights=w),
        'clipfrac': np.average(np.abs(ratio - 1) > c, weights=w),
        'ratio_max': ratio[w > 0].max(),
        'adv_abs_max': np.abs(x['adv'][w > 0]).max(),
        'explained_variance': 1 - (r - x['value'])[w > 0].var() / r[w > 0].var(),
        **({} if value_loss == 'mse' else {'value_clipfrac': np.average(outside, weights=w)}),
    }
    found['total_loss'] = found['policy_loss'] + 0.7 * found['value_loss'] - 0.03 * found['entropy']
    return found | {'value_weight': 0.7, 'entropy_weight': 0.03, 'clip_ratio': 0.1}


@pytest.mark.parametrize(
    ('executor', 'value_loss', 'weighted'),
    [
        pytest.param(executor, value_loss, (i + j) % 2 == 0, marks=[pytest.mark.slow] * (executor == 'graph'))
        for i, executor in enumerate(EXECUTORS)
        for j, value_loss in enumerate(('mse', 'clip', 'error_clip'))
    ],
)
def test_metrics_of_an_update_are_those_of_numpy(
    executor: str, value_loss: str, weighted: bool, graphs: list[torch.fx.GraphModule]
) -> None:
    spec = {'type': 'error_clip', 'range': 0.5} if value_loss == 'error_clip' else value_loss
    policy, batch = policy_of(executor, value_loss=spec), batch_of(weighted)
    want = by_numpy(policy, batch, value_loss)
    metrics = policy.learn_mode.forward(batch)
    assert policy.executor_name.startswith(executor) and bool(graphs) == (executor == 'graph')
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    assert want.keys() <= metrics.keys() and ('value_clipfrac' in metrics) == (value_loss != 'mse')
    for name, number in want.items():
        assert metrics[name].item() == pytest.approx(number, rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize('value_loss', ['clip', 'error_clip'])
@pytest.mark.parametrize('level', [Level.BASE, Level.V3])
def test_metrics_are_the_same_at_lower_levels_of_the_native_executor(level: Level, value_loss: str) -> None:
    library, _ = load()
    assert library is not None
    library.set_level(level)
    try:
        test_metrics_of_an_update_are_those_of_numpy('native', value_loss, True, [])
    finally:
        library.set_level(-1)


@pytest.mark.slow
@pytest.mark.parametrize('executor', EXECUTORS)
def test_total_loss_of_ppg_is_that_of_both_phases(executor: str, graphs: list[torch.fx.GraphModule]) -> None:
    policy, batch = policy_of(executor, type='ppg', value_weight=0.7), batch_of(True)
    want = by_numpy(policy, batch, 'mse')
    metrics = policy.learn_mode.forward(batch)
    assert bool(graphs) == (executor == 'graph')
    for name in ('total_loss', 'kl', 'ratio_max', 'adv_abs_max', 'value_weight'):
        assert metrics[name].item() == pytest.approx(want[name], rel=1e-6, abs=1e-6), name
    assert metrics['aux_bc_weight'] == 1.0


def test_total_loss_counts_penalties_and_drops_terms_of_weight_0() -> None:
    class Penalty:
        name = 'mine'

    numbers = PolicyNumbers(entropy_weight=0.0, value_weight=0.5, terms=(Penalty(),), term_weights=(2.0,))
    metrics = {'policy_loss': 1.0, 'value_loss': 4.0, 'entropy': np.inf, 'penalty_mine': 0.25}
    tensors = {name: torch.tensor(x) for name, x in metrics.items()}
    assert total_loss(tensors, *numbers).item() == 1.0 + 0.5 * 4.0 + 2.0 * 0.25


def test_adv_abs_max_is_of_rows_with_a_weight_before_normalisation() -> None:
    batch = {'adv': torch.tensor([1.0, -3.0, 8.0]), 'weight': torch.tensor([1.5, 1.5, 0.0])}
    assert adv_abs_max(batch).item() == 3.0
    assert adv_abs_max({'adv': batch['adv']}).item() == 8.0


def test_a_maximum_is_kept_over_steps_and_others_are_averaged() -> None:
    values = torch.tensor([1.0, 5.0, 3.0])
    assert summary('ratio_max', values).item() == 5.0 and summary('kl', values).item() == 3.0


@pytest.mark.parametrize('executor', ['eager', 'native'])
def test_ratio_max_of_an_update_is_that_of_its_worst_minibatch(executor: str) -> None:
    policy, batch = policy_of(executor, batch_size=16, learning_rate=1e-12), batch_of(False)
    want = by_numpy(policy, batch, 'mse')  # with this learning rate the steps move nothing
    metrics = policy.learn_mode.forward(batch)
    assert metrics['ratio_max'].item() == pytest.approx(want['ratio_max'], rel=1e-5)
    assert metrics['kl'].item() == pytest.approx(want['kl'], rel=1e-5)


@pytest.mark.parametrize('executor', ['eager', 'native'])
def test_kl_and_ratio_max_leave_every_bit_of_the_parameters(executor: str) -> None:
    def parameters(measures: bool) -> list[torch.Tensor]:
        policy = policy_of(executor, batch_size=16, epoch_per_collect=3, value_loss='clip')
        policy.loss = policy.loss._replace(measure_kl=measures)
        metrics = policy.learn_mode.forward(batch_of(True))
        assert ('kl' in metrics) == ('ratio_max' in metrics) == measures
        return [p.detach().clone() for p in policy.model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(parameters(True), parameters(False), strict=True))


@pytest.mark.parametrize('other', [torch.ones(2), torch.ones(3).double(), torch.ones(3, device='meta')], ids=str)
def test_summaries_are_the_summary_of_each_also_of_unlike_ones(other: torch.Tensor) -> None:
    metrics = {
        'a': torch.tensor([1.0, 2.0, 6.0]),
        'ratio_max': torch.tensor([1.0, 7.0, 2.0]),
        'nan': torch.tensor([1.0, 2.0, float('nan')]),
    }
    assert [x.item() for x in summaries(metrics).values()] == pytest.approx([3.0, 7.0, float('nan')], nan_ok=True)
    found = summaries({**metrics, 'other': other})
    assert list(found) == ['a', 'ratio_max', 'nan', 'other'] and found['a'].item() == 3.0
    assert found['other'].device == other.device and found['other'].dtype == other.dtype and summaries({}) == {}


@pytest.mark.parametrize(
    ('name', 'wanted'),
    [('loss', 1.5), ('ratio_max', 2.0), ('adv_abs_max', 2.0), ('reward_max', 2.0), ('reward_min', 1.0)],
)
def test_metric_of_two_ranks_is_their_mean_or_extreme(name: str, wanted: float) -> None:
    assert over_ranks(name, [1.0, 2.0]) == wanted
    assert math.isnan(over_ranks(name, [1.0, math.nan]))
