"""An env with action masks: 'action_mask' in its info says which actions are allowed, as in gymnasium's Taxi-v4."""

import gymnasium
import numpy as np

from zoo import serial_pipeline


class Heaps(gymnasium.Env):
    """Collect as many coins as you can from five heaps; an empty heap may not be chosen."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (5,), np.float32)  # coins in each heap
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.heaps = self.np_random.integers(1, 10, 5)
        self.n_left = 4
        return self.heaps.astype(np.float32), {'action_mask': self.heaps > 0}

    def step(self, action):
        assert self.heaps[action], 'an empty heap was chosen'
        reward, self.heaps[action] = float(self.heaps[action]), 0
        self.n_left -= 1
        return self.heaps.astype(np.float32), reward, self.n_left == 0, False, {'action_mask': self.heaps > 0}


config = dict(
    exp_name='heaps',
    max_env_step=40_000,
    env=dict(id=Heaps),  # env.action_mask is 'auto': found in the info of a reset
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), collect=dict(n_step=128)),
)

if __name__ == '__main__':
    serial_pipeline(config)
