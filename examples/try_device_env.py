"""Steps the env of device_env.py by hand, with checks that find mistakes while you write an env."""

import device_env  # registers Corridor-v0
import torch

from zoo.env import EnvConfig, check_env, make_vector_env

config = EnvConfig(id='torch', game=device_env.config['env']['game'], kwargs={'wind': 0.0})
check_env(config)  # a few random steps, twice: the same seed must give the same
env = make_vector_env(config, n_env=4, device='cpu')  # or 'cuda'
obs = env.reset(seed=0)
for _ in range(20):
    step = env.step(torch.ones(4, dtype=torch.int64))  # all go right: the end is at most 10 steps away
assert (step.next_obs <= 1).all()
env.check()  # raises if anything was not finite
