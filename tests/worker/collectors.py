"""Collectors on the env of `tests.envs` whose episodes have 5 steps, one for each kind of autoreset."""

from __future__ import annotations

from typing import Any

from tests.policy_envs import make_policy
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_vector_env
from zoo.worker.collector import Collector

SAME_STEP = dict(id='tests.envs:limit_env', vectorization='sync', autoreset='same_step')
NEXT_STEP = dict(id='tests.envs:limit_env', vectorization='sync', autoreset='next_step')
BATCHED = dict(id='tests.envs:Limit-v0', vectorization='batched')


def make_collector(env: dict[str, Any], n_step: int, n_env: int = 2, network: Any = None, **policy: Any) -> Collector:
    vector = make_vector_env(EnvConfig(**env), n_env)
    mode = make_policy(
        vector.obs_space,
        vector.action_space,
        network=network,
        enable_field=['collect'],
        **{'collect': dict(n_step=n_step), **policy},
    ).collect_mode
    collector = Collector([vector], mode)
    collector.reset(stream(0, 'test'))
    return collector
