"""Learning without a critic, and with `ignore_done`: weights and returns worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy.hand import EPISODE, MODES, collect, hand_policy
from tests.policy.updates import N_STEP, OBS, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.policy.options.whole_episodes import whole_episodes


def test_steps_of_unfinished_episodes_weigh_nothing_without_a_critic() -> None:
    """Env 0 ends at step 1 (of 0 to 3), env 1 never, env 2 at 3: 2 + 0 + 4 = 6 of 12 rows count, with weight 12 / 6 = 2."""
    ends = torch.zeros(4, 3, dtype=torch.bool)
    ends[1, 0] = ends[3, 2] = True
    weight = whole_episodes(ends, None)
    assert weight.T.tolist() == [[2, 2, 0, 0], [0, 0, 0, 0], [2, 2, 2, 2]]
    assert not whole_episodes(torch.zeros_like(ends), None).any()


def test_baseline_none_has_the_plain_return_as_advantage() -> None:
    """Rewards 1, discount .9, an episode of 5 steps: 1 + .9 + .81 + .729 + .6561 = 4.0951 at its first step."""
    cfg = dict(learn=dict(baseline='none'), collect=dict(estimator='returns', discount_factor=0.9, n_step=5))
    policy = make_policy(OBS, TWO_ACTIONS, **cfg)
    rollout = random_ends(policy)
    samples = policy.collect_mode.get_train_sample(rollout)
    assert samples['adv'].view(5, 1)[:, 0].tolist() == pytest.approx([4.0951, 3.439, 2.71, 1.9, 1.0])
    assert torch.equal(samples['adv'], samples['return_']) and not samples['value'].any()


def random_ends(policy: Any) -> Any:
    """One env, five steps with reward 1, the last of which ends the episode."""
    from zoo.core.data import Rollout

    obs = torch.randn(6, 1, 2, generator=torch.Generator().manual_seed(0))
    output = [policy.collect_mode.forward(obs[t], None) for t in range(5)]
    ends = torch.zeros(5, 1, dtype=torch.bool)
    ends[-1] = True
    data = {
        'obs': obs[:-1],
        'action': torch.stack([o['action'] for o in output]),
        'logit': torch.stack([o['logit'] for o in output]),
        'reward': torch.ones(5, 1),
        'done': ends,
        'traj_flag': ends,
    }
    return Rollout(data, obs[-1], torch.randn(1, 2), ends.nonzero())


def test_without_a_critic_nothing_of_it_moves() -> None:
    policy = ppo(dict(baseline='none'), collect=dict(n_step=N_STEP, estimator='returns'))
    before = parameters(policy)
    policy.learn_mode.forward(samples_of(policy))
    now = parameters(policy)
    critic = {name for name in before if name.startswith(('critic', 'value'))}
    assert critic and all(torch.equal(before[name], now[name]) for name in critic)


def test_ignore_done_bootstraps_terminal_states_like_truncated_ones() -> None:
    policy = hand_policy(lambda s: 10 + s, 5, 0.5, ignore_done=True)
    samples = policy.collect_mode.get_train_sample(
        collect(policy, {**MODES['sync same_step'], 'kwargs': {'end': 'terminated'}}, 1)
    )
    torch.testing.assert_close(samples['adv'], torch.tensor(EPISODE['truncated']))
