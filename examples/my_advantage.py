"""Advantages of your own: an estimator is a function of a rollout's values, rewards and ends, all [T, B]."""

import torch

from zoo import ESTIMATOR_REGISTRY, serial_pipeline


@ESTIMATOR_REGISTRY.register('td_error')
def td_error(data, gamma, lambda_, *, bound: float = 1.0):
    """The error of the critic over one step, limited; the critic learns the return of that step."""
    return_ = data.reward + gamma * data.next_value * (1 - data.done.to(data.value.dtype))
    return torch.clamp(return_ - data.value, -bound, bound), return_


config = dict(max_env_step=20_000, env=dict(id='CartPole-v1'), policy=dict(collect=dict(estimator='td_error')))

if __name__ == '__main__':
    serial_pipeline(config)
