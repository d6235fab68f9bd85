"""Columns of a rollout that a gradient step reads, and the values of its rows by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy.updates import N_STEP, N, ppo, samples_of
from zoo.core.data import Rollout
from zoo.policy.samples import in_pieces, rollout_values

OBS = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).unsqueeze(-1)  # [T, B, 1]
SUCCESSOR = torch.tensor([[3.0, 5.0], [7.0, 8.0]]).unsqueeze(-1)  # env 1 ended in row 0 with 5, and began again with 4
STATE = torch.tensor([[0.1, 0.2], [0.3, 0.4]]).unsqueeze(-1)  # after each row


def ten_times(obs: Tensor, state: Tensor | None = None) -> Tensor:
    """The critic of these tests: 10 times the observation, and the state."""
    if state is None:
        return 10 * obs[:, 0]
    return 10 * obs[:, 0] + state[:, 0]


def rollout(columns: dict[str, Tensor], is_dense: bool) -> Rollout:
    """Two steps of two envs. Args: is_dense: with the successor of every row, as envs on a device give them."""
    data: Any = {'obs': OBS, 'done': torch.zeros(2, 2, dtype=torch.bool), **columns}
    if is_dense:
        return Rollout(data, SUCCESSOR[1], OBS[0, :0], torch.zeros(0, 2, dtype=torch.int64), SUCCESSOR)
    return Rollout(data, SUCCESSOR[1], SUCCESSOR[0, 1:], torch.tensor([[0, 1]]), state=torch.zeros(2, 1))


@pytest.mark.parametrize('is_dense', [False, True])
def test_values_of_rows_and_of_their_true_successors_by_hand(is_dense: bool) -> None:
    value, following = rollout_values(rollout({}, is_dense), ten_times)
    assert value.tolist() == [[10, 20], [30, 40]] and following.tolist() == [[30, 50], [70, 80]]
    given = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])  # what acting found
    value, following = rollout_values(rollout({'value': given}, True), ten_times)
    assert value is given and following.tolist() == [[30, 50], [70, 80]]


@pytest.mark.parametrize('is_dense', [False, True])
def test_a_successor_is_valued_with_the_state_after_its_row(is_dense: bool) -> None:
    columns = {'value': torch.zeros(2, 2), 'state': STATE, 'is_first': torch.zeros(2, 2, dtype=torch.bool)}
    following = rollout_values(rollout(columns, is_dense), ten_times)[1]
    # what follows row 0 of env 0 is row 1, whose value acting has found
    wanted = [[30.1 if is_dense else 0.0, 50.2], [70.3, 80.4]]
    torch.testing.assert_close(following, torch.tensor(wanted))


@pytest.mark.parametrize('n', [0, 1, 3])
def test_pieces_are_rows_in_order(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.policy.samples.PASS_CELLS', 2)  # two rows of one number
    seen = []

    def critic(obs: Tensor) -> Tensor:
        seen.append(len(obs))
        return ten_times(obs)

    assert in_pieces(critic, torch.arange(n).view(n, 1)).tolist() == [10 * i for i in range(n)]
    assert seen == {0: [0], 1: [1], 3: [2, 1]}[n]


@pytest.mark.parametrize('value_norm', [False, True])
@pytest.mark.parametrize('baseline', ['critic', 'none'])
def test_value_of_before_the_update_is_the_critics_output_with_and_without_a_baseline(
    baseline: str, value_norm: bool
) -> None:
    """At the first step nothing has moved, so the value has not drifted; without a baseline the column 'value' is 0."""
    learn = dict(baseline=baseline, value_norm=value_norm, penalties=['value_drift'], batch_size=N, epoch_per_collect=1)
    estimator = 'returns' if baseline == 'none' else 'gae'
    policy = ppo(learn, collect=dict(n_step=N_STEP, estimator=estimator))
    samples = samples_of(policy)
    assert bool(samples['value'].any()) == (baseline == 'critic')
    assert policy.compute_critic(samples['obs']).abs().max() > 1e-3
    assert policy.learn_mode.forward(samples)['penalty_value_drift'] == pytest.approx(0, abs=1e-10)


def test_no_output_is_kept_that_no_loss_reads() -> None:
    policy = ppo(dict(baseline='none'), collect=dict(n_step=N_STEP, estimator='returns'))
    assert 'value_output' not in samples_of(policy)
