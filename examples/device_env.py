"""An env as a tensor program: thousands of copies step at once, on the device on which the policy learns."""

import numpy as np
import torch

from zoo import serial_pipeline
from zoo.env import TENSOR_ENV_REGISTRY, Box, Discrete, TensorEnv


@TENSOR_ENV_REGISTRY.register('Corridor-v0')
class Corridor(TensorEnv):
    """Walk right to the end of a corridor, against a wind that throws you back now and then."""

    action_space = Discrete(2)
    max_episode_steps = 100
    n_noise, n_step_noise = 1, 1

    def __init__(self, length: int = 10, wind: float = 0.1):
        self.length, self.wind = length, wind
        self.obs_space = Box(np.zeros(1), np.ones(1))

    def reset(self, noise):  # [N, 1] -> state: [N] places in the left half
        return (noise[:, 0] * self.length / 2).floor()

    def step(self, state, action, noise):  # [B], [B] int64, [B, 1] -> state, reward, terminated
        move = torch.where(noise[:, 0] < self.wind, -1, 2 * action - 1)
        state = (state + move).clamp(min=0)
        at_end = state >= self.length
        return state, at_end.float() - 0.01, at_end

    def observe(self, state):  # [N] -> [N, 1]
        return (state / self.length).unsqueeze(1)


config = dict(
    exp_name='corridor',
    max_env_step=40_000,
    env=dict(id='torch', game='Corridor-v0', collector_env_num=32, kwargs=dict(length=12)),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), collect=dict(n_step=64)),
)

if __name__ == '__main__':
    serial_pipeline(config)
