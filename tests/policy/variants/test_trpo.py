"""Natural gradient steps: their direction and length by hand and by a dense Fisher matrix, and the trust region."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.func import functional_call, jacrev

from tests.policy.networks import Coin
from tests.policy.updates import N_STEP, OBS, parameters, samples_of, small_rollout
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, make_policy
from zoo.core.spaces import Space
from zoo.policy.base import Policy
from zoo.policy.hooks import listening
from zoo.policy.variants.trpo import conjugate_gradient


def trpo(
    kind: str = 'trpo', network: Any = None, n_step: int = N_STEP, space: Space = TWO_ACTIONS, **learn: Any
) -> Policy:
    learn = {'batch_size': 8, 'epoch_per_collect': 2, 'adv_norm': 'off', **learn}
    collect = dict(n_step=n_step, discount_factor=0.5)
    return make_policy(OBS, space, type=kind, network=network, learn=learn, collect=collect)


def actor_of(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: x.double() for name, x in parameters(policy).items() if 'critic' not in name and 'value' not in name}


def test_conjugate_gradient_solves_a_system_by_hand() -> None:
    matrix, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    torch.testing.assert_close(conjugate_gradient(lambda x: matrix @ x, b, 2), torch.tensor([1 / 11, 7 / 11]))
    # one iteration goes along b by b'b / b'Ab = 5 / 20
    torch.testing.assert_close(conjugate_gradient(lambda x: matrix @ x, b, 1), b / 4)


@pytest.mark.parametrize('kind', ['trpo', 'npg'])
def test_learning_rate_of_zero_is_said_to_stop_the_critic_alone(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = trpo(kind, learning_rate={'start': 1e-3, 'end': 0.0, 'over': 100})
    policy.learn_mode.set_env_step(100)
    assert [record.getMessage().partition(';')[0] for record in caplog.records] == [
        'policy.learn.learning_rate is 0 from env step 100 on: the critic learns nothing more'
    ]
    before = actor_of(policy)
    policy.learn_mode.forward(samples_of(policy))
    assert differing(before, actor_of(policy))


@pytest.mark.parametrize('kind', ['trpo', 'npg'])
@pytest.mark.parametrize('damping', [0.0, 0.1])
def test_step_by_hand(kind: str, damping: float) -> None:
    model = Coin()
    policy = trpo(kind, model, n_step=4, damping=damping, max_kl=0.02)
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout()))
    # for two logits with p = 1/2 the Fisher matrix is (1, -1)'(1, -1) / 4, whose eigenvalue is 1/2 along the gradient (c, -c):
    # x = c / (.5 + damping), and sqrt(2 max_kl / (.5 + damping) / 2 c^2) c = sqrt(max_kl / (.5 + damping)), for any c
    length = (0.02 / (0.5 + damping)) ** 0.5
    assert model.logit.abs().tolist() == pytest.approx([length, length])
    p = 1 / (1 + torch.tensor(2 * length).exp())
    assert metrics['step_kl'].item() == pytest.approx(-0.5 * (4 * p * (1 - p)).log().item(), rel=1e-4)
    assert metrics['step_halved'] == 0 and model.value.item() != 0


@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['categorical', 'gaussian'])
def test_step_is_that_of_a_dense_fisher_matrix(space: Space) -> None:
    policy = trpo('npg', space=space, cg_iter=100, damping=0.1, max_kl=1e-3)
    samples, before = samples_of(policy), actor_of(policy)
    theta, model = torch.cat([x.reshape(-1) for x in before.values()]), copy.deepcopy(policy.model).double()
    model.forward = model.compute_actor

    def logits(flat: torch.Tensor) -> torch.Tensor:
        pieces = flat.split([x.numel() for x in before.values()])
        named = {name: piece.view(x.shape) for (name, x), piece in zip(before.items(), pieces, strict=True)}
        return functional_call(model, named, (samples['obs'].double(),))

    logit, jacobian = logits(theta), jacrev(logits)(theta)
    if space is TWO_ACTIONS:
        p = logit.softmax(-1)
        of_logits = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        of_action = torch.nn.functional.one_hot(samples['action'], 2) - p
    else:  # a row of logits is mean and deviation
        mean, std = logit.unbind(-1)
        of_logits = torch.diag_embed(torch.stack([std**-2, 2 * std**-2], -1))
        distance = samples['action'].squeeze(-1) - mean
        of_action = torch.stack([distance / std**2, distance**2 / std**3 - 1 / std], -1)
    weight = samples.get('weight', torch.ones(len(logit)))
    fisher = torch.einsum('nap,nab,nbq,n->pq', jacobian, of_logits, jacobian, weight.double()) / len(logit)
    fisher += 0.1 * torch.eye(len(theta))
    ascent = torch.einsum('nap,na,n->p', jacobian, of_action, (samples['adv'] * weight).double()) / len(logit)
    direction = torch.linalg.solve(fisher, ascent)
    wanted = (2e-3 / (direction @ fisher @ direction)).sqrt() * direction
    policy.learn_mode.forward(samples)
    moved = torch.cat([(after - before[name]).reshape(-1) for name, after in actor_of(policy).items()])
    assert (moved - wanted).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize('space', [TWO_ACTIONS, ONE_NUMBER], ids=['categorical', 'gaussian'])
def test_trust_region_holds_at_each_update_and_the_loss_falls(space: Space) -> None:
    policy = trpo(space=space, max_kl=0.5)  # so large that the quadratic model of KL is wrong
    halved = []
    for seed in range(8):
        metrics = policy.learn_mode.forward(samples_of(policy, seed))
        halved.append(metrics['step_halved'].item())
        assert metrics['step_kl'] <= 0.5 and metrics['skipped_step'] == 0
        assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    assert max(halved) > 0


def test_step_that_does_not_help_is_not_taken() -> None:
    policy = trpo()
    samples, before = samples_of(policy), parameters(policy)
    metrics = policy.learn_mode.forward({**samples, 'adv': torch.zeros_like(samples['adv'])})
    assert metrics['step_halved'] == 11 and metrics['step_kl'] == 0
    assert {name.split('_')[0] for name in differing(before, parameters(policy))} == {'critic', 'value'}


def test_gradient_that_is_not_finite_moves_no_actor_and_is_counted() -> None:
    policy = trpo()
    samples, before = samples_of(policy), parameters(policy)
    metrics = policy.learn_mode.forward({**samples, 'adv': samples['adv'] * torch.inf})
    assert metrics['skipped_step'] == 1
    assert {name.split('_')[0] for name in differing(before, parameters(policy))} == {'critic', 'value'}


@pytest.mark.parametrize('value_loss', ['clip', 'error_clip', 'huber', 'hl_gauss'])
def test_critic_has_any_value_loss(value_loss: str) -> None:
    policy = trpo(value_loss=value_loss)
    metrics = policy.learn_mode.forward(samples_of(policy))
    assert metrics.keys() == set(policy.learn_mode.monitor_vars()) and metrics['value_grad_norm'] > 0


class DropoutCoin(Coin):
    def compute_actor(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(super().compute_actor(obs), 0.5, self.training)


def test_step_is_that_of_the_policy_that_acts_without_dropout() -> None:
    found = []
    for network in (Coin(), DropoutCoin()):
        policy = trpo(network=network, n_step=4)
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout()))
        found.append(network.logit.detach())
    assert found[0].abs().sum() > 0
    torch.testing.assert_close(*found)


def test_callbacks_see_the_gradient_of_the_actor_and_may_change_it() -> None:
    model, seen = Coin(), []

    def turn(optimizers: Any, loss: torch.Tensor) -> None:
        if optimizers[0].names == ['logit']:
            seen.append(optimizers[0].grad.clone())
            optimizers[0].grad.neg_()

    policy = trpo('npg', model, n_step=4)
    with listening(turn):
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(small_rollout()))
    assert len(seen) == 1 and seen[0].norm() > 0
    assert (model.logit.detach() @ seen[0]) > 0  # the step increases the loss, since the callback negated the gradient


def test_learning_rate_is_the_critics() -> None:
    found = []
    for learn in ({'learning_rate': 1e-3}, {'learning_rate': 1e-2}):
        policy = trpo(**learn)
        policy.learn_mode.forward(samples_of(policy))
        found.append(actor_of(policy))
    assert not differing(*found)
