"""CHAIN (Tang and Berseth 2024, arXiv:2409.04792), its policy part: steps change the policy less on other rows.

loss = that of PPO + c * mean(KL(previous || now)) over as many other rows of the batch as a minibatch has, drawn for each
step. `previous` is the policy of one step ago: the KL from the present policy, and its gradient, would be 0. c = share *
|policy_loss| / KL * learning rate / first learning rate, with means of the last 100 updates; first the penalty's weight.
Departs: the authors' code for MuJoCo has the squared distance of the means in place of the KL.
"""

import copy
from functools import partial

import torch
from pydantic import Field

from zoo import OPTION_REGISTRY, PENALTY_REGISTRY, Section, serial_pipeline
from zoo.config.schedule import schedule_value
from zoo.core.data import first_leaf, map_tensors
from zoo.core.errors import UserError
from zoo.core.seeding import reseed, torch_generator
from zoo.policy import UpdateOption


@PENALTY_REGISTRY.register('chain')
def chain(dist, output, minibatch):  # -> [N], of the drawn rows
    if 'previous' not in output:
        raise UserError(
            "the penalty 'chain' needs the option 'chain', which draws rows; add it to policy.learn.options"
        )
    return dist.kl(output['previous'], output['now'])


class ChainConfig(Section):
    share: float = Field(0.1, gt=0, description='size of the penalty, as a share of the policy loss')


@OPTION_REGISTRY.register('chain')
class Chain(UpdateOption):
    config = ChainConfig

    def __init__(self, cfg):
        self.share, self.past, self.c = cfg.share, [], None  # past: |policy_loss| and KL of each update

    def problems(self, policy):
        names, learn = [penalty.name for penalty in policy.objective.penalties], policy.cfg.learn
        is_alone = policy.run.ranks.size == 1 and not policy.has_state
        if 'chain' not in names or learn.compile != 'off' or not is_alone or hasattr(policy, 'natural_step'):
            yield "option 'chain' needs policy.learn.penalties=[chain], compile=off, no memory, one process, and no trpo"
        if learn.adv_norm == 'off':  # most of |policy_loss| may then be the mean advantage, which no step can change
            yield "option 'chain' follows the size of the policy loss but adv_norm is 'off'; use adv_norm=minibatch"

    def fill(self, update, policy):
        self.policy, self.stream = policy, torch_generator(policy.seed, 'chain', policy.device)
        self.previous = copy.deepcopy(policy.model, {id(x): x for x in policy.model.buffers()})  # buffers are shared
        update.around_forward.append(lambda forward: partial(self.forward, forward))

    def before_update(self, batch):
        policy, self.obs = self.policy, batch['obs']
        reseed(self.stream, policy.seed, 'chain', policy.passes.train_iter)
        if self.past:
            (loss, kl), rate = torch.tensor(self.past).mean(0).tolist(), policy.rates['learning_rate']
            self.c = self.share * loss / (kl + 1e-8) * rate / schedule_value(policy.cfg.learn.learning_rate, 0)
        return batch

    def choose_weights(self):
        return {} if self.c is None else {'chain': self.c}

    def after_passes(self, batch, trained):
        now = [float(trained.steps[name].abs().mean()) for name in ('policy_loss', 'penalty_chain')]
        self.past = [*self.past, now][-100:]
        return {}

    @torch.no_grad()
    def model_replaced(self):
        for old, new in zip(self.previous.parameters(), self.policy.model.parameters(), strict=True):
            old.copy_(new)

    policy_moved = model_replaced

    def forward(self, forward, model, method, minibatch):  # -> outputs of the model by name, minibatch as rows
        output, rows = forward(model, method, minibatch)
        if torch.is_grad_enabled() and method in ('compute_actor', 'compute_actor_critic'):  # a step on the policy
            n, where = len(output['logit']), self.stream.device
            at = torch.randint(len(first_leaf(self.obs)), (n,), generator=self.stream, device=where)
            obs = map_tensors(lambda x: x[at], self.obs)
            with torch.no_grad():
                output['previous'] = self.previous.compute_actor(obs)
            output['now'] = model.compute_actor(obs)
            self.model_replaced()  # after the step, this is the policy before it
        return output, rows

    def state_dict(self):
        return {'chain': {'past': self.past, 'previous': dict(self.previous.named_parameters())}}

    def load_state_dict(self, state):
        if 'chain' in state:
            self.past = state['chain']['past']
            self.previous.load_state_dict(state['chain']['previous'], strict=False)


learn = dict(options=['chain'], penalties=['chain'], compile='off')
config = dict(max_env_step=50_000, env=dict(id='CartPole-v1'), policy=dict(learn=learn))

if __name__ == '__main__':
    serial_pipeline(config)
