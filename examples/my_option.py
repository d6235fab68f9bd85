"""An update option of your own: reward centering (arXiv:2405.09999), with a key, a check, a metric and a state."""

import torch
from pydantic import Field

from zoo import serial_pipeline
from zoo.config.section import Section
from zoo.core.ranks import mean_over
from zoo.core.registry import OPTION_REGISTRY
from zoo.policy.options.base import UpdateOption


class CenteringConfig(Section):
    rate: float = Field(0.1, gt=0, le=1, description='least share of the newest rollout in the mean of rewards')


@OPTION_REGISTRY.register('centering')
class Centering(UpdateOption):
    """Advantages and returns count how far each reward lies above the mean reward so far."""

    config = CenteringConfig
    names = ('reward_mean',)

    def __init__(self, cfg):
        self.rate, self.n_rollout, self.mean = cfg.rate, 0, torch.zeros(())

    def problems(self, policy):
        if policy.cfg.learn.reward_norm:
            yield "option 'centering' and policy.learn.reward_norm both say how rewards count; leave one of them out"

    def fill(self, update, policy):
        self.ranks = policy.run.ranks
        self.mean = self.mean.to(policy.device)
        update.reward_scale.fill(self, self.centered)  # refused where reward_norm fills it too

    def centered(self, data, weight):  # rewards [T, B] of a rollout; weights of mean 1 over all ranks, or None
        reward = data['reward']
        self.n_rollout += 1
        share = max(self.rate, 1 / self.n_rollout)
        newest = (reward if weight is None else reward * weight).mean()
        self.mean = self.mean.lerp(mean_over(newest, self.ranks), share)
        return reward - self.mean

    def after_update(self, batch):  # in the log this is learn/reward_mean
        return {'reward_mean': self.mean}

    def state_dict(self):
        return {'centering': {'n_rollout': self.n_rollout, 'mean': self.mean}}

    def load_state_dict(self, state):
        if 'centering' in state:  # not in a checkpoint of a run without this option
            self.n_rollout, self.mean = state['centering']['n_rollout'], state['centering']['mean'].to(self.mean)


config = dict(
    exp_name='my_option',
    max_env_step=50_000,
    env=dict(id='Pendulum-v1'),
    policy=dict(learn=dict(learning_rate=1e-3, options=[dict(type='centering', rate=0.05)])),
)

if __name__ == '__main__':
    serial_pipeline(config)
