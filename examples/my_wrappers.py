"""Wrappers around envs: gymnasium's and your own, by name in a config or as classes, with any vectorization."""

import gymnasium

from zoo import serial_pipeline


class ShowLess(gymnasium.ObservationWrapper):
    """Hides some numbers of the observation: the policy sees 0 in their place."""

    def __init__(self, env, hidden):
        super().__init__(env)
        self.hidden = hidden

    def observation(self, obs):
        obs = obs.copy()
        obs[self.hidden] = 0.0
        return obs


config = dict(
    exp_name='my_wrappers',
    max_env_step=65_536,
    env=dict(
        id='CartPole-v1',
        collector_env_num=8,
        wrappers=[  # the first is the innermost
            dict(type=ShowLess, hidden=[1, 3]),  # no speeds: 4 observations together show them
            dict(type='gymnasium.wrappers:FrameStackObservation', stack_size=4),
            'gymnasium.wrappers:FlattenObservation',
        ],
    ),
    policy=dict(type='ppo', collect=dict(n_step=128)),
)

if __name__ == '__main__':
    serial_pipeline(config)
