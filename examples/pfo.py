"""PFO (Moalla et al. 2024, arXiv:2405.00662): a penalty on the change of the actor's last hidden layer in an update.

loss = that of PPO + weight * mean((phi - phi_old)^2), over rows and features; phi: the layer before its activation, phi_old:
when the update began. The paper sums over features; the authors' code has the mean and weight 1 for tanh, 10 for relu.
"""

from functools import partial

from zoo import OPTION_REGISTRY, PENALTY_REGISTRY, Section, serial_pipeline
from zoo.core.errors import UserError
from zoo.model.encoder import MLP
from zoo.model.layers import ACTIVATIONS
from zoo.policy import UpdateOption


@PENALTY_REGISTRY.register('pfo')
def pfo(dist, output, minibatch):  # -> [N]
    if 'phi' not in output:
        raise UserError("the penalty 'pfo' needs the option 'pfo', which finds phi; add it to policy.learn.options")
    return (output['phi'] - minibatch['phi_old']).square().mean(-1)


@OPTION_REGISTRY.register('pfo')
class Features(UpdateOption):
    config = Section  # no fields: the weight is that of the penalty

    def __init__(self, cfg):
        pass

    def problems(self, policy):
        encoder, has_head = getattr(policy.model, 'actor_encoder', None), policy.cfg.model.get('actor_head')
        is_plain = type(encoder) is MLP and encoder.norms is None and not has_head
        if policy.has_state or not is_plain or len(policy.obs_space.shape or ()) != 1:
            yield "option 'pfo' needs an actor that is an mlp on a vector, without layer_norm, actor_head and memory"
        if 'pfo' not in [penalty.name for penalty in policy.objective.penalties]:
            yield "option 'pfo' is given but policy.learn.penalties has no 'pfo'; add {type: pfo, weight: 1.0}"

    def fill(self, update, policy):
        self.model = policy.model
        update.around_forward.append(lambda forward: partial(self.forward, forward))

    def phi(self, obs):  # [N, O] -> [N, F]
        encoder, x = self.model.actor_encoder, self.model.input(obs)
        for layer in encoder.layers[:-1]:
            x = ACTIVATIONS[encoder.activation](layer(x))
        return encoder.layers[-1](x)

    def before_update(self, batch):
        return {**batch, 'phi_old': self.phi(batch['obs']).detach()}

    def forward(self, forward, model, method, minibatch):  # -> outputs of the model by name, minibatch as rows
        output, rows = forward(model, method, minibatch)
        return ({**output, 'phi': self.phi(rows['obs'])} if 'phi_old' in rows and 'logit' in output else output), rows


config = dict(
    max_env_step=50_000, env=dict(id='CartPole-v1'), policy=dict(learn=dict(options=['pfo'], penalties=['pfo']))
)

if __name__ == '__main__':
    serial_pipeline(config)
