"""A model of your own for continuous actions, without helper functions: the logit is mu and sigma, concatenated."""

import torch

from zoo import MODEL_REGISTRY, Section, serial_pipeline


@MODEL_REGISTRY.register('linear_gaussian')
class LinearGaussian(torch.nn.Module):
    config = Section  # no fields of its own

    def __init__(self, cfg, obs_space, action_space):
        super().__init__()
        n_obs, n_action = obs_space.shape[0], action_space.shape[0]
        self.actor, self.critic = torch.nn.Linear(n_obs, n_action), torch.nn.Linear(n_obs, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(n_action))

    def compute_actor(self, obs):  # [..., O] -> [..., 2 * D]
        mu = self.actor(obs)
        sigma = self.log_std.exp().expand_as(mu)
        return torch.cat((mu, sigma), -1)

    def compute_critic(self, obs):  # [..., O] -> [...]
        return self.critic(obs).squeeze(-1)

    def compute_actor_critic(self, obs):
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


config = dict(
    exp_name='linear_gaussian',
    max_env_step=16_384,
    env=dict(id='Pendulum-v1', collector_env_num=4),
    policy=dict(type='ppo', model=dict(type='linear_gaussian'), collect=dict(n_step=1024)),
)

if __name__ == '__main__':
    serial_pipeline(config)
