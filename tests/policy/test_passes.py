"""Draws: permutations from the random stream, row order, and prioritised draws with probabilities and weights by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.policy.updates import N, ppo, samples_of
from tests.step_parts import PolicyNumbers
from zoo.config.components import make_component, summary_of
from zoo.core.errors import UserError
from zoo.core.registry import DRAW_REGISTRY
from zoo.core.seeding import torch_generator

NAMES = DRAW_REGISTRY.names()


def draw(name: str, columns, n_pass: int = 1, seed: int = 0, **options) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return make_component(DRAW_REGISTRY, {'type': name, **options})(columns, n_pass, generator)


def batch(*adv: float) -> dict[str, Tensor]:
    return {'obs': torch.zeros(len(adv), 3), 'adv': torch.tensor(adv)}


def test_shuffle_draws_the_permutations_of_the_stream():
    order, weight = make_component(DRAW_REGISTRY, 'shuffle')(batch(*range(50)), 3, torch_generator(7, 'learn'))
    generator = torch_generator(7, 'learn')
    assert torch.equal(order, torch.stack([torch.randperm(50, generator=generator) for _ in range(3)]))
    assert weight is None


def test_shuffle_of_passes_at_once_is_that_of_one_after_another():
    part = make_component(DRAW_REGISTRY, 'shuffle')
    one, other = torch_generator(7, 'learn'), torch_generator(7, 'learn')
    together = part(batch(*range(9)), 4, one)[0]
    assert torch.equal(together, torch.cat([part(batch(*range(9)), 1, other)[0] for _ in range(4)]))


def test_in_order_is_the_order_of_the_rows():
    order, weight = draw('in_order', batch(5.0, 1.0, 3.0), 2)
    assert order.tolist() == [[0, 1, 2], [0, 1, 2]] and weight is None


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('n_step', [(), (4,)])
def test_order_has_an_entry_for_each_row_or_sequence(name, n_step):
    columns = {'adv': torch.randn(10, *n_step, generator=torch.Generator().manual_seed(1))}
    if n_step:
        columns['state'] = torch.zeros(10, 2)
    order, weight = draw(name, columns, 3)
    assert order.shape == (3, 10) and order.dtype == torch.int64 and order.min() >= 0 and order.max() < 10
    assert weight is None or (weight.shape == (10,) and weight.dtype == torch.float32 and (weight >= 0).all())


@pytest.mark.parametrize('name', NAMES)
def test_the_same_seed_gives_the_same_draw(name):
    columns = batch(*torch.randn(20, generator=torch.Generator().manual_seed(1)).tolist())
    assert torch.equal(draw(name, columns, 2)[0], draw(name, columns, 2)[0])


def test_prioritized_probabilities_by_hand():
    # alpha 1, |adv| 1, 2, 1: p .25, .5, .25; standard error of the shares of 30,000 draws: sqrt(.25 / 30000) = .003
    order, _ = draw('prioritized', batch(1.0, -2.0, 1.0), 10_000, alpha=1.0)
    share = order.flatten().bincount(minlength=3) / order.numel()
    torch.testing.assert_close(share, torch.tensor([0.25, 0.5, 0.25]), atol=0.012, rtol=0)


@pytest.mark.parametrize(
    ('adv', 'alpha', 'beta', 'wanted'),
    [
        # p .25, .5, .25: 1 / (3 p) = 4/3, 2/3, 4/3, of mean .25 * 4/3 + .5 * 2/3 + .25 * 4/3 = 1
        ((1.0, -2.0, 1.0), 1.0, 1.0, (4 / 3, 2 / 3, 4 / 3)),
        # p 1/3, 2/3: (2/3)^-.5 = 1.224745, (4/3)^-.5 = .866025, of mean .985599
        ((1.0, 4.0), 0.5, 0.5, (1.224745 / 0.985599, 0.866025 / 0.985599)),
        ((1.0, 7.0, 0.0), 0.0, 1.0, (1.0, 1.0, 1.0)),  # no preference
        ((1.0, 7.0, 2.0), 0.8, 0.0, (1.0, 1.0, 1.0)),  # no correction
    ],
)
def test_prioritized_weights_by_hand(adv, alpha, beta, wanted):
    weight = draw('prioritized', batch(*adv), alpha=alpha, beta=beta)[1]
    assert weight.tolist() == pytest.approx(wanted, rel=1e-5)


def test_prioritized_with_beta_1_has_the_loss_of_shuffle_on_average():
    # losses 1, 10, 100 have mean 37; 60,000 draws of terms up to 100 with deviation about 40: error 40 / 245 = .16
    order, weight = draw('prioritized', batch(0.5, 1.0, 3.0), 20_000, alpha=0.8, beta=1.0)
    loss = torch.tensor([1.0, 10.0, 100.0])
    assert (weight * loss)[order].mean().item() == pytest.approx(37.0, abs=0.8)


def test_prioritized_weights_have_mean_1_over_what_is_drawn():
    adv = torch.randn(64, generator=torch.Generator().manual_seed(1)).tolist()
    order, weight = draw('prioritized', batch(*adv), 500, alpha=0.8, beta=0.2)
    assert weight[order].mean().item() == pytest.approx(1.0, abs=0.01)


def test_prioritized_never_draws_rows_without_weight():
    columns = batch(1.0, float('nan'), 3.0, 100.0) | {'weight': torch.tensor([2.0, 0.0, 2.0, 0.0])}
    order, weight = draw('prioritized', columns, 100, alpha=1.0, beta=1.0)
    assert order.unique().tolist() == [0, 2]
    # p .25, .75: 1 / (4 p) = 1, 1/3; with the given weight of 2 the mean is .25 * 2 + .75 * 2/3 = 1
    assert weight.tolist() == pytest.approx([1.0, 0.0, 1 / 3, 0.0])
    assert (weight * columns['weight'])[order].mean().item() == pytest.approx(1.0, abs=0.2)


def test_prioritized_sequences_go_by_the_sum_of_their_steps():
    # sums of |adv|: 2 and 6; without the step of weight 0 they are 2 and 2
    columns = {'adv': torch.tensor([[1.0, -1.0], [-2.0, 4.0]]), 'state': torch.zeros(2, 1)}
    assert draw('prioritized', columns, alpha=1.0, beta=1.0)[1].tolist() == pytest.approx([2.0, 2 / 3])
    columns['weight'] = torch.tensor([[4 / 3, 4 / 3], [4 / 3, 0.0]])
    # p .5 each: 1 / (2 p) = 1, of mean .5 * 4/3 + .5 * 2/3 = 1
    assert draw('prioritized', columns, alpha=1.0, beta=1.0)[1].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize('alpha', [0.0, 0.8])
@pytest.mark.parametrize(
    ('columns', 'wanted'),
    [
        (batch(1.0, 2.0, 3.0, 9.0) | {'weight': torch.zeros(4)}, 0.0),  # rows without weight alone
        (batch(0.0, 0.0, 0.0, 0.0), 1.0),  # no advantages
    ],
)
def test_prioritized_without_a_preference_draws_evenly(columns, wanted, alpha):
    order, weight = draw('prioritized', columns, 500, alpha=alpha, beta=1.0)
    assert weight.tolist() == pytest.approx([wanted] * 4)
    assert order.flatten().bincount(minlength=4).min() > 400  # the mean is 500 each, the deviation 19


def test_prioritized_draws_a_row_without_advantage_at_times():
    _, weight = draw('prioritized', batch(0.0, 1.0), alpha=1.0, beta=0.2)
    assert weight.isfinite().all() and (weight > 0).all()


def test_prioritized_without_advantages_in_the_batch_is_refused():
    with pytest.raises(UserError, match="'prioritized' needs the column 'adv'.*use the draw 'shuffle'"):
        draw('prioritized', {'obs': torch.zeros(3, 2)})


@pytest.mark.parametrize('name', NAMES)
def test_has_a_summary(name):
    assert summary_of(DRAW_REGISTRY.get(name)).endswith('.')


@pytest.mark.parametrize(
    ('options', 'kls', 'wanted'),
    [
        ({}, [0.0] * 6, (3, [5, 6])),  # one plan of three passes of two minibatches
        ({'recompute_adv': True}, [0.0] * 6, (3, [5, 6])),  # a plan for each pass
        ({'target_kl': 0.1}, [0.0, 0.1, 0.1, 0.5], (2, [3, 4])),  # the mean of the second pass is .3 > .15
        (
            {'target_kl': 0.1, 'target_kl_at': 'minibatch'},
            [0.0, 0.1, 0.5],
            (2, [3]),
        ),  # after one step of the second pass
    ],
)
def test_last_is_the_mean_over_the_steps_of_the_last_pass(options, kls, wanted):
    policy = ppo({'epoch_per_collect': 3, 'batch_size': N // 2, **options})
    taken = []

    def step(model, dist, optimizers, minibatch, loss, numbers):
        taken.append(len(minibatch['adv']))
        return {'kl': torch.tensor(kls[len(taken) - 1]), 'number': torch.tensor(float(len(taken)))}

    passes = policy.passes
    n_pass, numbers_of_last = wanted
    for _ in range(2):  # the second update has steps before it
        taken.clear()
        for plan in passes.over(samples_of(policy), 3, N // 2):
            passes.take(step, list(policy.optimizers.values()), plan, *PolicyNumbers())
        trained = passes.trained()
        assert taken == [N // 2] * len(kls) and trained.n_pass == n_pass
        assert trained.last()['number'].item() == sum(numbers_of_last) / len(numbers_of_last)
