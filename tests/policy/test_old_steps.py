"""Steps and numbers in their older form: loss and numbers are one object, so a step has five parameters."""

from __future__ import annotations

import torch

from tests.policy.updates import ppo, samples_of
from zoo.backend.step import with_log_old
from zoo.policy import old_steps
from zoo.policy.ppo import policy_terms, surrogate_loss


def test_numbers_of_a_policy_step_in_their_old_order_are_loss_and_numbers() -> None:
    numbers = old_steps.PolicyNumbers(0.1, 0.02, 3.0, 0.5, True, 0.7)
    loss, now = numbers
    assert (now.clip_ratio, now.entropy_weight, now.dual_clip) == (0.1, 0.02, 3.0)
    assert (now.grad_clip, now.value_weight, loss.measure_kl) == (0.5, 0.7, True)


def test_numbers_of_a_critic_step_clip_no_gradient_and_count_whole_by_default() -> None:
    assert (old_steps.ValueNumbers().grad_clip, old_steps.ValueNumbers().value_weight) == (None, 1.0)
    assert (old_steps.ValueNumbers(0.1, 0.5).clip_ratio, old_steps.ValueNumbers(0.1, 0.5).grad_clip) == (0.1, 0.5)


def test_terms_of_a_policy_are_those_of_loss_and_numbers_as_two_objects() -> None:
    policy = ppo()
    samples = with_log_old(policy.dist, samples_of(policy))
    numbers = old_steps.PolicyNumbers(clip_ratio=0.1, entropy_weight=0.02)
    shift = torch.linspace(-1, 1, len(samples['adv'])).unsqueeze(1)  # ratios on both sides of the clip range
    logit = samples['logit'] + shift * torch.tensor([1.0, 0.0])
    old = old_steps.surrogate_loss(policy.dist, logit, samples, numbers)
    torch.testing.assert_close(old, surrogate_loss(policy.dist, logit, samples, *numbers))
    old = old_steps.policy_terms(policy.dist, {'logit': logit}, samples, numbers)
    torch.testing.assert_close(old, policy_terms(policy.dist, {'logit': logit}, samples, *numbers))


def test_call_of_a_step_with_the_older_numbers_trains_as_one_with_loss_and_numbers() -> None:
    ends = []
    for call in ('older', 'older by name', 'today'):
        policy = ppo()
        samples = samples_of(policy)
        numbers = old_steps.PolicyNumbers(clip_ratio=0.1, entropy_weight=0.02)
        step = policy.step
        optimizers = list(policy.optimizers.values())
        if call == 'older':
            step(policy.model, policy.dist, optimizers, samples, numbers)
        elif call == 'older by name':
            step(policy.model, policy.dist, optimizers, minibatch=samples, numbers=numbers)
        else:
            step(policy.model, policy.dist, optimizers, samples, *numbers)
        ends.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert not torch.equal(ends[0], torch.cat([p.detach().flatten() for p in ppo().model.parameters()]))  # it trained
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[2])
