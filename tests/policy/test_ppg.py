"""Phases of PPG: the parameters that each one moves, its schedule and its data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.policy.hand import MODES, OBS as ONE_NUMBER_OBS, collect
from tests.policy.updates import N_STEP, OBS, N, moved, parameters, ppg, samples_of, to_the_phase
from tests.policy_envs import (
    ONE_NUMBER,
    TWO_ACTIONS,
    clone,
    differing,
    flat,
    job_config,
    joined,
    make_policy,
    phase_held_back,
    take,
)
from zoo.policy import base
from zoo.policy.base import Policy
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob

ARCHS = ['dual', 'detach', 'shared']
archs = pytest.mark.parametrize('arch', ARCHS)
apart = pytest.mark.parametrize('arch', ['dual', 'detach'])
spaces = pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'box'])
CRITIC = {'dual': {'critic_encoder', 'value_head'}, 'detach': {'value_head'}}
ACTOR = {'actor_encoder', 'policy_head'}


def moments(policy: Policy, *names: str) -> dict[str, Any]:
    return copy.deepcopy({name: policy.optimizers[name].state_dict() for name in names})


def log_p(policy: Policy, model: Any, obs: Tensor) -> Any:
    """The policy's distribution as an object of torch.distributions."""
    with torch.no_grad():
        logit = model.compute_actor(obs)
    if policy.action_space is TWO_ACTIONS:
        return torch.distributions.Categorical(logits=logit)
    return torch.distributions.Independent(torch.distributions.Normal(*logit.chunk(2, -1)), 1)


# --- inputs and parameters of each phase ---


@archs
def test_garbage_in_the_auxiliary_head_reaches_no_sample_and_no_policy_or_value_phase(arch: str) -> None:
    clean, garbage = ppg(arch=arch), ppg(arch=arch)
    with torch.no_grad():
        for p in garbage.model.aux_head.parameters():
            p.fill_(torch.nan)
    for want, got in zip(*(to_the_phase(policy, 2) for policy in (clean, garbage)), strict=True):
        assert {'adv', 'return_', 'value'} <= got.keys() and not differing(want, got)
    assert moved(parameters(clean), parameters(garbage)) == {'aux_head'}
    assert all(p.isnan().all() for p in garbage.model.aux_head.parameters())


@pytest.mark.parametrize(
    ('arch', 'space', 'policy_loss'),
    [('dual', TWO_ACTIONS, 'clip'), ('dual', ONE_NUMBER, 'kl'), ('detach', ONE_NUMBER, 'clip')],
)
def test_policy_phase_moves_no_critic_and_value_phase_no_actor(arch: str, space: Any, policy_loss: str) -> None:
    """The phases alternate several times: the momentum of one phase does not move the other's parameters either."""
    policy = ppg(dict(aux_freq=99, entropy_weight=0.01, policy_loss=policy_loss), arch, action_space=space)
    samples = samples_of(policy)
    for _ in range(4):
        before = parameters(policy)
        policy.learn_mode.forward({'policy': samples})
        between = parameters(policy)
        assert moved(before, between) == ACTOR
        policy.learn_mode.forward({'value': samples})
        assert moved(between, parameters(policy)) == CRITIC[arch]


@apart
def test_phases_over_one_batch_are_those_over_a_batch_each(arch: str) -> None:
    together, each = ppg(arch=arch), ppg(arch=arch)
    samples = samples_of(together)
    metrics = together.learn_mode.forward(samples)
    policy_metrics = each.learn_mode.forward({'policy': samples})
    value_metrics = each.learn_mode.forward({'value': samples})
    assert not differing(parameters(together), parameters(each))
    assert metrics.keys() == policy_metrics.keys() | value_metrics.keys() == set(together.learn_mode.monitor_vars())
    assert not {'policy_loss', 'n_epoch'} & value_metrics.keys()
    assert not {'value_loss', 'explained_variance'} & policy_metrics.keys()


def test_explained_variance_is_that_of_what_the_critic_learns_from() -> None:
    policy = ppg()
    samples, other = samples_of(policy, 0), samples_of(policy, 1)
    got = policy.learn_mode.forward({'policy': samples, 'value': other})['explained_variance']
    error = other['return_'] - other['value']
    torch.testing.assert_close(got, 1 - error.var(correction=0) / other['return_'].var(correction=0))


@archs
def test_moments_of_the_phases_are_their_own(arch: str) -> None:
    policy = ppg(dict(aux_batch_size=N // 2), arch)
    mine, aux = (['actor'], ['aux_actor']) if arch == 'shared' else (['actor', 'critic'], ['aux_actor', 'aux_critic'])
    assert list(policy.optimizers) == mine + aux
    assert not any(x.any() for x in flat(moments(policy, *aux)).values() if isinstance(x, Tensor))
    to_the_phase(policy, 2)
    assert not any(x.any() for x in flat(moments(policy, *aux)).values() if isinstance(x, Tensor))
    before, model = moments(policy, *mine), parameters(policy)
    policy.learn_mode.learn_aux()
    assert not differing(before, moments(policy, *mine))
    assert moved(model, parameters(policy)) == {name.split('.')[0] for name in model}  # all modules
    # 2 x N rows in minibatches of N / 2
    assert [policy.optimizers[name].step_count.item() for name in mine + aux] == [2] * len(mine) + [4] * len(aux)
    before = moments(policy, *aux)
    to_the_phase(policy, 1)
    assert not differing(before, moments(policy, *aux))


# --- schedule and data of the auxiliary phase ---


@pytest.mark.parametrize(('arch', 'per_rollout'), [('dual', 2 + 3 * 2), ('detach', 2 + 3 * 2), ('shared', 3 * 2)])
def test_auxiliary_phase_comes_every_aux_freq_policy_phases(arch: str, per_rollout: int) -> None:
    """N = 32 in minibatches of 16: two steps per epoch; with 'shared' each step trains both actor and critic."""
    n_actor = 3 if arch == 'shared' else 1
    epochs = dict(actor_epoch_per_collect=n_actor, critic_epoch_per_collect=3)
    policy = ppg(dict(batch_size=16, aux_freq=3, aux_train_epoch=2, aux_batch_size=24, **epochs), arch)
    want = 0
    for rollout in range(1, 7):
        metrics = policy.learn_mode.forward(samples_of(policy, rollout))
        is_due = rollout % 3 == 0
        assert ('auxiliary_loss' in metrics) == is_due
        want += per_rollout + (2 * 96 // 24 if is_due else 0)  # epochs x kept rows / minibatch
        assert policy.learn_mode.train_iter() == want
        assert policy.learn_mode.learn_aux() == {}
        assert len(policy.memory_state_dict().get('return_', ())) == rollout % 3 * N
        assert policy.learn_mode.train_iter() == want


def test_auxiliary_phase_gathers_all_minibatches_at_once_where_the_memory_is_on_the_device(monkeypatch: Any) -> None:
    """The device of a policy and of its tensors may have different names: 'cuda' and 'cuda:0', 'cpu:0' and 'cpu'."""
    monkeypatch.setattr(base, 'device_of', lambda name: torch.device('cpu', 0))
    policy: Any = ppg()
    to_the_phase(policy, 2)
    seen, steps = [], policy.passes.take
    monkeypatch.setattr(policy.passes, 'take', lambda *args: seen.append(args[2].gather) or steps(*args))
    policy.learn_aux()
    assert seen == [True]


def test_value_only_batches_are_no_policy_phases() -> None:
    policy = ppg(dict(aux_freq=1))
    samples = samples_of(policy)
    for _ in range(3):
        assert 'auxiliary_loss' not in policy.learn_mode.forward({'value': samples})
        assert policy.learn_mode.learn_aux() == policy.memory_state_dict() == {}
        assert policy.state_dict()['learn']['policy_phase'] == 0
    assert 'auxiliary_loss' in policy.learn_mode.forward({'policy': samples})


def seen_by_aux_steps(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """A list that receives a copy of each minibatch of the auxiliary phase before its step."""
    seen: list[dict[str, Tensor]] = []
    step = policy.phase.step

    def watched(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: Any, numbers: Any) -> Any:
        seen.append(clone(minibatch))
        return step(
            model, dist, optimizers, minibatch, loss, numbers
        )  # unknown to the other executors, so it runs eagerly

    monkeypatch.setattr(policy, 'phase', policy.phase._replace(step=watched))
    return seen


def in_order(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows sorted by the first number of the observation; all these numbers differ."""
    return take(rows, rows['obs'][:, 0].argsort())


@pytest.mark.parametrize(
    ('arch', 'space', 'value_norm', 'where'),
    [
        ('dual', TWO_ACTIONS, False, 'device'),
        ('dual', ONE_NUMBER, True, 'cpu'),
        ('detach', ONE_NUMBER, False, 'disk'),
        ('shared', TWO_ACTIONS, True, 'device'),
    ],
)
def test_auxiliary_phase_takes_each_row_kept_once_an_epoch(
    arch: str, space: Any, value_norm: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The returns are those of collection, in the critic's unit; the logits those of the policy before the phase."""
    learn = dict(aux_freq=3, aux_train_epoch=2, aux_batch_size=12, value_norm=value_norm, aux_memory=where)
    policy = ppg(learn, arch, action_space=space)
    seen = seen_by_aux_steps(policy, monkeypatch)
    for phase in range(2):  # the second phase has only its own rows
        kept = []
        for i in range(3):
            kept.append(clone(samples_of(policy, 3 * phase + i)))
            with phase_held_back(policy):
                policy.learn_mode.forward(kept[-1])
        model, stats = copy.deepcopy(policy.model), copy.deepcopy(policy.normalizers)
        metrics = policy.learn_mode.learn_aux()
        want = in_order({key: torch.cat([x[key] for x in kept]) for key in ('obs', 'return_')})
        with torch.no_grad():
            logit = model.compute_actor(want['obs'])
        if value_norm:
            want['return_'] = (want['return_'] - stats['value'].mean) / stats['value'].var.sqrt()
        assert len(seen) == 2 * 3 * N // 12
        for epoch in (joined(seen[:8]), joined(seen[8:])):
            got = in_order(epoch)
            assert torch.equal(got['obs'], want['obs'])
            torch.testing.assert_close(got['return_'], want['return_'].float())
            torch.testing.assert_close(got['logit'], logit)
        assert not torch.equal(joined(seen[:8])['obs'], joined(seen[8:])['obs'])  # in another order
        new = log_p(policy, policy.model, want['obs'])
        kl = torch.distributions.kl_divergence(log_p(policy, model, want['obs']), new).mean()
        assert kl > 1e-6  # the policy moved, so later logits would differ
        torch.testing.assert_close(metrics['aux_kl_after'], kl, rtol=1e-3, atol=1e-7)
        assert metrics['aux_kl_before'].abs() < 1e-6
        losses = {'auxiliary_loss', 'aux_value_loss', 'behavioral_cloning_loss'}
        assert metrics.keys() == losses | {'aux_grad_norm', 'aux_kl_before', 'aux_kl_after'}
        for name, value in metrics.items():
            assert value.dim() == 0 and not value.requires_grad and value.isfinite(), name
        seen.clear()


def test_memory_that_a_subclass_never_empties_is_an_error() -> None:
    policy = ppg(dict(aux_freq=2))
    with pytest.raises(RuntimeError, match=r'2 batches already; call learn_aux\(\) after each'):
        to_the_phase(policy, 3)


@pytest.mark.slow
@pytest.mark.parametrize(('env', 'arch'), [('CartPole-v1', 'dual'), ('Pendulum-v1', 'shared')])
def test_cloning_holds_the_policy_that_the_auxiliary_phase_would_move(tmp_path: Any, env: str, arch: str) -> None:
    """Data of a run: the same rounds, then one auxiliary phase with cloning or without it."""
    kl, before = {}, {}
    for bc_weight in (0.0, 1.0):
        learn = dict(batch_size=32, aux_freq=3, aux_batch_size=64, aux_train_epoch=60, aux_bc_weight=bc_weight)
        cfg = job_config(tmp_path, env)
        cfg['policy'] |= dict(type='ppg', model=dict(hidden_sizes=[16], arch=arch))
        cfg['policy']['learn'] = dict(learning_rate=1e-2, value_norm=True, **learn)
        with SerialJob(resolve_config(cfg)) as job:
            for _ in range(2):
                job.iteration()
            policy = job.policy
            with phase_held_back(policy):
                policy.learn_mode.forward(policy.collect_mode.get_train_sample(job.collector.collect()))
            before[bc_weight] = parameters(policy)
            metrics = policy.learn_mode.learn_aux()
        assert metrics['aux_kl_before'].abs() < 1e-6
        kl[bc_weight] = metrics['aux_kl_after'].item()
    assert not differing(before[0.0], before[1.0])  # equal until the phase
    assert 0 < kl[1.0] < 0.2 * kl[0.0], kl


# --- the options ---


@pytest.mark.parametrize(
    ('aux', 'wanted'),  # wanted: rates of the auxiliary phase after 0, 500 and 1000 env steps
    [
        ({'start': 4e-3, 'end': 2e-3, 'over': 1000}, (4e-3, 3e-3, 2e-3)),
        (None, (1e-3, 0.5e-3, 0.0)),
        (7e-4, (7e-4,) * 3),
    ],
)
def test_aux_learning_rate_is_a_schedule_of_its_own_or_follows_learning_rate(aux: Any, wanted: Any) -> None:
    policy = ppg(dict(learning_rate={'start': 1e-3, 'end': 0.0, 'over': 1000}, aux_freq=1, aux_learning_rate=aux))
    for env_step, lr, aux_lr in zip((0, 500, 1000), (1e-3, 0.5e-3, 0.0), wanted, strict=True):
        policy.learn_mode.set_env_step(env_step)
        metrics = policy.learn_mode.forward(samples_of(policy))
        assert (metrics['learning_rate'].item(), metrics['aux_learning_rate'].item()) == pytest.approx((lr, aux_lr))
        got = [policy.optimizers[name].lr for name in ('actor', 'critic', 'aux_actor', 'aux_critic')]
        assert got == pytest.approx([lr, lr, aux_lr, aux_lr])


@pytest.mark.parametrize('aux', [None, 7e-4])
def test_aux_learning_rate_follows_an_adaptive_rate_from_draw_to_draw(aux: float | None) -> None:
    """Several draws follow one rollout, so the env step is the same; each update has a KL far below the target."""
    rule = {'start': 1e-3, 'kl_target': 100.0, 'factor': 1.5}
    policy = ppg(dict(learning_rate=rule, aux_freq=1, aux_learning_rate=aux))
    policy.learn_mode.set_env_step(0)
    for lr in (1e-3, 1.5e-3, 2.25e-3):
        metrics, aux_lr = policy.learn_mode.forward(samples_of(policy)), lr if aux is None else aux
        assert (metrics['learning_rate'].item(), metrics['aux_learning_rate'].item()) == pytest.approx((lr, aux_lr))
        got = [policy.optimizers[name].lr for name in ('actor', 'critic', 'aux_actor', 'aux_critic')]
        assert got == pytest.approx([lr, lr, aux_lr, aux_lr])


def test_aux_schedule_without_length_lasts_as_long_as_the_run() -> None:
    policy = dict(type='ppg', learn=dict(aux_learning_rate=dict(start=1e-3, end=0.0)))
    cfg = resolve_config(dict(max_env_step=65_536, env=dict(id='CartPole-v1'), policy=policy))
    assert cfg.policy.learn.aux_learning_rate == {'start': 1e-3, 'end': 0.0, 'over': 65_536}


def test_target_kl_stops_the_policy_phase_and_not_the_value_phase() -> None:
    epochs = dict(actor_epoch_per_collect=6, critic_epoch_per_collect=5)
    policy = ppg(dict(target_kl=1e-4, learning_rate=0.1, batch_size=N // 2, **epochs))
    metrics = policy.learn_mode.forward(samples_of(policy))
    # the first minibatch has KL 0, the second the KL of an Adam step of .1: their mean is above 1.5e-4
    assert metrics['n_epoch'].item() == 1 and metrics['kl'].item() > 1.5e-4
    assert policy.optimizers['actor'].step_count == 2 and policy.optimizers['critic'].step_count == 10


def test_value_norm_learns_returns_far_from_zero_in_both_phases() -> None:
    policy = ppg(dict(value_norm=True, aux_freq=1, aux_train_epoch=60))
    samples = samples_of(policy)
    samples['return_'] = 500 + 20 * samples['obs'][:, 0]
    assert 'auxiliary_loss' in policy.learn_mode.forward(samples)
    # without value_norm a head would have to reach 500: far more than 60 steps of .01
    with torch.no_grad():
        output = policy.model.compute_aux(samples['obs'])
    for name in ('value', 'aux_value'):
        value = policy.normalizers['value'].restore(output[name])
        assert (value - samples['return_']).abs().mean().item() < 8, name


@pytest.mark.parametrize('grad_clip', [0.01, None])
def test_grad_clip_holds_in_all_phases(grad_clip: float | None) -> None:
    policy = ppg(dict(grad_clip=grad_clip, aux_freq=1))
    samples = samples_of(policy)
    samples['return_'] += 10
    metrics = policy.learn_mode.forward(samples)
    assert metrics['value_grad_norm'] > 1 and metrics['aux_grad_norm'] > 1  # norms before clipping
    for name in ('actor', 'critic', 'aux_actor', 'aux_critic'):  # Adam's first moment is (1 - .9) * gradient
        norm = policy.optimizers[name].exp_avg.norm().item()
        assert norm == pytest.approx(0.001, rel=1e-3) if grad_clip else norm > 0.0011


def test_shared_arch_takes_policy_and_value_loss_in_one_step() -> None:
    """PPO with a shared encoder and the same initial parameters gives the same results."""
    learn = dict(batch_size=N // 2, adv_norm='batch', entropy_weight=0.01, grad_clip=0.5, learning_rate=1e-2)
    learn |= dict(value_weight=0.7, value_norm=False)
    mine = ppg({**learn, 'actor_epoch_per_collect': 3, 'critic_epoch_per_collect': 3}, 'shared')
    sections = dict(model=dict(shared_encoder=True), collect=dict(n_step=N_STEP))
    ppo = make_policy(OBS, TWO_ACTIONS, learn={**learn, 'epoch_per_collect': 3}, **sections)
    names, state = dict(ppo.model.named_parameters()), mine.model.state_dict()
    trunk = {name for name in state if name in names or name.replace('critic_encoder', 'actor_encoder') in names}
    ppo.model.load_state_dict({name: state[name] for name in trunk})
    samples = samples_of(mine)
    a, b = mine.learn_mode.forward(samples), ppo.learn_mode.forward(samples)
    for name in names:
        torch.testing.assert_close(parameters(mine)[name], parameters(ppo)[name])
    assert a.keys() - b.keys() == {'aux_learning_rate', 'aux_bc_weight'} and not b.keys() - a.keys()
    for name in b:
        torch.testing.assert_close(a[name], b[name])


def test_rows_of_weight_zero_change_nothing_in_any_phase() -> None:
    found = []
    samples = samples_of(ppg())
    samples['weight'] = torch.zeros(N)
    samples['weight'][::2] = 2.0
    for garbage in (False, True):
        aux = dict(aux_freq=1, aux_train_epoch=40, aux_batch_size=N // 2, aux_bc_weight=0.0, aux_learning_rate=0.05)
        policy = ppg(dict(adv_norm='batch', value_norm=True, batch_size=N // 4, **aux))
        batch = clone(samples)
        if garbage:
            for key, value in (('obs', 50.0), ('adv', 1e4), ('return_', -1e4), ('value', 1e3)):
                batch[key][1::2] = value
        metrics = policy.learn_mode.forward(batch)
        found.append(parameters(policy) | metrics)
    assert metrics['aux_kl_after'] > 1e-3  # otherwise an effect there would not be noticed
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], msg=lambda m, name=name: f'{name}: {m}')


def test_reset_rows_of_real_rollouts_reach_the_auxiliary_phase_with_weight_zero(monkeypatch: Any) -> None:
    learn = dict(batch_size=24, aux_freq=1, aux_batch_size=24, aux_train_epoch=1)
    policy = make_policy(ONE_NUMBER_OBS, TWO_ACTIONS, type='ppg', collect=dict(n_step=12), learn=learn)
    seen = seen_by_aux_steps(policy, monkeypatch)
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(collect(policy, MODES['sync next_step'])))
    # 2 envs of 12 rows, of which the sixth and the twelfth are resets: 20 of 24 count
    assert sorted(seen[0]['weight'].tolist()) == pytest.approx([0.0] * 4 + [1.2] * 20)


# --- failures ---


def test_non_finite_gradients_of_the_auxiliary_phase_are_skipped_and_counted() -> None:
    policy = ppg(dict(aux_freq=2, nonfinite_limit=3))
    policy.learn_mode.forward(samples_of(policy))
    bad = samples_of(policy, 1)
    bad['return_'][3] = torch.nan
    with phase_held_back(policy):
        policy.learn_mode.forward({'policy': bad})
    before = parameters(policy)
    policy.learn_mode.learn_aux()  # one epoch of two minibatches, one of which has the bad row
    assert [policy.optimizers[name].n_skipped for name in ('aux_actor', 'aux_critic')] == [1, 1]
    assert all(p.isfinite().all() for p in parameters(policy).values()) and differing(before, parameters(policy))
    assert policy.learn_mode.forward(samples_of(policy, 2))['skipped_step'].item() == 2


def test_non_finite_gradient_of_the_auxiliary_phase_names_what_broke() -> None:
    policy = ppg(dict(aux_freq=1, nonfinite_limit=1))
    bad = samples_of(policy)
    bad['return_'][0] = torch.inf
    with pytest.raises(NonFiniteGradientError, match='actor_encoder|aux_head'):
        policy.learn_mode.forward({'policy': bad})


# --- state ---


def test_state_without_the_memory_begins_a_new_count_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    one, other = ppg(dict(aux_freq=3)), ppg(dict(aux_freq=3))
    to_the_phase(one, 2)
    other.load_state_dict(one.state_dict())
    other.load_memory_state_dict({})
    assert 'no auxiliary memory: what was kept of 2 policy phases is lost' in caplog.text
    for i in range(1, 4):
        assert ('auxiliary_loss' in other.learn_mode.forward(samples_of(other, i))) == (i == 3)


def test_state_right_after_a_phase_needs_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    one, other = ppg(), ppg()
    to_the_phase(one, 2)
    one.learn_mode.learn_aux()
    other.load_state_dict(one.state_dict())
    other.load_memory_state_dict(one.memory_state_dict())
    assert one.memory_state_dict() == {} and not caplog.records


@pytest.mark.parametrize(('aux_freq', 'n_kept'), [(2, 4), (1, 1)])
def test_other_phases_after_a_resume_begin_with_the_next_rollout(
    aux_freq: int, n_kept: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a smaller aux_freq all kept rows are used; with aux_freq 1 only the new rollout is used, and the log says so."""
    one, other = ppg(dict(aux_freq=4)), ppg(dict(aux_freq=aux_freq, aux_batch_size=N))
    to_the_phase(one, 3)
    other.load_state_dict(one.state_dict())
    other.load_memory_state_dict(one.memory_state_dict())
    said = 'aux_freq is 1: the auxiliary memory of the checkpoint is not used'
    assert (said in caplog.text) == (aux_freq == 1)
    seen = seen_by_aux_steps(other, monkeypatch)
    assert 'auxiliary_loss' in other.learn_mode.forward(samples_of(other, 3))
    assert len(joined(seen)['obs']) == n_kept * N
    for i in range(4):
        assert ('auxiliary_loss' in other.learn_mode.forward(samples_of(other, i))) == ((i + 1) % aux_freq == 0)


# --- runs and configs ---


@pytest.mark.parametrize(('kind', 'said'), [('dna', True), ('ppg', False)])
def test_phase_that_c_has_not_is_said_to_run_eagerly(kind: str, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    policy = make_policy(ONE_NUMBER_OBS, TWO_ACTIONS, type=kind, learn={'executor': 'native'}, collect={'n_step': 16})
    assert policy.executor_name.startswith('native')
    assert ("auxiliary phase 'distill' runs eagerly" in caplog.text) is said
