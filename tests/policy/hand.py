"""Policies whose critic is a function of the observed number, and one rollout of them in every way to reset envs."""

from __future__ import annotations

from typing import Any

import torch

from tests.policy_envs import TWO_ACTIONS, HandModel, make_policy
from zoo.core.data import Rollout
from zoo.core.seeding import stream
from zoo.core.spaces import Box
from zoo.env import EnvConfig, make_vector_env
from zoo.policy.base import Policy
from zoo.worker.collector import Collector

MODES = {
    **{
        f'{how} {mode}': dict(id='tests.envs:limit_env', vectorization=how, autoreset=mode)
        for how in ('sync', 'async')
        for mode in ('same_step', 'next_step', 'disabled')
    },
    'batched same_step': dict(id='tests.envs:LimitSameStep-v0', vectorization='batched'),
    'batched next_step': dict(id='tests.envs:Limit-v0', vectorization='batched'),
    'batched disabled': dict(id='tests.envs:LimitDisabled-v0', vectorization='batched'),
}
OBS = Box(torch.zeros(1).numpy(), torch.full((1,), torch.inf).numpy())

# gamma .9, lambda .5, V(s) = 10 + s at step s of an episode, reward 1:
#   delta(s) = 1 + .9 * (11 + s) - (10 + s) = .9 - .1 s, which holds for s = 4 too if the time limit is a truncation;
#   if the end is terminal, delta(4) = 1 - 14 = -13 (with the first observation of the next episode 1 + 9 - 14 = -4)
#   adv(s) = delta(s) + .45 * adv(s + 1)
EPISODE = {
    'truncated': [1.476928125, 1.2820625, 1.07125, 0.825, 0.5],
    'terminated': [0.92334375, 0.051875, -1.6625, -5.25, -13.0],
}


def hand_policy(value: Any, n_step: int, lambda_: float, gamma: float = 0.9, **learn: Any) -> Policy:
    """A policy with a collect mode only; its critic is the function `value` of the observed number."""
    collect = dict(n_step=n_step, discount_factor=gamma, gae_lambda=lambda_)
    sections = dict(network=HandModel(value), enable_field=['collect'], learn=learn, collect=collect)
    return make_policy(OBS, TWO_ACTIONS, **sections)


def collect(policy: Policy, env: dict[str, Any], n_env: int = 2) -> Rollout:
    """One rollout from a fresh collector."""
    vector = make_vector_env(EnvConfig(**env), n_env)
    try:
        collector = Collector([vector], policy.collect_mode)
        collector.reset(stream(0, 'test'))
        return collector.collect()
    finally:
        vector.close()
