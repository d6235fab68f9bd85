"""Gets values and probabilities from a trained policy, saves and loads it, and takes a gradient step by hand."""

import numpy as np
import torch

from zoo import load_policy, serial_pipeline

quiet = ['logger.console=off', 'logger.tensorboard=false']
run = serial_pipeline('cartpole_ppo', seed=0, max_env_step=2_048, overrides=quiet)
obs = np.zeros((8, 4), np.float32)  # 8 observations; one alone, [4], is taken too

policy = load_policy(run.run_dir, fields='all')  # with its optimiser; without fields it acts alone
assert policy.act(obs).shape == (8,)  # greedy, as the env takes them
drawn = policy.act(obs, deterministic=False, generator=torch.Generator().manual_seed(0))
value = policy.value(obs)  # [8], in the unit of returns
dist = policy.distribution(obs)
assert drawn.shape == value.shape == dist.entropy().shape

action, log_prob, value = policy.sample(obs)
env_action = policy.env_action(action)  # clipped or rescaled where the actions are numbers

judged = policy.evaluate_actions(obs, action)  # with gradient
assert torch.allclose(judged.log_prob, log_prob)
(-judged.log_prob.mean() + 0.5 * judged.value.square().mean()).backward()
assert all(p.grad is not None for p in policy.model.parameters())

path = policy.save('my_policy.safetensors', env_step=run.env_step)
copy = load_policy(path, fields='all')
assert torch.equal(copy.value(obs), policy.value(obs))
critic_only = load_policy(path, only=['critic_*', 'value_head.*'])  # all else begins anew, and the log says what
assert torch.equal(critic_only.value(obs), policy.value(obs))
print(serial_pipeline('cartpole_ppo', policy=copy, max_env_step=2_048, overrides=quiet).train_iter)
