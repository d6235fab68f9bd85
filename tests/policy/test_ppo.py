"""Each option of PPO does what it says; and PPO learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, clone, differing, job_config, make_policy, take
from zoo.core.data import Rollout
from zoo.core.spaces import Box
from zoo.env import EnvConfig
from zoo.pipeline import serial_pipeline
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.worker.evaluator import evaluate

OBS = Box(torch.full((2,), -torch.inf).numpy(), torch.full((2,), torch.inf).numpy())
N_STEP, N_ENV = 8, 4
N = N_STEP * N_ENV


def ppo(learn: dict[str, Any] | None = None, **kwargs: Any) -> Policy:
    """One epoch of one minibatch, every option off, unless `learn` says otherwise."""
    base = dict(epoch_per_collect=1, batch_size=N, adv_norm='off', grad_clip=None, learning_rate=1e-2)
    kwargs.setdefault('collect', dict(n_step=N_STEP, discount_factor=0.9, gae_lambda=0.8))
    return make_policy(OBS, kwargs.pop('action_space', TWO_ACTIONS), learn={**base, **(learn or {})}, **kwargs)


def random_rollout(policy: Policy, seed: int = 0) -> Rollout:
    """N_STEP x N_ENV of random observations, rewards and ends, acted on by the policy."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(N_STEP + 1, N_ENV, 2, generator=generator)
    output = [policy.collect_mode.forward(obs[t], None) for t in range(N_STEP)]
    done = torch.rand(N_STEP, N_ENV, generator=generator) < 0.1
    cut = torch.rand(N_STEP, N_ENV, generator=generator) < 0.1
    index = (done | cut).nonzero()
    data = {
        'obs': obs[:-1],
        'action': torch.stack([o['action'] for o in output]),
        'logit': torch.stack([o['logit'] for o in output]),
        'reward': torch.randn(N_STEP, N_ENV, generator=generator),
        'done': done,
        'traj_flag': done | cut,
    }
    return Rollout(data, obs[-1], torch.randn(len(index), 2, generator=generator), index)


def samples_of(policy: Policy, seed: int = 0) -> dict[str, Any]:
    return policy.collect_mode.get_train_sample(random_rollout(policy, seed))


def weightless(samples: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in samples.items() if name != 'weight'}


def parameters(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy._model.named_parameters()}


def trained(learn: dict[str, Any], samples: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
    """Parameters of a fresh policy after one round on these samples."""
    policy = ppo(learn, **kwargs)
    policy.learn_mode.forward(samples)
    return parameters(policy)


def entropy(policy: Policy, obs: Tensor) -> float:
    logit = policy._model.compute_actor(obs).detach()
    return -(logit.softmax(-1) * logit.log_softmax(-1)).sum(-1).mean().item()


@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])
@pytest.mark.parametrize('obs_norm', [False, True])
def test_ratio_is_one_at_the_first_minibatch_of_every_rollout(space: Any, obs_norm: bool) -> None:
    policy = ppo(dict(learning_rate=0.05), action_space=space, model=dict(obs_norm=obs_norm, log_std_init=-1.0))
    for seed in range(4):
        batch = samples_of(policy, seed)
        batch['obs'] = batch['obs'].clone()
        metrics = policy.learn_mode.forward(batch)
        # nothing but rounding: 4 rows were acted on at once, 32 are learned from
        assert metrics['approx_kl'].abs().item() < 1e-6
        assert metrics['clipfrac'].item() == 0


def test_observation_statistics_move_after_the_update_by_the_valid_rows() -> None:
    policy = ppo(model=dict(obs_norm=True))
    batch = samples_of(policy)
    batch['weight'] = torch.cat((torch.zeros(N // 2), torch.full((N // 2,), 2.0)))
    policy.learn_mode.forward(batch)
    torch.testing.assert_close(policy._model.input.mean, batch['obs'][N // 2 :].double().mean(0))


@pytest.mark.parametrize('adv_norm', ['batch', 'minibatch'])
def test_normalised_advantages_ignore_scale_and_shift(adv_norm: str) -> None:
    learn, samples = dict(adv_norm=adv_norm, value_weight=0.0), samples_of(ppo())
    moved = {**samples, 'adv': samples['adv'] * 10 + 3}
    torch.testing.assert_close(trained(learn, samples), trained(learn, moved))


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
    """The gradient of a block with reset rows is that of its valid rows alone, whatever stands in the others."""
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


def test_reset_rows_stay_out_of_the_metrics() -> None:
    samples = samples_of(ppo())
    samples['weight'] = torch.zeros(N)
    samples['weight'][::2] = 2.0
    samples['logit'][1::2] = torch.tensor([9.0, -9.0])
    samples['return_'][1::2] = 1e5
    metrics, valid = (
        ppo().learn_mode.forward(samples),
        ppo(dict(batch_size=N // 2)).learn_mode.forward(weightless(take(samples, slice(None, None, 2)))),
    )
    for name in metrics:
        torch.testing.assert_close(metrics[name], valid[name], msg=lambda m, name=name: f'{name}: {m}')


def test_value_clip_holds_the_critic_near_its_old_values() -> None:
    learn = dict(value_clip=True, clip_ratio=0.05, epoch_per_collect=50, learning_rate=3e-3)
    samples = samples_of(ppo())
    samples['adv'], samples['return_'] = torch.zeros(N), samples['value'] + 5

    def moved(**options: Any) -> float:
        policy = ppo({**learn, **options})
        policy.learn_mode.forward(samples)
        return (policy._model.compute_critic(samples['obs']) - samples['value']).abs().max().item()

    assert moved() < 1  # beyond .05 there is no gradient; Adam's momentum carries it a little
    assert moved(value_clip=False) > 1.5


def test_dual_clip_stops_the_gradient_of_bad_actions_that_became_likely() -> None:
    samples = samples_of(ppo())
    samples['adv'] = -torch.ones(N)
    # the behaviour policy gave the drawn action probability 1 / (1 + e^4) = .018, the policy about .5: ratio near 28
    samples['logit'] = torch.full((N, 2), 4.0).scatter(1, samples['action'].unsqueeze(1), 0.0)
    learn, before = dict(value_weight=0.0), parameters(ppo())
    with_bound, without = trained({**learn, 'dual_clip': 3.0}, samples), trained(learn, samples)
    assert not differing(with_bound, before)
    assert (without['policy_head.weight'] - before['policy_head.weight']).abs().max() > 1e-3


@pytest.mark.parametrize(('grad_clip', 'want'), [(0.01, 0.01), (None, None), (1e6, None)])
def test_grad_clip_limits_the_global_norm(grad_clip: float | None, want: float | None) -> None:
    policy = ppo(dict(grad_clip=grad_clip))
    samples = samples_of(policy)
    samples['return_'] += 10
    norm = policy.learn_mode.forward(samples)['grad_norm'].item()
    assert norm > 0.1
    # Adam's first moment after one step is (1 - .9) * gradient
    momentum = policy.optimizers['all'].exp_avg.norm().item()
    assert momentum == pytest.approx(0.1 * (norm if want is None else want), rel=1e-3)


def test_entropy_weight_raises_entropy() -> None:
    learn = dict(epoch_per_collect=30, value_weight=0.0)
    samples = samples_of(ppo())
    samples['adv'] = torch.zeros(N)

    def after(weight: float) -> tuple[float, float]:
        policy = ppo({**learn, 'entropy_weight': weight})
        with torch.no_grad():
            policy._model.policy_head.bias.copy_(torch.tensor([0.0, 3.0]))
        samples['logit'] = policy._model.compute_actor(samples['obs']).detach()
        before = entropy(policy, samples['obs'])
        policy.learn_mode.forward(samples)
        return before, entropy(policy, samples['obs'])

    before, raised = after(0.1)
    assert before < 0.25 and raised > before + 0.05
    before, same = after(0.0)  # advantages are 0: nothing else moves the actor
    assert same == before


def test_value_weight_zero_leaves_a_separate_critic_alone() -> None:
    before, after = parameters(ppo()), trained(dict(value_weight=0.0), samples_of(ppo()))
    assert {k.split('.')[0] for k in differing(before, after)} == {'actor_encoder', 'policy_head'}


def test_schedules_move_with_env_steps() -> None:
    line = {'start': 1e-3, 'end': 0.0, 'over': 1000}
    policy = ppo(
        dict(
            learning_rate=line,
            clip_ratio={'start': 0.4, 'end': 0.2, 'over': 1000},
            entropy_weight={'points': [[0, 0.1], [1000, 0.0]]},
        )
    )
    samples = samples_of(policy)
    for env_step, share in ((0, 1.0), (500, 0.5), (250, 0.75)):
        policy.learn_mode.set_env_step(env_step)
        metrics = policy.learn_mode.forward(samples)
        assert policy.optimizers['all'].lr == pytest.approx(1e-3 * share)
        assert metrics['learning_rate'].item() == pytest.approx(1e-3 * share)
        assert metrics['clip_ratio'].item() == pytest.approx(0.2 + 0.2 * share)
        assert metrics['entropy_weight'].item() == pytest.approx(0.1 * share)


def test_learning_rate_scales_the_step() -> None:
    samples, before = samples_of(ppo()), parameters(ppo())
    large, small = trained(dict(learning_rate=1e-3), samples), trained(dict(learning_rate=5e-4), samples)
    for name in before:  # one Adam step is proportional to it
        torch.testing.assert_close(large[name] - before[name], 2 * (small[name] - before[name]), rtol=1e-2, atol=1e-6)


def test_clip_ratio_stops_the_gradient_beyond_it() -> None:
    samples = samples_of(ppo())
    samples['adv'] = torch.ones(N)
    # ratio e^.3 = 1.35 of the drawn actions at near even odds: about .5 / (1 / (1 + e^.6)) = 1.4
    samples['logit'] = torch.full((N, 2), 0.6).scatter(1, samples['action'].unsqueeze(1), 0.0)
    learn, before = dict(value_weight=0.0), parameters(ppo())
    assert not differing(trained({**learn, 'clip_ratio': 0.2}, samples), before)
    assert differing(trained({**learn, 'clip_ratio': 0.6}, samples), before)


def test_non_finite_gradient_is_skipped_and_counted() -> None:
    policy = ppo(dict(nonfinite_limit=3))
    good = samples_of(policy)
    bad = clone(good)
    bad['adv'][3] = torch.nan
    before = parameters(policy)
    metrics = policy.learn_mode.forward(bad)
    assert not differing(before, parameters(policy))
    assert metrics['skipped_step'].item() == 1
    policy.learn_mode.forward(bad)
    metrics = policy.learn_mode.forward(good)  # a good one in between: not in a row
    assert metrics['skipped_step'].item() == 2
    assert differing(before, parameters(policy))
    policy.learn_mode.forward(bad)
    policy.learn_mode.forward(bad)
    with pytest.raises(NonFiniteGradientError, match='actor_encoder'):
        policy.learn_mode.forward(bad)


@pytest.mark.parametrize('where', ['return_', 'adv'])
def test_non_finite_gradient_names_a_parameter_of_the_part_that_broke(where: str) -> None:
    policy = ppo(dict(nonfinite_limit=1))
    bad = samples_of(policy)
    bad[where][0] = torch.inf
    with pytest.raises(NonFiniteGradientError, match='critic_encoder' if where == 'return_' else 'actor_encoder'):
        policy.learn_mode.forward(bad)


def test_non_finite_gradient_leaves_every_statistic_finite() -> None:
    """A state that is skipped must also be one that a later update can go on from."""
    policy = ppo(dict(value_norm=True, nonfinite_limit=10))
    bad = samples_of(policy)
    bad['return_'][0] = torch.nan
    policy.learn_mode.forward(bad)
    state = policy.state_dict()
    assert all(torch.isfinite(v).all() for v in state['normalizer'].values())


def learned(tmp_path: Any, env_id: str, learning_rate: float, n: int = 6400) -> float:
    """Mean return of 200 greedy episodes after n one-step episodes."""
    cfg = job_config(
        tmp_path,
        env_id,
        max_env_step=n,
        policy=dict(
            model=dict(hidden_sizes=[16], **(dict(log_std_init=-1.0) if 'aim' in env_id else {})),
            learn=dict(learning_rate=learning_rate, batch_size=64, epoch_per_collect=4),
        ),
    )
    result = serial_pipeline(cfg)
    return evaluate(result.policy, EnvConfig(id=env_id), 200, seed=1).return_mean


@pytest.mark.slow
def test_learns_to_match_a_number(tmp_path: Any) -> None:
    assert learned(tmp_path, 'tests.policy_envs:match_env', 1e-2) == 1


@pytest.mark.slow
def test_learns_to_aim(tmp_path: Any) -> None:
    # acting 0 gives -E[x^2] / 4 = -1 / 12
    assert learned(tmp_path, 'tests.policy_envs:aim_env', 1e-2) > -0.01


@pytest.mark.parametrize(
    ('env_id', 'bound'), [('tests.policy_envs:match_env', 0.9), ('tests.policy_envs:aim_env', -0.03)]
)
def test_learns_nothing_at_a_vanishing_learning_rate(tmp_path: Any, env_id: str, bound: float) -> None:
    """So that the two tests above cannot pass by luck."""
    assert learned(tmp_path, env_id, 1e-9, 640) < bound


def test_metrics_are_detached_scalars() -> None:
    policy = ppo()
    for name, value in policy.learn_mode.forward(samples_of(policy)).items():
        assert isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad, name


def test_learning_changes_no_sample() -> None:
    policy = ppo(
        dict(adv_norm='batch', value_norm=True, recompute_adv=True, epoch_per_collect=2), model=dict(obs_norm=True)
    )
    samples = samples_of(policy)
    before = clone(samples)
    policy.learn_mode.forward(samples)
    assert not differing(before, samples)


def test_learning_rate_that_reaches_zero_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = ppo(dict(learning_rate={'start': 1e-3, 'end': 0.0, 'over': 100}))
    policy.learn_mode.set_env_step(99)
    assert not caplog.records
    policy.learn_mode.set_env_step(100)
    policy.learn_mode.set_env_step(164)
    assert [record.getMessage().split(':')[0] for record in caplog.records] == [
        'policy.learn.learning_rate is 0 from env step 100 on'
    ]


def test_clip_range_that_shrinks_to_zero_still_learns() -> None:
    policy = ppo(dict(clip_ratio={'start': 0.2, 'end': 0.0, 'over': 100}))
    batch = samples_of(policy)
    policy.learn_mode.set_env_step(100)
    assert torch.isfinite(policy.learn_mode.forward(batch)['policy_loss'])
