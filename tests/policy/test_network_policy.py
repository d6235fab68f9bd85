"""Action noise: a function of seed, rollout and env group, the same in every process and executor."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo.core.spaces import Box
from zoo.policy.network_policy import Noise
from zoo.policy.ppo import PPOPolicy
from zoo.rl_utils.distributions.gaussian import Gaussian

OBS = Box(-torch.ones(3).numpy(), torch.ones(3).numpy())
N_STEP, N_ENV = 4, 5


def noise(seed: int = 0) -> Noise:
    return Noise(Gaussian(2), N_STEP, seed, torch.device('cpu'))


def test_noise_is_a_function_of_seed_first_env_and_rollout() -> None:
    def drawn(seed: int, first: int, collect_iter: int) -> torch.Tensor:
        made = noise(seed)
        made.begin(collect_iter)
        return made.rollout(N_ENV, first)

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]
    blocks = [drawn(*key) for key in keys]
    assert all(torch.equal(x, drawn(*key)) for x, key in zip(blocks, keys, strict=True))
    assert not any(torch.equal(a, b) for a, b in combinations(blocks, 2))


def test_rows_are_those_of_the_block_and_continue_without_repetition() -> None:
    one, other = noise(), noise()
    rows = torch.stack([one.row(N_ENV, 8) for _ in range(3 * N_STEP)]).view(3, N_STEP, N_ENV, -1)
    assert torch.equal(rows[0], other.rollout(N_ENV, 8))
    assert torch.equal(rows[1], other.rollout(N_ENV, 8))  # without `begin` the next draw is new noise
    assert not any(torch.equal(a, b) for a, b in combinations(rows.unbind(0), 2))


def test_groups_in_turn_have_rows_of_their_own() -> None:
    made, alone = noise(), noise()
    turns = [(made.row(N_ENV, 0), made.row(N_ENV, N_ENV))[1] for _ in range(N_STEP)]
    assert torch.equal(torch.stack(turns), alone.rollout(N_ENV, N_ENV))


class OwnForward(PPOPolicy):
    """Overrides the forward function for acting and calls that of PPO."""

    def _forward_collect(self, obs: Any, state: Any = None) -> dict[str, Any]:
        return {**super()._forward_collect(obs, state)}


def acted(policy: Any, first: int, collect_iter: int) -> torch.Tensor:
    """Returns the actions of one env group in a rollout of constant observations; another group acts in turn with it."""
    obs = torch.full((N_STEP + 1, N_ENV, 3), 0.5)
    policy.collect_mode.begin(collect_iter)
    group, beside = policy.collect_mode.start(obs, first), policy.collect_mode.start(obs, 100)
    group.begin(), beside.begin()
    with torch.no_grad():
        return torch.stack([(beside.step(t), group.step(t).clone())[1] for t in range(N_STEP)])


@pytest.mark.parametrize('action_space', [TWO_ACTIONS, ONE_NUMBER], ids=['discrete', 'continuous'])
def test_every_executor_and_an_own_forward_function_act_with_the_same_noise(action_space: Any) -> None:
    options = [dict(executor='eager'), dict(executor='auto')]
    policies = [make_policy(OBS, action_space, collect=dict(n_step=N_STEP), learn=learn) for learn in options]
    cfg = policies[0].cfg
    policies += [OwnForward(cfg, OBS, action_space), PPOPolicy(cfg, OBS, action_space, enable_field=['collect'])]
    for first, collect_iter in [(0, 0), (5, 0), (0, 3)]:
        want = acted(policies[0], first, collect_iter)
        for policy in policies[1:]:
            torch.testing.assert_close(acted(policy, first, collect_iter), want, rtol=0, atol=1e-6)
    assert not torch.equal(acted(policies[0], 0, 0), acted(policies[0], 0, 1))


def test_acting_state_is_live_memory_without_the_critic() -> None:
    policy = make_policy(OBS, TWO_ACTIONS)
    state = policy.acting_state()
    assert state.keys() < dict(policy.model.named_parameters()).keys()
    assert not [name for name in state if name.startswith(('critic_', 'value_head'))]
    other = PPOPolicy(policy.cfg, OBS, TWO_ACTIONS, seed=policy.seed, enable_field=['collect'])
    with torch.no_grad():
        for x in state.values():
            x.add_(0.25)
    for name, x in other.acting_state().items():
        x.copy_(policy.acting_state()[name])
    assert torch.equal(acted(policy, 0, 0), acted(other, 0, 0))


def test_acting_state_has_the_critic_where_acting_may_read_it() -> None:
    cfg = make_policy(OBS, TWO_ACTIONS).cfg
    own = OwnForward(cfg, OBS, TWO_ACTIONS)
    assert own.acting_state().keys() == dict(own.model.named_parameters()).keys()
