"""A policy on one of several ranks: refused configs, and the execution of its steps."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks, RunInfo
from zoo.core.spaces import Box
from zoo.policy.execution import join_model
from zoo.policy.options.intrinsic import set_ranks
from zoo.policy.ppo import PPOPolicy
from zoo.rl_utils.normalizer import RunningMeanStd

OBS = Box(-torch.ones(3).numpy(), torch.ones(3).numpy())


class TwoRanks(Ranks):
    """Two ranks that always have the same values: a sum doubles them."""

    size = 2

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class TwoRanksInC(TwoRanks):
    """The same, as ranks that C can sum over."""

    in_c = 'ranks'


def on_two_ranks(ranks: Ranks | None = None, eager_only: str = '', **learn: Any) -> PPOPolicy:
    cfg = make_policy(OBS, TWO_ACTIONS, learn=learn).cfg
    return PPOPolicy(cfg, OBS, TWO_ACTIONS, run=RunInfo(ranks=ranks or TwoRanks(), eager_only=eager_only))


@pytest.mark.parametrize('executor', ['graph', 'native'])
def test_executor_that_steps_by_itself_is_refused(executor: str) -> None:
    with pytest.raises(UserError, match=f"executor is '{executor}' but gradients are summed over 2 ranks"):
        on_two_ranks(executor=executor)


def test_steps_are_eager_and_the_log_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    on_two_ranks()
    assert caplog.text.count('gradients are summed over 2 ranks') == 1


@pytest.mark.parametrize('executor', ['auto', 'native'])
def test_steps_are_in_c_if_it_can_sum_over_the_ranks(
    executor: str, native: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    policy = on_two_ranks(TwoRanksInC(), executor=executor, compile='on' if executor == 'auto' else 'auto')
    assert policy.executor_name.startswith('native') and 'updates and acting run in zoo' in caplog.text


def test_steps_on_ranks_are_not_compiled_and_run_eagerly_for_a_hook() -> None:
    with pytest.raises(UserError, match="executor is 'graph' but gradients are summed over 2 ranks; use 'auto' or"):
        on_two_ranks(TwoRanksInC(), executor='graph')
    said = "executor is 'native' but a callback reads gradients and gradients are summed over 2 ranks; use 'auto' or 'eager'"
    with pytest.raises(UserError, match=said):
        on_two_ranks(TwoRanksInC(), 'a callback reads gradients', executor='native')


def test_normalisers_of_a_model_are_told() -> None:
    ranks, model = TwoRanks(), nn.Sequential(nn.Linear(2, 2), RunningMeanStd((2,)))
    join_model(model, ranks)
    assert model[1].ranks is ranks


def test_batch_norm_that_trains_is_refused_and_in_eval_mode_it_is_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    said = r"the model has '1' \(BatchNorm1d\), whose statistics would be those of the rows of one"
    with pytest.raises(UserError, match=said):
        join_model(model, TwoRanks())
    join_model(model, Ranks())
    join_model(model.eval(), TwoRanks())


def test_intrinsic_reward_that_cannot_share_is_refused_with_several_ranks() -> None:
    set_ranks(object(), Ranks())
    with pytest.raises(UserError, match=r'is a object, which has no set_ranks\(\) and so cannot learn on 2 ranks'):
        set_ranks(object(), TwoRanks())


def test_optimisers_and_running_statistics_of_a_policy_are_told() -> None:
    policy = on_two_ranks(reward_norm=True, value_norm=True)
    ranks = policy.run.ranks
    assert all(optimizer.ranks is ranks for optimizer in policy.optimizers.values())
    assert all(policy.normalizers[name].ranks is ranks for name in ('reward', 'value'))
    assert make_policy(OBS, ONE_NUMBER).optimizers['all'].ranks.size == 1
