"""An env of your own: a gymnasium.Env, and a registered function that makes it."""

import gymnasium
import numpy as np

from zoo import ENV_REGISTRY, serial_pipeline


class Rocket(gymnasium.Env):
    """Fly up from the ground to a height with two engines, and stay there."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # distance to the goal, speed
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)  # thrust

    def __init__(self, height):
        self.height = height

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # makes self.np_random: draw all random numbers from it
        self.y, self.speed = self.np_random.uniform(0.0, 0.5), 0.0
        return self._obs(), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * float(action[0])
        self.y += self.speed
        crashed = self.y < -1.0
        reward = -1.0 if crashed else 1.0 - min(abs(self.height - self.y), 1.0)
        return self._obs(), reward, crashed, False, {}  # terminated: crashed; truncated: never, the limit is below

    def _obs(self):
        return np.array([self.height - self.y, self.speed], np.float32)


@ENV_REGISTRY.register('rocket')
def rocket(height=3.0):
    return gymnasium.wrappers.TimeLimit(Rocket(height), max_episode_steps=100)


config = dict(
    exp_name='rocket',
    max_env_step=40_000,
    env=dict(id='rocket', kwargs=dict(height=4.0)),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3, epoch_per_collect=10), collect=dict(n_step=128)),
)

if __name__ == '__main__':
    serial_pipeline(config)
