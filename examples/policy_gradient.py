"""A loss of your own: the policy gradient of REINFORCE as a gradient step that replaces PPO's."""

import torch

from zoo import POLICY_REGISTRY, serial_pipeline
from zoo.policy import PPOPolicy


def policy_gradient_step(model, dist, optimizers, minibatch, loss, numbers):
    """One step on -mean(log p(action) * adv); -> detached 0-dim metrics."""
    log_prob = dist.log_prob(model.compute_actor(minibatch['obs']), minibatch['action'])
    weight = minibatch.get('weight', torch.ones_like(log_prob))
    error = -(log_prob * minibatch['adv'] * weight).mean()
    optimizers[0].zero_grad()
    error.backward()
    return {'policy_loss': error.detach(), 'grad_norm': optimizers[0].step(numbers.grad_clip)}


@POLICY_REGISTRY.register('my_pg')
class MyPG(PPOPolicy):
    step = staticmethod(policy_gradient_step)

    def _monitor_vars_learn(self):
        unused = ('value_loss', 'entropy', 'approx_kl', 'clipfrac')
        return [name for name in super()._monitor_vars_learn() if name not in unused]


config = dict(
    max_env_step=100_000,
    env=dict(id='CartPole-v1', collector_env_num=8),
    policy=dict(
        type='my_pg',
        learn=dict(epoch_per_collect=1, batch_size=None, baseline='none', learning_rate=1e-2),
        collect=dict(n_step=512, estimator='returns'),
    ),
)

if __name__ == '__main__':
    serial_pipeline(config)
