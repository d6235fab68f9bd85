"""A vector env of your own: one object steps all envs, like a simulator that computes many envs at once."""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from zoo import serial_pipeline


class Swarm(gymnasium.vector.VectorEnv):
    """Points on a line, each to be kept close to 0 by a push to the left or right."""

    metadata = {'autoreset_mode': AutoresetMode.SAME_STEP}  # when an ended episode is reset: here in the same step

    def __init__(self, num_envs, wind=0.1, max_episode_steps=50):
        self.num_envs, self.wind, self.limit = num_envs, wind, max_episode_steps
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # place, speed
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options=None):  # one seed for all; list[int] if it takes one for each
        super().reset(seed=seed)
        self.state = self._first(self.num_envs)
        self.n_step = np.zeros(self.num_envs, int)
        return self.state.copy(), {}

    def step(self, actions):
        push = np.where(actions == 1, 0.1, -0.1) + self.np_random.normal(0.0, self.wind, self.num_envs)
        self.state[:, 1] = 0.9 * self.state[:, 1] + push
        self.state[:, 0] += self.state[:, 1]
        self.n_step += 1
        lost, late = np.abs(self.state[:, 0]) > 2.0, self.n_step == self.limit
        reward = 1.0 - np.minimum(np.abs(self.state[:, 0]), 1.0)
        ended = lost | late
        info = {'final_obs': self.state.copy()} if ended.any() else {}  # the last observations, before the reset
        self.state[ended], self.n_step[ended] = self._first(int(ended.sum())), 0
        return self.state.copy(), reward, lost, late & ~lost, info

    def _first(self, n):
        return self.np_random.uniform(-0.5, 0.5, (n, 2)).astype(np.float32)


config = dict(
    exp_name='my_vector_env',
    max_env_step=65_536,
    env=dict(id=Swarm, kwargs=dict(wind=0.02), collector_env_num=64, max_episode_steps=40),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3, epoch_per_collect=10), collect=dict(n_step=32)),
)

if __name__ == '__main__':
    serial_pipeline(config)
