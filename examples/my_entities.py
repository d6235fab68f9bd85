"""Observations of entities whose number changes: the best paid unit in sight decides which side is right."""

import gymnasium
import numpy as np

from zoo import serial_pipeline


class PayingUnits(gymnasium.Env):
    """One step: up to five units in sight, each with a pay and a side; the action is the side of the best paid one."""

    observation_space = gymnasium.spaces.Dict(
        {'units': gymnasium.spaces.Sequence(gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32))}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        n = int(self.np_random.integers(1, 6))
        side = self.np_random.integers(0, 2, n)
        pay = self.np_random.random(n)
        self.best = int(side[pay.argmax()])
        return {'units': tuple(np.stack((pay, side, 1 - side), 1).astype(np.float32))}, {}

    def step(self, action):
        return {'units': ()}, float(action == self.best), True, False, {}


config = dict(
    exp_name='paying_units',
    max_env_step=60_000,
    env=dict(
        id=PayingUnits,
        wrappers=[dict(type='zoo.env.padded_sets:PaddedSets', n_max=6)],
    ),
    policy=dict(
        type='ppo',
        model=dict(encoder=dict(type='entities', hidden_size=32)),
        learn=dict(learning_rate=1e-3),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
