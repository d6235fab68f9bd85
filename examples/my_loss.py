"""The losses alone: one gradient of PPO's policy loss on hand-made data, without policy, env or config."""

import torch

from zoo.rl_utils import gae, gae_data, ppo_policy_data, ppo_policy_error

T, B, A = 5, 4, 3  # steps, envs, actions
value, reward = torch.zeros(T, B), torch.ones(T, B)
next_value = torch.zeros(T, B)  # of the true successor, also where the episode ended
done = torch.zeros(T, B, dtype=torch.bool)  # the reached state is terminal: no bootstrap
traj_flag = done.clone()  # the trace stops: terminal, or cut off by a time limit
adv = gae(gae_data(value, next_value, reward, done, traj_flag), gamma=0.99, lambda_=0.95)

logit = torch.zeros(T, B, A, requires_grad=True)
action = torch.zeros(T, B, dtype=torch.int64)
loss, info = ppo_policy_error(ppo_policy_data(logit, logit.detach(), action, adv), clip_ratio=0.2)
(loss.policy_loss - 0.01 * loss.entropy_loss).backward()
print(info.approx_kl, info.clipfrac, logit.grad.shape)  # detached 0-dim tensors; [T, B, A]
