"""A limit on costs: the better action costs something, and the limit allows it in 3 of 10 episodes."""

import gymnasium
import numpy as np

from zoo import serial_pipeline


class TwoArms(gymnasium.Env):
    """One step: action 1 pays 1 and costs 1, action 0 pays 0.2 and costs nothing."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = 1.0 if action == 1 else 0.2
        return np.zeros(1, np.float32), reward, True, False, {'cost': float(action == 1)}


config = dict(
    exp_name='two_arms',
    max_env_step=200_000,
    env=dict(id=TwoArms, collector_env_num=16),
    policy=dict(
        type='ppo',
        collect=dict(n_step=64),
        learn=dict(
            adv_norm='off',
            entropy_weight=0.1,  # so that both actions are tried until the end
            learning_rate=dict(start=3e-3, end=0.0),
            constraint=dict(type='pid', limits={'cost': 0.3}, kp=0.5, ki=0.1),
        ),
    ),
)

if __name__ == '__main__':
    result = serial_pipeline(config)
    share = result.policy.sample(np.zeros((10_000, 1), np.float32)).action.float().mean().item()
    print(f'{share:.3f} of the actions are 1')  # the best policy within the limit: 0.3, with a mean reward of 0.44
