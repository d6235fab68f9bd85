"""Learning rates and penalty weights that adapt to the KL of an update, against rules worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.policy.updates import N_STEP, OBS, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, differing, make_policy
from zoo.core.ranks import ALONE
from zoo.policy.objective import Objective
from zoo.policy.options.adaptive import AdaptiveNumbers
from zoo.policy.options.loss import Penalties
from zoo.run.config import resolve_policy


def objective(kind: str = 'ppo', **learn: Any) -> Objective:
    return Objective(resolve_policy({'type': kind, 'learn': learn}).learn)


def follower(found: Objective, ranks: Any = ALONE) -> AdaptiveNumbers:
    """An option that adapts the penalty weights only: no learning rate is adaptive."""
    option = AdaptiveNumbers()
    rates, run = SimpleNamespace(names=()), SimpleNamespace(ranks=ranks)
    option.fill(None, SimpleNamespace(objective=found, rates=rates, run=run))  # type: ignore[arg-type]
    return option


@pytest.mark.parametrize(
    ('numbers', 'steps'),  # each step: a KL, and the weight after it
    [
        # rule of RLlib: weight * 1.5 if KL > 2 * target, weight * 0.5 if KL < target / 2, otherwise unchanged
        ({'weight': 0.2}, ((0.021, 0.3), (0.015, 0.3), (0.004, 0.15), (0.0201, 0.225), (0.0051, 0.225))),
        (
            {'weight': 1.0, 'min_weight': 0.5, 'max_weight': 2.0},
            ((1.0, 1.5), (1.0, 2.0), (1.0, 2.0), (0.0, 1.0), (0.0, 0.5), (0.0, 0.5)),
        ),
    ],
)
def test_the_weight_follows_its_target_within_its_limits_as_published(numbers: Any, steps: Any) -> None:
    moving = follower(objective(penalties=[{'type': 'kl', 'target': 0.01, **numbers}]))
    for kl, weight in steps:
        moving.adapt_weights({'penalty_kl': torch.tensor(kl)})
        assert moving.choose_weights() == {'kl': pytest.approx(weight)}


def test_a_resume_with_other_numbers_takes_them() -> None:
    def adapted(**numbers: float) -> float:
        first = follower(objective(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 0.01}]))
        first.adapt_weights({'penalty_kl': torch.tensor(1.0)})
        other = follower(objective(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 0.01, **numbers}]))
        other.load_state_dict(first.state_dict())
        return other.choose_weights()['kl']

    assert adapted() == pytest.approx(0.3)
    assert adapted(max_weight=0.25) == 0.25
    assert adapted(weight=0.1) == 0.1


def test_a_weight_without_target_follows_its_schedule() -> None:
    found = objective(penalties=[{'type': 'kl', 'weight': {'start': 1.0, 'end': 0.0, 'over': 100}}])
    penalties = Penalties()
    penalties.fill(None, SimpleNamespace(objective=found))
    for env_step, weight in ((0, 1.0), (25, 0.75), (100, 0.0)):
        penalties.set_env_step(env_step)
        assert penalties.choose_weights() == {'kl': weight}
    moving = follower(found)
    moving.adapt_weights({'penalty_kl': torch.tensor(1.0)})  # no effect without a target
    assert moving.choose_weights() == {}


class TwoRanks:
    """Rank 0 of two ranks; the other rank adds 0.3 to every sum."""

    rank, size = 0, 2

    def sum_(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(0.3)


def test_weight_with_a_target_follows_the_mean_over_all_ranks() -> None:
    """Alone, a KL of .05 is below half the target .2 and halves the weight; the mean (.05 + .3) / 2 = .175 does not."""
    penalties = [{'type': 'reverse_kl', 'weight': 1.0, 'target': 0.2}]
    own = torch.tensor(0.05)
    weights = []
    for ranks in (ALONE, TwoRanks()):
        moving = follower(objective(penalties=penalties), ranks)
        moving.adapt_weights({'penalty_reverse_kl': own})
        weights.append(moving.choose_weights()['reverse_kl'])
    assert weights == [0.5, 1.0] and own == torch.tensor(0.05)


def test_a_penalty_with_target_moves_its_weight_once_an_update_and_is_in_checkpoints() -> None:
    """The first update has a large learning rate, so its KL is far above the target: .2 * 1.5 = .3."""
    learn = dict(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 1e-6}], learning_rate=0.1, epoch_per_collect=2)
    policy = ppo(learn)
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics['kl_weight'] == 0.2 and metrics['penalty_kl'] > 0
    other = ppo(learn)
    other.load_state_dict(policy.state_dict())
    assert other.objective.weights == [pytest.approx(0.3)]
    samples = samples_of(policy, 1)
    for each in (policy, other):
        assert each.learn_mode.forward(clone(samples))['kl_weight'] == pytest.approx(0.3)
    assert not differing(parameters(policy), parameters(other))


@pytest.mark.parametrize('type_', ['ppo', 'ppg'])
def test_logged_losses_with_their_logged_weights_add_up_while_a_target_moves_a_weight(type_: str) -> None:
    """total_loss is what the update minimised, so a logged weight is that of the update and not of the next one."""
    learn = dict(penalties=[{'type': 'kl', 'weight': 0.2, 'target': 1e-6}], learning_rate=0.1, entropy_weight=0.03)
    policy = make_policy(OBS, TWO_ACTIONS, type=type_, learn=learn, collect={'n_step': N_STEP})
    for seed, weight in enumerate((0.2, 0.3, 0.45)):  # the KL of all updates is above the target
        found = {name: x.item() for name, x in policy.learn_mode.forward(samples_of(policy, seed)).items()}
        assert found['kl_weight'] == pytest.approx(weight)
        total = found['policy_loss'] + found['value_weight'] * found['value_loss']
        total += found['kl_weight'] * found['penalty_kl'] - found['entropy_weight'] * found['entropy']
        assert found['total_loss'] == pytest.approx(total, rel=1e-5)


def test_the_rate_falls_after_a_large_kl_and_resumes() -> None:
    """KL is far above twice the target, so the rate becomes 1e-2 / 1.5."""
    learn = dict(learning_rate={'start': 1e-2, 'kl_target': 1e-9}, epoch_per_collect=2)
    policy = ppo(learn)
    policy.learn_mode.forward(samples_of(policy))
    other = ppo(learn)
    other.load_state_dict(policy.state_dict())
    for each in (policy, other):
        each.learn_mode.set_env_step(100)
        metrics = each.learn_mode.forward(samples_of(each, 1))
        assert metrics['learning_rate'].item() == pytest.approx(1e-2 / 1.5)


def test_one_step_moves_the_policy_and_the_rate_follows_it() -> None:
    """A KL that is measured before each step would be 0 here, and the rate would always rise."""
    policy = ppo(dict(learning_rate={'start': 1e-2, 'kl_target': 1e-9}, batch_size=None, epoch_per_collect=1))
    samples = samples_of(policy)
    before = policy.model.compute_actor(samples['obs']).detach()
    metrics = policy.learn_mode.forward(clone(samples))
    after = policy.model.compute_actor(samples['obs']).detach()
    want = (before.softmax(-1) * (before.log_softmax(-1) - after.log_softmax(-1))).sum(-1).mean()
    torch.testing.assert_close(metrics['update_kl'], want)
    assert want > 1e-8 and policy.state_dict()['learn']['adaptive_rate']['learning_rate'] == pytest.approx(1e-2 / 1.5)


def test_exploration_is_no_change_of_the_policy() -> None:
    explore = {'type': 'temperature', 'temperature': 3.0}
    learn = dict(learning_rate={'start': 1e-12, 'kl_target': 0.01, 'min': 1e-13}, proximal='recent')
    policy = ppo(learn, collect=dict(n_step=N_STEP, exploration=explore))
    assert policy.learn_mode.forward(samples_of(policy))['update_kl'] < 1e-9


def test_the_rate_follows_each_draw_of_a_round() -> None:
    policy = make_policy(
        OBS, TWO_ACTIONS, type='ppo_offpolicy', learn=dict(learning_rate={'start': 1e-3, 'kl_target': 1e3})
    )
    samples, rates = samples_of(policy), []
    for _ in range(3):
        rates.append(policy.learn_mode.forward(clone(samples))['learning_rate'].item())
    assert rates == pytest.approx([1e-3, 1.5e-3, 2.25e-3])
