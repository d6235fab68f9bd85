"""The episodes that both halves of the LunarLander comparison play; imports nothing of zoo, nor of stable-baselines3."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np

ENV = 'LunarLander-v3'
MORE = (0, 20_480, 51_200, 100_352)
"""Env steps after the import at which the policies are compared: multiples of a rollout, 2,048."""
EPISODES = 50
SAMPLED_EPISODES = 20
"""Episodes with actions drawn from the policy, as in training; the mode of a policy with much entropy may do something else."""
FIRST_SEED = 10_000
"""Episode i of each evaluation starts with reset(seed=FIRST_SEED + i)."""


def result_name(library: str, seed: int, draw: int) -> str:
    """The name of the file with the returns of one continuation. Args: seed: of the model; draw: number of its continuation."""
    if draw:
        return f'{library}_{seed}_{draw}.json'
    return f'{library}_{seed}.json'


def returns_of(act: Callable[[np.ndarray], int], n_episode: int = EPISODES) -> list[float]:
    """The returns of the first n_episode episodes. Args: act: from an observation to an action."""
    env = gym.make(ENV)
    found = []
    for episode in range(n_episode):
        obs, _ = env.reset(seed=FIRST_SEED + episode)
        total = 0.0
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            ended = terminated or truncated
        found.append(total)
    return found
