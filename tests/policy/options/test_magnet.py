"""The magnet: a penalty for the distance from the average of past policies."""

from __future__ import annotations

import pytest
import torch

from tests.policy.updates import OBS, N, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, make_policy
from zoo.backend.trace import replaced
from zoo.core.errors import UserError

MAGNET = [{'type': 'magnet', 'weight': 0.5, 'decay': 0.5}]


def test_magnet_is_the_kl_from_the_debiased_average() -> None:
    """One minibatch is one step. The first begins at the average; before the third it is (.25 start + .5 first + second) / 1.75."""
    policy = ppo(dict(penalties=MAGNET, executor='eager'))
    optimizer = policy.optimizers['all']
    samples = samples_of(policy)
    path = []
    penalties = []
    for _ in range(3):
        path.append(optimizer.param.clone())
        average = optimizer.buffers['average'].clone()
        with torch.no_grad():
            now = policy.logit_of(samples).log_softmax(1)
            with replaced(policy.model, optimizer.averaged):
                magnet = policy.logit_of(samples).log_softmax(1)
        want = (now.exp() * (now - magnet)).sum(1).mean()
        got = policy.learn_mode.forward(clone(samples))['penalty_magnet']
        assert float(got) == pytest.approx(float(want), abs=1e-7)
        penalties.append(float(got))
    torch.testing.assert_close(average, (0.25 * path[0] + 0.5 * path[1] + path[2]) / 1.75)
    assert penalties[0] == 0.0 and penalties[2] > 0.0


def test_magnet_pulls_the_policy_back() -> None:
    """With a strong magnet the policy moves less far from where it began, by the same samples."""
    moved = []
    for weight in (0.0, 50.0):
        policy = ppo(dict(penalties=[{'type': 'magnet', 'weight': weight, 'decay': 0.999}], executor='eager'))
        samples = samples_of(policy)
        samples['adv'] = torch.ones_like(samples['adv'])
        before = policy.logit_of(samples).detach().log_softmax(1)
        for _ in range(20):
            policy.learn_mode.forward(clone(samples))
        after = policy.logit_of(samples).detach().log_softmax(1)
        moved.append(float((after.exp() * (after - before)).sum(1).mean()))
    assert moved[1] < 0.5 * moved[0]


def test_magnet_lasts_through_an_auxiliary_phase() -> None:
    policy = make_policy(
        OBS, TWO_ACTIONS, type='ppg', learn=dict(penalties=MAGNET, batch_size=N, aux_freq=1, aux_batch_size=N)
    )
    policy.learn_mode.forward(samples_of(policy))
    actor = policy.optimizers['actor']
    assert not torch.equal(actor.buffers['average'], actor.param)


def test_magnet_and_another_average_are_refused() -> None:
    with pytest.raises(UserError, match='both choose the columns that steps compute; drop one of the two'):
        ppo(dict(penalties=MAGNET, proximal='ewma'))


def test_magnet_does_not_run_in_c() -> None:
    with pytest.raises(UserError, match="the native executor does not know the penalty 'magnet'"):
        policy = ppo(dict(penalties=MAGNET, executor='native'))
        policy.learn_mode.forward(samples_of(policy))
