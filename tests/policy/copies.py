"""Policies of many configs that are copied, and their whole state."""

from __future__ import annotations

from typing import Any

from tests.policy.networks import network as model_with
from tests.policy.updates import N_ENV, N_STEP, OBS, N, samples_of
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo.policy.base import Policy

NORMS: dict[str, Any] = dict(batch_size=N // 2, value_norm=True, reward_norm=True, learning_rate=1e-2)
PHASES: dict[str, Any] = dict(aux_freq=3, aux_batch_size=N)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    'ppo native': ('ppo', dict(learn=dict(executor='native', **NORMS), model=dict(obs_norm=True))),
    'ppo eager box': ('ppo', dict(learn=dict(executor='eager', **NORMS), space=ONE_NUMBER)),
    'ppg native box': ('ppg', dict(learn=dict(executor='native', **NORMS, **PHASES), space=ONE_NUMBER)),
    'ppg eager': ('ppg', dict(learn=dict(executor='eager', **NORMS, **PHASES), model=dict(obs_norm=True))),
    'ppg detach, disk': ('ppg', dict(learn=dict(aux_memory='disk', **NORMS, **PHASES), model=dict(arch='detach'))),
    'ppg shared, cpu': ('ppg', dict(learn=dict(aux_memory='cpu', **NORMS, **PHASES), model=dict(arch='shared'))),
    'ppo_offpolicy native': ('ppo_offpolicy', dict(learn=dict(executor='native', **NORMS))),
    'ppg_offpolicy': ('ppg_offpolicy', dict(learn=dict(executor='eager', **NORMS, **PHASES), space=ONE_NUMBER)),
    'dropout': ('ppo', dict(network='dropout')),
    **{
        next(iter(learn)): ('ppo', dict(learn=learn))
        for learn in (
            dict(proximal='ewma'),
            dict(optimizer='muon'),
            dict(value_loss='hl_gauss'),
            dict(plasticity={'type': 'shrink_perturb', 'every': 2}),
            dict(penalties=[{'type': 'kl', 'target': 0.01}]),
            dict(intrinsic='rnd'),
            dict(draw='prioritized'),
            dict(learning_rate={'start': 1e-3, 'kl_target': 0.01}),
            dict(accumulate=2, batch_size=8),
            dict(freeze=['policy_head.*']),
        )
    },
}


def made(kind: str, space: Any = TWO_ACTIONS, network: Any = None, **sections: Any) -> Policy:
    sections.setdefault('learn', {}).setdefault('batch_size', N // 2)
    given = None if network is None else model_with(network)
    return make_policy(OBS, space, type=kind, collect=dict(n_step=N_STEP), network=given, **sections)


def trained(policy: Policy, *seeds: int) -> dict[str, Any]:
    """Trains one round per seed; returns the whole state."""
    policy.collect_mode.begin(seeds[0])  # a state has neither the noise position in a rollout nor open episodes
    policy.collect_mode.forget(slice(0, N_ENV))
    for seed in seeds:
        policy.learn_mode.set_env_step(seed)
        policy.learn_mode.forward(samples_of(policy, seed))
    return everything(policy)


def everything(policy: Policy) -> dict[str, Any]:
    return {**policy.state_dict(), 'memory': policy.memory_state_dict()}
