"""Published variants in examples/: each formula against a reference in float64, resumes, and the refusals in a sentence."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy.updates import N_STEP, OBS, N, moved, parameters, ppo, samples_of, to_the_phase
from tests.policy_envs import TWO_ACTIONS, differing, job_config, make_policy
from zoo import load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.core.registry import OPTION_REGISTRY, PENALTY_REGISTRY, PHASE_REGISTRY, POLICY_REGISTRY
from zoo.core.seeding import reseed, torch_generator
from zoo.core.spaces import Box

TWO_NUMBERS = Box(np.full(2, -1, np.float32), np.full(2, 1, np.float32))


def example(name: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / 'examples' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # which registers its parts
    return module


@pytest.fixture(scope='module', autouse=True)
def registered() -> Iterator[None]:
    """The parts of the examples have their names in these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (OPTION_REGISTRY, PENALTY_REGISTRY, PHASE_REGISTRY, POLICY_REGISTRY):
            for name in registry.names():
                registry.get(name)  # a module that is loaded first in these tests would lose its names after them
            patch.setattr(registry, 'entries', dict(registry.entries))
        for name in ('rpo', 'dcpg', 'pfo', 'chain'):
            example(name)
        yield


RPO = dict(options=['rpo'])
PFO = dict(options=['pfo'], penalties=['pfo'])
CHAIN = dict(options=['chain'], penalties=['chain'], compile='off', adv_norm='minibatch')


def numbers_policy(**learn: Any) -> Any:
    return ppo(learn, action_space=TWO_NUMBERS)


def dcpg(arch: str = 'shared', **learn: Any) -> Any:
    base = dict(batch_size=N, adv_norm='off', value_norm=False, aux_freq=2, aux_train_epoch=1, aux_batch_size=2 * N)
    spaces, collect = (OBS, TWO_ACTIONS), dict(n_step=N_STEP)
    return make_policy(*spaces, type='dcpg', model={'arch': arch}, learn={**base, **learn}, collect=collect)


def log_prob(mu: Tensor, sigma: Tensor, action: Tensor) -> Tensor:
    return torch.distributions.Normal(mu.double(), sigma.double()).log_prob(action.double()).sum(-1)


def test_rpo_shifts_the_new_mean_alone_by_other_numbers_in_each_pass() -> None:
    policy = numbers_policy(options=[{'type': 'rpo', 'alpha': 0.5}], learning_rate=1e-12, epoch_per_collect=2)
    samples = samples_of(policy)
    (mu, sigma), losses, shifts = samples['logit'].chunk(2, -1), [], []
    for step in range(2):  # at this learning rate the network stays where it was
        stream = reseed(torch_generator(0, 'rpo'), 0, 'rpo', 0, step)
        shifts.append(torch.empty(N, 2).uniform_(-0.5, 0.5, generator=stream))
        ratio = (log_prob(mu + shifts[-1], sigma, samples['action']) - log_prob(mu, sigma, samples['action'])).exp()
        losses.append(-torch.minimum(ratio * samples['adv'], ratio.clamp(0.8, 1.2) * samples['adv']).mean())
    metrics = policy.learn_mode.forward(samples)
    assert metrics['policy_loss'] == pytest.approx(float(sum(losses)) / 2, rel=1e-5)
    assert metrics['entropy'] == pytest.approx(float(torch.distributions.Normal(mu, sigma).entropy().sum(-1).mean()))
    assert len(torch.cat(shifts).unique()) == 4 * N  # each number of each row in each pass


def stepped(learn: dict[str, Any], samples: Any, n_step: int = 1) -> tuple[Any, Any]:
    """A policy after n_step steps on all samples, and the metrics."""
    policy = numbers_policy(**learn, epoch_per_collect=n_step)
    metrics = policy.learn_mode.forward(copy.deepcopy(samples))
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    return policy, metrics


@torch.no_grad()
def phi(policy: Any, obs: Tensor) -> Tensor:
    (w_1, b_1), (w_2, b_2) = ((x.weight.double(), x.bias.double()) for x in policy.model.actor_encoder.layers)
    return torch.tanh(obs.double() @ w_1.T + b_1) @ w_2.T + b_2


def test_pfo_is_the_mean_square_of_the_change_before_the_last_activation_and_slows_it() -> None:
    samples = samples_of(numbers_policy())
    (once, _), (_, metrics) = stepped(PFO, samples), stepped(PFO, samples, 2)
    old = phi(numbers_policy(), samples['obs'])
    # the first of the two steps finds no change
    assert metrics['penalty_pfo'] == pytest.approx(
        float((phi(once, samples['obs']) - old).square().mean()) / 2, rel=1e-4
    )
    free, held = (
        phi(stepped({**PFO, 'penalties': [{'type': 'pfo', 'weight': c}]}, samples, 8)[0], samples['obs'])
        for c in (0.0, 100.0)
    )
    assert (held - old).square().mean() < 0.5 * (free - old).square().mean()


def test_chain_is_the_kl_from_the_policy_before_the_last_step_on_drawn_rows_and_c_a_share_of_the_loss() -> None:
    samples = samples_of(numbers_policy())
    (once, first), (twice, metrics) = stepped(CHAIN, samples), stepped(CHAIN, samples, 2)
    stream = reseed(torch_generator(0, 'chain'), 0, 'chain', 0)
    rows = [torch.randint(N, (N,), generator=stream) for _ in range(2)][1]  # of the second step; the first KL is 0
    p, q = (
        torch.distributions.Normal(*x.model.compute_actor(samples['obs'][rows]).double().chunk(2, -1))
        for x in (numbers_policy(), once)
    )
    kl = torch.distributions.kl_divergence(p, q).sum(-1).mean().item() / 2
    assert metrics['penalty_chain'] == pytest.approx(kl, rel=1e-3) and metrics['chain_weight'] == 1
    loss = (abs(first['policy_loss']) + abs(2 * metrics['policy_loss'] - first['policy_loss'])) / 2
    assert twice.learn_mode.forward(samples)['chain_weight'] == pytest.approx(float(0.1 * loss / (kl + 1e-8)), rel=1e-2)


def test_dcpg_policy_phase_learns_no_returns_and_holds_the_values() -> None:
    policy, samples = dcpg(), samples_of(dcpg())
    before = parameters(policy)
    policy.learn_mode.forward({**samples, 'adv': torch.zeros(N)})  # the critic is wrong, but no loss says so
    assert samples['return_'].abs().max() > 1
    for name, x in parameters(policy).items():  # values of another batch size differ by rounding
        torch.testing.assert_close(x, before[name], rtol=0, atol=1e-6)
    policy = dcpg(actor_epoch_per_collect=2, critic_epoch_per_collect=2, learning_rate=1e-2)
    old = policy.compute_critic(samples['obs']).double()
    metrics = policy.learn_mode.forward(samples)
    once = dcpg(learning_rate=1e-2)  # where the second step began
    once.learn_mode.forward(samples)
    drift = 0.5 * (once.compute_critic(samples['obs']).double() - old).square().mean()
    assert metrics['penalty_value_drift'] == pytest.approx(float(drift) / 2, rel=1e-4)  # the first step's is 0


def test_dcpg_auxiliary_phase_fits_the_critic_to_the_returns_and_leaves_the_auxiliary_head() -> None:
    policy = dcpg(learning_rate=1e-2)
    rollouts = to_the_phase(policy, 2)
    before = parameters(policy)
    errors = [policy.compute_critic(x['obs']).double() - x['return_'] for x in rollouts]
    metrics = policy.learn_aux()
    assert metrics['auxiliary_loss'] == pytest.approx(float(torch.cat(errors).square().mean()) / 2, rel=1e-5)
    assert metrics['behavioral_cloning_loss'] == pytest.approx(0, abs=1e-6) and metrics['aux_kl_after'] > 0
    changed = moved(before, parameters(policy))
    assert {'actor_encoder', 'value_head'} <= changed and 'aux_head' not in changed


@pytest.mark.parametrize('way', ['state', 'deepcopy'])
@pytest.mark.parametrize('learn', [RPO, PFO, CHAIN], ids=['rpo', 'pfo', 'chain'])
def test_variant_continues_the_same_after_a_resume_and_in_a_copy(learn: dict[str, Any], way: str) -> None:
    learn = dict(learn, epoch_per_collect=2, batch_size=N // 2)
    policy = numbers_policy(**learn)
    policy.learn_mode.forward(samples_of(policy))
    other = copy.deepcopy(policy) if way == 'deepcopy' else numbers_policy(**learn)
    if way == 'state':
        other.load_state_dict(copy.deepcopy(policy.state_dict()))
    samples = samples_of(policy, 1)
    for each in (policy, other):
        each.learn_mode.forward(copy.deepcopy(samples))
    assert not differing(parameters(policy), parameters(other))


@pytest.mark.parametrize('learn', [RPO, PFO, CHAIN], ids=['rpo', 'pfo', 'chain'])
def test_variant_of_a_run_resumes_from_its_checkpoint(learn: dict[str, Any], tmp_path: Path) -> None:
    run = serial_pipeline(job_config(tmp_path, 'Pendulum-v1', policy=dict(learn=learn)))
    assert (
        load_policy(run.run_dir, fields='all').state_dict()['learn'].keys() == run.policy.state_dict()['learn'].keys()
    )
    assert serial_pipeline(resume=run.run_dir, max_env_step=320).env_step == 320


def test_dcpg_continues_the_same_after_a_resume() -> None:
    policy, other = dcpg(), dcpg()
    policy.learn_mode.forward(samples_of(policy))
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    other.load_memory_state_dict(copy.deepcopy(policy.memory_state_dict()))
    samples = samples_of(policy, 1)
    for each in (policy, other):
        assert 'auxiliary_loss' in each.learn_mode.forward(copy.deepcopy(samples))
    assert not differing(parameters(policy), parameters(other))


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        (dict(arch='dual'), "policy 'dcpg' needs one network for actor and critic; use policy.model.arch 'shared'"),
        (dict(value_weight=0.5), "policy 'dcpg' delays the critic's loss but value_weight is 0.5; leave it out"),
    ],
)
def test_dcpg_of_two_networks_or_with_the_loss_at_once_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        dcpg(**settings)


@pytest.mark.parametrize(
    ('learn', 'words'),
    [
        (RPO, "option 'rpo' shifts the mean of a Gaussian but the actions are categorical; leave it out"),
        (dict(PFO, penalties=[]), "option 'pfo' is given but policy.learn.penalties has no 'pfo'; add "),
        (dict(CHAIN, penalties=[]), "option 'chain' needs policy.learn.penalties="),
        (dict(CHAIN, adv_norm='off'), "option 'chain' .* but adv_norm is 'off'; use adv_norm=minibatch"),
    ],
)
def test_variant_in_the_wrong_place_is_refused_in_a_sentence(learn: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ppo(learn)


@pytest.mark.parametrize('learn', [dict(penalties=['pfo']), dict(penalties=['chain'])], ids=['pfo', 'chain'])
def test_penalty_without_its_option_is_refused_in_a_sentence(learn: dict[str, Any]) -> None:
    policy = ppo(learn)
    with pytest.raises(UserError, match=f"the penalty '{learn['penalties'][0]}' needs the option"):
        policy.learn_mode.forward(samples_of(policy))


def test_chain_is_refused_for_the_line_search_of_trpo() -> None:
    with pytest.raises(UserError, match="option 'chain' needs .* and no trpo"):
        make_policy(OBS, TWO_ACTIONS, type='trpo', learn=dict(CHAIN, adv_norm='batch'), collect=dict(n_step=N_STEP))


def test_rpo_takes_no_steps_in_c() -> None:
    with pytest.raises(UserError, match="native executor does not know the option 'rpo'"):
        numbers_policy(**RPO, executor='native')
