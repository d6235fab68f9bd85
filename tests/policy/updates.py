"""PPO and PPG policies with every option off, and random rollouts to update them with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.policy_envs import (
    TWO_ACTIONS,
    clone,
    differing,
    make_policy,
    phase_held_back,
)
from zoo.core.data import Rollout
from zoo.core.spaces import Box
from zoo.policy.base import Policy

OBS = Box(torch.full((2,), -torch.inf).numpy(), torch.full((2,), torch.inf).numpy())
N_STEP, N_ENV = 8, 4
N = N_STEP * N_ENV


def ppo(learn: dict[str, Any] | None = None, **kwargs: Any) -> Policy:
    """A PPO policy with one epoch of one minibatch and every option off; `learn` overrides this."""
    base = dict(epoch_per_collect=1, batch_size=N, adv_norm='off', grad_clip=None, learning_rate=1e-2)
    kwargs.setdefault('collect', dict(n_step=N_STEP, discount_factor=0.9, gae_lambda=0.8))
    return make_policy(OBS, kwargs.pop('action_space', TWO_ACTIONS), learn={**base, **(learn or {})}, **kwargs)


def random_rollout(policy: Policy, seed: int = 0) -> Rollout:
    """A rollout [N_STEP, N_ENV] of random observations, rewards and episode ends, with actions of the policy."""
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


def parameters(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def trained(learn: dict[str, Any], samples: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
    """Parameters of a fresh policy after one round on these samples."""
    policy = ppo(learn, **kwargs)
    policy.learn_mode.forward(samples)
    return parameters(policy)


def ppg(learn: dict[str, Any] | None = None, arch: str = 'dual', **kwargs: Any) -> Policy:
    """A PPG policy; by default phases of one epoch of one minibatch, and an auxiliary phase after every second rollout."""
    base = dict(batch_size=N, adv_norm='off', learning_rate=1e-2, aux_freq=2, aux_train_epoch=1, aux_batch_size=N)
    kwargs.setdefault('collect', dict(n_step=N_STEP, discount_factor=0.9, gae_lambda=0.8))
    model = {'arch': arch, **kwargs.pop('model', {})}
    return make_policy(
        OBS, kwargs.pop('action_space', TWO_ACTIONS), type='ppg', model=model, learn={**base, **(learn or {})}, **kwargs
    )


def to_the_phase(policy: Policy, n: int) -> list[dict[str, Tensor]]:
    """Learns from n rollouts, but holds back the auxiliary phase; returns the samples."""
    found = []
    with phase_held_back(policy):
        for seed in range(n):
            found.append(clone(samples_of(policy, seed)))
            policy.learn_mode.forward(found[-1])
    return found


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the top-level modules in which any bit changed."""
    return {name.split('.')[0] for name in differing(before, after)}


def small_rollout(ends: bool = True) -> Rollout:
    """4 steps of 2 envs: the first has a terminal state after two steps, the second reaches a time limit in its last step."""
    done = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool() & ends
    end = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 1]]).bool() & ends
    data = {
        'obs': torch.zeros(4, 2, 2),
        'action': torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]]),
        'logit': torch.zeros(4, 2, 2),
        'reward': torch.tensor([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0], [8.0, 1.0]]),
        'done': done,
        'traj_flag': end,
    }
    index = end.nonzero()
    return Rollout(data, torch.zeros(2, 2), torch.zeros(len(index), 2), index)  # type: ignore[arg-type]
