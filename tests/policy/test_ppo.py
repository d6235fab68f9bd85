"""Options of PPO: each one has its documented effect."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.policy.updates import N_STEP, OBS, N, parameters, ppo, samples_of, trained
from tests.policy_envs import TWO_ACTIONS, clone, differing, make_policy, take
from tests.step_parts import PolicyNumbers
from zoo.config.components import Component
from zoo.policy.ppo import ppo_step
from zoo.rl_utils import value_losses
from zoo.rl_utils.optimizer import FlatOptimizer, NonFiniteGradientError
from zoo.rl_utils.update_rules import SGDRule


def weightless(samples: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in samples.items() if name != 'weight'}


VALUE_CLIP = Component('value loss', 'clip', value_losses.clip, (('range', None),))


@pytest.mark.parametrize(
    ('learn', 'numbers'),
    [
        ({}, {}),
        *((same, same) for same in ({'clip_ratio': 0.05}, {'dual_clip': 1.5}, {'entropy_weight': 0.03})),
        *((same, same) for same in ({'value_weight': 0.7}, {'value_weight': 0.0}, {'grad_clip': 0.01})),
        ({'value_loss': 'clip'}, {'value_loss': VALUE_CLIP}),
        ({'value_loss': 'clip', 'clip_ratio': 0.05}, {'value_loss': VALUE_CLIP, 'clip_ratio': 0.05}),
    ],
)
def test_update_is_the_gradient_step_with_the_numbers_of_the_config(learn: Any, numbers: Any) -> None:
    """SGD at rate 1 moves by the gradient; the samples are of another policy, so that clips are active."""
    plain: dict[str, Any] = dict(clip_ratio=0.2, entropy_weight=0.0, grad_clip=None, value_weight=0.5)
    policy = ppo(dict(optimizer='sgd', learning_rate=1.0, **learn))
    samples, generator = samples_of(policy), torch.Generator().manual_seed(2)
    for name in ('logit', 'value', 'return_'):
        samples[name] = samples[name] + torch.randn(samples[name].shape, generator=generator)
    found = []
    for given in ({**plain, **numbers}, plain):
        model = copy.deepcopy(policy.model)
        optimizer = FlatOptimizer(model.named_parameters(), SGDRule(), lr=1.0)
        ppo_step(model, policy.dist, [optimizer], samples, PolicyNumbers(**given))
        found.append({name: p.detach() for name, p in model.named_parameters()})
    assert bool(differing(*found)) == bool(numbers)  # the option has an effect
    policy.learn_mode.forward(samples)
    torch.testing.assert_close(parameters(policy), found[0], rtol=1e-4, atol=1e-6)


def test_batch_size_null_is_one_gradient_step_a_pass_on_all_samples_of_a_rollout_or_draw() -> None:
    policy = ppo(dict(batch_size=None, epoch_per_collect=3))
    samples = samples_of(policy)
    for n_done, batch in enumerate((samples, take(samples, slice(N // 2)))):
        policy.learn_mode.forward(batch)
        assert policy.learn_mode.train_iter() == 3 * (n_done + 1)


def test_observation_statistics_move_after_the_update_by_the_valid_rows() -> None:
    policy = ppo(model=dict(obs_norm=True))
    batch = samples_of(policy)
    batch['weight'] = torch.cat((torch.zeros(N // 2), torch.full((N // 2,), 2.0)))
    policy.learn_mode.forward(batch)
    torch.testing.assert_close(policy.model.input.mean, batch['obs'][N // 2 :].double().mean(0))


def test_adv_norm_off_takes_advantages_as_they_are() -> None:
    samples = samples_of(ppo())
    policy = ppo(dict(value_weight=0.0))
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'].item() == pytest.approx(-samples['adv'].mean().item(), abs=1e-5)  # at ratio 1


def test_adv_norm_batch_is_over_the_rollout_and_minibatch_over_each_part() -> None:
    samples = samples_of(ppo())
    normal = {**samples, 'adv': (samples['adv'] - samples['adv'].mean()) / samples['adv'].std(correction=0)}
    whole, parts = dict(batch_size=N), dict(batch_size=N // 4)
    by_hand = trained(parts, normal)
    torch.testing.assert_close(trained({**parts, 'adv_norm': 'batch'}, samples), by_hand)
    torch.testing.assert_close(
        trained({**whole, 'adv_norm': 'minibatch'}, samples), trained({**whole, 'adv_norm': 'batch'}, samples)
    )
    minibatch = trained({**parts, 'adv_norm': 'minibatch'}, samples)
    assert max((minibatch[k] - by_hand[k]).abs().max() for k in by_hand) > 1e-4


@pytest.mark.parametrize('batch_size', [N, N // 4])
def test_rows_of_weight_zero_change_nothing(batch_size: int) -> None:
    """The gradient of a block with reset rows is that of its valid rows alone, for any values in the other rows."""
    learn = dict(adv_norm='batch', value_norm=True, entropy_weight=0.01, reward_norm=False)
    samples = samples_of(ppo())
    samples['weight'] = torch.zeros(N)
    samples['weight'][::2] = 2.0
    garbage = clone(samples)
    for key, value in (('obs', 50.0), ('adv', 1e4), ('return_', -1e4), ('value', 1e3)):
        garbage[key][1::2] = value
    learn['batch_size'] = batch_size
    torch.testing.assert_close(trained(learn, samples), trained(learn, garbage))
    if batch_size == N:
        valid = weightless(take(samples, slice(None, None, 2)))
        torch.testing.assert_close(trained(learn, samples), trained({**learn, 'batch_size': N // 2}, valid))


def test_value_weight_zero_leaves_a_separate_critic_alone() -> None:
    before, after = parameters(ppo()), trained(dict(value_weight=0.0), samples_of(ppo()))
    assert {k.split('.')[0] for k in differing(before, after)} == {'actor_encoder', 'policy_head'}


def test_schedules_move_with_env_steps() -> None:
    line = {'start': 1e-3, 'end': 0.0, 'over': 1000}
    clip, entropy = {'start': 0.4, 'end': 0.2, 'over': 1000}, {'points': [[0, 0.1], [1000, 0.0]]}
    policy = ppo(dict(learning_rate=line, clip_ratio=clip, entropy_weight=entropy))
    samples = samples_of(policy)
    for env_step, share in ((0, 1.0), (500, 0.5), (250, 0.75)):
        policy.learn_mode.set_env_step(env_step)
        metrics = policy.learn_mode.forward(samples)
        assert policy.optimizers['all'].lr == pytest.approx(1e-3 * share)
        assert metrics['learning_rate'].item() == pytest.approx(1e-3 * share)
        assert metrics['clip_ratio'].item() == pytest.approx(0.2 + 0.2 * share)
        assert metrics['entropy_weight'].item() == pytest.approx(0.1 * share)


@pytest.mark.parametrize(('where', 'part'), [('return_', 'critic_encoder'), ('adv', 'actor_encoder')])
def test_non_finite_gradient_is_skipped_and_counted_and_the_part_that_broke_is_named(where: str, part: str) -> None:
    policy = ppo(dict(nonfinite_limit=3))
    good = samples_of(policy)
    bad = clone(good)
    bad[where][3] = torch.nan
    before = parameters(policy)
    metrics = policy.learn_mode.forward(bad)
    assert not differing(before, parameters(policy))
    assert metrics['skipped_step'].item() == 1
    policy.learn_mode.forward(bad)
    metrics = policy.learn_mode.forward(good)  # a good update in between: the bad ones are not consecutive
    assert metrics['skipped_step'].item() == 2
    assert differing(before, parameters(policy))
    policy.learn_mode.forward(bad)
    policy.learn_mode.forward(bad)
    with pytest.raises(NonFiniteGradientError, match=part):
        policy.learn_mode.forward(bad)


def test_non_finite_gradient_leaves_every_statistic_finite() -> None:
    """Later updates must be able to continue after a skipped one."""
    policy = ppo(dict(value_norm=True, nonfinite_limit=10))
    bad = samples_of(policy)
    bad['return_'][0] = torch.nan
    policy.learn_mode.forward(bad)
    state = policy.state_dict()
    assert all(torch.isfinite(v).all() for v in state['normalizer'].values())


@pytest.mark.parametrize(
    ('kind', 'learn'),
    [('ppo', dict(recompute_adv=True, epoch_per_collect=2)), ('ppg', dict(aux_freq=1, aux_batch_size=N))],
)
def test_learning_changes_no_sample(kind: str, learn: dict[str, Any]) -> None:
    learn = dict(adv_norm='batch', value_norm=True, batch_size=N, **learn)
    policy = make_policy(
        OBS, TWO_ACTIONS, type=kind, learn=learn, model=dict(obs_norm=True), collect=dict(n_step=N_STEP)
    )
    samples = samples_of(policy)
    before = clone(samples)
    assert ('auxiliary_loss' in policy.learn_mode.forward(samples)) == (kind == 'ppg')
    assert not differing(before, samples)


def test_learning_rate_that_reaches_zero_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = ppo(dict(learning_rate={'start': 1e-3, 'end': 0.0, 'over': 100}))
    policy.learn_mode.set_env_step(99)
    assert not caplog.records
    policy.learn_mode.set_env_step(100)
    policy.learn_mode.set_env_step(164)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith('policy.learn.learning_rate is 0 from env step 100 on:')


@pytest.mark.parametrize(('kind', 'other'), [('ppo', 'critic'), ('ppg', 'critic'), ('ppg', 'aux')])
def test_learning_rate_that_reaches_zero_is_not_warned_of_while_another_rate_learns(
    kind: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says that nothing more is learned, which is true once the other rate is 0 too, at env step 200."""
    rates = {name: {'start': 1e-3, 'end': 0.0, 'over': over} for name, over in ((f'{other}_', 200), ('', 100))}
    learn = {f'{name}learning_rate': rate for name, rate in rates.items()}
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn)
    policy.learn_mode.set_env_step(100)
    assert not caplog.records
    policy.learn_mode.set_env_step(200)
    assert [record.getMessage().split(':')[0] for record in caplog.records] == [
        'the learning rates of policy.learn are 0 from env step 200 on'
    ]


def test_clip_range_that_shrinks_to_zero_still_learns() -> None:
    policy = ppo(dict(clip_ratio={'start': 0.2, 'end': 0.0, 'over': 100}))
    batch = samples_of(policy)
    policy.learn_mode.set_env_step(100)
    assert torch.isfinite(policy.learn_mode.forward(batch)['policy_loss'])
