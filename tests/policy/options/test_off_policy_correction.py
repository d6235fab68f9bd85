"""Corrections for samples of older policies: by hand, on fresh samples, and where they are refused or needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy.test_ppo import N_ENV, N_STEP, OBS, N, parameters, ppo, random_rollout, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, job_config, make_policy, phase_held_back
from zoo.core.data import Rollout
from zoo.core.errors import UserError
from zoo.core.ranks import RunInfo
from zoo.core.registry import POLICY_REGISTRY
from zoo.env import EnvConfig
from zoo.pipeline import serial_pipeline
from zoo.policy.options.off_policy_correction import ValueTrace, correction_problems
from zoo.rl_utils.ppo import ppo_policy_data, ppo_policy_error
from zoo.run.config import resolve_config, resolve_policy
from zoo.worker.evaluator import evaluate

CORRECTIONS = ['decoupled', 'vtrace', {'type': 'decoupled', 'rho_max': 1.0}, {'type': 'vtrace', 'rho_max': 3.0}]
LONG = dict(epoch_per_collect=3, batch_size=N // 2, learning_rate=0.02, entropy_weight=0.01)


def logit_of(p: float) -> Tensor:
    return torch.tensor([[p, 1 - p]]).log()


def steps(reward: list[float], p_behaviour: list[float]) -> Rollout:
    """One env without ends; the probability of each action (always 0) when it was drawn."""
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
    """A policy that takes both actions with .5, and whose critic says 1; discount and lambda .5 and 1."""
    collect = dict(n_step=n_step, discount_factor=0.5, gae_lambda=1.0)
    learn = dict(batch_size=n_step, adv_norm='off', grad_clip=None, value_norm=False, executor='eager') | learn
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=collect, **kwargs)
    with torch.no_grad():
        for name, p in policy._model.named_parameters():
            if name.startswith(('policy_head', 'value_head')):
                p.zero_()
            if name == 'value_head.layer.bias':
                p.fill_(1.0)
    return policy


def corrected_by(policy: Any, samples: Any) -> Any:
    """The samples as an update of a policy with correction vtrace reads them."""
    (option,) = (option for option in policy.options if isinstance(option, ValueTrace))
    return option.before_update(samples)


# --- by hand ---


@pytest.mark.parametrize(('rho_max', 'gain'), [(None, 4.4), (2.0, 2.2), (1.0, 1.1)])
def test_weight_of_an_old_sample_is_bounded(rho_max: float | None, gain: float) -> None:
    """p_old .2, p_prox .8, p_new .88, A 1: the ratio is 1.1, within the clip; importance 4, or its bound."""
    data = ppo_policy_data(logit_of(0.88), logit_of(0.2), torch.tensor([0]), torch.ones(1))
    loss, _ = ppo_policy_error(data, 0.2, logit_proximal=logit_of(0.8), rho_max=rho_max)
    assert loss.policy_loss.item() == pytest.approx(-gain)


def test_decoupled_by_hand() -> None:
    """Lambda 1, gamma .5, V 1: adv_2 = 3 + .5 - 1 = 2.5, adv_1 = 1.5 + .5 * 2.5 = 2.75, adv_0 = .5 + .5 * 2.75 = 1.875.

    Ratios .5 / .1 = 5, bounded at 2; .5 / 1 = .5 (p = 1 - 1e-6); .5 / .5 = 1: the mean of 2 * 1.875, .5 * 2.75 and 2.5.
    """
    policy = plain('ppo', dict(correction='decoupled', epoch_per_collect=1))
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.1, 1 - 1e-6, 0.5]))
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'].item() == pytest.approx(-(3.75 + 1.375 + 2.5) / 3, rel=1e-5)
    assert samples['return_'].tolist() == pytest.approx([2.875, 3.75, 3.5])  # those of gae


@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_vtrace_by_hand(kind: str) -> None:
    """Gamma .5, lambda 1, V 1, rewards 1 to 3: deltas .5, 1.5, 2.5; ratios 2 (counts as 1), .625, .5 / .9 = .5556.

    trace_2 = .5556 * 2.5 = 1.38889; trace_1 = .625 * (1.5 + .5 * 1.38889) = 1.37153; trace_0 = .5 + .5 * 1.37153 = 1.18576.
    Returns are 1 + trace; rho (r + gamma return' - V) is the trace here, so -policy_loss is its mean, 1.31539.
    """
    policy = plain(kind, dict(correction='vtrace', **({} if kind == 'ppg' else dict(epoch_per_collect=1))))
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.25, 0.8, 0.9]))
    corrected = corrected_by(policy, samples)
    trace = [1.185764, 1.371528, 1.388889]
    assert corrected['return_'].tolist() == pytest.approx([1 + x for x in trace], rel=1e-5)
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'].item() == pytest.approx(-sum(trace) / 3, rel=1e-5)
    assert metrics['value_loss'].item() == pytest.approx(0.5 * sum(x * x for x in trace) / 3, rel=1e-5)
    if kind == 'ppg':  # what the auxiliary phase learns
        assert policy._memory.columns()['return_'].tolist() == pytest.approx([1 + x for x in trace], rel=1e-5)


def test_impala_step_is_the_papers_policy_gradient() -> None:
    """SGD at rate 1 moves by the gradient of mean(rho_t (r_t + gamma vs_{t+1} - V_t) log p(a_t)), the trace above."""
    learn = dict(optimizer='sgd', learning_rate=1.0, value_weight=0.0, entropy_weight=0.0)
    policy = plain('impala', learn)
    samples = policy.collect_mode.get_train_sample(steps([1.0, 2.0, 3.0], [0.25, 0.8, 0.9]))
    before = parameters(policy)
    log_p = policy.dist.log_prob(policy._model.compute_actor(samples['obs']), samples['action'])
    head = dict(policy._model.named_parameters())['policy_head.bias']
    (grad,) = torch.autograd.grad((torch.tensor([1.185764, 1.371528, 1.388889]) * log_p).mean(), [head])
    policy.learn_mode.forward(samples)
    torch.testing.assert_close(parameters(policy)['policy_head.bias'] - before['policy_head.bias'], grad)
    assert policy.learn_mode.train_iter() == 1


def test_advantages_are_normalised_before_they_are_weighed() -> None:
    """A sample that the policy would never draw moves nothing, whatever the mean of the advantages."""
    learn = dict(optimizer='sgd', learning_rate=1.0, value_weight=0.0, entropy_weight=0.0, adv_norm='batch')
    moved = []
    for reward in (3.0, -50.0):
        policy = plain('impala', learn)
        with torch.no_grad():
            dict(policy._model.named_parameters())['policy_head.bias'].copy_(torch.tensor([-30.0, 0.0]))
        rollout = steps([1.0, 2.0, reward], [0.5, 0.5, 0.5])
        before = parameters(policy)
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
        moved.append((parameters(policy)['policy_head.bias'] - before['policy_head.bias']).abs().max())
    assert max(moved) < 1e-8  # p = 1e-13 of all three actions


# --- fresh samples ---


@pytest.mark.parametrize('correction', CORRECTIONS)
@pytest.mark.parametrize('learn', [{}, dict(adv_norm='minibatch', value_norm=True), dict(recompute_adv=True)])
def test_correction_of_fresh_samples_changes_nothing(correction: Any, learn: dict[str, Any]) -> None:
    found = []
    for each in ('none', correction):
        policy = ppo({**LONG, **learn, 'correction': each})
        policy.learn_mode.forward(samples_of(policy))
        found.append(parameters(policy))
    if learn.get('recompute_adv') and 'vtrace' in str(correction):
        return  # its later passes see the ratios of then
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-4, atol=2e-5)


def test_vtrace_of_fresh_samples_has_the_returns_of_gae() -> None:
    policy = ppo(dict(correction='vtrace'))
    samples = samples_of(policy)
    corrected = corrected_by(policy, samples)
    for name in ('adv', 'return_', 'value'):
        torch.testing.assert_close(corrected[name], samples[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('correction', ['decoupled', 'vtrace'])
def test_correction_of_fresh_samples_changes_nothing_in_ppg(correction: str) -> None:
    found = []
    for each in ('none', correction):
        learn = dict(correction=each, batch_size=N // 2, aux_freq=1, aux_batch_size=N, learning_rate=0.01)
        policy = make_policy(OBS, TWO_ACTIONS, type='ppg', learn=learn, collect=dict(n_step=N_STEP))
        policy.learn_mode.forward(samples_of(policy))
        found.append(parameters(policy))
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-4, atol=2e-5)


def test_impala_of_fresh_samples_is_a2c() -> None:
    found = []
    for kind in ('a2c', 'impala'):
        learn = dict(learning_rate=1e-3, optimizer='adam')
        policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=dict(n_step=N_STEP))
        policy.learn_mode.forward(samples_of(policy))
        found.append(parameters(policy))
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-4, atol=1e-5)


# --- old samples ---


@pytest.mark.parametrize(('recompute_adv', 'n_call'), [(False, 1), (True, 4)])
def test_vtrace_is_computed_once_unless_each_pass_shall(
    monkeypatch: pytest.MonkeyPatch, recompute_adv: bool, n_call: int
) -> None:
    """As the update begins, and with recompute_adv before each of the other 3 passes; always of the ratio to then."""
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
    """Rollout of a first policy, learned by another one: the returns are those of a plain loop over V-trace's sums."""
    old, policy = ppo(), ppo(dict(correction='vtrace'), seed=1)
    with torch.no_grad():
        policy._model.policy_head.weight.mul_(100)  # so that it is far from uniform
    rollout = random_rollout(old)
    samples = policy.collect_mode.get_train_sample(rollout)
    data, obs = rollout.data, rollout.data['obs']
    with torch.no_grad():
        now = policy.dist.log_prob(policy._model.compute_actor(obs.flatten(0, 1)), data['action'].flatten())
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
@pytest.mark.parametrize('kind', ['impala', 'ppo'])
def test_a_run_whose_runners_are_ahead_learns_to_match_a_number(tmp_path: Any, kind: str) -> None:
    learn: dict[str, Any] = dict(learning_rate=1e-2)
    if kind == 'ppo':
        learn |= dict(correction='decoupled', batch_size=40, epoch_per_collect=2)
    else:
        learn |= dict(batch_size=None, epoch_per_collect=1)
    cfg = job_config(
        tmp_path,
        'tests.policy_envs:match_env',
        max_env_step=8000,
        cluster=dict(runner_num=2, engine='inline', max_lag=3),
        policy=dict(type=kind, model=dict(hidden_sizes=[16]), learn=learn, collect=dict(n_step=10)),
    )
    result = serial_pipeline(cfg)
    assert evaluate(result.policy, EnvConfig(id='tests.policy_envs:match_env'), 200, seed=1).return_mean > 0.95


# --- refused ---


@pytest.mark.parametrize(
    ('kind', 'sections', 'words'),
    [
        ('ppo', dict(learn=dict(correction='decoupled', proximal='ewma')), r"which is proximal 'recent' .* drop one"),
        (
            'ppo',
            dict(learn=dict(correction='vtrace', proximal='recent')),
            "proximal is 'recent', which weighs old samples",
        ),
        (
            'ppo',
            dict(learn=dict(correction='vtrace'), collect=dict(estimator='n_step')),
            "is 'n_step'; drop one of the two",
        ),
        (
            'ppo',
            dict(learn=dict(correction='vtrace'), collect=dict(estimator={'type': 'gae', 'value_lambda': 0.9})),
            'estimator is .*; drop one of the two',
        ),
        ('ppo_offpolicy', dict(learn=dict(correction='vtrace')), "yields random draws; use correction 'decoupled'"),
        ('pg', dict(learn=dict(correction='vtrace'), collect=dict(estimator='gae')), "baseline is 'none'"),
        (
            'ppo',
            dict(learn=dict(correction='vtrace'), model=dict(recurrent=dict(cell='lstm'))),
            'has a recurrent state, whose',
        ),
        ('ppo', dict(learn=dict(correction='decoupled', target_kl=0.02)), 'the age of samples would count as a change'),
        ('ppo', dict(learn=dict(correction='is')), r"unknown correction 'is': .*registered: decoupled, none, vtrace"),
        ('ppo', dict(learn=dict(correction={'type': 'decoupled', 'rho_max': 0.5})), 'rho_max is 0.5'),
    ],
)
def test_contradictions_are_refused(kind: str, sections: dict[str, Any], words: str) -> None:
    model = {'hidden_sizes': [8, 8], **sections.pop('model', {})}
    collect = {'n_step': N_STEP, **sections.pop('collect', {})}
    with pytest.raises(UserError, match=words):
        cfg = resolve_policy({'type': kind, 'model': model, 'collect': collect, **sections})
        run = RunInfo(n_draw=2 if kind == 'ppo_offpolicy' else None)
        POLICY_REGISTRY.get(kind)(cfg, OBS, TWO_ACTIONS, run=run)


@pytest.mark.parametrize('kind', ['ppo', 'ppg', 'ppo_offpolicy', 'a2c', 'spo', 'dna'])
def test_decoupled_works_in_all_actor_critics(kind: str) -> None:
    """Of old samples it changes the update of each."""
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


# --- needed ---


def lagging(tmp_path: Any, max_lag: int, **policy: Any) -> dict[str, Any]:
    cfg = resolve_config(job_config(tmp_path, 'CartPole-v1')).to_dict()
    of_kind = resolve_policy({'collect': {'n_step': 16}, **policy})
    return {**cfg, 'policy': of_kind.to_dict(), 'cluster': {**cfg['cluster'], 'runner_num': 2, 'max_lag': max_lag}}


@pytest.mark.parametrize('max_lag', [0, 1])
def test_one_update_of_age_needs_no_correction(tmp_path: Any, max_lag: int) -> None:
    assert not list(correction_problems(lagging(tmp_path, max_lag, type='ppo')))
    assert not list(correction_problems(lagging(tmp_path, max_lag, type='dqn')))


def test_more_age_needs_a_correction(tmp_path: Any) -> None:
    assert list(correction_problems(lagging(tmp_path, 4, type='ppo'))) == [
        "cluster.max_lag is 4 but policy.learn.correction is 'none': samples may then be up to 4 updates old; use decoupled or "
        'vtrace, or max_lag 0 or 1.'
    ]
    (problem,) = correction_problems(lagging(tmp_path, 2, type='dqn'))
    assert "policy 'dqn' has no key policy.learn.correction" in problem and 'impala, pg, ppg, ' in problem


@pytest.mark.parametrize(
    'policy',
    [
        dict(type='impala'),
        dict(type='ppo_ewma'),  # an average as the proximal policy weighs old samples too
        dict(type='ppo', learn=dict(correction='decoupled')),
        dict(type='ppg', learn=dict(correction={'type': 'vtrace', 'c_max': 2.0})),
    ],
)
def test_corrected_samples_may_be_old(tmp_path: Any, policy: dict[str, Any]) -> None:
    assert not list(correction_problems(lagging(tmp_path, 4, **policy)))
