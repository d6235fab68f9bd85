"""Off-policy corrections: results worked by hand, no effect on fresh samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy.updates import N_ENV, N_STEP, OBS, N, parameters, ppo, random_rollout, samples_of, trained
from tests.policy_envs import TWO_ACTIONS, clone, job_config, make_policy, phase_held_back
from zoo.core.data import Rollout
from zoo.env import EnvConfig
from zoo.pipeline import serial_pipeline
from zoo.policy.options.off_policy_correction import VTrace
from zoo.rl_utils.ppo import ppo_policy_data, ppo_policy_error
from zoo.worker.evaluator import evaluate

CORRECTIONS = ['decoupled', 'vtrace', {'type': 'decoupled', 'rho_max': 1.0}, {'type': 'vtrace', 'rho_max': 3.0}]
LONG = dict(epoch_per_collect=3, batch_size=N // 2, learning_rate=0.02, entropy_weight=0.01)


def logit_of(p: float) -> Tensor:
    return torch.tensor([[p, 1 - p]]).log()


def steps(reward: list[float], p_behaviour: list[float]) -> Rollout:
    """A rollout of one env without episode ends; every action is 0, drawn with the probabilities `p_behaviour`."""
    n = len(reward)
    obs = torch.randn(n + 1, 1, 2, generator=torch.Generator().manual_seed(0))
    no = torch.zeros(n, 1, dtype=torch.bool)
    data = {
        'obs': obs[:-1],
        'action': torch.zeros(n, 1, dtype=torch.int64),
        'logit': torch.stack([logit_of(p) for p in p_behaviour]),
        'reward': torch.tensor(reward).unsqueeze(1),
        'done': no,
        'traj_flag': no,
    }
    return Rollout(data, obs[-1], torch.zeros(0, 2), torch.zeros(0, 2, dtype=torch.int64))


def plain(kind: str, learn: dict[str, Any], n_step: int = 3, **kwargs: Any) -> Any:
    """A policy that takes each action with probability .5 and has V = 1; discount .5, lambda 1."""
    collect = dict(n_step=n_step, discount_factor=0.5, gae_lambda=1.0)
    learn = dict(batch_size=n_step, adv_norm='off', grad_clip=None, value_norm=False, executor='eager') | learn
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=collect, **kwargs)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if name.startswith(('policy_head', 'value_head')):
                p.zero_()
            if name == 'value_head.layer.bias':
                p.fill_(1.0)
    return policy


def corrected_by(policy: Any, samples: Any) -> Any:
    """Returns the samples as corrected by V-trace at the start of an update."""
    (option,) = (option for option in policy.options if isinstance(option, VTrace))
    return option.before_update(samples)


# --- by hand: decoupled clip, arXiv:2110.00641, eq. 3


@pytest.mark.parametrize(
    ('new', 'proximal', 'old', 'rho_max', 'gain'),  # probabilities of the taken action; A 1, clip .2
    [
        (0.75, 0.6, 0.5, None, 1.44),  # .75 / .6 = 1.25, clipped at 1.2; importance .6 / .5 = 1.2; unclipped gain 1.5
        (0.88, 0.8, 0.2, None, 4.4),  # the ratio 1.1 is within the clip; importance 4, or its bound rho_max
        (0.88, 0.8, 0.2, 2.0, 2.2),
        (0.88, 0.8, 0.2, 1.0, 1.1),
        (0.9, 0.9, 0.001, None, 100.0),  # importance 900, bounded at 100
    ],
)
def test_decoupled_clip_by_hand(new: float, proximal: float, old: float, rho_max: float | None, gain: float) -> None:
    data = ppo_policy_data(logit_of(new), logit_of(old), torch.tensor([0]), torch.ones(1))
    loss, info = ppo_policy_error(data, 0.2, logit_proximal=logit_of(proximal), rho_max=rho_max)
    assert loss.policy_loss.item() == pytest.approx(-gain, rel=1e-5)
    assert info.clipfrac == (new / proximal > 1.2)
    assert info.approx_kl.item() == pytest.approx(torch.tensor(old / new).log().item())


def test_decoupled_by_hand() -> None:
    """Lambda 1, gamma .5, V 1: adv_2 = 3 + .5 - 1 = 2.5, adv_1 = 1.5 + .5 * 2.5 = 2.75, adv_0 = .5 + .5 * 2.75 = 1.875.

    Ratios .5 / .1 = 5, bounded at 2; .5 / 1 = .5 (p = 1 - 1e-6); .5 / .5 = 1. Gain: mean of 2 * 1.875, .5 * 2.75 and 2.5.
    """
    policy = plain('ppo', dict(correction='decoupled', epoch_per_collect=1))
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.1, 1 - 1e-6, 0.5]))
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'].item() == pytest.approx(-(3.75 + 1.375 + 2.5) / 3, rel=1e-5)
    assert samples['return_'].tolist() == pytest.approx([2.875, 3.75, 3.5])  # the returns of GAE


@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_vtrace_by_hand(kind: str) -> None:
    """Gamma .5, lambda 1, V 1, rewards 1 to 3: deltas .5, 1.5, 2.5; ratios 2 (bounded at 1), .625, .5 / .9 = .5556.

    trace_2 = .5556 * 2.5 = 1.38889; trace_1 = .625 * (1.5 + .5 * 1.38889) = 1.37153; trace_0 = .5 + .5 * 1.37153 = 1.18576.
    Returns are 1 + trace. Here the advantage rho (r + gamma next_return - V) is the trace: -policy_loss is its mean, 1.31539.
    """
    policy = plain(kind, dict(correction='vtrace', **({} if kind == 'ppg' else dict(epoch_per_collect=1))))
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.25, 0.8, 0.9]))
    corrected = corrected_by(policy, samples)
    trace = [1.185764, 1.371528, 1.388889]
    assert corrected['return_'].tolist() == pytest.approx([1 + x for x in trace], rel=1e-5)
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'].item() == pytest.approx(-sum(trace) / 3, rel=1e-5)
    assert metrics['value_loss'].item() == pytest.approx(0.5 * sum(x * x for x in trace) / 3, rel=1e-5)
    if kind == 'ppg':  # the targets of the auxiliary phase
        assert policy.memory_state_dict()['return_'].tolist() == pytest.approx([1 + x for x in trace], rel=1e-5)


def test_impala_step_is_the_papers_policy_gradient() -> None:
    """SGD at rate 1 moves by the gradient of mean(trace_t log p(a_t)), trace_t = rho_t (r_t + gamma vs_{t+1} - V_t)."""
    learn = dict(optimizer='sgd', learning_rate=1.0, value_weight=0.0, entropy_weight=0.0)
    policy = plain('impala', learn)
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.25, 0.8, 0.9]))
    before = parameters(policy)
    log_p = policy.dist.log_prob(policy.model.compute_actor(samples['obs']), samples['action'])
    head = dict(policy.model.named_parameters())['policy_head.bias']
    (grad,) = torch.autograd.grad((torch.tensor([1.185764, 1.371528, 1.388889]) * log_p).mean(), [head])
    policy.learn_mode.forward(samples)
    torch.testing.assert_close(parameters(policy)['policy_head.bias'] - before['policy_head.bias'], grad)
    assert policy.learn_mode.train_iter() == 1


def test_advantages_are_normalised_before_they_are_weighed() -> None:
    """A sample that the policy would never draw moves nothing, for any mean of the advantages."""
    learn = dict(optimizer='sgd', learning_rate=1.0, value_weight=0.0, entropy_weight=0.0, adv_norm='batch')
    moved = []
    for reward in (3.0, -50.0):
        policy = plain('impala', learn)
        with torch.no_grad():
            dict(policy.model.named_parameters())['policy_head.bias'].copy_(torch.tensor([-30.0, 0.0]))
        rollout = steps([1.0, 2.0, reward], [0.5, 0.5, 0.5])
        before = parameters(policy)
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
        moved.append((parameters(policy)['policy_head.bias'] - before['policy_head.bias']).abs().max())
    assert max(moved) < 1e-8  # all three actions have p = 1e-13


# --- a proximal policy other than the one that acted ---


def test_proximal_recent_moves_further_on_old_samples() -> None:
    """Old samples are beyond the clip of plain PPO from the first step on; the decoupled clip begins at ratio 1."""
    policy = ppo()
    samples = samples_of(policy)
    samples['adv'] = torch.ones(N)
    old = torch.full((N, 2), 1.0).scatter(1, samples['action'].unsqueeze(1), 0.0)  # the action was unlikely then
    samples['logit'] = old
    before = parameters(policy)
    heads = [name for name in before if name.startswith('policy_head')]
    stuck = trained(dict(value_weight=0.0), samples)
    moved = trained(dict(value_weight=0.0, proximal='recent'), samples)
    assert all(torch.equal(stuck[name], before[name]) for name in heads)
    assert all(not torch.equal(moved[name], before[name]) for name in heads)


def test_ewma_is_the_debiased_average_of_the_steps() -> None:
    """Decay .5, three steps: weight .125 for the start, .25, .5 and 1 for the steps; their sum is 1.875."""
    policy = ppo(dict(proximal={'type': 'ewma', 'decay': 0.5}, executor='eager'))
    optimizer, path = policy.optimizers['all'], []
    samples = samples_of(policy)
    path.append(optimizer.param.clone())
    for _ in range(3):
        policy.learn_mode.forward(clone(samples))
        path.append(optimizer.param.clone())
    want = (0.125 * path[0] + 0.25 * path[1] + 0.5 * path[2] + path[3]) / 1.875
    torch.testing.assert_close(optimizer.buffers['average'], want)


def test_the_average_starts_again_after_an_auxiliary_phase() -> None:
    policy = make_policy(
        OBS, TWO_ACTIONS, type='ppg', learn=dict(proximal='ewma', batch_size=N, aux_freq=1, aux_batch_size=N)
    )
    with phase_held_back(policy):
        policy.learn_mode.forward(samples_of(policy))
    actor = policy.optimizers['actor']
    assert not torch.equal(actor.buffers['average'], actor.param)
    policy.learn_mode.learn_aux()
    assert torch.equal(actor.buffers['average'], actor.param)


def test_plasticity_begins_the_average_again() -> None:
    policy = ppo(dict(proximal='ewma', plasticity={'type': 'shrink_perturb', 'every': 1, 'shrink': 0.5}))
    policy.learn_mode.forward(samples_of(policy))
    optimizer = policy.optimizers['all']
    assert torch.equal(optimizer.buffers['average'], optimizer.param)


# --- fresh samples ---


PHASES = dict(batch_size=N // 2, aux_freq=1, aux_batch_size=N, learning_rate=0.01)
A2C = dict(learning_rate=1e-3, optimizer='adam')


@pytest.mark.parametrize(
    ('kind', 'learn', 'same'),  # same: a policy without a correction that must learn the same
    [
        *(('ppo', {**LONG, 'correction': correction}, ('ppo', LONG)) for correction in CORRECTIONS),
        *(
            ('ppo', {**LONG, **norms, 'correction': correction}, ('ppo', {**LONG, **norms}))
            for norms in (dict(adv_norm='minibatch', value_norm=True),)
            for correction in CORRECTIONS[:2]
        ),
        ('ppo', {**LONG, 'recompute_adv': True, 'correction': 'decoupled'}, ('ppo', {**LONG, 'recompute_adv': True})),
        ('ppo', {**LONG, 'proximal': 'recent'}, ('ppo', LONG)),
        *(('ppg', {**PHASES, 'correction': correction}, ('ppg', PHASES)) for correction in CORRECTIONS[:2]),
        ('impala', A2C, ('a2c', A2C)),
    ],
)
def test_correction_of_fresh_samples_changes_nothing(kind: str, learn: Any, same: tuple[str, Any]) -> None:
    found = []
    for each, options in ((kind, learn), same):
        policy = make_policy(OBS, TWO_ACTIONS, type=each, learn=options, collect=dict(n_step=N_STEP))
        policy.learn_mode.forward(samples_of(policy))
        found.append(parameters(policy))
    torch.testing.assert_close(*found, rtol=1e-4, atol=2e-5)


def test_vtrace_of_fresh_samples_has_the_returns_of_gae() -> None:
    policy = ppo(dict(correction='vtrace'))
    samples = samples_of(policy)
    corrected = corrected_by(policy, samples)
    for name in ('adv', 'return_', 'value'):
        torch.testing.assert_close(corrected[name], samples[name], rtol=1e-5, atol=1e-6)


# --- old samples ---


@pytest.mark.parametrize(('recompute_adv', 'n_call'), [(False, 1), (True, 4)])
def test_vtrace_is_computed_once_unless_each_pass_shall(
    monkeypatch: pytest.MonkeyPatch, recompute_adv: bool, n_call: int
) -> None:
    """Once at the start; with recompute_adv also before the other 3 passes. The ratio is always to the acting policy."""
    policy = ppo(dict(correction='vtrace', epoch_per_collect=4, recompute_adv=recompute_adv, learning_rate=0.05))
    samples, estimate, ratios = samples_of(policy), policy.samples.estimate, []

    def spy(outputs: Any, reward: Tensor, done: Tensor, traj_flag: Tensor, log_ratio: Tensor) -> Any:
        ratios.append(log_ratio)
        return estimate(outputs, reward, done, traj_flag, log_ratio)

    monkeypatch.setattr(policy.samples, 'estimate', spy)
    policy.learn_mode.forward(samples)
    sizes = [x.abs().max().item() for x in ratios]
    assert len(sizes) == n_call and sizes[0] < 1e-5 and all(size > 0.01 for size in sizes[1:])


def test_old_samples_have_the_ratio_of_the_present_policy() -> None:
    """One policy acts and another one learns: the returns equal those of a plain loop of the V-trace recursion."""
    old, policy = ppo(), ppo(dict(correction='vtrace'), seed=1)
    with torch.no_grad():
        policy.model.policy_head.weight.mul_(100)  # so that it is far from uniform
    rollout = random_rollout(old)
    samples = policy.collect_mode.get_train_sample(rollout)
    data, obs = rollout.data, rollout.data['obs']
    with torch.no_grad():
        now = policy.dist.log_prob(policy.model.compute_actor(obs.flatten(0, 1)), data['action'].flatten())
        then = policy.dist.log_prob(data['logit'].flatten(0, 1), data['action'].flatten())
        rho = (now - then).exp().clamp(max=1).view(N_STEP, N_ENV)
        value = policy.compute_critic(obs.flatten(0, 1)).view(N_STEP, N_ENV)
        after = policy.compute_critic(rollout.next_obs().flatten(0, 1)).view(N_STEP, N_ENV)
    assert rho.min() < 0.9
    trace, want = torch.zeros(N_ENV), []
    for t in reversed(range(N_STEP)):
        going = 1.0 - data['traj_flag'][t].float()
        delta = data['reward'][t] + 0.9 * after[t] * (1.0 - data['done'][t].float()) - value[t]
        trace = rho[t] * (delta + 0.9 * 0.8 * going * trace)
        want.append(trace + value[t])
    found = corrected_by(policy, samples)['return_'].view(N_STEP, N_ENV)
    torch.testing.assert_close(found, torch.stack(want[::-1]), rtol=1e-4, atol=1e-5)
    assert (found - samples['return_'].view(N_STEP, N_ENV)).abs().max() > 0.01


@pytest.mark.long
def test_a_run_whose_runners_are_ahead_learns_to_match_a_number(tmp_path: Any) -> None:
    env_id, learn = 'tests.policy_envs:match_env', dict(learning_rate=1e-2, batch_size=40, epoch_per_collect=2)
    cfg = job_config(
        tmp_path,
        env_id,
        max_env_step=8000,
        cluster=dict(runner_num=2, engine='inline', max_lag=3),
        policy=dict(
            model=dict(hidden_sizes=[16]), learn=dict(correction='decoupled', **learn), collect=dict(n_step=10)
        ),
    )
    assert evaluate(serial_pipeline(cfg).policy, EnvConfig(id=env_id), 200, seed=1).return_mean > 0.95


@pytest.mark.parametrize('kind', ['ppo', 'ppg', 'ppo_offpolicy', 'a2c', 'spo', 'dna'])
def test_decoupled_works_in_all_actor_critics(kind: str) -> None:
    """On old samples it changes the update of every policy type."""
    found = []
    for correction in ('none', 'decoupled'):
        collect = dict(n_step=N_STEP)
        learn = dict(batch_size=N, correction=correction, optimizer='sgd', learning_rate=1.0)
        policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=collect)
        samples = samples_of(policy)
        samples['logit'] = samples['logit'] + torch.tensor([0.5, -0.5])
        with phase_held_back(policy):
            metrics = policy.learn_mode.forward(clone(samples))
        assert metrics.keys() == set(policy.learn_mode.monitor_vars())
        found.append(parameters(policy)['policy_head.weight'])
    assert not torch.allclose(*found, rtol=0, atol=1e-6)
