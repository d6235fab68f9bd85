"""Clients for tests of served runs: they play an env whose observations are (episode, step), both unique."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from zoo.client import PolicyClient

TOKEN = 'a-token'


class TicketEnv(gymnasium.Env):
    """Spaces of the clients' env; it cannot be played here, as a plant cannot."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, **kwargs: Any) -> Any:
        raise NotImplementedError('clients have the env')

    step = reset


def play(client: PolicyClient, first: int, n_episode: int, limit: int = 4) -> None:
    """Plays episodes of `limit` steps, which have the numbers from `first` on; every step has the reward 1."""
    for number in range(first, first + n_episode):
        name = client.start_episode()
        for step in range(limit):
            client.get_action(name, np.array([number, step], np.float32))
            client.log_returns(name, 0.25)
            client.log_returns(name, 0.75)
        client.end_episode(name, np.array([number, limit], np.float32), truncated=True)


def served_config(root: Any, max_env_step: int = 48, **sections: Any) -> dict[str, Any]:
    """A run of rollouts of 16 steps."""
    return dict(
        max_env_step=max_env_step,
        pipeline=dict(type='serve', port=0, evaluate=False),
        logger=dict(root=str(root), console='off', tensorboard=False, freq=1),
        env=dict(id='tests.run.serving.clients:TicketEnv', collector_env_num=2),
        policy=dict(
            model=dict(hidden_sizes=[8]),
            learn=dict(batch_size=16, epoch_per_collect=1, learning_rate=1e-3),
            collect=dict(n_step=8),
        ),
        **sections,
    )
