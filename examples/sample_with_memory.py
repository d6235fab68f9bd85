"""A loop of one's own with a policy that has a memory: actions, log-probabilities and values, with the state between the calls."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from zoo import make_policy

same_step = dict(autoreset_mode=AutoresetMode.SAME_STEP)
envs = gym.make_vec('CartPole-v1', num_envs=8, vectorization_mode='sync', vector_kwargs=same_step)
memory = dict(cell='gru', hidden_size=16)
policy = make_policy(dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo', model=dict(recurrent=memory))))
obs, _ = envs.reset(seed=0)

begins = np.ones(8, bool)
drawn = policy.sample(obs, begins=begins)
obs, _, terminated, truncated, _ = envs.step(policy.env_action(drawn.action))
begins = terminated | truncated  # envs that begin a new episode with this observation
drawn = policy.sample(obs, state=drawn.state, begins=begins)

print('values', drawn.value.numpy().round(3))
envs.close()
