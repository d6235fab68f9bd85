"""RPO (Rahman and Xue 2022, arXiv:2212.07536): gradient steps see the mean of a Gaussian shifted by uniform noise.

The policy is then Normal(mu + z, sigma), z ~ U(-alpha, alpha), new for each number of an action, row and pass. Acting,
evaluation and the old log-probabilities have no shift. z depends on the seed and the step alone, so there is no state.
"""

from functools import partial

import torch
from pydantic import Field

from zoo import OPTION_REGISTRY, Section, serial_pipeline
from zoo.backend.choose import Named
from zoo.core.seeding import reseed, torch_generator
from zoo.policy import UpdateOption


class RPOConfig(Section):
    alpha: float = Field(0.5, gt=0, description='largest shift of the mean; the authors use 0.01 for Ant and Hopper')


@OPTION_REGISTRY.register('rpo')
class RPO(UpdateOption):
    config = RPOConfig
    components = (Named('option', "the option 'rpo'"),)  # C takes no steps, since it does not know this

    def __init__(self, cfg):
        self.alpha = cfg.alpha

    def problems(self, policy):
        if policy.dist.name not in ('gaussian', 'squashed_gaussian'):
            yield f"option 'rpo' shifts the mean of a Gaussian but the actions are {policy.dist.name}; leave it out"

    def fill(self, update, policy):
        self.seed, self.rank = policy.seed, policy.run.ranks.rank
        self.generator = torch_generator(policy.seed, 'rpo', policy.device)
        update.each_pass.fill(self, self.shifted)
        update.around_forward.append(lambda forward: partial(self.forward, forward))

    def shifted(self, columns, train_iter):  # of one pass, [N, ...]; train_iter: gradient steps before it
        mu, sigma = columns['logit'].chunk(2, -1)
        stream = reseed(self.generator, self.seed, 'rpo', self.rank, train_iter)
        z = torch.empty_like(mu).uniform_(-self.alpha, self.alpha, generator=stream)
        return {**columns, 'shift': torch.cat((z, torch.zeros_like(sigma)), -1)}

    def forward(self, forward, model, method, minibatch):  # -> outputs of the model by name, minibatch as rows
        output, rows = forward(model, method, minibatch)
        if 'shift' in rows and 'logit' in output:
            output = {**output, 'logit': output['logit'] + rows['shift']}
        return output, rows


learn = dict(learning_rate=1e-3, options=[dict(type='rpo', alpha=0.5)])
config = dict(exp_name='rpo', max_env_step=50_000, env=dict(id='Pendulum-v1'), policy=dict(learn=learn))

if __name__ == '__main__':
    serial_pipeline(config)
