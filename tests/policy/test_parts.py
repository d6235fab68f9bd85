"""The parts that a config chooses, inside a policy: each does what it says, and old runs are as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy.test_ppo import N_STEP, N, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, differing, job_config, make_policy, phase_held_back
from zoo.core.errors import UserError
from zoo.core.registry import DRAW_REGISTRY, ESTIMATOR_REGISTRY
from zoo.core.spaces import Box
from zoo.pipeline import serial_pipeline
from zoo.policy.passes import shuffle
from zoo.rl_utils.ppo import ppo_policy_data, ppo_policy_error

OBS = Box(torch.full((2,), -torch.inf).numpy(), torch.full((2,), torch.inf).numpy())


def after(learn: dict[str, Any], samples: dict[str, Any], n_round: int = 1, **kwargs: Any) -> dict[str, Tensor]:
    policy = ppo(learn, **kwargs)
    for _ in range(n_round):
        policy.learn_mode.forward(clone(samples))
    return parameters(policy)


# --- decoupled clip: arXiv:2110.00641, eq. 3 ---


def test_decoupled_clip_by_hand() -> None:
    """Two choices; p_old = .5, p_prox = .6, p_new = .75 of the one taken, clip .2, A = 1.

    rp = .75 / .6 = 1.25, clipped 1.2; importance .6 / .5 = 1.2: gain = 1.2 * 1.2 = 1.44, where rb A = 1.5.
    """

    def logit(p: float) -> Tensor:
        return torch.tensor([[p, 1 - p]]).log()

    data = ppo_policy_data(logit(0.75), logit(0.5), torch.tensor([0]), torch.ones(1))
    loss, info = ppo_policy_error(data, 0.2, logit_proximal=logit(0.6))
    assert loss.policy_loss.item() == pytest.approx(-1.44)
    assert info.clipfrac == 1 and info.approx_kl.item() == pytest.approx(torch.tensor(0.5 / 0.75).log().item())


def test_decoupled_ratio_to_behaviour_counts_as_at_most_100() -> None:
    """p_new = p_prox = .9, p_old = .001: 900 counts as 100."""
    logit = torch.tensor([[0.9, 0.1]]).log()
    old = torch.tensor([[0.001, 0.999]]).log()
    data = ppo_policy_data(logit, old, torch.tensor([0]), torch.ones(1))
    loss, _ = ppo_policy_error(data, 0.2, logit_proximal=logit)
    assert loss.policy_loss.item() == pytest.approx(-100, rel=1e-5)


def test_a_proximal_policy_that_is_the_old_one_changes_nothing() -> None:
    samples = samples_of(ppo())
    logit = samples['logit'] + torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
    data = ppo_policy_data(logit, samples['logit'], samples['action'], samples['adv'])
    plain, decoupled = ppo_policy_error(data)[0], ppo_policy_error(data, logit_proximal=samples['logit'])[0]
    torch.testing.assert_close(plain.policy_loss, decoupled.policy_loss)


def test_proximal_recent_is_plain_ppo_on_new_samples() -> None:
    """The update begins with the policy that acted, so the two are one."""
    samples = samples_of(ppo())
    plain = after(dict(epoch_per_collect=4, learning_rate=0.05), samples)
    recent = after(dict(epoch_per_collect=4, learning_rate=0.05, proximal='recent'), samples)
    for name, x in plain.items():
        torch.testing.assert_close(recent[name], x, rtol=1e-4, atol=1e-5)


def test_proximal_recent_moves_further_on_old_samples() -> None:
    """Old samples are beyond the clip of plain PPO from the first step on; the decoupled clip begins at ratio 1."""
    policy = ppo()
    samples = samples_of(policy)
    samples['adv'] = torch.ones(N)
    old = torch.full((N, 2), 1.0).scatter(1, samples['action'].unsqueeze(1), 0.0)  # the action was unlikely then
    samples['logit'] = old
    before = parameters(policy)
    heads = [name for name in before if name.startswith('policy_head')]
    stuck = after(dict(value_weight=0.0), samples)
    moved = after(dict(value_weight=0.0, proximal='recent'), samples)
    assert all(torch.equal(stuck[name], before[name]) for name in heads)
    assert all(not torch.equal(moved[name], before[name]) for name in heads)


def test_ewma_is_the_debiased_average_of_the_steps() -> None:
    """decay .5, three steps: weights .125 .25 .5 1 of the start and the three, over 1.875."""
    policy = ppo(dict(proximal={'type': 'ewma', 'decay': 0.5}, executor='eager'))
    optimizer, path = policy.optimizers['all'], []
    samples = samples_of(policy)
    path.append(optimizer.param.clone())
    for _ in range(3):
        policy.learn_mode.forward(clone(samples))
        path.append(optimizer.param.clone())
    want = (0.125 * path[0] + 0.25 * path[1] + 0.5 * path[2] + path[3]) / 1.875
    torch.testing.assert_close(optimizer.buffers['average'], want)


def test_the_average_begins_anew_after_an_auxiliary_phase() -> None:
    policy = make_policy(
        OBS, TWO_ACTIONS, type='ppg', learn=dict(proximal='ewma', batch_size=N, aux_freq=1, aux_batch_size=N)
    )
    with phase_held_back(policy):
        policy.learn_mode.forward(samples_of(policy))
    actor = policy.optimizers['actor']
    assert not torch.equal(actor.buffers['average'], actor.param)
    policy.learn_mode.learn_aux()
    assert torch.equal(actor.buffers['average'], actor.param)


# --- exploration ---


def test_what_is_stored_is_the_policy_that_acted() -> None:
    """temperature 2: the logit of the samples is half the model's, so the first ratio is not 1 but p / p_behaviour."""
    policy = ppo(collect=dict(n_step=N_STEP, exploration={'type': 'temperature', 'temperature': 2.0}))
    obs = torch.randn(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(
            policy.collect_mode.forward(obs, None)['logit'], policy._model.compute_actor(obs) / 2
        )


# --- early stop, draws, whole rollouts ---


def test_no_batch_size_is_the_whole_rollout() -> None:
    policy = ppo(dict(batch_size=None, epoch_per_collect=3))
    policy.learn_mode.forward(samples_of(policy))
    assert policy.learn_mode.train_iter() == 3


def test_in_order_and_one_minibatch_are_bit_equal_to_shuffled_up_to_rounding() -> None:
    samples = samples_of(ppo())
    a, b = after({}, samples), after(dict(draw='in_order'), samples)
    for name, x in a.items():
        torch.testing.assert_close(b[name], x, rtol=1e-4, atol=1e-6)


# --- penalties ---


def test_a_penalty_of_weight_zero_may_be_infinite() -> None:
    policy = ppo(dict(penalties=[{'type': 'kl', 'weight': 0.0}]))
    samples = samples_of(policy)
    samples['logit'][0, 0] = -torch.inf
    samples['action'][0] = 1
    policy._model.dist = policy.dist
    policy.learn_mode.forward(samples)
    assert all(p.isfinite().all() for p in policy._model.parameters())


# --- the critic as a classifier ---


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
@pytest.mark.parametrize('loss', ['hl_gauss', 'two_hot'])
def test_a_classifying_critic_learns_the_returns(kind: str, loss: str) -> None:
    """Returns of 3 everywhere: values come from 0, the mean of all bins, close to 3."""
    learn: dict[str, Any] = dict(
        value_loss={'type': loss, 'n_bin': 21}, learning_rate=0.05, batch_size=N, adv_norm='off'
    )
    learn |= dict(aux_freq=100, value_norm=False) if kind == 'ppg' else dict(value_weight=1.0)
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=dict(n_step=N_STEP))
    samples = samples_of(policy)
    assert samples['value'].abs().max() < 1e-5
    samples['return_'] = torch.full_like(samples['return_'], 3.0)
    for _ in range(60):
        policy.learn_mode.forward(clone(samples))
    value = policy._model.compute_critic(samples['obs']).detach()
    assert value.shape == (N,) and (value - 3).abs().max() < 0.2


def test_a_classifying_critic_is_rebuilt_from_a_checkpoint(tmp_path: Any) -> None:
    from zoo import load_policy

    cfg = job_config(tmp_path, policy=dict(learn=dict(value_loss={'type': 'hl_gauss', 'n_bin': 11})))
    run = serial_pipeline(cfg)
    obs = torch.zeros(4, *run.policy.obs_space.shape)
    loaded = load_policy(run.run_dir)
    torch.testing.assert_close(loaded._model.compute_critic(obs), run.policy._model.compute_critic(obs))


# --- value_weight of ppg ---


@pytest.mark.parametrize('arch', ['dual', 'detach'])
def test_value_weight_zero_leaves_the_critic_of_ppg_still(arch: str) -> None:
    policy = make_policy(
        OBS,
        TWO_ACTIONS,
        type='ppg',
        model=dict(arch=arch),
        learn=dict(value_weight=0.0, batch_size=N, aux_freq=1, aux_batch_size=N, aux_bc_weight=0.0, grad_clip=None),
    )
    critic = {name for name, _ in policy._model.critic_parameters()}
    before = parameters(policy)
    policy.learn_mode.forward(samples_of(policy))
    now = parameters(policy)
    assert critic and all(torch.equal(before[name], now[name]) for name in critic)
    assert any(not torch.equal(before[name], now[name]) for name in before.keys() - critic)


# --- copies ---


@pytest.mark.parametrize(
    'learn',
    [
        dict(proximal='ewma'),
        dict(optimizer='muon'),
        dict(value_loss='hl_gauss'),
        dict(plasticity={'type': 'shrink_perturb', 'every': 1}),
        dict(penalties=[{'type': 'kl', 'target': 0.01}]),
        dict(intrinsic='rnd'),
        dict(draw='prioritized'),
        dict(learning_rate={'start': 1e-3, 'kl_target': 0.01}),
        dict(accumulate=2, batch_size=8),
    ],
    ids=lambda learn: next(iter(learn)),
)
def test_a_copy_and_a_restored_policy_go_on_alike(learn: dict[str, Any]) -> None:
    policy = ppo(learn)
    policy.learn_mode.forward(samples_of(policy))
    twin, other = copy.deepcopy(policy), ppo(learn)
    other.load_state_dict(policy.state_dict())
    rollout_samples = samples_of(policy, 5)
    for each in (policy, twin, other):
        if each is not policy:
            samples_of(each, 5)  # an intrinsic reward remembers the rollout
        each.learn_mode.forward(clone(rollout_samples))
    assert not differing(parameters(policy), parameters(twin))
    assert not differing(parameters(policy), parameters(other))


# --- refusals ---


@pytest.mark.parametrize(
    ('learn', 'collect', 'words'),
    [
        (dict(baseline='none'), {}, "use estimator 'returns'"),
        (dict(baseline='none'), dict(estimator={'type': 'n_step', 'n': 3}), "use estimator 'returns'"),
        (dict(proximal='ewma', surrogate='a2c'), {}, "use proximal 'behaviour'"),
        (dict(target_kl_at='minibatch'), {}, 'give target_kl'),
        (dict(precision='fp16'), {}, 'bf16'),
        ({}, dict(estimator='vtrace'), 'recompute_adv'),
    ],
)
def test_combinations_without_meaning_are_refused(learn: dict[str, Any], collect: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ppo(learn, collect=dict(n_step=N_STEP, **collect))


@pytest.mark.slow
def test_a_sliding_memory_goes_on_after_a_resume_as_if_it_had_not_stopped(tmp_path: Any) -> None:
    def run(n_step: int, **kwargs: Any) -> Any:
        learn = dict(aux_freq=1, aux_window=3, aux_batch_size=32, batch_size=32)
        drop = dict(epoch_per_collect=None)
        cfg = job_config(tmp_path, policy=dict(type='ppg_reloaded', learn=learn), max_env_step=n_step)
        for key in drop:
            del cfg['policy']['learn'][key]
        return serial_pipeline(cfg, **kwargs)

    straight = run(64 * 8).policy
    half = run(64 * 5)
    resumed = serial_pipeline(resume=half.run_dir, max_env_step=64 * 8).policy
    ring = straight._memory
    assert ring.n_filled == 3 and resumed._memory.oldest == ring.oldest  # envs begin anew, so the rows differ
    assert resumed._memory.n_row == ring.n_row == 3 * 64


# --- how far an update goes ---


def test_plasticity_begins_the_average_anew() -> None:
    policy = ppo(dict(proximal='ewma', plasticity={'type': 'shrink_perturb', 'every': 1, 'shrink': 0.5}))
    policy.learn_mode.forward(samples_of(policy))
    optimizer = policy.optimizers['all']
    assert torch.equal(optimizer.buffers['average'], optimizer.param)


def test_a_resume_as_a_variant_has_the_parts_of_the_variant(tmp_path: Any) -> None:
    run = serial_pipeline(job_config(tmp_path, max_env_step=64))
    assert run.policy.cfg.learn.surrogate == 'clip'
    again = serial_pipeline(resume=run.run_dir, overrides=['policy.type=spo'], max_env_step=128)
    learn = again.policy.cfg.learn
    assert learn.surrogate == 'spo' and learn.batch_size == 32  # what the run had set stays


# --- parts of somebody's own that give the wrong thing ---


@pytest.mark.parametrize('wrong', [lambda gain: gain.mean(), lambda gain: gain[:, None], lambda gain: None])
def test_a_surrogate_that_gives_no_number_for_each_sample_is_refused(wrong: Any) -> None:
    logit, action = torch.zeros(4, 2, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    data = ppo_policy_data(logit, logit.detach(), action, torch.ones(4))
    with pytest.raises(ValueError, match='the surrogate returned .* one number for each sample'):
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: wrong(ratio * adv))


def test_a_surrogate_without_a_gradient_is_refused() -> None:
    logit, action = torch.zeros(4, 2, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    data = ppo_policy_data(logit, logit.detach(), action, torch.ones(4))
    with pytest.raises(UserError, match='the surrogate returned numbers without a gradient'):
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)
    fixed = ppo_policy_data(logit.detach(), logit.detach(), action, torch.ones(4))
    ppo_policy_error(fixed, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)  # nobody asks for one
    with torch.no_grad():
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (lambda data: data.value, 'returned Tensor but must return two tensors'),
        (lambda data: (data.value, data.value, data.value), 'returned 3 things but must return two tensors'),
        (lambda data: (data.value.sum(0), data.value), r'as advantages, returned a tensor of shape \(4,\)'),
        (lambda data: (data.value, None), 'as returns, returned NoneType but must return one number for each step'),
    ],
)
def test_an_estimator_that_gives_no_pair_of_numbers_for_each_step_is_refused(wrong: Any, said: str) -> None:
    ESTIMATOR_REGISTRY.register('wrong_of_test', force=True)(lambda data, gamma, lambda_: wrong(data))
    policy = ppo(collect=dict(n_step=N_STEP, estimator='wrong_of_test'))
    with pytest.raises(UserError, match=f'the estimator.* {said}'):
        samples_of(policy)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (lambda order: order, 'returned Tensor but must return two'),
        (lambda order: (order[0], None), r'returned torch.int64 \(\d+,\) as the order'),
        (lambda order: (order.float(), None), r'returned torch.float32 \(\d+, \d+\) as the order'),
        (lambda order: (order[:1].repeat(9, 1), None), r'returned torch.int64 \(9, \d+\) as the order'),
        (lambda order: (order[:, :0], None), r'returned torch.int64 \(\d+, 0\) as the order'),
        (lambda order: (order, torch.ones(2)), r'as weights, returned a tensor of shape \(2,\)'),
    ],
)
def test_a_draw_that_gives_no_order_of_the_entries_is_refused(wrong: Any, said: str) -> None:
    def draw(columns: Any, n_pass: int, generator: Any) -> Any:
        return wrong(shuffle(columns, n_pass, generator)[0])

    DRAW_REGISTRY.register('wrong_of_test', force=True)(draw)
    policy = ppo(dict(draw='wrong_of_test'))
    with pytest.raises(UserError, match=f'the draw.* {said}'):
        policy.learn_mode.forward(samples_of(policy))
