"""Inference of a policy: values, distributions, drawn and evaluated actions, for one observation and for a batch."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from tests.policy.random_heads import OBS, ROWS, policy_of
from tests.policy_envs import ONE_NUMBER
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary
from zoo.policy import inference


@pytest.mark.parametrize('kind', ['ppo', 'ppg', 'ppo_offpolicy', 'a2c'])
def test_numbers_are_those_of_the_network_and_of_torch(kind: str) -> None:
    policy = policy_of(kind)
    rows = torch.from_numpy(ROWS)
    with torch.no_grad():
        logit, value = policy.model.compute_actor(rows), policy.model.compute_critic(rows)
    wanted = Categorical(logits=logit)
    torch.testing.assert_close(policy.value(ROWS), value)
    dist = policy.distribution(ROWS)
    action = torch.tensor([0, 1, 1, 0, 1, 0])
    torch.testing.assert_close(dist.log_prob(action), wanted.log_prob(action))
    torch.testing.assert_close(dist.entropy(), wanted.entropy())
    assert torch.equal(dist.mode(), logit.argmax(-1)) and dist.name == 'categorical'
    assert torch.equal(dist.param, logit)
    assert (policy.act(ROWS) == dist.mode().numpy()).all()
    judged = policy.evaluate_actions(ROWS, action.numpy())
    torch.testing.assert_close(judged.log_prob, wanted.log_prob(action))
    torch.testing.assert_close(judged.entropy, wanted.entropy())
    torch.testing.assert_close(judged.value, value)


def test_box_actions_are_the_policys_own_and_env_action_clips_them() -> None:
    policy = policy_of(action=ONE_NUMBER)
    action, log_prob, value = policy.sample(ROWS, torch.Generator().manual_seed(3))
    assert action.shape == (6, 1) and (action.abs() > 1).any()  # beyond the bounds; env_action clips
    mu, sigma = policy.distribution(ROWS).param.chunk(2, -1)
    torch.testing.assert_close(log_prob, Normal(mu, sigma).log_prob(action).sum(-1))
    torch.testing.assert_close(policy.evaluate_actions(ROWS, action).log_prob, log_prob)
    assert np.abs(policy.env_action(action)).max() <= 1
    assert torch.equal(value, policy.value(ROWS))


def test_one_observation_is_a_row_of_a_batch() -> None:
    policy = policy_of()
    batch, one = (policy.sample(rows, torch.Generator().manual_seed(3)) for rows in (ROWS, ROWS[0]))
    assert one.action.shape == one.log_prob.shape == one.value.shape == ()
    assert one.action == batch.action[0]
    torch.testing.assert_close(one.log_prob, batch.log_prob[0])
    torch.testing.assert_close(policy.value(ROWS[0]), policy.value(ROWS)[0])
    judged = policy.evaluate_actions(ROWS[0], 1)
    torch.testing.assert_close(judged.log_prob, policy.distribution(ROWS).param.log_softmax(-1)[0, 1])
    assert policy.distribution(ROWS[0]).param.shape == (2,)


def test_tensors_and_arrays_are_the_same() -> None:
    policy = policy_of()
    given = torch.from_numpy(ROWS).requires_grad_()
    assert torch.equal(policy.value(given), policy.value(ROWS))
    assert (policy.act(given) == policy.act(ROWS)).all()


def test_evaluate_actions_has_a_gradient_and_the_others_have_none() -> None:
    policy = policy_of()
    judged = policy.evaluate_actions(ROWS, torch.zeros(6).long())
    (judged.log_prob.sum() + judged.entropy.sum() + judged.value.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())
    assert not policy.value(ROWS).requires_grad and not policy.distribution(ROWS).param.requires_grad
    assert not policy.sample(ROWS).log_prob.requires_grad


def test_value_is_in_the_unit_of_returns_where_the_critic_has_another() -> None:
    policy = policy_of(learn={'value_norm': True})
    policy.normalizers['value'].update(torch.tensor([90.0, 110.0]))  # mean 100, standard deviation 10
    with torch.no_grad():
        inner = policy.model.compute_critic(torch.from_numpy(ROWS))
    torch.testing.assert_close(policy.value(ROWS), inner * 10 + 100, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize('memory', [False, True])
def test_stochastic_acting_follows_the_distribution(memory: bool) -> None:
    """400 draws for one observation: the share of action 1 is within 4 standard errors of its probability."""
    policy = policy_of(model={'recurrent': {'cell': 'gru', 'hidden_size': 8}} if memory else {})
    begins = True if memory else None
    p = float(policy.distribution(ROWS[0], begins=begins).param.softmax(-1)[1])
    drawn = policy.act(np.tile(ROWS[0], (400, 1)), deterministic=False, generator=torch.Generator().manual_seed(0))
    assert 0.02 < p < 0.98 and abs(drawn.mean() - p) < 4 * (p * (1 - p) / 400) ** 0.5
    again = policy.act(np.tile(ROWS[0], (400, 1)), deterministic=False, generator=torch.Generator().manual_seed(0))
    assert (drawn == again).all()


def test_session_draws_and_keeps_the_state() -> None:
    policy = policy_of(model={'recurrent': {'cell': 'gru', 'hidden_size': 8}})
    drawing, greedy = policy.session(), policy.session()
    for row in ROWS:  # the state depends on the observations, not on the drawn actions
        drawing.act(row, deterministic=False)
        greedy.act(row)
    states = [torch.cat([x.flatten() for _, x in leaves(each.state)]) for each in (drawing, greedy)]
    assert torch.equal(*states) and states[0].abs().sum() > 0


def test_action_mask_of_the_observation_counts() -> None:
    space = Dict({'x': OBS, ACTION_MASK: MultiBinary((3,))})
    policy = policy_of(obs=space, action=Discrete(3))
    obs = {'x': ROWS, ACTION_MASK: np.tile([True, False, True], (6, 1))}
    dist = policy.distribution(obs)
    assert not dist.log_prob(torch.ones(6).long()).isfinite().any()
    assert (policy.sample(obs).action != 1).all()


def test_actions_come_in_the_form_of_the_env() -> None:
    policy = policy_of(action=Box(np.array([0.0]), np.array([10.0])), mode='rescale')
    space = gymnasium.spaces.Box(0, 10, (1,), np.float32)
    action = policy.act(ROWS[0], deterministic=False)
    assert space.contains(action.astype(np.float32))


@pytest.mark.parametrize('ask', ['value', 'distribution', 'sample'])
def test_policy_without_distribution_and_critic_says_so(ask: str) -> None:
    with pytest.raises(UserError, match="^policy 'dqn' has neither a distribution of actions nor a critic; act"):
        getattr(policy_of('dqn'), ask)(ROWS)


@pytest.mark.parametrize('kind', ['pg', 'ppo'])
def test_policy_without_critic_says_so_and_samples_all_the_same(kind: str) -> None:
    without = {'learn': {'baseline': 'none'}, 'collect': {'estimator': 'returns'}}
    policy = policy_of(kind, **({} if kind == 'pg' else without))
    with pytest.raises(UserError, match=f"^policy '{kind}' trains no critic, so it knows no values; use a policy with"):
        policy.value(ROWS)
    assert policy.sample(ROWS).value is None and policy.evaluate_actions(ROWS[0], 1).value is None


def test_kl_is_that_of_torch_and_refuses_another_batch() -> None:
    policy = policy_of()
    first, second = policy.distribution(ROWS), policy.distribution(ROWS[::-1].copy())
    wanted = torch.distributions.kl_divergence(*(Categorical(logits=x.param) for x in (first, second)))
    torch.testing.assert_close(first.kl(second), wanted)
    with pytest.raises(UserError, match=r'^kl got a categorical distribution with parameters \[3, 2\] but this one'):
        first.kl(policy.distribution(ROWS[:3]))


def judges(action: Any, n_row: int = 6) -> Any:
    return lambda policy: policy.evaluate_actions(ROWS[:n_row], action)


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        *(
            (judges(action), '^the actions do not fit the 6 observ')
            for action in (torch.zeros(5), torch.zeros(6, 2), 0)
        ),
        (judges([0, 5], 2), 'action holds 0 to 5'),
        (judges([0, -1], 2), 'action holds -1 to 0'),
        (judges([0.5, 1.0], 2), 'the policy chooses by index; give integers'),
        (judges('x', 2), 'must be an array or tensor of numbers'),
        (judges([0], 2), 'do not fit the 2 observations'),
        (lambda policy: policy.act((ROWS[0], {})), 'give the observation alone'),
        (lambda policy: policy.act(ROWS, False, generator=3), 'generator is 3 but must be a torch.Generator'),
        (lambda policy: policy.act(ROWS, 'no'), "deterministic is 'no' but must be true or false"),
    ],
)
def test_what_no_policy_can_answer_is_refused_in_a_sentence(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call(policy_of())


def test_env_action_of_indices_is_the_indices() -> None:
    assert policy_of().env_action([1]) == [1]  # type: ignore[arg-type]


def memory_policy(kind: str = 'ppo', **recurrent: Any) -> Any:
    torch.manual_seed(0)
    return policy_of(kind, model=dict(hidden_sizes=[8], recurrent=dict(cell='gru', hidden_size=8) | recurrent))


@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_state_goes_from_call_to_call_as_in_a_session(kind: str) -> None:
    policy = memory_policy(kind)
    session = policy.session()
    obs = np.random.default_rng(0).normal(size=(4, *ROWS.shape)).astype(np.float32)
    begins = [np.ones(6, bool), np.zeros(6, bool), np.arange(6) == 2, np.zeros(6, bool)]  # in step 2 env 2 begins anew
    state = None
    for t in range(4):
        draws = session.act(obs[t], begins[t], deterministic=False, generator=torch.Generator().manual_seed(t))
        found = policy.sample(obs[t], torch.Generator().manual_seed(t), state, begins[t])
        assert (policy.env_action(found.action) == draws).all()
        assert torch.equal(found.value, policy.value(obs[t], state, begins[t]))
        judged = policy.evaluate_actions(obs[t], found.action, state, begins[t])
        torch.testing.assert_close(judged.log_prob, found.log_prob)
        torch.testing.assert_close(judged.state['actor'], session.state['actor'])
        state = found.state
    assert torch.equal(state['actor'], session.state['actor'])
    one = policy.sample(
        obs[3, 2], torch.Generator().manual_seed(0), begins=True
    )  # a single observation has a state of one row
    assert one.value.shape == () and one.state['actor'].shape == (1, 8)


def test_gradient_of_a_later_call_goes_back_through_the_state() -> None:
    policy = memory_policy()
    first = policy.evaluate_actions(ROWS, np.zeros(6, int), begins=True)
    second = policy.evaluate_actions(ROWS, np.zeros(6, int), first.state)
    (grad,) = torch.autograd.grad(second.log_prob.sum(), first.state['actor'])
    assert grad.abs().max() > 0


@pytest.mark.parametrize('call', ['value', 'distribution', 'sample'])
def test_memory_without_a_state_is_a_sentence(call: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = memory_policy()
    words = f'{call} got no state, but the model has a memory: give state=, which sample returned for the observations before'
    inference.say_first_state.cache_clear()
    for _ in range(2):
        getattr(policy, call)(ROWS)
    assert [words in record.message for record in caplog.records] == [True]  # once
    with pytest.raises(UserError, match=f'{call} got no state for rows in which no episode begins'):
        getattr(policy, call)(ROWS, begins=np.arange(6) == 0)  # five of the six do not begin
    with pytest.raises(UserError, match=r'got a state of shapes .*\[5, 8\].* but the model needs .*\[6, 8\]'):
        getattr(policy, call)(ROWS, state=policy.sample(ROWS[:5], begins=True).state)
    with pytest.raises(UserError, match='got state or begins but the model has no memory; leave them out'):
        getattr(policy_of(), call)(ROWS, begins=True)
